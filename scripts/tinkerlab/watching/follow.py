"""Look again and again, and show it: in place on a terminal, as lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from tinkerlab import cli
from tinkerlab.watching.board import Board
from tinkerlab.watching.status import GOES_ON, Status
from tinkerlab.watching.view import Changes, screen

Done = Callable[[Sequence[Status]], bool]


def never(statuses: Sequence[Status]) -> bool:
    return False


def all_ended(statuses: Sequence[Status]) -> bool:
    """Whether there are runs, and none of them goes on."""
    return bool(statuses) and not any(status.state in GOES_ON for status in statuses)


def one_needs_attention(statuses: Sequence[Status]) -> bool:
    """Whether some run has a serious warning or ended before its end, or all have ended."""
    return any(status.needs_attention for status in statuses) or all_ended(statuses)


class Patience:
    """Lets a run that is stopped at first begin: its trainer prepares data before it shows.

    Args:
        seconds: how long such a run is waited for; one that was seen going on is not.
    """

    def __init__(self, done: Done, seconds: float) -> None:
        self._done = done
        self._until = time.monotonic() + seconds
        self._seen: set[str] = set()

    def __call__(self, statuses: Sequence[Status]) -> bool:
        self._seen |= {status.path for status in statuses if status.state in GOES_ON}
        begun = all(s.state != "stopped" or s.path in self._seen for s in statuses)
        return (begun or time.monotonic() >= self._until) and self._done(statuses)


def wait_for(paths: Sequence[Path], seconds: float) -> None:
    """Return as soon as every path exists, or after ``seconds``."""
    until = time.monotonic() + seconds
    missing = [path for path in paths if not path.exists()]
    if missing:
        cli.say(f"{missing[0]} is not there yet; waiting up to {seconds:g} s for it")
    while time.monotonic() < until and not all(path.exists() for path in paths):
        time.sleep(min(0.2, seconds))


def follow(board: Board, seconds: float, done: Done, out: TextIO) -> list[Status]:
    """Look every ``seconds`` until ``done``, or until Ctrl-C, which is no error; the last look."""
    statuses: list[Status] = []
    show = _in_place if out.isatty() else _as_lines
    try:
        show(board, seconds, done, out, statuses)
    except KeyboardInterrupt:
        if not statuses:
            raise
    return statuses


def _in_place(
    board: Board, seconds: float, done: Done, out: TextIO, statuses: list[Status]
) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(file=out)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            statuses[:] = board.look()
            ended = done(statuses)
            # What stays on the terminal after the end may scroll: all of it.
            height = None if ended else console.height
            live.update(screen(statuses, width=console.width, height=height), refresh=True)
            if ended:
                return
            time.sleep(seconds)


def _as_lines(
    board: Board, seconds: float, done: Done, out: TextIO, statuses: list[Status]
) -> None:
    changes = Changes()
    while True:
        statuses[:] = board.look()
        for text in changes.lines(statuses):
            print(text, file=out, flush=True)
        if done(statuses):
            return
        time.sleep(seconds)
