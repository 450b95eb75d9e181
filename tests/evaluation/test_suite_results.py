"""The writer of public suites' results: the contract, equal terms, nothing left of before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tinkerlab.errors import CheckFailed
from tinkerlab.evaluation import suite_results
from tinkerlab.evaluation.checking import check_results
from tinkerlab.evaluation.results import copy_logs
from tinkerlab.evaluation.suite_results import SuiteItem, SuiteRun
from tinkerlab.runs import jsonl

TRAINED = "tinker://run-1/sampler_weights/final"


def item(name: str, correct: bool | float = True, **more: Any) -> SuiteItem:
    values = {"question": f"Q{name}", "ground_truth": "1", "completion": f"reply {name}"}
    return SuiteItem(id=name, correct=correct, **{**values, **more})


def suite(models: Sequence[str] = ("base", "trained"), **more: Any) -> SuiteRun:
    names = {"base": "Org/Model", "trained": TRAINED}
    values = {
        "suite": "cookbook:x",
        "models": {key: names[key] for key in models},
        "base_model": "Org/Model",
        "renderer": "role_colon",
        "source": "made/here",
        "settings": {"sampling": {"temperature": 0}},
    }
    return SuiteRun(**{**values, **more})


def test_two_models_leave_what_the_contract_asks_for(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text("{}")
    (run / "metrics.jsonl").write_text('{"step": 0}\n')
    (run / "checkpoints.jsonl").write_text('{"name": "final"}\n')
    out = tmp_path / "out"
    found = {
        "base": [item("a", False), item("b", 0.5), item("c", False, truncated=True)],
        "trained": [item("a"), item("b", 0.5), item("c", extracted="1", truncated=False)],
    }
    summary = suite_results.write(out, suite(log_path=str(run)), found)
    copy_logs(run, out, "run")
    assert check_results(out).ok, check_results(out).findings
    assert (summary["suite"], summary["task_type"]) == ("cookbook:x", "rl")
    # (0 + 1/2 + 0) / 3 and (1 + 1/2 + 1) / 3
    assert summary["baseline_score"] == pytest.approx(1 / 6)
    assert summary["trained_score"] == pytest.approx(5 / 6)
    assert summary["tinker_run_id"] == "run-1"
    assert summary["dataset"]["items"] == 3 and summary["dataset"]["source"] == "made/here"
    assert summary["settings"] == {"sampling": {"temperature": 0}}
    assert summary["facts"]["base"] == {
        "items": 3,
        "replies": 3,
        "errors": 0,
        "first_error": None,
        "truncated": 1,
        "unparsed": None,
        "empty": 0,
    }
    record = jsonl.read(out / "trained_model.jsonl")[2]
    assert record == {
        "index": 2,
        "question": "Qc",
        "ground_truth": "1",
        "completion": "reply c",
        "extracted_answer": "1",
        "correct": True,
        "id": "c",
        "truncated": False,
    }


def test_one_model_leaves_its_score(tmp_path: Path) -> None:
    found = {"trained": [item(str(n), n < 3, unparsed=n == 3) for n in range(4)]}
    summary = suite_results.write(tmp_path, suite(["trained"]), found)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "items.jsonl",
        "scores.json",
        "trained_model.jsonl",
    ]
    assert (summary["model"], summary["base_model"]) == (TRAINED, "Org/Model")
    assert summary["score"] == 0.75
    assert summary["interval"]["low"] <= 0.75 <= summary["interval"]["high"]
    assert summary["facts"]["trained"]["unparsed"] == 1


def test_items_without_an_outcome_of_each_are_left_out_of_both(tmp_path: Path) -> None:
    found = {
        "base": [item("a"), item("b"), item("c"), item("d"), item("e", question="else")],
        "trained": [item("e"), item("d"), item("b", error="timeout"), item("a")],
    }
    summary = suite_results.write(tmp_path, suite(), found)
    for file in ("base_model.jsonl", "trained_model.jsonl"):
        records = jsonl.read(tmp_path / file)
        assert [(r["index"], r["id"]) for r in records] == [(0, "a"), (1, "d")]
    assert summary["left_out"] == {
        "items": 3,
        "reasons": {
            "trained: timeout": 1,
            "not run by trained": 1,
            "the models were asked different things": 1,
        },
    }
    assert summary["facts"]["trained"]["errors"] == 1
    assert summary["facts"]["trained"]["first_error"] == "timeout"


def test_nothing_is_written_where_no_item_is_left(tmp_path: Path) -> None:
    for found, why in (
        ({"base": [item("a", error="no service")]}, "base: no service"),
        ({"base": []}, "there are none"),
    ):
        with pytest.raises(CheckFailed, match=f"cookbook:x: no item has an outcome.*{why}"):
            suite_results.write(tmp_path / "out", suite(["base"]), found)
    assert not (tmp_path / "out").exists()


def test_an_item_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match="item a is there more than once"):
        suite_results.write(tmp_path, suite(["base"]), {"base": [item("a"), item("a", False)]})


def test_nothing_of_an_evaluation_of_other_models_stays(tmp_path: Path) -> None:
    both = {"base": [item("a")], "trained": [item("a", False)]}
    suite_results.write(tmp_path, suite(), both)
    suite_results.write(tmp_path, suite(["base"]), {"base": [item("a")]})
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "base_model.jsonl",
        "items.jsonl",
        "scores.json",
    ]
    suite_results.write(tmp_path, suite(), both)
    assert not (tmp_path / "scores.json").exists()


def test_the_same_items_have_the_same_hash_whoever_answered(tmp_path: Path) -> None:
    """The choice of a checkpoint compares evaluations whose items are equal."""
    first = suite_results.write(tmp_path / "1", suite(["base"]), {"base": [item("a"), item("b")]})
    answers = [replace(item("a"), completion="other"), item("b", False)]
    second = suite_results.write(tmp_path / "2", suite(["trained"]), {"trained": answers})
    assert first["dataset"]["items_sha256"] == second["dataset"]["items_sha256"]
    third = suite_results.write(tmp_path / "3", suite(["base"]), {"base": [item("b"), item("a")]})
    assert third["dataset"]["items_sha256"] != first["dataset"]["items_sha256"]
