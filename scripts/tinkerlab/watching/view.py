"""The runs as a table for a terminal, and as plain lines for a log. Knows no files."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tinkerlab import cli
from tinkerlab.training.progress import clock
from tinkerlab.watching.status import GOES_ON, Figure, State, Status, span

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
BAR = 10  # cells
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


def screen(statuses: Sequence[Status], *, width: int = 80, height: int | None = None) -> Group:
    """The runs with a head line, and below them what is wrong.

    Args:
        height: lines that there are; where they do not suffice, runs have one line each, and
            what still does not fit is counted. None: no limit.
    """
    from rich.console import Group
    from rich.text import Text

    notes = list(_notes(statuses))
    head = Text(summary(statuses), style="bold")
    needed = sum(1 + len(note.plain) // width for note in notes) + 2 * len(statuses) + 3
    if height is None or needed <= height:
        return Group(head, *_blocks(statuses), *notes)
    ordered = sorted(statuses, key=lambda s: (not s.needs_attention, _ORDER.index(s.state)))
    room = max(height - 4, 1)
    notes = notes[: max(room - len(ordered), room // 4)]
    for note in notes:
        note.truncate(width, overflow="ellipsis")
    shown = ordered[: max(room - len(notes), 1)]
    if len(shown) < len(ordered):
        notes.append(Text(f"... and {len(ordered) - len(shown)} more runs", style="dim"))
    return Group(head, _table(shown, width), *notes)


def summary(statuses: Sequence[Status]) -> str:
    """How many runs there are in each state, with the time."""
    counts = Counter(status.state for status in statuses)
    listed = ", ".join(f"{counts[state]} {state}" for state in _ORDER if counts[state])
    many = "" if len(statuses) == 1 else "s"
    return f"{time.strftime('%H:%M:%S')}  {len(statuses)} run{many}: {listed or 'none yet'}"


def _blocks(statuses: Sequence[Status]) -> Iterator[Text]:
    """Two lines a run: name, state and time; then its figures, in columns."""
    from rich.text import Text

    figures = [
        (_steps(status), *_figure(status.train), _held_out(status.held_out)) for status in statuses
    ]
    wide = [max((len(row[column]) for row in figures), default=0) for column in (0, 1)]
    for status, (steps, train, style, held_out) in zip(statuses, figures, strict=True):
        times = [_eta(status), _pace(status)] if status.state in GOES_ON else []
        more = [f"  {text}" for text in (*times, _signals(status)) if text]
        yield Text.assemble((cli.redact(status.name), "bold"), "  ", _state(status), *more)
        if status.state == "waiting" or (status.train is None and not status.total):
            continue
        share = status.done / status.total if status.total else None
        yield Text.assemble(
            *("  ", _bar(share), f" {steps.ljust(wide[0])}  "),
            *((train.ljust(wide[1]), style), f"  {held_out}"),
        )


def _table(statuses: Sequence[Status], width: int) -> Table:
    """One line a run; of a long name its end, where runs of a sweep differ."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    room = max(width - 50, 12)
    for status in statuses:
        name = cli.redact(status.name)
        table.add_row(
            Text(name if len(name) <= room else "…" + name[1 - room :], no_wrap=True),
            Text(*_state(status), no_wrap=True),
            Text(_steps(status), no_wrap=True),
            Text(*_figure(status.train), no_wrap=True),
            Text(_figure(status.held_out)[0], no_wrap=True),
        )
    return table


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


def _figure(figure: Figure | None) -> tuple[str, str]:
    """(text, style) of a metric's newest value."""
    if figure is None:
        return "", ""
    style = "" if math.isfinite(figure.value) else "bold red"
    return f"{figure.label} {figure.value:.4g}", style


def _held_out(figure: Figure | None) -> str:
    """The last evaluation with its change since the first one."""
    if figure is None:
        return ""
    since = "" if figure.change is None else f" ({figure.change:+.3g})"
    return f"held-out {_figure(figure)[0]}{since}"


def _signals(status: Status) -> str:
    """KL between sampler and trainer, and entropy: of runs that sample."""
    parts = []
    if status.kl is not None:
        parts.append(f"KL {status.kl.value:.2g}")
    if status.entropy is not None:
        parts.append(f"H {status.entropy.value:.2f}")
    return " ".join(parts)


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
            more = f"{status.name}: and {len(status.findings) - WARNINGS} more warnings"
            yield Text(cli.redact(more), style="dim")


def line(status: Status) -> str:
    """One run in one line."""
    parts = [status.name, _state(status)[0]]
    if status.done or status.total:
        share = f" ({100 * status.done / status.total:.0f} %)" if status.total else ""
        parts.append(f"step {_steps(status)}{share}")
    parts += [_figure(status.train)[0], _held_out(status.held_out), _signals(status)]
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
