"""Show rendered examples as the model sees them, with the trained tokens marked."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

OPEN, CLOSE = "[[", "]]"
_GREEN, _DIM, _RESET = "\x1b[1;32m", "\x1b[2m", "\x1b[0m"

SPAN_CHARS = 600  # longest run of trained or untrained text that is shown whole


@dataclass(frozen=True)
class Preview:
    """One decoded example.

    Attributes:
        place: where the row stands.
        label: why this row is shown.
        spans: (text, trained) runs in order; special tokens written out.
        cut_tokens: tokens behind the end that the length limit removed.
    """

    place: str
    label: str
    spans: tuple[tuple[str, bool], ...]
    cut_tokens: int

    def plain(self) -> str:
        """Trained text stands in ``[[...]]``."""
        return self._write(lambda text, trained: f"{OPEN}{text}{CLOSE}" if trained else text)

    def coloured(self) -> str:
        """Trained text is bold green, the rest dim (ANSI)."""
        return self._write(lambda text, trained: f"{_GREEN if trained else _DIM}{text}{_RESET}")

    def _write(self, mark: Any) -> str:
        text = "".join(mark(_shorten(printable(text)), trained) for text, trained in self.spans)
        return text + (f" ... (+{self.cut_tokens} tokens cut off)" if self.cut_tokens else "")

    def to_json(self) -> dict[str, Any]:
        """Plain data; the text is whole."""
        return {
            "place": self.place,
            "label": self.label,
            "spans": [{"text": text, "trained": trained} for text, trained in self.spans],
            "cut_tokens": self.cut_tokens,
        }


def decode_spans(
    tokens: Sequence[int], weights: Sequence[float], tokenizer: Any
) -> tuple[tuple[str, bool], ...]:
    """Decode runs of trained and of untrained tokens.

    Args:
        tokens: N ids.
        weights: N weights; the first token is never a target, so its weight is not looked at.
    """
    spans: list[tuple[str, bool]] = []
    start = 0
    trained = [False, *(weight > 0 for weight in weights[1:])]
    for i in range(1, len(tokens) + 1):
        if i == len(tokens) or trained[i] != trained[start]:
            text = tokenizer.decode(list(tokens[start:i]), skip_special_tokens=False)
            spans.append((text, trained[start]))
            start = i
    return tuple(spans)


def pick(lengths: Sequence[int]) -> list[tuple[int, str]]:
    """Positions and labels of three rows to show: of least, middle and greatest length."""
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    if len(order) <= 3:
        return [(i, f"{lengths[i]} tokens") for i in sorted(order)]
    chosen = {
        "shortest": order[0],
        "median": order[len(order) // 2],
        "longest": order[-1],
    }
    return [(i, f"{name}, {lengths[i]} tokens") for name, i in chosen.items()]


def printable(text: str) -> str:
    """Escape what would move the cursor or hide text in a terminal; keep newlines and tabs."""
    return "".join(
        c
        if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Co", "Cs")
        else ascii(c)[1:-1]
        for c in text
    )


def _shorten(text: str) -> str:
    if len(text) <= SPAN_CHARS:
        return text
    half = SPAN_CHARS // 2
    return f"{text[:half]} ...({len(text) - 2 * half} characters)... {text[-half:]}"
