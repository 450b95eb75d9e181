"""The MCP server from its first call to validated results, and what it survives."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp_client import MODEL, SFT, agent, refusal_of, workspace
from repository import ROOT

from tinkerlab.evaluation.checking import check_results
from tinkerlab.mcp.server import TOOLS
from tinkerlab.runs import checkpoints, metrics

PARITY = "def score(completion, answer):\n    return float(len(completion) % 2)\n"
GRPO = {
    "dataset": "tasks.jsonl",
    "base_model": MODEL,
    "reward_code": PARITY,
    "reward_examples": [
        {"completion": "odd", "answer": "1", "expected": 1.0},
        {"completion": "even", "answer": "1", "expected": 0.0},
    ],
    "learning_rate": 0.001,
    "lora_rank": 4,
    "groups_per_batch": 2,
    "group_size": 4,
    "max_tokens": 6,
    "max_eval_tasks": 4,
    "total_steps": 6,
    "eval_every": 3,
}


def losses(run: Path) -> list[float]:
    return [row["train_mean_nll"] for row in metrics.read(run) if "train_mean_nll" in row]


def test_tools_are_listed_without_a_key_and_explained(tmp_path: Path) -> None:
    async def go() -> Any:
        async with agent(workspace(tmp_path / "w")) as a:
            tools = (await a.client.list_tools()).tools
            prompts = (await a.client.list_prompts()).prompts
            resources = (await a.client.list_resource_templates()).resource_templates
            models = await a.call("list_models")
            recipe = await a.client.get_prompt("arithmetic")
        return tools, prompts, resources, models, recipe

    tools, prompts, resources, models, recipe = asyncio.run(go())
    assert {tool.name for tool in tools} == set(TOOLS)
    for tool in tools:
        assert tool.description and len(tool.description) > 40, tool.name
        assert tool.output_schema, tool.name
    assert {p.name for p in prompts} == {p.stem for p in (ROOT / "templates/recipes").glob("*.md")}
    assert {r.uri_template.rsplit("/", 1)[1] for r in resources} == {
        "metrics", "curves", "report", "config",
    }  # fmt: skip
    assert models == {"rehearse": True, "models": [MODEL]}
    assert "Arithmetic by reinforcement learning" in recipe.messages[0].content.text


def test_the_server_loads_nothing_heavy_before_it_is_needed() -> None:
    code = (
        "import sys; sys.path.insert(0, 'scripts')\n"
        "from pathlib import Path\n"
        "from tinkerlab.mcp.server import build\n"
        "from tinkerlab.mcp.settings import Settings\n"
        "build(Settings(Path.cwd()))\n"
        "heavy = {'torch', 'transformers', 'tinker', 'tinker_cookbook', 'matplotlib', 'datasets'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_whole_supervised_fine_tune(tmp_path: Path) -> None:
    folder = workspace(tmp_path / "w")

    async def go() -> dict[str, Any]:
        async with agent(folder) as a:
            data = await a.call("inspect_dataset", data_file_path="chats.jsonl", base_model=MODEL)
            begun = await a.call("init_sft", **SFT)
            first = await a.call("train_sft_step", session_id=begun["session_id"], steps=4)
            told = list(a.progress)
            saved = await a.call("save", session_id=begun["session_id"], name="half")
            replies = await a.call(
                "sample", session_id=begun["session_id"], prompts=["Hi", "Yes?"], max_tokens=4
            )
            last = await a.call("train_sft_step", session_id=begun["session_id"], steps=99)
            branch = await a.call("load", session_id=begun["session_id"], checkpoint="half")
            again = await a.call("train_sft_step", session_id=branch["session_id"], steps=4)
            finished = await a.call("finish", session_id=begun["session_id"])
            listed = await a.call("list_checkpoints", session_id=begun["session_id"])
            after = await a.refused("train_sft_step", session_id=begun["session_id"])
            picture = await a.client.read_resource(f"session://{begun['session_id']}/curves")
            page = await a.client.read_resource(f"session://{begun['session_id']}/report")
        return locals()

    got = asyncio.run(go())
    assert got["data"]["ok"] is True
    session = Path(got["begun"]["folder"])
    assert (got["first"]["step"], got["first"]["steps_done"]) == (4, 4)
    assert got["told"] and got["told"][-1][:2] == (4.0, 4.0)
    assert got["saved"]["saved_as"] == ["half"]
    assert (
        set(got["replies"]["models"]) == {"base", "000004"} and len(got["replies"]["prompts"]) == 2
    )
    assert (got["last"]["state"], got["last"]["step"]) == ("complete", 8)
    # Learned, and the branch repeats exactly what the session did after its checkpoint.
    whole = losses(session / "run")
    assert whole[-1] < whole[0] - 0.5
    assert losses(Path(got["branch"]["folder"]) / "run") == pytest.approx(whole, abs=1e-5)
    assert got["again"]["step"] == 8
    assert got["finished"]["valid"] is True and check_results(session / "results").ok
    assert got["listed"][-1]["name"] == "final" and "is finished" in got["after"]["message"]
    assert got["picture"].contents[0].mime_type == "image/png"
    assert "<html" in got["page"].contents[0].text
    heartbeat = json.loads((session / "heartbeat.json").read_text())
    assert heartbeat["doing"] == "idle" and heartbeat["step"] == 8
    assert {"init.log", "training.log", "sampling.log"} <= {p.name for p in session.glob("*.log")}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_whole_reward_fine_tune(tmp_path: Path) -> None:
    folder = workspace(tmp_path / "w")
    rows = [{"prompt": f"Say {n}.", "answer": str(n)} for n in range(40)]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    async def go() -> dict[str, Any]:
        async with agent(folder, TINKER_MCP_KEEP_REWARD="0.1", TINKER_MCP_KEEP_AFTER="2") as a:
            refused = await a.refused(
                "init_grpo",
                **{**GRPO, "reward_examples": [{"completion": "odd", "expected": 0.0}]},
            )
            silent = await a.refused(
                "init_grpo", **{**GRPO, "reward_code": "def score(completion):\n    return 0.0\n",
                                "reward_examples": []},
            )  # fmt: skip
            begun = await a.call("init_grpo", **GRPO)
            trained = await a.call("train_grpo_step", session_id=begun["session_id"], steps=3)
            wrong = await a.refused("train_sft_step", session_id=begun["session_id"])
            await a.call("train_grpo_step", session_id=begun["session_id"], steps=3)
            finished = await a.call("finish", session_id=begun["session_id"])
            status = await a.call("status", session_id=begun["session_id"])
        return locals()

    got = asyncio.run(go())
    assert got["refused"]["kind"] == "reward_refused" and "expected 0" in got["refused"]["message"]
    assert got["silent"]["kind"] == "not_worth_training"
    session = Path(got["begun"]["folder"])
    assert json.loads((session / "reward_validation.json").read_text())[0]["got"] == 1.0
    assert got["begun"]["checks"], "the pre-flight of the starting policy"
    trained = got["trained"]
    assert trained["step"] == 3 and 0 <= trained["mixed_groups"] <= 1
    assert trained["completions"] and {"completion", "reward"} <= set(trained["completions"][0])
    # The mean parity of replies is near a half: the threshold is passed, a checkpoint is kept.
    assert trained["kept"] is not None and trained["kept"]["step"] >= 2
    assert "method grpo" in got["wrong"]["message"]
    assert got["finished"]["valid"] is True and check_results(session / "results").ok
    assert got["status"][0]["state"] == "finished"
    # Sessions that never began left nothing behind.
    assert [p.name for p in (folder / "tinker-sessions").iterdir() if p.is_dir()].count(
        session.name
    ) == 1
    assert len(list((folder / "tinker-sessions").glob("*/session.json"))) == 1


def server_pids(folder: Path) -> list[int]:
    """The servers of this workspace."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            environment = entry.read_bytes()
            command = entry.with_name("cmdline").read_bytes()
            if f"TINKER_MCP_WORKSPACE={folder}".encode() in environment and (
                b"mcp_server.py" in command
            ):
                found.append(int(entry.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", ["killed", "disconnected"])
def test_a_session_outlives_its_server(tmp_path: Path, how: str) -> None:
    """Killed or left in the middle of a step: the next server goes on, to the same result."""
    folder = workspace(tmp_path / "w")
    settings = {**SFT, "total_steps": 60, "eval_every": 0}

    async def begin() -> tuple[str, Path]:
        async with agent(folder) as a:
            begun = await a.call("init_sft", **settings)
            await a.call("train_sft_step", session_id=begun["session_id"], steps=3)
            step = asyncio.create_task(
                a._call("train_sft_step", {"session_id": begun["session_id"], "steps": 50})
            )
            run = Path(begun["folder"]) / "run"
            while len(losses(run)) < 8:
                await asyncio.sleep(0.2)
            if how == "killed":
                for pid in server_pids(folder):
                    os.kill(pid, signal.SIGKILL)
            step.cancel()
            with contextlib.suppress(BaseException):
                await step
            return begun["session_id"], run

    session_id, run = "", Path()

    def keep(found: tuple[str, Path]) -> None:
        nonlocal session_id, run
        session_id, run = found

    async def first() -> None:
        try:
            keep(await begin())
        except BaseException:
            # A killed server breaks the client's transport; the folder tells what was begun.
            file = next((folder / "tinker-sessions").glob("*/session.json"))
            keep((file.parent.name, file.parent / "run"))

    with contextlib.suppress(BaseException):
        asyncio.run(first())

    async def second() -> dict[str, Any]:
        async with agent(folder) as a:
            listed = await a.call("status")
            for _ in range(60):
                result = await a._call("train_sft_step", {"session_id": session_id, "steps": 2})
                if not result.is_error:
                    break
                refused = refusal_of(result)
                assert refused["kind"] == "busy", refused
                await asyncio.sleep(1)
            return {"listed": listed, "trained": result.structured_content}

    got = asyncio.run(second())
    assert [row["session_id"] for row in got["listed"]] == [session_id]
    before = got["listed"][0]["step"]
    assert before >= 3
    if how == "disconnected":
        assert before >= 8, "the trainer saved what it had done"
    assert got["trained"]["step"] == before + 2

    async def uninterrupted() -> Path:
        async with agent(workspace(tmp_path / "other")) as a:
            begun = await a.call("init_sft", **settings)
            steps = got["trained"]["step"]
            await a.call("train_sft_step", session_id=begun["session_id"], steps=steps)
            return Path(begun["folder"]) / "run"

    other = asyncio.run(uninterrupted())
    assert losses(run) == pytest.approx(losses(other), abs=1e-5)
    assert len(checkpoints.read_rows(run)) >= 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_long_steps_block_neither_status_nor_stop(tmp_path: Path) -> None:
    folder = workspace(tmp_path / "w")

    async def go() -> dict[str, Any]:
        async with agent(folder, TINKER_MCP_BUSY_SECONDS="0.5") as a:
            begun = await a.call("init_sft", **{**SFT, "total_steps": 500, "eval_every": 0})
            session_id = begun["session_id"]
            run = Path(begun["folder"]) / "run"
            training = asyncio.create_task(
                a.call("train_sft_step", session_id=session_id, steps=400)
            )
            while len(losses(run)) < 3:
                await asyncio.sleep(0.2)
            status = await a.call("status", session_id=session_id)
            busy = await a.refused("sample", session_id=session_id, prompts=["Hi"])
            second = await a.refused("train_sft_step", session_id=session_id, steps=1)
            await a.call("stop", session_id=session_id)
            trained = await training
            idle = await a.refused("stop", session_id=session_id)
        return locals()

    got = asyncio.run(go())
    assert got["status"][0]["state"].startswith("training")
    assert got["busy"]["kind"] == got["second"]["kind"] == "busy"
    assert "training 400 steps" in got["busy"]["message"]
    assert 3 <= got["trained"]["step"] < 400 and got["trained"]["checkpoint"] is not None
    assert f"ended at step {got['trained']['step']} of 400" in got["trained"]["advice"][0]
    assert "nothing is going on" in got["idle"]["message"]
