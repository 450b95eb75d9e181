"""A running sweep on stderr: the table of watch_run.py on a terminal, changes as lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from tinkerlab.watching.status import Status
from tinkerlab.watching.view import Changes, screen

Show = Callable[[list[Status]], None]


@contextmanager
def shown(out: TextIO) -> Iterator[tuple[Show, float]]:
    """What shows the runs' statuses, and every how many seconds it wants them."""
    if not out.isatty():
        changes = Changes()

        def as_lines(statuses: list[Status]) -> None:
            for text in changes.lines(statuses):
                print(text, file=out, flush=True)

        yield as_lines, 10.0
        return

    from rich.console import Console
    from rich.live import Live

    console = Console(file=out)
    # What the table says at the end stands in the results again, so it is taken away.
    with Live(
        console=console, auto_refresh=False, vertical_overflow="crop", transient=True
    ) as live:

        def in_place(statuses: list[Status]) -> None:
            live.update(screen(statuses, width=console.width, height=console.height), refresh=True)

        yield in_place, 2.0
