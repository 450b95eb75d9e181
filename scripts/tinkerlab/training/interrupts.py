"""Ctrl-C and SIGTERM: the first asks the loop to save and stop, the second ends the process."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType

from tinkerlab.cli import say

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Context manager in which ``requested`` turns true at the first signal.

    Every file of a run is complete after each line, so leaving at once loses no more than
    what has happened since the last checkpoint.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._previous: dict[int, signal.Handlers | None] = {}

    @property
    def requested(self) -> bool:
        return self.signal_number is not None

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that this signal ended: 130 for Ctrl-C."""
        return 128 + (self.signal_number or signal.SIGINT)

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._previous[number] = signal.signal(number, self._handle)  # type: ignore[assignment]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            say("leaving at once; the last recorded checkpoint is intact")
            os._exit(128 + number)
        self.signal_number = number
        say("stopping: finishing the submitted steps and saving; once more to leave at once")
