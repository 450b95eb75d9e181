"""The split is a function of texts and seed, keeps repeats together, and honours the limits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from repository import ROOT

from tinkerlab.data.duplicates import exact_key
from tinkerlab.data.reading import Row
from tinkerlab.data.splits import Splits, make_splits
from tinkerlab.errors import InputError


def rows_of(*questions: str) -> list[Row]:
    return [
        Row(i, i + 1, [{"role": "user", "content": q}, {"role": "assistant", "content": "Yes."}])
        for i, q in enumerate(questions)
    ]


def many(count: int) -> list[Row]:
    return rows_of(*(f"Is {i} even?" for i in range(count)))


def lines(rows: list[Row]) -> list[int]:
    return [row.line for row in rows]


@given(
    questions=st.lists(st.sampled_from("abcdefghij"), min_size=2, max_size=40),
    seed=st.integers(0, 5),
    fraction=st.sampled_from([0.05, 0.1, 0.3, 0.9]),
)
def test_sides_are_disjoint_complete_and_keep_repeats_together(
    questions: list[str], seed: int, fraction: float
) -> None:
    rows = rows_of(*questions)
    try:
        splits = make_splits(rows, val_fraction=fraction, seed=seed)
    except InputError:
        # A group of repeats bigger than the whole share can't be held out.
        share = max(1, int(len(rows) * fraction / (1 + fraction) + 1e-9))
        sizes = [questions.count(question) for question in set(questions)]
        assert len(sizes) == 1 or min(sizes) > share
        return
    assert sorted(lines(splits.train) + lines(splits.val)) == lines(rows)
    assert not {exact_key(r) for r in splits.train} & {exact_key(r) for r in splits.val}
    assert lines(splits.train) == sorted(lines(splits.train))


@pytest.mark.parametrize(
    ("total", "limits", "train", "val"),
    [
        (110, {}, 100, 10),
        (128, {}, 117, 11),
        (3, {}, 2, 1),
        (110, {"val_fraction": 0}, 110, 0),
        (110, {"val_size": 30}, 80, 30),
        (110, {"max_train_rows": 50}, 50, 5),
        (110, {"max_val_rows": 4}, 106, 4),
    ],
)
def test_sizes(total: int, limits: dict[str, int], train: int, val: int) -> None:
    splits = make_splits(many(total), **limits)  # pyright: ignore[reportArgumentType]
    assert (len(splits.train), len(splits.val)) == (train, val)


def test_the_default_limits() -> None:
    splits = make_splits(many(22_500))
    assert (len(splits.train), len(splits.val)) == (20_000, 2_000)
    assert splits.notes == [
        "500 of 20,500 training rows left out: the limit is 20,000 (raise it with max_train_rows)",
        "2,000 of 22,500 rows held out for evaluation (seed 0)",
    ]


def test_a_given_evaluation_file_is_used_whole_up_to_its_limit() -> None:
    splits = make_splits(many(30), rows_of(*"abcdefgh"), max_val_rows=5, max_train_rows=20)
    assert (len(splits.train), len(splits.val)) == (20, 5)
    assert len(splits.notes) == 2
    assert lines(make_splits(many(30), rows_of(*"abc")).val) == [1, 2, 3]


def test_another_seed_gives_another_split() -> None:
    rows = many(50)
    assert lines(make_splits(rows, seed=0).val) != lines(make_splits(rows, seed=1).val)
    assert lines(make_splits(rows, seed=1).val) == lines(make_splits(rows, seed=1).val)


def test_the_order_of_the_file_does_not_matter() -> None:
    questions = [f"Is {i} even?" for i in range(50)]

    def held_out(splits: Splits) -> set[str]:
        return {row.messages[0]["content"] for row in splits.val}

    forward = make_splits(rows_of(*questions))
    assert held_out(forward) == held_out(make_splits(rows_of(*reversed(questions))))


def test_the_split_does_not_depend_on_pythons_hash_seed(tmp_path: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from tinkerlab.data.reading import Row\n"
        "from tinkerlab.data.splits import make_splits\n"
        "rows = [Row(i, i, [{'role': 'user', 'content': f'Is {i} even?'}]) for i in range(60)]\n"
        "print([row.line for row in make_splits(rows, seed=3).val])\n"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program, str(ROOT / "scripts")],
            env={"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    # Written down: a new version of this code must not reshuffle the data of old runs.
    assert printed == {"[23, 35, 42, 44, 58]\n"}


@pytest.mark.parametrize("questions", [["a"], ["a", "a"]])
def test_rows_that_cannot_be_split(questions: list[str]) -> None:
    with pytest.raises(InputError, match="can't be split"):
        make_splits(rows_of(*questions))
