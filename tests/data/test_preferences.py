"""Preference pairs: the shapes that are read, what is refused, and how they are split."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tinkerlab.data.preference_check import check_pairs
from tinkerlab.data.preferences import (
    LoadedPairs,
    contradictions,
    is_preference_file,
    repeated,
    scan_pairs,
    shared_pairs,
    split_pairs,
)
from tinkerlab.errors import InputError

Write = Callable[..., Path]
ASK = [{"role": "user", "content": "A colour?"}]


def reply(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def pair(prompt: Any = "A colour?", chosen: Any = "Blue.", rejected: Any = "No.") -> dict[str, Any]:
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def comparison(label: str) -> dict[str, Any]:
    sides = {"completion_A": [reply("Blue.")], "completion_B": [reply("No.")]}
    return {"comparison": {"prompt_conversation": ASK, **sides}, "label": label}


def load(write_rows: Write, *rows: Any) -> LoadedPairs:
    return scan_pairs(write_rows(*rows))


SAME = [
    pair(),
    pair(prompt=ASK),
    pair(chosen=[reply("Blue.")], rejected=[reply("No.")]),
    pair(chosen=[*ASK, reply("Blue.")], rejected=[*ASK, reply("No.")]),
    pair(prompt=ASK, chosen=[*ASK, reply("Blue.")]),
    {"chosen": [*ASK, reply("Blue.")], "rejected": [*ASK, reply("No.")]},
    comparison("A"),
]


@pytest.mark.parametrize("row", SAME)
def test_every_shape_gives_the_same_pair(write_rows: Write, row: dict[str, Any]) -> None:
    loaded = load(write_rows, row)
    assert not loaded.bad
    [found] = loaded.pairs
    assert (found.prompt, found.chosen, found.rejected) == (ASK, reply("Blue."), reply("No."))
    assert found.conversation("rejected").messages == [*ASK, reply("No.")]
    assert found.place == "data.jsonl line 1"


def test_the_label_says_which_is_chosen_and_ties_are_left_out(write_rows: Write) -> None:
    loaded = load(write_rows, comparison("B"), comparison("Tie"))
    assert [p.chosen["content"] for p in loaded.pairs] == ["No."]
    assert loaded.notes == ["1 tie left out: they prefer neither reply"]


def test_the_cookbook_reads_its_own_format_the_same_way(write_rows: Write) -> None:
    from tinker_cookbook.preference.preference_datasets import ComparisonBuilderFromJsonl

    path = write_rows(comparison("B"))
    train, _ = ComparisonBuilderFromJsonl(train_path=str(path)).get_labeled_comparisons()
    [ours] = scan_pairs(path).pairs
    assert train[0].label == "B"
    assert train[0].comparison.completion_B == [ours.chosen]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (pair(rejected="Blue."), "chosen and rejected are identical: the pair holds no preference"),
        (pair(rejected=" Blue.\n"), "chosen and rejected are identical"),
        (pair(rejected=[reply("Blue.")]), "chosen and rejected are identical"),
        (pair(chosen=""), '"chosen" is empty'),
        (pair(prompt=" "), '"prompt" is empty'),
        (pair(prompt=[]), '"prompt": "messages" is an empty list'),
        (pair(chosen=3), '"chosen" must be text or a list of messages, not a number'),
        (pair(rejected=None), '"rejected" must be text or a list of messages, not null'),
        (pair(prompt=[*ASK, reply("x")]), '"prompt" ends with an assistant message'),
        (pair(chosen=[reply("x"), *ASK]), "one assistant message after the prompt, not assistant,"),
        (pair(chosen=[{"role": "bot", "content": "x"}]), "did you mean 'assistant'?"),
        ({"chosen": "Blue.", "rejected": "No."}, 'without "prompt", "chosen" must be a list'),
        (
            {"chosen": [*ASK, reply("a")], "rejected": [reply("b")]},
            "must be one conversation up to their last message",
        ),
        (comparison("C"), '"label" must be "A", "B" or "Tie", not "C"'),
        ({"comparison": {}, "label": "A"}, '"comparison" must be an object with prompt_conv'),
        ({"prompt": "x", "completion": "y"}, "no preference pair: has the keys 'prompt', 'comp"),
        ({}, "an empty object"),
        ('{"prompt": "half', "not JSON"),
        ("[1]", "must be a JSON object, not a list"),
    ],
)
def test_what_is_no_pair_is_named_with_its_line(write_rows: Write, row: Any, reason: str) -> None:
    loaded = load(write_rows, pair(), row)
    assert len(loaded.pairs) == 1
    [bad] = loaded.bad
    assert bad.line == 2
    assert reason in bad.reason
    with pytest.raises(InputError, match="1 of 2 rows can't be used"):
        loaded.refuse_bad(skip_bad_rows=False)
    loaded.refuse_bad(skip_bad_rows=True)


def test_nothing_left_is_refused_even_when_bad_rows_are_skipped(write_rows: Write) -> None:
    with pytest.raises(InputError, match="no usable pair"):
        load(write_rows, pair(rejected="Blue.")).refuse_bad(skip_bad_rows=True)


def test_other_files_are_refused_in_one_line(tmp_path: Path) -> None:
    for content, reason in [
        (b"", "is empty"),
        (b"PAR1 and so on", "is Parquet"),
        (json.dumps([pair()]).encode(), "is one JSON list"),
        (json.dumps(pair(), indent=1).encode(), "is one JSON object"),
    ]:
        (tmp_path / "x.jsonl").write_bytes(content)
        with pytest.raises(InputError, match=reason):
            scan_pairs(tmp_path / "x.jsonl")
    with pytest.raises(InputError, match="Is a directory"):
        scan_pairs(tmp_path)
    with pytest.raises(InputError, match="No such file"):
        scan_pairs(tmp_path / "none.jsonl")


def test_pairs_are_told_from_conversations(write_rows: Write) -> None:
    assert is_preference_file(write_rows(pair(), pair(rejected="Blue."), '{"half'))
    assert not is_preference_file(write_rows({"prompt": "x", "completion": "y"}, pair(), {}))
    assert not is_preference_file(write_rows('{"half'))


def test_pairs_of_a_prompt_stay_on_one_side(write_rows: Write) -> None:
    rows = [pair(f"{n}?", f"Yes {n} {k}.", f"No {n} {k}.") for n in range(12) for k in range(3)]
    pairs = load(write_rows, *rows).pairs
    train, val, notes = split_pairs(pairs, None, val_fraction=0.25, seed=1)
    prompts = [{p.prompt[0]["content"] for p in side} for side in (train, val)]
    assert not prompts[0] & prompts[1]
    assert len(train) + len(val) == 36 and 3 <= len(val) <= 9
    assert "held out" in notes[0]
    again = split_pairs(pairs, None, val_fraction=0.25, seed=1)
    assert again[0] == train
    assert split_pairs(pairs, None, val_fraction=0.25, seed=2)[1] != val


def test_repeats_leaks_and_contradictions(write_rows: Write) -> None:
    pairs = load(write_rows, pair(), pair(), pair(chosen="No.", rejected="Blue."), pair("B?")).pairs
    assert repeated(pairs) == 1
    assert [(a.line, b.line) for a, b in contradictions(pairs)] == [(3, 1)]
    assert [(a.line, b.line) for a, b in shared_pairs(pairs[:1], pairs[1:])] == [(2, 1)]
    assert not contradictions(pairs[:2]) and not shared_pairs(pairs[:2], pairs[3:])


@pytest.fixture(scope="module")
def renderer(chatml: Any) -> Any:
    from tinkerlab.data import resolve_renderer

    return resolve_renderer("tiny:llama", chatml, "qwen3_instruct").renderer


def check(write_rows: Write, renderer: Any, chatml: Any, *rows: Any, **options: Any) -> Any:
    pairs = load(write_rows, *rows).pairs
    options = {"max_length": 200, **options}
    return check_pairs(pairs[:-2], pairs[-2:], renderer, chatml, **options)


GOOD = [pair(f"{n}?", f"Yes, {n}.", "No.") for n in range(6)]


def test_good_pairs_have_no_finding(write_rows: Write, renderer: Any, chatml: Any) -> None:
    report = check(write_rows, renderer, chatml, *GOOD)
    assert (report.problems, report.warnings, report.dropped) == ([], [], [])
    assert report.verdict == "READY: 4 pairs to train on, 2 to evaluate on"
    assert report.statistics()["chosen_longer"] == 1.0
    assert report.statistics()["rejected_tokens_median"] == 4  # N o . and the end of the turn
    assert "[[No.<|im_end|>]]" in report.preview[1]


@pytest.mark.parametrize(
    ("row", "kind", "message"),
    [
        (pair("x?", "y" * 300), "too_long", "chosen has"),
        (pair("x?", "a", "z" * 300), "too_long", "rejected has"),
        (pair("x?", "Yes.", "<think>\n\n</think>\n\nYes."), None, ""),
    ],
)
def test_a_reply_that_would_be_cut_is_refused(
    write_rows: Write, renderer: Any, chatml: Any, row: Any, kind: str | None, message: str
) -> None:
    report = check(write_rows, renderer, chatml, row, *GOOD)
    assert [problem.kind for problem in report.problems] == ([kind] if kind else [])
    if kind:
        assert message in report.problems[0].examples[0]
        with pytest.raises(InputError, match="too long"):
            report.refuse_problems()
        skipped = check(write_rows, renderer, chatml, row, *GOOD, skip_bad_rows=True)
        assert not skipped.problems and len(skipped.dropped) == 1


def test_a_held_out_pair_that_trains_is_refused(
    write_rows: Write, renderer: Any, chatml: Any
) -> None:
    rows = [*GOOD, GOOD[0]]
    report = check(write_rows, renderer, chatml, *rows)
    assert [problem.kind for problem in report.problems] == ["contamination"]
    assert report.problems[0].examples == ["data.jsonl line 7 = data.jsonl line 1"]
    allowed = check(write_rows, renderer, chatml, *rows, allow_contamination=True)
    assert not allowed.problems and [w.kind for w in allowed.warnings] == ["contamination"]


def test_contradictions_and_repeats_are_warned_of(
    write_rows: Write, renderer: Any, chatml: Any
) -> None:
    turned = pair("0?", "No.", "Yes, 0.")
    report = check(write_rows, renderer, chatml, GOOD[0], turned, *GOOD)
    assert not report.problems
    assert [w.kind for w in report.warnings] == ["contradicting_pairs", "repeated_rows"]
