"""scripts/run_benchmarks.py as a user starts it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from evaluation.benchmarks.benchmark_rows import BY_NAME
from repository import ROOT

from tinkerlab.runs import jsonl

COMMAND = [sys.executable, str(ROOT / "scripts" / "run_benchmarks.py")]


def call(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    plain = {key: value for key, value in os.environ.items() if not key.startswith("TINKER")}
    return subprocess.run(
        [*COMMAND, *words], env=env or plain, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def env(service: Any, tmp_path: Path) -> dict[str, str]:
    return {**os.environ, **service.env, "HF_DATASETS_CACHE": str(tmp_path / "cache")}


def test_two_models_as_a_document_and_for_people(
    pears: Any, known: str, service: Any, env: dict[str, str]
) -> None:
    words = (
        *("benchmarks=[gsm8k,gpqa]", f"base_model={service.model}", f"checkpoint={known}"),
        *("renderer=qwen3_instruct", "max_tokens=40", "temperature=0", "output=out"),
    )
    done = call(*words, "--json", env=env)
    assert done.returncode == 1, done.stderr  # gpqa is not here
    gsm8k, gpqa = json.loads(done.stdout)
    assert gsm8k["summary"]["trained_score"] == 3 / 8 and gsm8k["error"] is None
    assert gpqa["summary"] is None and "can't be had" in gpqa["error"]
    assert "gsm8k: 8 items" in done.stderr and "DEPRECATED" not in done.stderr

    again = call(*words, env=env)
    assert again.returncode == 1
    assert re.search(r"^gsm8k: 0\.\d{4} -> 0\.3750; .+", again.stdout, re.MULTILINE)
    assert "caution: where a reply marks no answer, its last number counts" in again.stdout
    assert "failed: gpqa: its dataset Idavidrein/gpqa" in again.stdout
    assert "replies (base) were cut before their end; raise max_tokens" in again.stdout
    assert "already holds this evaluation" in again.stderr
    assert "tml-" not in done.stdout + done.stderr + again.stdout + again.stderr


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL], ids=lambda s: s.name)
def test_interrupted_it_goes_on(
    hub: Any, known: str, service: Any, env: dict[str, str], ending: signal.Signals
) -> None:
    rows = [
        {"question": f"Anna has {n} pears and buys 3. How many?", "answer": f"#### {n + 3}"}
        for n in range(40)
    ]
    hub.put("openai/gsm8k", rows, config="main")
    words = (
        *("benchmarks=gsm8k", f"base_model={service.model}", "concurrency=1", "output=out"),
        *("renderer=qwen3_instruct", "max_tokens=200", "temperature=0", f"checkpoint={known}"),
    )
    file = Path("out/gsm8k/raw/base/gsm8k/trajectories.jsonl")
    with subprocess.Popen([*COMMAND, *words], env=env, stderr=subprocess.PIPE, text=True) as going:
        while going.poll() is None and (not file.exists() or len(jsonl.read(file)) < 3):
            time.sleep(0.02)
        going.send_signal(ending)
        _, said = going.communicate(timeout=60)
    assert going.returncode == (130 if ending == signal.SIGINT else -ending), said
    assert "Traceback" not in said
    before = jsonl.read(file)
    assert 3 <= len(before) < 40
    assert not Path("out/gsm8k/summary.json").exists()

    done = call(*words, "--json", env=env)
    assert done.returncode == 0, done.stderr
    after = jsonl.read(file)
    assert after[: len(before)] == before  # nothing is asked twice
    assert sorted(row["idx"] for row in after) == list(range(40))
    (found,) = json.loads(done.stdout)
    # Greedy, so that the result is the one of a run in one go: only 1 + 3 is 4.
    assert found["summary"]["trained_score"] == 1 / 40
    assert found["summary"]["dataset"]["items"] == 40
    records = jsonl.read(Path("out/gsm8k/base_model.jsonl"))
    assert [record["ground_truth"] for record in records] == [str(n + 3) for n in range(40)]


def test_the_list_and_a_plan_need_no_key(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    listed = call("--list")
    assert listed.returncode == 0, listed.stderr
    assert "needs a sandbox (not here)" in listed.stdout
    assert "caution: the choices are not shuffled" in listed.stdout
    entries = {entry["name"]: entry for entry in json.loads(call("--list", "--json").stdout)}
    assert entries["gsm8k"]["items"] == 1319

    words = ("benchmarks=gsm8k", "base_model=Qwen/Qwen3-8B", "max_tokens=1000")
    done = call("--dry-run", *words)
    assert done.returncode == 0, done.stderr
    # 1,319 items x (200 prompt tokens at 0.195 + 1,000 at 0.60 USD per million), by hand.
    assert f"at most ${1319 * (200 * 0.195 + 1000 * 0.60) / 1e6:,.2f}" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "missing: benchmarks"),
        (("benchmark=gsm8k",), "did you mean benchmarks?"),
        (("benchmarks=gsm8k", "run=nowhere"), "no such folder"),
        (("benchmarks=mbpp", "base_model=x"), "eval_offline.py --grader code_tests"),
        (("--config", "no.yaml"), "no.yaml"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, monkeypatch: Any, arguments: tuple[str, ...], complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call(*arguments)
    assert done.returncode == 2 and complaint in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_replies_of_a_real_model_are_graded_as_by_hand(
    hub: Any, start_rehearsal: Any, tmp_path: Path
) -> None:
    """SmolLM2 reads and answers; our own reading of its replies finds the same scores."""
    sums = [(n, m) for n in range(2, 6) for m in (1, 4, 7)]
    rows = [{"question": f"What is {n} plus {m}?", "answer": f"#### {n + m}"} for n, m in sums]
    hub.put("openai/gsm8k", rows, config="main")
    made = BY_NAME["mmlu_pro"]
    hub.put(made.dataset, made.rows, made.config, made.split)
    with start_rehearsal(model="HuggingFaceTB/SmolLM2-135M-Instruct") as server:
        env = {**os.environ, **server.env, "HF_DATASETS_CACHE": str(tmp_path / "cache")}
        words = ("max_tokens=120", "temperature=0", "output=out", f"base_model={server.model}")
        done = call("benchmarks=[gsm8k,mmlu_pro]", *words, "--json", env=env)
    assert done.returncode == 0, done.stderr
    gsm8k, mmlu = (found["summary"] for found in json.loads(done.stdout))
    records = jsonl.read(Path("out/gsm8k/base_model.jsonl"))
    marks = []
    for record in records:
        assert record["completion"].strip()
        boxed = re.findall(r"boxed\{[^0-9-]*(-?[\d.]+)", record["completion"])
        numbers = re.findall(r"-?\d+", record["completion"].split("<|")[0])
        read = boxed[0] if boxed else (numbers[-1] if numbers else "")
        ended = not record["truncated"]
        marks.append(ended and read != "" and float(read) == float(record["ground_truth"]))
    assert marks == [record["correct"] for record in records], records
    assert gsm8k["score"] == sum(marks) / len(marks) == gsm8k["cookbook"]["base"]["score"]
    assert mmlu["dataset"]["items"] == 2
