"""Length-framed JSON over a pipe: four bytes of length, big-endian, then UTF-8 JSON."""

from __future__ import annotations

import json
import math
import os
import select
import struct
import time
from typing import Any

MAX_FRAME = 256 * 2**20  # an answer longer than this is no answer
_HEAD = struct.Struct(">I")


class Closed(Exception):
    """The other side is gone."""


class TimedOut(Exception):
    """The other side did not answer in time."""


def send(descriptor: int, value: Any) -> None:
    """Write one frame.

    Raises:
        Closed: nobody reads any more.
    """
    # Lone surrogates, which a tokenizer's text may hold, stay as escapes with ensure_ascii.
    content = json.dumps(value, default=str).encode("ascii")
    view = memoryview(_HEAD.pack(len(content)) + content)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except (BrokenPipeError, OSError):
        raise Closed from None


def receive(descriptor: int, timeout: float | None = None) -> Any:
    """Read one frame.

    Args:
        timeout: seconds for the whole of it; None waits for ever.

    Raises:
        Closed: the other side went away, or sent what is no frame.
        TimedOut: it did not come in time.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    (length,) = _HEAD.unpack(_read(descriptor, _HEAD.size, deadline))
    if length > MAX_FRAME:
        raise Closed
    try:
        return json.loads(_read(descriptor, length, deadline))
    except ValueError:
        raise Closed from None


def readable(descriptor: int, seconds: float) -> bool:
    """Whether there is something to read, or an end to be seen, within ``seconds``.

    ``poll``, because ``select`` refuses descriptors above 1023, which a training process with
    many connections has.
    """
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(math.ceil(seconds * 1000)))


def _read(descriptor: int, length: int, deadline: float | None) -> bytes:
    parts: list[bytes] = []
    while length:
        if deadline is not None:
            left = max(0.0, deadline - time.monotonic())
            if not readable(descriptor, left):
                raise TimedOut
        try:
            part = os.read(descriptor, min(length, 2**20))
        except OSError:
            raise Closed from None
        if not part:
            raise Closed
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
