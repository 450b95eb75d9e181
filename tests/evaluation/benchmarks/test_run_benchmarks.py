"""The cookbook's own benchmark code, run on the rehearsal; its items are made here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from repository import ROOT

from tinkerlab.errors import InputError
from tinkerlab.evaluation.benchmarks import catalogue, pricing, running
from tinkerlab.evaluation.benchmarks.config import ELSEWHERE, BenchmarksConfig
from tinkerlab.evaluation.checking import check_results
from tinkerlab.runs import jsonl
from tinkerlab.training import config as configs

SCRIPT = ROOT / "scripts" / "run_benchmarks.py"
# As openai/gsm8k has them: columns question and answer, the number behind ####.
ROWS = [
    {"question": f"Anna has {n} pears and buys {n}. How many?", "answer": f"{n}+{n}\n#### {2 * n}"}
    for n in range(1, 9)
]


@pytest.fixture
def gsm8k(monkeypatch: pytest.MonkeyPatch) -> None:
    """GSM8K's loader gets rows of the same columns instead of the Hub's."""
    from datasets import Dataset
    from tinker_cookbook.eval.benchmarks import gsm8k as module

    def load(path: str, name: str | None = None, split: str = "test") -> Dataset:
        assert (path, name) == ("openai/gsm8k", "main")
        return Dataset.from_list(ROWS)

    monkeypatch.setattr(module, "load_benchmark_dataset", load)


@pytest.fixture
def service(rehearsal: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, rehearsal.env[name])
    return rehearsal


def settings(service: Any, output: Path, **more: Any) -> BenchmarksConfig:
    values = {
        "benchmarks": ["gsm8k"],
        "output": str(output),
        "base_model": service.model,
        "renderer": "qwen3_instruct",
        "max_tokens": 6,
    }
    return BenchmarksConfig(**{**values, **more})


def checkpoint(service: Any, name: str) -> str:
    client = service.client().create_lora_training_client(service.model, rank=2, seed=3).result()
    return client.save_weights_for_sampler(name).result().path


def test_both_models_on_the_same_items(service: Any, gsm8k: None, tmp_path: Path) -> None:
    path = checkpoint(service, "bench-both")
    (outcome,) = running.run_all(settings(service, tmp_path, checkpoint=path), None, False)
    assert outcome.summary is not None
    folder = tmp_path / "gsm8k"
    # Without --run there are no logs to show; all else obeys the contract.
    assert {f.where for f in check_results(folder).findings} <= {"summary.json", "logs/"}
    assert all("log" in f.what for f in check_results(folder).findings)
    assert outcome.summary["suite"] == "cookbook:gsm8k"
    assert outcome.summary["dataset"]["source"] == "openai/gsm8k"
    assert outcome.summary["left_out"]["items"] == 0
    records = jsonl.read(folder / "base_model.jsonl")
    assert sorted(int(r["ground_truth"]) for r in records) == [2 * n for n in range(1, 9)]
    asked = {str(2 * n): row["question"] for n, row in enumerate(ROWS, start=1)}
    assert all(asked[r["ground_truth"]] in r["question"] for r in records)
    # A random model never answers a sum in six tokens; the reply is cut, which is reported.
    assert outcome.summary["baseline_score"] == outcome.cookbook_scores["base"] == 0.0
    assert outcome.summary["facts"]["base"]["truncated"] == len(records) == 8


def test_many_threads_in_one_tokenizer(service: Any) -> None:
    """Without the lock, transformers' fast tokenizer raises "Already borrowed" in most tries."""
    from concurrent.futures import ThreadPoolExecutor

    from tinkerlab.data import load_tokenizer
    from tinkerlab.evaluation.benchmarks.threads import one_at_a_time

    tokenizer = one_at_a_time(load_tokenizer(service.model))
    texts = [f"some words {n} " * 300 for n in range(200)]
    with ThreadPoolExecutor(16) as pool:
        there = list(pool.map(tokenizer.encode, texts))
        back = list(pool.map(tokenizer.decode, there))
    assert len(back) == 200 and all(there)


