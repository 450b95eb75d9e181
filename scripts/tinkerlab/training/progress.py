"""Progress of a run on stderr: a live bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tinkerlab.cli import say
from tinkerlab.runs.checkpoints import CheckpointRecord

LINE_EVERY_SECONDS = 5.0


@dataclass(frozen=True)
class Shown:
    """Which metrics a kind of training shows, and how.

    Attributes:
        figures: metric name to its format; those that a row lacks are left out.
        held_out: the metric of an evaluation, whose last value stays in sight.
        held_out_figure, at_the_end: its format during and after the run.
    """

    figures: Mapping[str, str]
    held_out: str
    held_out_figure: str
    at_the_end: str


SUPERVISED = Shown(
    {"train_mean_nll": "loss {:.4f}"}, "test/nll", "val NLL {:.4f}", "held-out NLL {:.4f}"
)


def make_progress(total_steps: int, start: int, shown: Shown = SUPERVISED) -> PlainProgress:
    """The reporter that fits stderr."""
    kind = BarProgress if sys.stderr.isatty() else PlainProgress
    return kind(total_steps, start, shown)


class PlainProgress:
    """A line for the first and last step, each evaluation, and every few seconds between."""

    def __init__(self, total_steps: int, start: int, shown: Shown = SUPERVISED) -> None:
        self._total = total_steps
        self._start = start
        self._shown = shown
        self._began = time.monotonic()
        self._said_at = 0.0
        self._tokens = 0
        self._held_out: float | None = None

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(self, *reason: object) -> None:
        return None

    def row(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._tokens += metrics.get("num_tokens", 0)
        evaluated = self._shown.held_out in metrics
        if evaluated:
            self._held_out = metrics[self._shown.held_out]
        now = time.monotonic()
        last = step + 1 >= self._total
        if (
            step > self._start
            and not (last or evaluated)
            and now - self._said_at < LINE_EVERY_SECONDS
        ):
            return
        self._said_at = now
        if step < self._total:
            say(f"step {step + 1}/{self._total}  {self._figures(step, metrics)}")
        else:
            say(f"trained: {self._shown.at_the_end.format(self._held_out)}")

    def checkpoint(self, record: CheckpointRecord) -> None:
        say(f"checkpoint {record.name} ({record.step} steps): {record.state_path}")

    def _figures(self, step: int, metrics: Mapping[str, Any]) -> str:
        shown = self._shown
        parts = [text.format(metrics[key]) for key, text in shown.figures.items() if key in metrics]
        if self._held_out is not None:
            parts.append(shown.held_out_figure.format(self._held_out))
        elapsed = max(time.monotonic() - self._began, 1e-9)
        parts.append(f"{self._tokens / elapsed:,.0f} tokens/s")
        done = step + 1 - self._start
        parts.append(f"ETA {clock(elapsed / done * (self._total - step - 1))}")
        return "  ".join(parts)


class BarProgress(PlainProgress):
    """The same figures beside a bar that stays on the terminal's last line."""

    def __init__(self, total_steps: int, start: int, shown: Shown = SUPERVISED) -> None:
        super().__init__(total_steps, start, shown)
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._bar = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task("", total=total_steps, completed=start, figures="")

    def __enter__(self) -> BarProgress:
        self._bar.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._bar.stop()

    def row(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._tokens += metrics.get("num_tokens", 0)
        if self._shown.held_out in metrics:
            self._held_out = metrics[self._shown.held_out]
        if step < self._total:
            self._bar.update(self._task, completed=step + 1, figures=self._figures(step, metrics))

    def checkpoint(self, record: CheckpointRecord) -> None:
        self._bar.console.print(
            f"checkpoint {record.name} ({record.step} steps): {record.state_path}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def clock(seconds: float) -> str:
    """``1:02:03`` or ``02:03``."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute:02}:{second:02}"
