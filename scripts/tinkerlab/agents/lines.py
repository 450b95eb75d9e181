"""Lines of a stream that may hold anything: none longer than a limit is kept in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

LONGEST = 4_000_000  # bytes; a screenshot in a tool's result is a line of about a megabyte
_CHUNK = 65_536


class Readable(Protocol):
    """What a pipe offers."""

    def read1(self, size: int, /) -> bytes: ...


def bounded(stream: Readable, longest: int = LONGEST) -> Iterator[tuple[bytes, int]]:
    """(line without its newline, bytes that were cut off its end) for each line, to the end."""
    line, dropped, open_ = bytearray(), 0, False
    while chunk := stream.read1(_CHUNK):
        pieces = chunk.split(b"\n")
        for number, piece in enumerate(pieces):
            if number:
                yield bytes(line), dropped
                line, dropped, open_ = bytearray(), 0, False
            if piece:
                open_ = True
                kept = piece[: max(longest - len(line), 0)]
                line += kept
                dropped += len(piece) - len(kept)
    if open_:
        yield bytes(line), dropped
