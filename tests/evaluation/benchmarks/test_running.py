"""The cookbook's own benchmarks run on the rehearsal: scores, both models, resume, refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from evaluation.benchmarks.benchmark_rows import BY_NAME, GPQA, MADE

from tinkerlab.errors import InputError
from tinkerlab.evaluation.benchmarks import running, trajectories
from tinkerlab.evaluation.checking import check_results
from tinkerlab.runs import jsonl


def raw(output: Path, benchmark: str, key: str = "base") -> Path:
    return trajectories.file_of(output / benchmark / "raw" / key, benchmark)


def right(benchmark: str, reply: str, answer: str) -> bool:
    """A grader of our own, for the replies of the trained model and the rows that are made here."""
    text = reply.removesuffix("<|im_end|>")
    if benchmark == "ifeval":
        (rule,) = json.loads(answer)
        words = len(text.split())
        return words >= rule["num_words"] if "num_words" in rule else "," not in text
    if len(answer) == 1 and answer.isalpha():
        return bool(re.search(rf"\b{answer}\b", text))
    found = re.search(r"boxed\{(.*)\}", text)
    return found is not None and found.group(1) == answer


def test_every_benchmark_scores_what_an_own_grader_finds(
    hub: Any, make: Any, known: str, tmp_path: Path
) -> None:
    for made in MADE:
        hub.put(made.dataset, made.rows, made.config, made.split)
    config = make(benchmarks=[made.name for made in MADE], checkpoint=known, max_tokens=60)
    outcomes = running.run_all(config, None, False)
    for outcome in outcomes:
        summary = outcome.summary
        assert summary is not None, outcome.error
        folder = tmp_path / "out" / outcome.name
        # Without a run there are no logs to show; all else obeys the contract.
        assert all("log" in finding.what for finding in check_results(folder).findings)
        assert summary["suite"] == f"cookbook:{outcome.name}"
        assert summary["dataset"]["source"] == BY_NAME[outcome.name].dataset
        assert summary["left_out"]["items"] == 0
        records = jsonl.read(folder / "trained_model.jsonl")
        graded = [right(outcome.name, r["completion"], r["ground_truth"]) for r in records]
        assert graded == [r["correct"] for r in records], outcome.name
        # The reply is known, and one of the two rows asks for it.
        assert summary["trained_score"] == 0.5, outcome.name
        assert summary["facts"]["trained"]["truncated"] == 0
        for key, name in (("base", "baseline_score"), ("trained", "trained_score")):
            assert summary["cookbook"][key]["score"] == summary[name]
            assert summary["cookbook"][key]["num_examples"] == 2
        experimental = any("experimental" in told for told in summary["cautions"])
        assert experimental == (outcome.name in ("hmmt_feb_2025", "longbench"))
        # A random model rarely ends by itself: it is cut, and cut replies are not graded ...
        cut = summary["facts"]["base"]["truncated"]
        told = "replies that were cut are graded as they stand" in summary["cautions"]
        assert told == (outcome.name == "longbench")  # ... but here
        if not told:
            assert cut == summary["cookbook"]["base"]["num_truncated"]


def test_both_models_on_the_same_items(pears: Any, make: Any, known: str, tmp_path: Path) -> None:
    (outcome,) = running.run_all(make(checkpoint=known), None, False)
    summary = outcome.summary
    assert summary is not None
    folder = tmp_path / "out" / "gsm8k"
    records = jsonl.read(folder / "base_model.jsonl")
    # In the dataset's order, in whichever order the replies came.
    assert [r["ground_truth"] for r in records] == ["4", "9", "4", "10", "10", "4", "14", "1,125"]
    assert all(row["question"] in r["question"] for row, r in zip(pears, records, strict=True))
    assert "Put your final answer in \\boxed{}." in records[0]["question"]
    assert summary["trained_score"] == 3 / 8
    assert summary["models"]["renderer"] == "qwen3_instruct"
    other = jsonl.read(folder / "trained_model.jsonl")
    assert [r["question"] for r in other] == [r["question"] for r in records]


def test_one_model_and_the_run_it_came_from(
    pears: Any, make: Any, known: str, service: Any, tmp_path: Path
) -> None:
    from tinkerlab.evaluation import offline_run

    (outcome,) = running.run_all(make(base_model=None, checkpoint=known), None, False)
    assert outcome.summary is not None and outcome.summary["score"] == 3 / 8
    assert (outcome.summary["model"], outcome.summary["base_model"]) == (known, service.model)

    folder = tmp_path / "run"
    folder.mkdir()
    told = {"base_model": service.model, "run_name": "pears", "renderer": "role_colon"}
    (folder / "config.json").write_text(json.dumps(told))
    (folder / "metrics.jsonl").write_text('{"step": 0}\n')
    row = {"name": "final", "step": 1, "sampler_path": known, "state_path": known}
    (folder / "checkpoints.jsonl").write_text(json.dumps(row) + "\n")
    config = make(
        base_model=None,
        run=str(folder),
        output=str(tmp_path / "of-run"),
        renderer=None,
        max_examples=2,
    )
    (outcome,) = running.run_all(config, offline_run.read(folder), False)
    assert outcome.summary is not None
    assert outcome.summary["models"]["renderer"] == "role_colon"
    verdict = check_results(tmp_path / "of-run" / "gsm8k")
    assert verdict.ok, verdict.findings


def test_failed_items_are_asked_again_and_no_others(pears: Any, make: Any, tmp_path: Path) -> None:
    """The cookbook's runner would count them as wrong for ever."""
    config = make(max_examples=4)
    (first,) = running.run_all(config, None, False)
    assert first.summary is not None and first.summary["left_out"]["items"] == 0
    file = raw(tmp_path / "out", "gsm8k")
    rows = jsonl.read(file)
    rows[1] |= {"error": "timeout (1s)", "turns": [], "reward": 0.0}
    jsonl.rewrite(file, rows)
    # An evaluation that is complete is not touched again, so this one must be seen as broken off.
    (tmp_path / "out" / "gsm8k" / "scores.json").unlink()

    (again,) = running.run_all(config, None, False)
    assert again.summary is not None and again.summary["left_out"]["items"] == 0
    answered = jsonl.read(file)
    assert len(answered) == 4 and all(row["error"] is None for row in answered)
    kept = {row["example_id"]: row["time_seconds"] for row in rows if row["error"] is None}
    now = {row["example_id"]: row["time_seconds"] for row in answered}
    assert {key: now[key] for key in kept} == kept
    assert again.summary["dataset"]["sha256"] == first.summary["dataset"]["sha256"]