def test_scores_are_the_cookbook_s_on_replies_that_are_known(tmp_path: Path) -> None:
    """Trajectories as its runner writes them: its score is the share of rewards above 0."""
    from tinker_cookbook.eval.benchmarks import REGISTRY, gsm8k  # noqa: F401
    from tinker_cookbook.eval.benchmarks._types import StoredTrajectory, StoredTurn

    rewards = [1.0, 0.0, 1.0, 0.0, 1.0]
    stored = [
        StoredTrajectory(
            idx=n,
            benchmark="gsm8k",
            example_id=f"gsm8k_{n}",
            turns=[StoredTurn("user", f"Q{n}"), StoredTurn("assistant", f"A{n}")],
            reward=reward,
            logs={"expected": str(n), "extracted": f"{n}.0"},
        )
        for n, reward in enumerate(rewards)
    ]
    file = tmp_path / "trajectories.jsonl"
    file.write_text("".join(json.dumps(t.to_dict()) + "\n" for t in stored))
    items = running.read_items(file, {f"gsm8k_{n}": str(n) for n in range(5)})
    theirs = REGISTRY["gsm8k"].aggregate(rewards, [{} for _ in rewards]).score
    assert sum(item.correct for item in items) / len(items) == theirs == 0.6
    assert (items[2].completion, items[2].ground_truth, items[2].extracted) == ("A2", "2", "2.0")


def test_a_failed_item_is_asked_again(service: Any, gsm8k: None, tmp_path: Path) -> None:
    """The cookbook's runner would count it as wrong for ever."""
    config = settings(service, tmp_path, max_examples=4)
    (first,) = running.run_all(config, None, False)
    assert first.summary is not None and first.summary["dataset"]["items"] == 4
    file = tmp_path / "raw" / "base" / "gsm8k" / "trajectories.jsonl"
    rows = jsonl.read(file)
    rows[1] |= {"error": "timeout (1s)", "turns": [], "reward": 0.0}
    jsonl.rewrite(file, rows)
    left = running.read_items(file, {})
    assert [item.error for item in left].count("timeout (1s)") == 1

    (again,) = running.run_all(config, None, False)
    assert again.summary is not None and again.summary["left_out"]["items"] == 0
    answered = jsonl.read(file)
    assert len(answered) == 4 and all(row["error"] is None for row in answered)
    # The three others were not asked again.
    kept = {row["example_id"]: row["time_seconds"] for row in rows if row["error"] is None}
    now = {row["example_id"]: row["time_seconds"] for row in answered}
    assert {key: now[key] for key in kept} == kept


def test_an_item_without_an_outcome_is_left_out_of_both(
    service: Any, gsm8k: None, tmp_path: Path
) -> None:
    from tinkerlab.evaluation import suite_results

    def item(name: str, error: str | None = None) -> suite_results.SuiteItem:
        return suite_results.SuiteItem(name, f"Q{name}", "1", "1", True, error=error)

    run = suite_results.SuiteRun(
        "cookbook:x",
        {"base": "b", "trained": "tinker://r/sampler_weights/x"},
        "b",
        "role_colon",
        "made here",
        {},
    )
    found = {
        "base": [item("a"), item("b"), item("c")],
        "trained": [item("b", "timeout"), item("a")],
    }
    summary = suite_results.write(tmp_path, run, found)
    assert [r["id"] for r in jsonl.read(tmp_path / "base_model.jsonl")] == ["a"]
    assert summary["left_out"] == {
        "items": 2,
        "reasons": {"trained: timeout": 1, "not run by trained": 1},
    }
    assert summary["facts"]["trained"]["errors"] == 1


def test_another_evaluation_is_not_mixed_in(service: Any, gsm8k: None, tmp_path: Path) -> None:
    running.run_all(settings(service, tmp_path, max_examples=2), None, False)
    other = settings(service, tmp_path, max_examples=2, temperature=0.0)
    with pytest.raises(InputError, match=r"another evaluation \(other sampling\)"):
        running.run_all(other, None, False)
    (outcome,) = running.run_all(other, None, True)
    assert (
        outcome.summary is not None and outcome.summary["settings"]["sampling"]["temperature"] == 0
    )


