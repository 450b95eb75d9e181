"""checkpoint_compare.py as a user runs it; test_side_by_side.py has its parts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from left_runs import REPLY, USER, record, run_folder, sft
from repository import ROOT

SCRIPT = ROOT / "scripts" / "checkpoint_compare.py"


def call(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> Any:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        cwd=cwd,
        env=env or dict(os.environ),
        capture_output=True,
        text=True,
        timeout=300,
    )


def refusal(done: Any) -> str:
    """The one line of a user's mistake."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


ASKED = ("--model", "x/y", "--prompt", "a")
BAD = [
    ((), "name who is asked"),
    (("--prompt", "a"), "name who is asked"),
    (("--model", "x/y"), "give prompts"),
    (("--model", "x/y", "--prompt", "a", "--prompts", "b.txt"), "not both"),
    (("--model", "x/y", "--prompt", " "), "an empty prompt"),
    (("--model", "x/y", "--prompts", "missing.txt"), "missing.txt: No such file"),
    (("--model", "x/y", "--prompts", "missing.jsonl"), "missing.jsonl: No such file"),
    (("--model", "x/y", "--prompts", "empty.txt"), "no prompt in it"),
    (("--model", "x/y", "--prompts", "empty.jsonl"), "is empty"),
    (("--run", "no-run"), "no such folder"),
    (("--run", "new-run"), "no checkpoint to sample from"),
    (("--run", "new-run", "--every-checkpoint"), "no checkpoint to sample from"),
    (("--run", "new-run", "--checkpoint", "final"), "there are: none"),
    (("--every-checkpoint", *ASKED), "needs --run"),
    ((*ASKED, "--output", "a.txt"), ".html or .json"),
    ((*ASKED, "--output", "taken.html"), "taken.html exists"),
    ((*ASKED, "--output", "taken.html/a.json"), "is a file"),
    ((*ASKED, "--output", "dir.json", "--overwrite"), "is a folder"),
    ((*ASKED, "--limit", "0"), "at least 1"),
    ((*ASKED, "--temperature", "-1"), "must not be negative"),
    ((*ASKED, "--temperature", "nan"), "must not be negative"),
    ((*ASKED, "--samples", "2", "--temperature", "0"), "same reply"),
    ((*ASKED, "--checkpoint", "tinker://r/weights/final"), "sampler_weights"),
    ((*ASKED, "--checkpoint", "final"), "tinker://"),
]


@pytest.mark.parametrize(("arguments", "complaint"), BAD, ids=lambda value: str(value)[-60:])
def test_bad_input_is_one_line(tmp_path: Path, arguments: tuple[str, ...], complaint: str) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "taken.html").write_text("mine")
    (tmp_path / "dir.json").mkdir()
    new = run_folder(tmp_path / "new-run", [sft([USER, REPLY])], [record(2, sampler_path=None)])
    (new / "config.json").write_text('{"base_model": "x/y"}')
    assert complaint in refusal(call(*arguments, cwd=tmp_path))
    assert (tmp_path / "taken.html").read_text() == "mine"


@pytest.fixture(scope="module")
def checkpoints(rehearsal: Any) -> SimpleNamespace:
    """Sampler paths of an adapter before its first step and after three wild ones."""
    import tinker

    client = (
        rehearsal.client().create_lora_training_client(rehearsal.model, rank=4, seed=1).result()
    )
    untouched = client.save_weights_for_sampler("untouched").result().path
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints([1, 2, 3, 4]),
        loss_fn_inputs={
            "target_tokens": tinker.TensorData(data=[2, 3, 4, 5], dtype="int64"),
            "weights": tinker.TensorData(data=[1.0] * 4, dtype="float32"),
        },
    )
    for _ in range(3):
        client.forward_backward([datum], "cross_entropy")
        client.optim_step(tinker.AdamParams(learning_rate=0.5))
    trained = client.save_weights_for_sampler("trained").result().path
    return SimpleNamespace(untouched=untouched, trained=trained)


def test_the_whole_of_it(rehearsal: Any, checkpoints: Any, tmp_path: Path) -> None:
    """A trained checkpoint, an untrained one, and their base, which nobody named."""
    arguments = (
        "--checkpoint", checkpoints.untouched, "--checkpoint", checkpoints.trained,
        "--prompt", "Hello", "--prompt", "What is 2 + 2?", "--max-tokens", "6", "--json",
        "--output", "new/page.html", "--output", "all.json",
    )  # fmt: skip
    done = call(*arguments, cwd=tmp_path, env=rehearsal.env)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert json.loads((tmp_path / "all.json").read_text()) == document
    base, untouched, trained = document["models"]
    assert base == "base" and document["models"]["base"] == rehearsal.model
    assert untouched.endswith("/untouched") and trained.endswith("/trained")
    # An adapter starts with B = 0: its replies are the base model's, to the letter.
    assert document["facts"][untouched]["same_as_base"] == 1.0
    assert document["facts"][trained]["same_as_base"] == 0.0
    assert [line[:15] for line in document["warnings"]].count("NOTHING CHANGED") == 1
    assert [len(row["replies"]) for row in document["prompts"]] == [3, 3]
    reply = document["prompts"][0]["replies"]["base"][0]
    assert reply["tokens"] <= 6 and set(reply) == {"text", "tokens", "truncated"}
    page = (tmp_path / "new" / "page.html").read_text()
    assert "NOTHING CHANGED" in page and "What is 2 + 2?" in page

    assert "page.html exists" in refusal(call(*arguments, cwd=tmp_path, env=rehearsal.env))


