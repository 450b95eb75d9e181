"""Numbers in sentences."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """``counted(1, "row")`` is "1 row", ``counted(2000, "row")`` is "2,000 rows"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def of_rows(part: int, total: int, kind: str = "") -> str:
    """``of_rows(2, 9, "training")`` is "2 of 9 training rows"."""
    return f"{part:,} of {counted(total, f'{kind} row'.strip())}"
