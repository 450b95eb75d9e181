"""Hostile and mistaken input gets one structured error, and harms nothing."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from mcp_client import MODEL, SFT, agent, workspace

from tinkerlab.errors import InputError
from tinkerlab.mcp import configs, settings
from tinkerlab.mcp import workspace as paths
from tinkerlab.mcp.errors import Refusal
from tinkerlab.mcp.settings import VARIABLES


def test_what_tools_refuse(tmp_path: Path) -> None:
    folder = workspace(tmp_path / "w")
    (tmp_path / "secret.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (folder / "link.jsonl").symlink_to(tmp_path / "secret.jsonl")
    with (folder / "huge.jsonl").open("wb") as file:
        file.write(b'{"prompt": "')
        for _ in range(100):
            file.write(b"x" * 1_000_000)
        file.write(b'", "completion": "b"}\n')

    async def go() -> dict[str, dict[str, str]]:
        async with agent(folder) as a:
            return {
                "unknown": await a.refused("status", session_id="nope"),
                "traversal": await a.refused("status", session_id="../../etc"),
                "outside": await a.refused("inspect_dataset", data_file_path="../secret.jsonl"),
                "absolute": await a.refused("inspect_dataset", data_file_path="/etc/passwd"),
                "link": await a.refused("inspect_dataset", data_file_path="link.jsonl"),
                "huge": await a.refused("inspect_dataset", data_file_path="huge.jsonl"),
                "missing": await a.refused("init_sft", **{**SFT, "data_file_path": "no.jsonl"}),
                "hosted": await a.refused("init_sft", **{**SFT, "rehearse": False}),
                "two": await a.refused(
                    "init_grpo", dataset="reasoning_gym:chain_sum", base_model=MODEL
                ),
                "no function": await a.refused(
                    "init_grpo", dataset="reasoning_gym:chain_sum", base_model=MODEL,
                    reward_code="x = 1",
                ),
                "no python": await a.refused(
                    "init_grpo", dataset="reasoning_gym:chain_sum", base_model=MODEL,
                    reward_code="def score(",
                ),
            }  # fmt: skip

    got = asyncio.run(go())
    kinds = {name: error["kind"] for name, error in got.items()}
    assert kinds == {
        "unknown": "unknown_session",
        "traversal": "unknown_session",
        "outside": "outside_workspace",
        "absolute": "outside_workspace",
        "link": "outside_workspace",
        "huge": "bad_input",
        "missing": "bad_input",
        "hosted": "bad_input",
        "two": "bad_input",
        "no function": "reward_refused",
        "no python": "reward_refused",
    }
    assert "huge.jsonl:1" in got["huge"]["message"] and "TINKER_API_KEY" in got["hosted"]["fix"]
    assert all(error["fix"] for error in got.values())
    assert list((folder / "tinker-sessions").glob("*/session.json")) == []


def reward(folder: Path, body: str) -> str:
    return configs.write_reward(folder, f"def score(completion, answer):\n{body}")


HOSTILE = {
    "reads the environment": (
        "    import os\n    return 1.0 if 'TML_SECRET' in os.environ else 0.0\n",
        0.0,
    ),
    "prints megabytes": ("    print('x' * 5_000_000)\n    return 1.0\n", 1.0),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_reward_code_is_kept_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("TML_SECRET", "tml-very-secret-key")
    body, expected = HOSTILE[name]
    spec = reward(tmp_path, body)
    (row,) = configs.try_reward(spec, [{"completion": "x", "answer": 1, "expected": expected}])
    assert row["got"] == expected


@pytest.mark.parametrize(
    ("body", "phrase"),
    [
        ("    while True:\n        pass\n", "no result within"),
        ("    return 'good'\n", "number"),
        ("    return float('nan')\n", ""),
        ("    import os\n    os.kill(os.getpid(), 9)\n", ""),
        ("    return 1 / 0\n", "ZeroDivisionError"),
        ("    x = bytearray(20 * 2**30)\n    return 1.0\n", ""),
    ],
    ids=["loops", "text", "nan", "dies", "raises", "memory"],
)
def test_reward_code_that_fails_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, phrase: str
) -> None:
    from tinkerlab.grading import loading

    monkeypatch.setattr(loading.load_grader, "__kwdefaults__", {
        **(loading.load_grader.__kwdefaults__ or {}), "timeout": 2.0,
    })  # fmt: skip
    with pytest.raises(Refusal) as refused:
        configs.try_reward(reward(tmp_path, body), [{"completion": "x", "answer": 1}])
    assert refused.value.kind == "reward_refused" and phrase in refused.value.message


def test_a_forking_reward_leaves_no_process(tmp_path: Path) -> None:
    marker = f"sleep-{os.getpid()}-{time.time_ns()}"
    body = (
        "    import subprocess, sys\n"
        f"    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', '{marker}'])\n"
        "    return 1.0\n"
    )
    try:
        configs.try_reward(reward(tmp_path, body), [{"completion": "x", "answer": 1}])
    except Refusal as refused:
        assert refused.kind == "reward_refused"
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and alive(marker):
        time.sleep(0.2)
    assert not alive(marker)


def alive(marker: str) -> bool:
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in file.read_bytes():
                return True
        except OSError:
            continue
    return False


def test_errors_hold_no_keys() -> None:
    text = Refusal("run_failed", "refused tml-abcdefghijklmnop", "call again").text()
    assert "abcdefghijklmnop" not in text and json.loads(text)["error"]["kind"] == "run_failed"


@pytest.mark.parametrize("given", ["", "a\0b", "../x", "/etc", "sub/../../x"])
def test_paths_stay_inside(tmp_path: Path, given: str) -> None:
    with pytest.raises(Refusal):
        paths.inside(tmp_path.resolve(), given)


def test_settings_come_from_the_environment(tmp_path: Path) -> None:
    found = settings.read({"TINKER_MCP_WORKSPACE": str(tmp_path), "TINKER_MCP_BUSY_SECONDS": "3"})
    assert (found.workspace, found.busy_seconds) == (tmp_path.resolve(), 3.0)
    assert found.keep_after == int(VARIABLES["TINKER_MCP_KEEP_AFTER"][0])
    for bad in ({"TINKER_MCP_WORKSPACE": "/nowhere"}, {"TINKER_MCP_KEEP_REWARD": "high"}):
        with pytest.raises(InputError, match=next(iter(bad))):
            settings.read({"TINKER_MCP_WORKSPACE": str(tmp_path), **bad})


def test_every_variable_is_read_and_told() -> None:
    from repository import ROOT

    code = "".join(p.read_text() for p in (ROOT / "scripts").glob("tinkerlab/mcp/*.py"))
    code += (ROOT / "scripts" / "mcp_server.py").read_text()
    import re

    read = set(re.findall(r'"(TINKER_MCP_[A-Z_]+)"', code)) - {"TINKER_MCP_PYTHON_TRIED"}
    assert read == set(VARIABLES)
    page = (ROOT / "skills" / "research" / "references" / "tools.md").read_text()
    told = dict(re.findall(r"^\| `(TINKER_MCP_[A-Z_]+)` \| (.*?) \|", page, re.MULTILINE))
    assert told == {name: default or "-" for name, (default, _) in VARIABLES.items()}


def test_arguments_are_typed(tmp_path: Path) -> None:
    async def go() -> Any:
        async with agent(workspace(tmp_path / "w")) as a:
            result: Any = await a.client.call_tool("init_sft", {**SFT, "total_steps": 0})
            return result

    result = asyncio.run(go())
    assert result.is_error and "total_steps" in result.content[0].text


@pytest.mark.parametrize(
    "spec", ["../outside.py:score", "/etc/x.py:score", "json_schema:../x.txt", "json_schema:/etc/x"]
)
def test_a_grader_of_the_workspace_only(tmp_path: Path, spec: str) -> None:
    with pytest.raises(Refusal) as refused:
        paths.grader_spec(tmp_path.resolve(), spec)
    assert refused.value.kind == "outside_workspace"


def test_graders_and_tasks_by_name(tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    (folder / "mine.py").write_text("")
    assert paths.grader_spec(folder, "mine.py:score") == f"{folder}/mine.py:score"
    for name in ("exact", "numeric:0.1", "regex:/etc/x.py:y"):
        assert paths.grader_spec(folder, name) == name
    for name in ("human_eval", "reasoning_gym:chain_sum", "hf:openai/gsm8k"):
        assert paths.task_source(folder, name, 100) == name
    with pytest.raises(Refusal, match="outside"):
        paths.task_source(folder, "human_eval/../../x.jsonl", 100)


@pytest.mark.parametrize("given", ["x" * 5000, "~no-such-user/x", "loop"])
def test_what_is_no_path_at_all(tmp_path: Path, given: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(Refusal, match="is not a path"):
        paths.inside(tmp_path.resolve(), given)


@pytest.mark.parametrize("expected", ["1", None, [1], True])
def test_an_expectation_is_a_number(expected: Any) -> None:
    with pytest.raises(Refusal, match="not a number"):
        configs.try_reward("exact", [{"completion": "x", "expected": expected}])


@pytest.mark.parametrize("word", ["a\0b", "x" * 3_000_000, "\ud800"])
def test_an_argument_that_no_process_takes(tmp_path: Path, word: str) -> None:
    from tinkerlab.mcp.jobs import Job, script

    job = Job(script("doctor.py", word), dict(os.environ), tmp_path, tmp_path / "x.log")
    with pytest.raises(Refusal, match="can't be passed on"):
        asyncio.run(job.run())