def test_a_run_brings_its_prompts_and_its_checkpoint(
    rehearsal: Any, trained_run: Any, tmp_path: Path
) -> None:
    run = ("--run", str(trained_run.folder), "--max-tokens", "4")
    done = call(*run, "--limit", "2", cwd=tmp_path, env=rehearsal.env)
    assert done.returncode == 0, done.stderr
    assert "the first 2 of 8 prompts" in done.stderr
    assert "What is the capital of France?" in done.stdout
    assert "The capital of France is Paris." in done.stdout  # the reference
    assert "final" in done.stdout and "What do bees make?" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_own_prompts_and_samples_of_a_run(rehearsal: Any, trained_run: Any, tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("One\nTwo\n")
    run = ("--run", str(trained_run.folder), "--max-tokens", "4")
    done = call(
        *run, "--prompts", "own.txt", "--samples", "3", "--seed", "5", "--system-prompt", "Be odd.",
        "--json", cwd=tmp_path, env=rehearsal.env,
    )  # fmt: skip
    document = json.loads(done.stdout)
    assert [row["messages"][0]["content"] for row in document["prompts"]] == ["One", "Two"]
    assert (
        document["sampling"] | {"temperature": 1.0, "samples": 3, "seed": 5}
        == (document["sampling"])
    )
    assert document["system_prompt"] == "Be odd."
    assert document["facts"]["final"]["replies"] == 6


def test_a_refused_request_names_model_and_prompt(
    rehearsal: Any, checkpoints: Any, tmp_path: Path
) -> None:
    (tmp_path / "two.jsonl").write_text(
        json.dumps({"prompt": "fine"}) + "\n" + json.dumps({"prompt": "word " * 5000}) + "\n"
    )
    done = call(
        "--checkpoint", checkpoints.trained, "--prompts", "two.jsonl", cwd=tmp_path,
        env=rehearsal.env,
    )  # fmt: skip
    *_, line = done.stderr.splitlines()  # after what the SDK and the tokenizer log
    assert done.returncode == 2 and line.startswith("error: the service refused a request")
    assert "context window" in line
    assert line.endswith(
        ("; base was asked two.jsonl line 2", "/trained was asked two.jsonl line 2")
    )


def test_a_service_that_breaks_names_model_and_prompt(start_rehearsal: Any, tmp_path: Path) -> None:
    with start_rehearsal(faults=["corrupt:on=/retrieve_future"]) as broken:
        done = call("--model", broken.model, "--prompt", "a", cwd=tmp_path, env=broken.env)
    assert done.returncode == 1, done.stderr
    assert (
        "failed: the service failed" in done.stderr and "base was asked --prompt 1" in done.stderr
    )


def test_a_checkpoint_that_is_not_there(rehearsal: Any, tmp_path: Path) -> None:
    nobody = "tinker://nobody/sampler_weights/x"
    for model in ((), ("--model", rehearsal.model)):
        done = call(
            *model, "--checkpoint", nobody, "--prompt", "a", cwd=tmp_path, env=rehearsal.env
        )
        assert nobody in refusal(done)


def test_a_checkpoint_of_another_base(tmp_path: Path) -> None:
    import tinker

    from tinkerlab.rehearsal.service.launch import DUMMY_KEY, rehearsal_server

    with rehearsal_server(["tiny:llama", "tiny:qwen3"], store=tmp_path / "store") as server:
        service = tinker.ServiceClient(base_url=server.base_url, api_key=DUMMY_KEY)
        client = service.create_lora_training_client("tiny:llama", rank=2).result()
        path = client.save_weights_for_sampler("llama").result().path
        done = call(
            "--model", "tiny:qwen3", "--checkpoint", path, "--prompt", "a", cwd=tmp_path,
            env=server.env,
        )  # fmt: skip
        if service._session_holder is not None:
            service._session_holder.close()
    assert f"{path} was trained on tiny:llama, not on tiny:qwen3" in refusal(done)


def test_nobody_answers(tmp_path: Path) -> None:
    env = {**os.environ, "TINKER_API_KEY": "tml-test", "TINKER_BASE_URL": "http://127.0.0.1:9"}
    assert "does not answer" in refusal(call(*ASKED, cwd=tmp_path, env=env))
