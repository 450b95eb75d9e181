"""Render every row once and note what is wrong with it. Judges single rows, not the data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tinkerlab.data.datums import Example, UnseenPrompt, render, unseen_prompts
from tinkerlab.data.messages import RowError
from tinkerlab.data.preview import Preview, decode_spans, pick
from tinkerlab.data.reading import Row
from tinkerlab.data.statistics import RowSize

# The prompt check renders a row once per trained turn, so it looks at the first rows only.
PROMPT_CHECKED_ROWS = 1000
PROGRESS_EVERY = 2000


@dataclass
class Inspected:
    """One side of the data after rendering.

    Attributes:
        rows: rows that can be used, with ``sizes`` at the same positions.
        refused: (row, kind, reason) of the others; kinds are ``render``, ``zero_weight``,
            ``vocabulary``.
        unseen: (row, its turns) where trained turns don't follow the prompt of sampling.
        prompts_checked: how many rows ``unseen`` was looked for in.
    """

    rows: list[Row] = field(default_factory=list)
    sizes: list[RowSize] = field(default_factory=list)
    refused: list[tuple[Row, str, str]] = field(default_factory=list)
    unseen: list[tuple[Row, list[UnseenPrompt]]] = field(default_factory=list)
    prompts_checked: int = 0


def inspect_rows(
    rows: Sequence[Row],
    renderer: Any,
    *,
    max_length: int,
    train_on_what: str,
    vocab_size: int | None,
    progress: Callable[[str], None] | None = None,
) -> Inspected:
    """Render ``rows`` and sort them into usable and refused.

    Args:
        max_length: tokens of a row that are kept.
        vocab_size: the model's; ids at or over it are refused. None when not known.
        progress: is given a line now and then; tokenizing a big data set takes minutes.
    """
    result = Inspected()
    for number, row in enumerate(rows):
        if progress and number and number % PROGRESS_EVERY == 0:
            progress(f"rendered {number:,} of {len(rows):,} rows")
        try:
            example = render(row, renderer, train_on_what)
            size = _size(row, example, max_length, train_on_what, vocab_size)
            if result.prompts_checked < PROMPT_CHECKED_ROWS:
                wrong = unseen_prompts(row, renderer, train_on_what, example.tokens)
                result.prompts_checked += 1
                if wrong:
                    result.unseen.append((row, wrong))
        except _Refused as error:
            result.refused.append((row, error.kind, str(error)))
        except RowError as error:
            result.refused.append((row, "render", str(error)))
        else:
            result.rows.append(row)
            result.sizes.append(size)
    return result


def previews(
    inspected: Inspected, renderer: Any, tokenizer: Any, *, max_length: int, train_on_what: str
) -> list[Preview]:
    """Decode the shortest, the median and the longest row."""
    shown = []
    for position, label in pick([size.tokens for size in inspected.sizes]):
        row = inspected.rows[position]
        example = render(row, renderer, train_on_what)
        tokens, weights = example.tokens[:max_length], example.weights[:max_length]
        spans = decode_spans(tokens, weights, tokenizer)
        shown.append(Preview(row.place, label, spans, len(example.tokens) - len(tokens)))
    return shown


class _Refused(RowError):
    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


def _size(
    row: Row, example: Example, max_length: int, train_on_what: str, vocab_size: int | None
) -> RowSize:
    kept = min(len(example.tokens), max_length)
    # The first token is never a target, so its weight trains nothing.
    trained_at = [i for i, weight in enumerate(example.weights) if i and weight > 0]
    trained = sum(i < kept for i in trained_at)
    if not trained:
        raise _Refused("zero_weight", _nothing_trained(trained_at, kept, train_on_what))
    # Ids are looked at before truncation: one such id says that tokenizer and model differ.
    if vocab_size is not None and max(example.tokens) >= vocab_size:
        at = next(i for i, token in enumerate(example.tokens) if token >= vocab_size)
        raise _Refused(
            "vocabulary",
            f"token {at} has id {example.tokens[at]}, over the model's vocabulary of {vocab_size}",
        )
    return RowSize(
        tokens=len(example.tokens),
        kept=kept,
        trained=trained,
        trained_lost=len(trained_at) - trained,
        assistant_turns=sum(message["role"] == "assistant" for message in row.messages),
    )


def _nothing_trained(trained_at: list[int], kept: int, train_on_what: str) -> str:
    if not trained_at:
        return f"every weight is zero: train_on_what={train_on_what} selects no token of it"
    return (
        f"every weight is zero: the first trained token is number {trained_at[0] + 1}, "
        f"and only {kept} tokens are kept"
    )
