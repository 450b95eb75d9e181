"""Progress of a run on stderr: a live bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from tinkerlab.cli import say
from tinkerlab.runs.checkpoints import CheckpointRecord

LINE_EVERY_SECONDS = 5.0


def make_progress(total_steps: int, start: int) -> PlainProgress:
    """The reporter that fits stderr."""
    return (
        BarProgress(total_steps, start)
        if sys.stderr.isatty()
        else PlainProgress(total_steps, start)
    )


class PlainProgress:
    """A line for the first and last step, each evaluation, and every few seconds between."""

    def __init__(self, total_steps: int, start: int) -> None:
        self._total = total_steps
        self._start = start
        self._began = time.monotonic()
        self._said_at = 0.0
        self._tokens = 0
        self._held_out_nll: float | None = None

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(self, *reason: object) -> None:
        return None

    def row(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._tokens += metrics.get("num_tokens", 0)
        evaluated = "test/nll" in metrics
        if evaluated:
            self._held_out_nll = metrics["test/nll"]
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
            say(f"trained: held-out NLL {self._held_out_nll:.4f}")

    def checkpoint(self, record: CheckpointRecord) -> None:
        say(f"checkpoint {record.name} ({record.step} steps): {record.state_path}")

    def _figures(self, step: int, metrics: Mapping[str, Any]) -> str:
        parts = [f"loss {metrics['train_mean_nll']:.4f}"] if "train_mean_nll" in metrics else []
        if self._held_out_nll is not None:
            parts.append(f"val NLL {self._held_out_nll:.4f}")
        elapsed = max(time.monotonic() - self._began, 1e-9)
        parts.append(f"{self._tokens / elapsed:,.0f} tokens/s")
        done = step + 1 - self._start
        parts.append(f"ETA {clock(elapsed / done * (self._total - step - 1))}")
        return "  ".join(parts)


class BarProgress(PlainProgress):
    """The same figures beside a bar that stays on the terminal's last line."""

    def __init__(self, total_steps: int, start: int) -> None:
        super().__init__(total_steps, start)
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
        if "test/nll" in metrics:
            self._held_out_nll = metrics["test/nll"]
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
