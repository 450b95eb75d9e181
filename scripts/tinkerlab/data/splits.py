"""Which rows train and which evaluate: a pure function of the rows' texts and the seed.

Rows are ordered by a hash of their text, not by a random generator or by their place in the
file: the same file gives the same split on every machine and after every interruption, also
when its lines are shuffled. Exact repeats share a hash and so always land on one side.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tinkerlab.data.duplicates import exact_key
from tinkerlab.data.reading import Row
from tinkerlab.data.words import counted, of_rows
from tinkerlab.errors import InputError

MAX_TRAIN_ROWS = 20_000
MAX_VAL_ROWS = 2_000
VAL_FRACTION = 0.1


@dataclass
class Splits:
    """Rows to train on and rows to evaluate on, each in their file's order.

    Attributes:
        notes: what was left out and why, in sentences for the user.
    """

    train: list[Row]
    val: list[Row]
    notes: list[str] = field(default_factory=list)


def make_splits(
    train_rows: Sequence[Row],
    val_rows: Sequence[Row] | None = None,
    *,
    val_fraction: float = VAL_FRACTION,
    val_size: int | None = None,
    max_train_rows: int = MAX_TRAIN_ROWS,
    max_val_rows: int = MAX_VAL_ROWS,
    seed: int = 0,
) -> Splits:
    """Split ``train_rows``, or cap two given files.

    Args:
        val_rows: rows of a separate evaluation file; nothing is then taken from ``train_rows``.
        val_fraction: evaluation rows per training row, in [0, 1); 0 for no evaluation.
        val_size: exact number of evaluation rows, instead of the fraction.

    Raises:
        InputError: too few rows to give both sides one.
    """
    ordered = _order(train_rows, seed)
    if val_rows is not None:
        notes: list[str] = []
        train = _cap(ordered, max_train_rows, "training", "max_train_rows", notes)
        val = _cap(_order(val_rows, seed), max_val_rows, "evaluation", "max_val_rows", notes)
        return Splits(_in_file_order(train), _in_file_order(val), notes)

    wanted = _val_rows(len(ordered), val_fraction, val_size, max_train_rows, max_val_rows)
    val, rest = _take_whole_groups(ordered, wanted)
    if not rest or (wanted and not val):
        raise InputError(
            f"{counted(len(ordered), 'row')} can't be split into training and evaluation "
            "(repeats stay together): give more rows, a val_file, or val_fraction=0"
        )
    notes = []
    train = _cap(rest, max_train_rows, "training", "max_train_rows", notes)
    if val:
        notes.append(f"{of_rows(len(val), len(ordered))} held out for evaluation (seed {seed})")
    return Splits(_in_file_order(train), _in_file_order(val), notes)


def _order(rows: Sequence[Row], seed: int) -> list[tuple[str, Row]]:
    """(group, row) pairs in the seed's order; exact repeats are neighbours, in file order."""
    keyed = [(exact_key(row), row) for row in rows]
    rank = {key: hashlib.sha256(f"{seed}:{key}".encode()).digest() for key, _ in keyed}
    return sorted(keyed, key=lambda pair: (rank[pair[0]], pair[1].index))


def _val_rows(
    total: int, fraction: float, size: int | None, max_train_rows: int, max_val_rows: int
) -> int:
    if size is not None:
        return size
    if not fraction:
        return 0
    # A share of the rows that train: v <= fraction * (used - v), where no more rows are used
    # than the training cap and its share allow.
    used = min(total, max_train_rows + math.floor(fraction * max_train_rows))
    return min(max_val_rows, max(1, math.floor(used * fraction / (1 + fraction) + 1e-9)))


def _take_whole_groups(
    ordered: list[tuple[str, Row]], wanted: int
) -> tuple[list[tuple[str, Row]], list[tuple[str, Row]]]:
    """Fill the first part with whole groups of repeats, up to ``wanted`` rows."""
    taken: list[tuple[str, Row]] = []
    rest: list[tuple[str, Row]] = []
    start = 0
    while start < len(ordered):
        end = start
        while end < len(ordered) and ordered[end][0] == ordered[start][0]:
            end += 1
        group = ordered[start:end]
        # Never everything: what is left must hold something to train on.
        fits = len(taken) + len(group) <= wanted and (rest or end < len(ordered))
        (taken if fits else rest).extend(group)
        start = end
    return taken, rest


def _cap(
    ordered: list[tuple[str, Row]], limit: int, name: str, setting: str, notes: list[str]
) -> list[tuple[str, Row]]:
    if len(ordered) > limit:
        notes.append(
            f"{of_rows(len(ordered) - limit, len(ordered), name)} left out: "
            f"the limit is {limit:,} (raise it with {setting})"
        )
    return ordered[:limit]


def _in_file_order(ordered: list[tuple[str, Row]]) -> list[Row]:
    return sorted((row for _, row in ordered), key=lambda row: row.index)
