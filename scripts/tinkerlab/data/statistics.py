"""Count what a set of rendered rows holds: tokens, trained tokens, what truncation takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class RowSize:
    """Token counts of one row.

    Attributes:
        tokens: of the whole conversation.
        kept: of these, what the length limit keeps.
        trained: kept tokens with a weight.
        trained_lost: tokens with a weight that the limit cuts off.
        assistant_turns: assistant messages.
    """

    tokens: int
    kept: int
    trained: int
    trained_lost: int
    assistant_turns: int


@dataclass(frozen=True)
class Spread:
    """How a count is distributed over rows (nearest-rank percentiles)."""

    mean: float
    min: int
    p50: int
    p90: int
    p99: int
    max: int


@dataclass(frozen=True)
class SplitStatistics:
    """What one side of the data holds. Counts are of rows and tokens.

    Attributes:
        tokens: what a pass over the data feeds the model (after truncation).
        trained_tokens: of these, the ones with a weight.
        truncated_tokens: cut off by the length limit, over ``truncated_rows`` rows.
        trained_tokens_lost: of the cut off ones, those that would have been trained.
        length: tokens per row before truncation.
        trained: trained tokens per row.
    """

    rows: int
    tokens: int
    trained_tokens: int
    truncated_rows: int
    truncated_tokens: int
    trained_tokens_lost: int
    multi_turn_rows: int
    length: Spread | None
    trained: Spread | None

    def to_json(self) -> dict[str, Any]:
        """Plain data; counts as integers."""
        return asdict(self)


def summarise(sizes: Sequence[RowSize]) -> SplitStatistics:
    """Add up the rows of one side."""
    cut = [size for size in sizes if size.kept < size.tokens]
    return SplitStatistics(
        rows=len(sizes),
        tokens=sum(size.kept for size in sizes),
        trained_tokens=sum(size.trained for size in sizes),
        truncated_rows=len(cut),
        truncated_tokens=sum(size.tokens - size.kept for size in cut),
        trained_tokens_lost=sum(size.trained_lost for size in cut),
        multi_turn_rows=sum(size.assistant_turns > 1 for size in sizes),
        length=spread([size.tokens for size in sizes]),
        trained=spread([size.trained for size in sizes]),
    )


def spread(values: Sequence[int]) -> Spread | None:
    """Mean, extremes and percentiles of ``values``; None when there are none."""
    if not values:
        return None
    ordered = sorted(values)

    def percentile(percent: int) -> int:
        # Nearest rank: the smallest value that at least percent % of the values don't exceed.
        return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]

    return Spread(
        mean=round(sum(ordered) / len(ordered), 1),
        min=ordered[0],
        p50=percentile(50),
        p90=percentile(90),
        p99=percentile(99),
        max=ordered[-1],
    )
