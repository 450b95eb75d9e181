"""Items by the cookbook's own loaders: answers, ids, and data that is missing or half there."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from evaluation.benchmarks.benchmark_rows import BY_NAME, CEVAL, GPQA, MADE, REDUX, Made

from tinkerlab.evaluation.benchmarks import catalogue, caveats, loading


class Renderer:
    """All that is asked of one before a prompt is rendered."""

    tokenizer = None

    def get_stop_sequences(self) -> list[str]:
        return []


def load(name: str, **settings: Any) -> loading.Loaded:
    from tinker_cookbook.eval.benchmarks import BenchmarkConfig

    return loading.load(name, Renderer(), BenchmarkConfig(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("made", MADE, ids=lambda made: made.name)
def test_reference_answers_are_those_of_the_rows(hub: Any, made: Made) -> None:
    hub.put(made.dataset, made.rows, made.config, made.split)
    loaded = load(made.name)
    # Some are shuffled even where all are taken; nothing else may change.
    assert sorted(loaded.answers.values()) == sorted(made.answers)
    assert catalogue.entry(made.name).dataset == made.dataset
    assert loaded.tells_cut == (made.name != "longbench")


def test_max_examples_takes_the_first_ones(hub: Any, pears: list[dict[str, str]]) -> None:
    assert list(load("gsm8k", max_examples=3).answers.values()) == ["4", "9", "4"]


RUNNABLE = [
    *(made.name for made in MADE),
    *("aime", "aime_2026", "bfcl", "ceval", "gpqa", "hmmt_nov_2025", "ifbench", "mmlu_redux"),
]


def test_that_list_is_the_package_s() -> None:
    runnable = {entry.name for entry in catalogue.entries() if entry.runnable}
    assert runnable == {*RUNNABLE, "arena_hard"}  # which asks for a judge before its dataset


@pytest.mark.parametrize("name", RUNNABLE)
def test_no_benchmark_goes_on_without_its_data(hub: Any, name: str) -> None:
    """Seven of them return no items instead of an error, which the runner scores 0."""
    with pytest.raises(loading.NoItemsError) as caught:
        load(name)
    text = str(caught.value)
    assert text.startswith(f"{name}: its dataset {catalogue.entry(name).dataset} can't be had (")
    assert "HF_HOME" in text and "\n" not in text


def test_rows_of_which_none_can_be_used_are_told(hub: Any) -> None:
    hub.put("MathArena/aime_2025", [{"problem": "", "answer": 1}])
    with pytest.raises(loading.NoItemsError, match="no rows that can be used"):
        load("aime_2025")


@pytest.mark.parametrize(
    ("name", "dataset", "split", "rows", "subjects"),
    [
        ("ceval", "ceval/ceval-exam", "val", CEVAL, "_CEVAL_SUBJECTS"),
        ("mmlu_redux", "edinburgh-dawg/mmlu-redux", "test", REDUX, "_SUBJECTS"),
    ],
)
def test_a_missing_subject_is_no_smaller_benchmark(
    hub: Any, monkeypatch: Any, name: str, dataset: str, split: str, rows: Any, subjects: str
) -> None:
    module = importlib.import_module(f"tinker_cookbook.eval.benchmarks.{name}")
    three = getattr(module, subjects)[:3]
    monkeypatch.setattr(module, subjects, three)
    for subject in three[:2]:
        hub.put(dataset, rows, subject, split)
    with pytest.raises(loading.NoItemsError, match=f"1 of its parts are missing.*{three[2]}"):
        load(name)
    hub.put(dataset, rows, three[2], split)
    # The same question in three subjects: three items, as a fresh run of the cookbook counts.
    loaded = load(name)
    assert list(loaded.answers.values()) == ["B"] * 3
    first = next(iter(loaded.answers))
    assert list(loaded.answers) == [first, f"{first}#2", f"{first}#3"]


def test_the_right_choice_of_gpqa_is_always_the_first(hub: Any) -> None:
    hub.put("Idavidrein/gpqa", GPQA, "gpqa_diamond", "train")
    answers = list(load("gpqa").answers.values())
    assert answers == ["A"] * 8
    assert caveats.of_answers(answers) == [
        "all 8 items have the same answer, 'A': a model that always says so scores 1"
    ]
    assert caveats.of_answers([*answers, "B"]) == caveats.of_answers(answers[:7]) == []
    assert caveats.of_answers([""] * 9) == []  # benchmarks without reference answers


def test_the_cookbook_s_loggers_are_left_as_they_were(hub: Any) -> None:
    import logging

    logger = logging.getLogger(loading.LOGGER)
    before = (logger.level, logger.propagate, list(logger.handlers))
    with pytest.raises(loading.NoItemsError):
        load("ceval")
    assert (logger.level, logger.propagate, list(logger.handlers)) == before


def test_data_from_an_earlier_download_is_enough(
    hub: Any, pears: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """What HF_HOME holds serves without the Hub, as the message promises."""
    import shutil

    from datasets import config

    assert len(load("gsm8k").answers) == 8
    # Of a download the cache has the owner in its name, and a hash of the revision.
    cache = Path(config.HF_DATASETS_CACHE)
    (there,) = cache.glob("*gsm8k*/main/0.0.0/*/")
    target = tmp_path / "cache" / "openai___gsm8k" / "main" / "0.0.0" / ("0" * 40)
    shutil.copytree(there, target)
    shutil.rmtree(hub.folder / "openai")
    monkeypatch.setattr(config, "HF_DATASETS_OFFLINE", True, raising=False)
    assert BY_NAME["gsm8k"].dataset == "openai/gsm8k"
    assert len(load("gsm8k").answers) == 8
