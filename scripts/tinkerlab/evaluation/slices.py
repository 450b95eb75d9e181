"""The same comparison for each value of a field: where a gain comes from, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinkerlab.errors import InputError
from tinkerlab.evaluation import statistics

MAX_SLICES = 50
OTHERS = "(others)"


def field_of(row: Mapping[str, Any], name: str) -> str:
    """The value of a field, which may be nested (``metadata.level``), as text.

    Raises:
        KeyError: the row has no such field.
    """
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise KeyError(name)
        value = value[part]
    return str(value)


def slice_values(tasks: Sequence[Any], name: str) -> list[str]:
    """The field's value in every task; rare values beyond ``MAX_SLICES`` become one slice.

    Raises:
        InputError: a task without the field; names it and the fields that it has.
    """
    values = []
    for task in tasks:
        try:
            values.append(field_of(task.row, name))
        except KeyError:
            has = ", ".join(list(task.row)[:12]) or "no fields besides prompt and answer"
            raise InputError(
                f"--slice-by {name}: {task.place} has no such field (it has {has})"
            ) from None
    frequent = sorted(set(values), key=lambda value: (-values.count(value), value))[:MAX_SLICES]
    kept = set(frequent)
    return [value if value in kept else OTHERS for value in values]


def table(
    values: Sequence[str], scores: Mapping[str, Sequence[float]], *, seed: int
) -> list[dict[str, Any]]:
    """One row per slice: its items, each model's mean and, of two, the paired difference.

    Args:
        values: the slice of each item.
        scores: each model's score per item, the base first.
    """
    rows = []
    for value in sorted(set(values), key=_natural):
        places = [i for i, found in enumerate(values) if found == value]
        row: dict[str, Any] = {"slice": value, "items": len(places)}
        picked = {model: [found[i] for i in places] for model, found in scores.items()}
        row.update({model: statistics.weighted_mean(found) for model, found in picked.items()})
        if len(picked) == 2:
            base, trained = picked.values()
            difference = statistics.paired_difference(base, trained, seed=seed)
            row["difference"] = {
                "mean": difference.mean,
                "low": difference.low,
                "high": difference.high,
            }
        rows.append(row)
    return rows


def _natural(value: str) -> tuple[bool, float, str]:
    """Numbers by size, then words by letter."""
    try:
        return (False, float(value), value)
    except ValueError:
        return (True, 0.0, value)
