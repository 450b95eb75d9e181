"""Calls that must not hang the script, whatever the SDK does below them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class TookTooLong(Exception):
    """The call had not ended at its deadline; it goes on in its thread, unheeded."""


def within(seconds: float, call: Callable[[], T]) -> T:
    """The result of ``call``, run in a thread of its own.

    The SDK repeats most requests for five minutes, so a dead or drowning service looks like a
    hang of the script that asks. The thread is a daemon: it does not keep the process alive.

    Raises:
        TookTooLong: it did not end in time.
    """
    answers: queue.Queue[tuple[bool, Any]] = queue.Queue()

    def run() -> None:
        try:
            answers.put((True, call()))
        except BaseException as error:
            answers.put((False, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        good, value = answers.get(timeout=seconds)
    except queue.Empty:
        raise TookTooLong from None
    if good:
        return value
    raise value
