"""The training loop that every kind of training shares: pipelined, interruptible, recorded.

Requests of one training client take effect in the order of submission, so step k+1 is
submitted before step k is awaited, and checkpoints and evaluations are queued between them.
What a step's loss is, and on which data, is the objective's business.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tinkerlab.runs import metrics as metrics_file
from tinkerlab.runs.checkpoints import CheckpointRecord
from tinkerlab.runs.folder import RunFolder
from tinkerlab.training.checkpointing import CheckpointWriter
from tinkerlab.training.interrupts import Interrupts

if TYPE_CHECKING:
    import tinker

Metrics = dict[str, Any]
Await = Callable[[], Metrics]
"""Blocks until a submitted request is answered and gives its metrics."""


class Objective(Protocol):
    """What one kind of training puts into the loop."""

    @property
    def watched(self) -> tuple[str, ...]:
        """Beginnings of metric names; the run stops where one of these metrics is not finite."""
        ...

    def position(self, step: int) -> tuple[int, int]:
        """(epoch, batch within the epoch) of ``step``."""
        ...

    def submit(self, step: int) -> Await:
        """Submit the gradients of ``step``."""
        ...

    def submit_evaluation(self, step: int) -> Await | None:
        """Submit an evaluation of the weights after ``step`` updates; None if there is none."""
        ...


class Listener(Protocol):
    """Is told of every finished row and checkpoint (a progress bar, an experiment tracker)."""

    def row(self, step: int, metrics: Mapping[str, Any]) -> None: ...

    def checkpoint(self, record: CheckpointRecord) -> None: ...


class Diverged(Exception):
    """A watched metric is not finite."""

    def __init__(self, step: int, key: str, value: float) -> None:
        super().__init__(f"{key} is {value} at step {step}")
        self.step, self.key, self.value = step, key, value


@dataclass(frozen=True)
class Rhythm:
    """How long a run is and what happens how often; 0 is never.

    Attributes:
        until_step: pause after so many steps, as after an interruption; None goes to the end.
    """

    total_steps: int
    eval_every: int
    save_every: int
    submit_ahead: int
    until_step: int | None = None


@dataclass(frozen=True)
class _SubmittedStep:
    step: int
    learning_rate: float
    gradients: Await
    update: tinker.APIFuture
    evaluation: Await | None
    timings: Metrics


class TrainingLoop:
    """Runs the steps ``start .. total_steps - 1`` and leaves a final checkpoint.

    Args:
        adam_params: the optimizer's settings at a step; a pure function of it.
    """

    def __init__(
        self,
        client: tinker.TrainingClient,
        objective: Objective,
        adam_params: Callable[[int], tinker.AdamParams],
        rhythm: Rhythm,
        folder: RunFolder,
        writer: CheckpointWriter,
        listeners: list[Listener],
    ) -> None:
        self._client = client
        self._objective = objective
        self._adam_params = adam_params
        self._rhythm = rhythm
        self._folder = folder
        self._writer = writer
        self._listeners = listeners
        self._pending: deque[_SubmittedStep] = deque()
        self._row_finished_at = 0.0

    def run(self, start: int, interrupts: Interrupts) -> bool:
        """Train; True when the run is complete, False when it was paused or interrupted, and saved.

        Raises:
            Diverged: a watched metric is not finite; its row is written, no checkpoint that
                holds such weights is recorded.
            tinker.TinkerError: the service refused a request or can't be reached.
        """
        self._row_finished_at = time.monotonic()
        step, total = start, self._rhythm.total_steps
        until = min(total, self._rhythm.until_step or total)
        while step < until and not interrupts.requested:
            self._pending.append(self._submit(step))
            step += 1
            if self._save_is_due(step):
                self._writer.submit(step)
            while len(self._pending) > self._rhythm.submit_ahead:
                self._finish(self._pending.popleft())
        while self._pending:
            self._finish(self._pending.popleft())
        if step < total:
            self._save_interrupted(step)
            return False
        self._finish_run()
        return True

    def _save_is_due(self, step: int) -> bool:
        every = self._rhythm.save_every
        return every > 0 and step % every == 0 and step < self._rhythm.total_steps

    def _submit(self, step: int) -> _SubmittedStep:
        started = time.monotonic()
        every = self._rhythm.eval_every
        evaluation = None
        if every > 0 and step % every == 0:
            evaluation = self._objective.submit_evaluation(step)
        gradients = self._objective.submit(step)
        adam_params = self._adam_params(step)
        update = self._client.optim_step(adam_params)
        return _SubmittedStep(
            step=step,
            learning_rate=adam_params.learning_rate,
            gradients=gradients,
            update=update,
            evaluation=evaluation,
            timings={"time/submit_batch": time.monotonic() - started},
        )

    def _finish(self, submitted: _SubmittedStep) -> None:
        waiting_since = time.monotonic()
        metrics = self._place(submitted.step)
        metrics["progress"] = (submitted.step + 1) / self._rhythm.total_steps
        metrics["learning_rate"] = submitted.learning_rate
        if submitted.evaluation:
            metrics |= submitted.evaluation()
        metrics |= submitted.gradients()
        metrics |= submitted.update.result().metrics or {}
        metrics |= submitted.timings
        metrics["time/step"] = time.monotonic() - waiting_since
        self._write_row(submitted.step, metrics)
        self._record(submitted.step)

    def _place(self, step: int) -> Metrics:
        return {"epoch": self._objective.position(step)[0]}

    def _write_row(self, step: int, metrics: Metrics) -> None:
        now = time.monotonic()
        metrics["time/total"] = now - self._row_finished_at
        self._row_finished_at = now
        metrics_file.append(self._folder.path, step, metrics)
        for listener in self._listeners:
            listener.row(step, metrics)
        for key, value in metrics.items():
            if key.startswith(self._objective.watched) and not math.isfinite(value):
                raise Diverged(step, key, value)

    def _record(self, proven_step: int, *, wait: bool = False) -> None:
        for record in self._writer.record(proven_step, wait=wait):
            for listener in self._listeners:
                listener.checkpoint(record)

    def _save_interrupted(self, step: int) -> None:
        if step > 0 and not self._writer.covers(step):
            self._writer.submit(step)
        self._record(step, wait=True)

    def _finish_run(self) -> None:
        """Evaluate and save the trained weights; submitted only once every loss was finite."""
        total = self._rhythm.total_steps
        evaluation = self._objective.submit_evaluation(total)
        self._writer.submit(total, final=True)
        if evaluation:
            metrics = self._place(total) | {"progress": 1.0} | evaluation()
            self._write_row(total, metrics)
        self._record(total, wait=True)
