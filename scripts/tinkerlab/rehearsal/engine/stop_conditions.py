"""When a completion ends: stop tokens, and stop strings in the text decoded so far.

The completion keeps every token up to and including the one that ended it, also when that token
decodes to more than the stop string (stopping at ".." keeps a token "..."): so does the hosted
service, as measured by a user (SkyRL pull request 778, December 2025).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_INCOMPLETE = "\ufffd"  # what a tokenizer decodes the first bytes of a split character to


class StopWatch:
    """Sees a completion's tokens one after the other and says when it ends."""

    def __init__(
        self, stop_tokens: frozenset[int], stop_strings: Sequence[str], tokenizer: Any
    ) -> None:
        self._stop_tokens = stop_tokens
        self._stop_strings = tuple(s for s in stop_strings if s)
        self._tail = max((len(s) for s in self._stop_strings), default=0) - 1
        self._text = _IncrementalText(tokenizer) if self._stop_strings else None

    def ends_with(self, token: int) -> bool:
        """True if ``token``, the next one, ends the completion."""
        if token in self._stop_tokens:
            return True
        if self._text is None:
            return False
        seen = len(self._text.text)
        text = self._text.add(token)
        window = text[max(0, seen - self._tail) :]
        return len(text) > seen and any(stop in window for stop in self._stop_strings)


class _IncrementalText:
    """Decodes a growing token list without decoding it all again at each token.

    A token's text can depend on its neighbours (a character split over tokens, a leading space),
    so the piece since the last safe border is decoded with and without the new tokens, and the
    difference is the new text. A piece that ends inside a character waits for the rest.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.text = ""
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._border = 0  # tokens before it don't influence the text of new ones any more
        self._read = 0  # tokens whose text is in self.text

    def add(self, token: int) -> str:
        self._tokens.append(token)
        known = self._decode(self._tokens[self._border : self._read])
        both = self._decode(self._tokens[self._border :])
        if len(both) > len(known) and not both.endswith(_INCOMPLETE):
            self.text += both[len(known) :]
            self._border = self._read
            self._read = len(self._tokens)
        return self.text

    def _decode(self, tokens: list[int]) -> str:
        if not tokens:
            return ""
        return self._tokenizer.decode(
            tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