def test_a_dataset_that_is_not_here_stops_only_itself(
    service: Any, gsm8k: None, tmp_path: Path
) -> None:
    config = settings(service, tmp_path, benchmarks=["gpqa", "gsm8k"], max_examples=2)
    missing, there = running.run_all(config, None, False)
    assert missing.summary is None and there.summary is not None
    assert "Idavidrein/gpqa can't be had" in str(missing.error)
    assert "HF_HOME" in str(missing.error)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"benchmarks": ["gsm8"]}, "did you mean gsm8k"),
        ({"benchmarks": ["mbpp"]}, "eval_offline.py --grader code_tests"),
        ({"benchmarks": ["arena_hard"]}, "set judge_model"),
        ({"benchmarks": ["gsm8k"], "checkpoint": "tinker://r/weights/x"}, "sampler_weights"),
    ],
)
def test_refused_before_the_service_is_asked(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    config = BenchmarksConfig(**{"output": str(tmp_path), "base_model": "x/y", **changes})
    with pytest.raises(InputError, match=complaint):
        running.run_all(config, None, False)


@pytest.mark.parametrize("key", ELSEWHERE)
def test_settings_of_the_cookbook_are_refused_by_name(key: str) -> None:
    with pytest.raises(InputError, match=key):
        configs.load(BenchmarksConfig, None, [f"{key}=1", "benchmarks=gsm8k"], ELSEWHERE)


def test_the_config_covers_the_cookbook_s() -> None:
    """A setting that a newer BenchmarkConfig has must be taken or refused on purpose."""
    import dataclasses

    from tinker_cookbook.eval.benchmarks import BenchmarkConfig

    theirs = {field.name for field in dataclasses.fields(BenchmarkConfig)}
    assert theirs - set(configs.field_types(BenchmarksConfig)) <= set(ELSEWHERE)


def test_the_template_has_every_key_with_its_default() -> None:
    import yaml

    template = yaml.safe_load((ROOT / "templates" / "benchmarks-config.yaml").read_text())
    assert set(template) == set(configs.field_types(BenchmarksConfig))
    config = configs.load(BenchmarksConfig, None, ["benchmarks=gsm8k", "base_model=x"])
    for key, value in template.items():
        if key not in ("benchmarks", "base_model"):
            assert getattr(config, key) == value, key


def test_the_catalogue_is_the_package_s() -> None:
    from tinker_cookbook.eval.benchmarks import REGISTRY

    found = {entry.name: entry for entry in catalogue.entries()}
    assert set(found) == set(REGISTRY) and len(found) >= 20
    assert found["gsm8k"].dataset == "openai/gsm8k" and not found["gsm8k"].experimental
    assert found["swe_bench"].experimental and "sandbox" in found["swe_bench"].needs[0]


def test_sizes_in_the_plan() -> None:
    def items(name: str, most: int | None = None) -> int:
        config = BenchmarksConfig(benchmarks=[name], base_model="Qwen/Qwen3-8B", max_examples=most)
        return pricing.plan(config, None)["benchmarks"][0]["items"]

    assert [items(n) for n in ("gsm8k", "gpqa", "math500", "ceval")] == [1319, 198, 500, 12000]
    assert items("gsm8k", 50) == 50 and items("ifeval", 50) == 50


def call(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("TINKER")}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_dry_run_needs_no_key(tmp_path: Path) -> None:
    words = ("benchmarks=gsm8k", "base_model=Qwen/Qwen3-8B", "max_tokens=1000")
    done = call("--dry-run", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # 1,319 items x (200 prompt tokens at 0.195 + 1,000 at 0.60 USD per million), by hand.
    assert f"at most ${1319 * (200 * 0.195 + 1000 * 0.60) / 1e6:,.2f}" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "missing: benchmarks"),
        (("benchmarks=gsm8k",), "say what is measured"),
        (("benchmark=gsm8k",), "did you mean benchmarks?"),
        (("benchmarks=gsm8k", "run=nowhere"), "no such folder"),
        (("benchmarks=gsm8k", "base_model=x", "max_examples=0"), "at least 1"),
        (("--config", "no.yaml"), "no.yaml"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, arguments: tuple[str, ...], complaint: str) -> None:
    done = call(*arguments, cwd=tmp_path)
    assert done.returncode == 2 and complaint in done.stderr
    assert "Traceback" not in done.stderr
