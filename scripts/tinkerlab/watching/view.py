"""The runs as a table for a terminal, and as plain lines for a log. Knows no files."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tinkerlab import cli
from tinkerlab.training.progress import clock
from tinkerlab.watching.status import Figure, State, Status, span

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

_STYLES: dict[State, str] = {
    "waiting": "dim",
    "starting": "cyan",
    "running": "cyan",
    "finished": "green",
    "stalled": "bold yellow",
    "stopped": "bold red",
    "unreadable": "bold red",
}
BAR = 14  # cells
WARNINGS = 3  # shown of each run
REASON = 120  # letters of it in a line
_ORDER: tuple[State, ...] = (
    "stopped",
    "unreadable",
    "stalled",
    "running",
    "starting",
    "waiting",
    "finished",
)


def screen(statuses: Sequence[Status], *, height: int | None = None) -> Group:
    """The table with its head line, and below it what is wrong.

    Args:
        height: lines that there are; where they do not suffice, runs have one line each, and
            what still does not fit is counted. None: no limit.
    """
    from rich.console import Group
    from rich.text import Text

    notes = list(_notes(statuses))
    head = Text(summary(statuses), style="bold")
    if height is None or 2 * len(statuses) + len(notes) + 4 <= height:
        return Group(head, _table(statuses, full=True), *notes)
    ordered = sorted(statuses, key=lambda status: _ORDER.index(status.state))
    room = max(height - 5, 1)
    notes = notes[: max(room - len(ordered), room // 4)]
    shown = ordered[: max(room - len(notes), 1)]
    if len(shown) < len(ordered):
        notes.append(Text(f"... and {len(ordered) - len(shown)} more runs", style="dim"))
    return Group(head, _table(shown, full=False), *notes)


def summary(statuses: Sequence[Status]) -> str:
    """How many runs there are in each state, with the time."""
    counts = Counter(status.state for status in statuses)
    listed = ", ".join(f"{counts[state]} {state}" for state in _ORDER if counts[state])
    many = "" if len(statuses) == 1 else "s"
    return f"{time.strftime('%H:%M:%S')}  {len(statuses)} run{many}: {listed or 'none yet'}"


def _table(statuses: Sequence[Status], *, full: bool) -> Table:
    """Two lines a run with everything, or one with the most important."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("run", overflow="fold", min_width=12)
    for title in ("step", "train", "held out, change", "time"):
        table.add_column(title, no_wrap=True)
    for status in statuses:
        table.add_row(*(_both(status) if full else _short(status)))
    return table


def _both(status: Status) -> list[Text]:
    from rich.text import Text

    share = status.done / status.total if status.total else None
    return [
        Text.assemble(_name(status), "\n", _state(status)),
        Text.assemble(_bar(share), "\n", (_steps(status), "")),
        Text.assemble(_figure(status.train), "\n", (_signals(status), "dim")),
        Text.assemble(_figure(status.held_out), "\n", (_change(status.held_out), "dim")),
        Text.assemble(_eta(status), "\n", (_pace(status), "dim")),
    ]


def _short(status: Status) -> list[Text]:
    from rich.text import Text

    held_out = Text.assemble(_figure(status.held_out))
    return [
        Text.assemble(_name(status), " ", _state(status)),
        Text(_steps(status)),
        Text.assemble(_figure(status.train)),
        held_out,
        Text(_eta(status)),
    ]


def _name(status: Status) -> str:
    return cli.redact(status.name)


def _state(status: Status) -> tuple[str, str]:
    text: str = status.state
    if status.state == "stalled" and status.idle is not None:
        text = f"stalled for {span(status.idle)}"
    return text, _STYLES[status.state]


def _bar(share: float | None) -> Text:
    from rich.text import Text

    if share is None:
        return Text("·" * BAR, style="dim")
    filled = min(int(share * BAR), BAR)
    return Text.assemble(("━" * filled, "green"), ("╌" * (BAR - filled), "dim"))


def _steps(status: Status) -> str:
    if status.total is None:
        return f"{status.done}" if status.done else ""
    return f"{status.done}/{status.total}"


def _figure(figure: Figure | None) -> tuple[str, str] | str:
    if figure is None:
        return "-"
    finite = figure.value == figure.value and abs(figure.value) != float("inf")
    return f"{figure.label} {figure.value:.4g}", "" if finite else "bold red"


def _signals(status: Status) -> str:
    """KL between sampler and trainer, and entropy: of runs that sample."""
    parts = []
    if status.kl is not None:
        parts.append(f"KL {status.kl.value:.2g}")
    if status.entropy is not None:
        parts.append(f"H {status.entropy.value:.2f}")
    return " ".join(parts)


def _change(figure: Figure | None) -> str:
    """The change since the first evaluation."""
    if figure is None:
        return ""
    return f"at step {figure.step}" if figure.change is None else f"{figure.change:+.4g}"


def _eta(status: Status) -> str:
    return f"ETA {clock(status.eta)}" if status.eta is not None else ""


def _pace(status: Status) -> str:
    return "" if status.seconds_per_step is None else f"{status.seconds_per_step:.3g} s/step"


def _notes(statuses: Sequence[Status]) -> Iterator[Text]:
    """Reasons of ends, then findings, the serious ones in red."""
    from rich.text import Text

    for status in statuses:
        if status.reason:
            text = cli.redact(f"{status.name}: {status.state}: {status.reason}")
            yield Text(text, style=_STYLES[status.state])
        for finding in status.findings[:WARNINGS]:
            style = "red" if finding.severity == "problem" else "yellow"
            line = next(iter(finding.lines()))
            yield Text(cli.redact(f"{status.name}: {line}"), style=style)
        if len(status.findings) > WARNINGS:
            yield Text(f"{status.name}: and {len(status.findings) - WARNINGS} more", style="dim")


def line(status: Status) -> str:
    """One run in one line."""
    parts = [status.name, _state(status)[0]]
    if status.done or status.total:
        share = f" ({100 * status.done / status.total:.0f} %)" if status.total else ""
        parts.append(f"step {_steps(status)}{share}")
    if status.train is not None:
        parts.append(_figure(status.train)[0])
    parts.append(_signals(status))
    if status.held_out is not None:
        change = status.held_out.change
        since = f" ({change:+.4g})" if change is not None else ""
        parts.append(f"held-out {_figure(status.held_out)[0]}{since}")
    reason = status.reason
    if len(reason) > REASON:
        reason = reason[: REASON - 3] + "..."
    parts += [_pace(status), _eta(status), reason]
    return cli.redact("  ".join(part for part in parts if part))


class Changes:
    """What is new since the last look, as lines: one for each run that changed."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[object, ...]] = {}
        self._known: set[tuple[str, str]] = set()

    def lines(self, statuses: Sequence[Status]) -> Iterator[str]:
        now = time.strftime("%H:%M:%S")
        for status in statuses:
            figures = (status.train, status.held_out)
            state = (status.state, status.done, *map(repr, figures), bool(status.reason))
            if self._seen.get(status.path) != state:
                self._seen[status.path] = state
                yield f"{now}  {line(status)}"
            for finding in status.findings:
                if (status.path, finding.cause) not in self._known:
                    self._known.add((status.path, finding.cause))
                    yield cli.redact(f"{now}  {status.name}  {next(iter(finding.lines()))}")
                    if finding.fix:
                        yield f"          fix: {cli.redact(finding.fix)}"