def test_items_that_ran_out_of_time_are_left_out_of_both(
    pears: Any, make: Any, known: str, tmp_path: Path
) -> None:
    config = make(checkpoint=known, max_examples=3, timeout_seconds=1e-4)
    (outcome,) = running.run_all(config, None, False)
    assert outcome.summary is None
    assert "no item has an outcome for every model" in str(outcome.error)
    assert "timeout (0.0001s)" in str(outcome.error)
    # What the service does not say in time is no wrong answer; how long it may take is no
    # setting that makes another evaluation.
    (outcome,) = running.run_all(make(checkpoint=known, max_examples=3), None, False)
    assert outcome.summary is not None and outcome.summary["dataset"]["items"] == 3


def test_a_complete_evaluation_is_not_touched_again(
    pears: Any, make: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    (first,) = running.run_all(make(max_examples=2), None, False)
    monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:9")  # nobody is asked
    (again,) = running.run_all(make(max_examples=2), None, False)
    assert again.summary == json.loads(json.dumps(first.summary))


def test_another_evaluation_is_not_mixed_in(pears: Any, make: Any, tmp_path: Path) -> None:
    running.run_all(make(max_examples=2), None, False)
    other = make(max_examples=2, temperature=0.5, per_benchmark={"gsm8k": {"max_tokens": 7}})
    with pytest.raises(InputError, match=r"gsm8k holds another evaluation \(other sampling\)"):
        running.run_all(other, None, False)
    before = raw(tmp_path / "out", "gsm8k").read_bytes()
    (outcome,) = running.run_all(other, None, True)
    assert outcome.summary is not None
    sampling = outcome.summary["settings"]["sampling"]
    assert (sampling["temperature"], sampling["max_tokens"]) == (0.5, 7)
    assert raw(tmp_path / "out", "gsm8k").read_bytes() != before
    # The other benchmarks of the same output may have other settings: each has its own folder.
    strange = tmp_path / "out" / "gpqa"
    strange.mkdir()
    (strange / "scores.json").write_text("{}")
    with pytest.raises(InputError, match=r"gpqa holds another evaluation \(other origin\)"):
        running.run_all(make(benchmarks=["gpqa"]), None, False)


def test_a_dataset_that_is_not_here_stops_only_itself(pears: Any, make: Any) -> None:
    config = make(benchmarks=["gpqa", "aime", "gsm8k"], max_examples=2)
    gated, empty, there = running.run_all(config, None, False)
    assert gated.summary is None and empty.summary is None and there.summary is not None
    assert "Idavidrein/gpqa can't be had" in str(gated.error)
    assert "MathArena/aime_2025 can't be had" in str(empty.error)


def test_cautions_are_in_the_summary(hub: Any, make: Any, known: str) -> None:
    hub.put("Idavidrein/gpqa", GPQA, "gpqa_diamond", "train")
    made = BY_NAME["longbench"]
    hub.put(made.dataset, made.rows, made.config, made.split)
    config = make(benchmarks=["gpqa", "longbench"], system_prompt="Think.", max_tokens=8)
    gpqa, longbench = running.run_all(config, None, False)
    assert gpqa.summary is not None and longbench.summary is not None
    assert any("all 8 items have the same answer" in told for told in gpqa.summary["cautions"])
    assert "it makes no use of system_prompt" in longbench.summary["cautions"]
    assert "it makes no use of system_prompt" not in gpqa.summary["cautions"]


def test_a_judge_without_a_verdict_makes_no_wrong_answer(
    hub: Any, make: Any, known: str, service: Any, tmp_path: Path
) -> None:
    turns = [{"turns": [{"content": f"Write {n} lines."}], "cluster": "x"} for n in (1, 2)]
    hub.put("lmarena-ai/arena-hard-auto-v0.1", turns, split="train")
    # The trained model judges as well: its "answer is B \boxed{4}" is no verdict.
    config = make(benchmarks=["arena_hard"], judge_model=known, max_tokens=8)
    (outcome,) = running.run_all(config, None, False)
    assert outcome.summary is None
    assert f"base: {trajectories.NO_VERDICT}" in str(outcome.error)


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


def test_a_path_that_can_t_be_sampled_is_refused_before_the_service_is_asked(make: Any) -> None:
    with pytest.raises(InputError, match="sampler_weights"):
        running.run_all(make(checkpoint="tinker://r/weights/x"), None, False)
