"""What every kind of training run does around its loop: settle the settings, go on, sum up.

A kind of training is a subclass: it says what its settings come to, what to train on and what
is free to change between two starts; the order of things, and so the resume promise, is here.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tinkerlab import service
from tinkerlab.cli import EXIT_OK, say
from tinkerlab.errors import CheckFailed
from tinkerlab.runs import jsonl, metrics, provenance
from tinkerlab.runs.checkpoints import CheckpointRecord
from tinkerlab.runs.folder import RunFolder
from tinkerlab.training import outcome, resume
from tinkerlab.training.checkpointing import CheckpointWriter
from tinkerlab.training.config import to_dict
from tinkerlab.training.interrupts import Interrupts
from tinkerlab.training.loop import Diverged, Listener, Objective, Rhythm, TrainingLoop
from tinkerlab.training.progress import PlainProgress, Shown, make_progress
from tinkerlab.training.run_config import RunConfig
from tinkerlab.training.schedule import learning_rate_at, recommended_learning_rate
from tinkerlab.training.starting import client_from
from tinkerlab.training.tracking import WandbTracker

if TYPE_CHECKING:
    import tinker


def peak_learning_rate(config: RunConfig) -> float:
    """The config's learning rate, ``auto`` looked up.

    Raises:
        InputError: there is no recommended rate for the model.
    """
    if config.learning_rate == "auto":
        return recommended_learning_rate(config.base_model)
    return float(config.learning_rate)


class Stop(Exception):
    """A listener ends the run for a reason that more steps would not mend."""


class TrainingRun(ABC):
    """One run: its config, what it resolves to, and its folder.

    Args:
        peak_rate: of the learning rate's schedule, see ``peak_learning_rate``.
        total_steps: of the whole run.
        renderer_name: kept with the checkpoints, where tinker-cookbook looks for it.
        command: the command that goes on with the run, for messages.
        checkpoint: the training state to begin from, resolved (``starting``); None for a fresh
            adapter on the base model.
    """

    FREE_TO_CHANGE: ClassVar[frozenset[str]]
    """What may change between two starts of a run without changing its result."""

    SHOWN: ClassVar[Shown]
    """The figures that the progress shows."""

    submit_ahead = 0
    until_step: int | None = None
    """Pause after so many steps of the run; the same command without it goes on."""

    def __init__(
        self,
        config: RunConfig,
        *,
        peak_rate: float,
        total_steps: int,
        renderer_name: str,
        command: str,
        checkpoint: str | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self._settings = config
        self._renderer_name = renderer_name
        self.peak_rate = peak_rate
        self.total_steps = total_steps
        self.command = command
        self.folder = RunFolder(config.folder)

    @abstractmethod
    def resolved(self) -> dict[str, Any]:
        """What the config and the data come to; with the config it decides the result."""

    @abstractmethod
    def position(self, step: int) -> tuple[int, int]:
        """(epoch, batch within the epoch) of ``step``."""

    @abstractmethod
    def make_objective(
        self, connection: tinker.ServiceClient, client: tinker.TrainingClient
    ) -> Objective:
        """What the loop trains on."""

    @abstractmethod
    def figures(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """First and last values of what this kind of training is about, for the summary."""

    @abstractmethod
    def diverged_advice(self) -> str:
        """What to change where a loss is not finite."""

    @abstractmethod
    def write_inputs(self) -> None:
        """Leave in the folder what the run trains and evaluates on."""

    def before_training(self, connection: tinker.ServiceClient) -> None:  # noqa: B027 (optional)
        """Refuse to begin a new run; nothing is recorded yet.

        Raises:
            CheckFailed: it is not worth beginning.
        """

    def free_to_change(self) -> frozenset[str]:
        """``FREE_TO_CHANGE``, and what this run's own settings add to it."""
        return self.FREE_TO_CHANGE

    def watchers(self) -> list[Listener]:
        """Listeners of this kind of training; one may raise ``Stop``."""
        return []

    def rewind(self, step: int) -> None:  # noqa: B027 (optional)
        """Drop what this kind of training wrote of ``step`` and later."""

    def fresh_client(self, connection: tinker.ServiceClient) -> tinker.TrainingClient:
        """The training client of step 0: a fresh optimizer, on what the run begins from.

        Raises:
            InputError: the service refuses the adapter, or has no such checkpoint.
        """
        config = self._settings
        if self.checkpoint is not None:
            return client_from(
                connection,
                self.checkpoint,
                base_model=config.base_model,
                lora_rank=config.lora_rank,
                metadata=self.metadata(),
            )
        return service.create_adapter(
            connection,
            config.base_model,
            rank=config.lora_rank,
            seed=config.seed,
            train_mlp=config.train_mlp,
            train_attn=config.train_attn,
            train_unembed=config.train_unembed,
            metadata=self.metadata(),
        )

    def train(self) -> tuple[int, dict[str, Any]]:
        """Train, or go on where the last start ended: the exit code and the summary.

        Raises:
            CheckFailed: the loss is not finite, the run was stopped for a reason, or the
                service stopped answering.
            InputError: other settings than the run began with; an unusable service or model.
        """
        with self.folder.locked():
            begun = self._compare_config()
            connection = service.connect(self._settings.run_name, self.metadata())
            status = "errored"
            try:
                if not begun:
                    self.before_training(connection)
                    self._save_config()
                code, summary = self._train(connection)
                status = "success" if code == EXIT_OK else "interrupted"
                return code, summary
            except service.service_errors() as error:
                raise CheckFailed(
                    f"the service stopped the run: {service.brief(error)}. This goes on with it:"
                    f" {self.command}"
                ) from None
            finally:
                with contextlib.suppress(Exception):  # closing is a courtesy, not a result
                    connection.close(status).result(timeout=10)

    def _train(self, connection: tinker.ServiceClient) -> tuple[int, dict[str, Any]]:
        rest = service.rest_client()
        point = resume.find_resume_point(self.folder, rest)
        if point.complete:
            say("this run is complete; nothing to do")
            return EXIT_OK, self._summary("already complete", point.record, None, None)
        if self.until_step is not None and point.step >= self.until_step:
            say(f"{point.step} steps are done already; nothing to do")
            return EXIT_OK, self._summary("paused", point.record, None, None)
        client = self._client(connection, point)
        dropped = resume.rewind(self.folder, point)
        self.rewind(point.step)
        self._begin_attempt(client, point, dropped)
        writer = CheckpointWriter(
            client,
            rest,
            self.folder,
            self.position,
            self._settings.ttl_seconds,
            point.record,
        )
        with (
            self._tracker() as tracker,
            make_progress(self.total_steps, point.step, self.SHOWN) as progress,
            Interrupts() as interrupts,
        ):
            loop = TrainingLoop(
                client,
                self.make_objective(connection, client),
                self.adam_params,
                self._rhythm(),
                self.folder,
                writer,
                self._listeners(progress, tracker),
            )
            try:
                complete = loop.run(point.step, interrupts)
            except Diverged as error:
                raise CheckFailed(
                    f"{error}, at a peak learning rate of {self.peak_rate:g};"
                    f" {_last_good(writer)}. {self.diverged_advice()}, and a new run_name"
                ) from None
            except Stop as error:
                raise CheckFailed(f"stopped: {error}; {_last_good(writer)}") from None
        url = tracker.url if tracker else None
        if complete:
            return EXIT_OK, self._summary("complete", writer.last, client.model_id, url)
        status = "interrupted" if interrupts.requested else "paused"
        say(f"{status}; this goes on with it: {self.command}")
        summary = self._summary(status, writer.last, client.model_id, url)
        return interrupts.exit_code if interrupts.requested else EXIT_OK, summary

    def _listeners(self, progress: PlainProgress, tracker: WandbTracker | None) -> list[Listener]:
        listeners: list[Listener] = [progress, tracker] if tracker else [progress]
        return [*listeners, *self.watchers()]

    def _client(
        self, connection: tinker.ServiceClient, point: resume.ResumePoint
    ) -> tinker.TrainingClient:
        if point.record and point.record.state_path:
            say(f"going on after step {point.step} from {point.record.state_path}")
            return connection.create_training_client_from_state_with_optimizer(
                point.record.state_path, user_metadata=self.metadata()
            ).result()
        return self.fresh_client(connection)

    def adam_params(self, step: int) -> tinker.AdamParams:
        """The optimizer's settings at ``step``, a pure function of it."""
        import tinker

        config = self._settings
        rate = learning_rate_at(
            step,
            self.total_steps,
            peak=self.peak_rate,
            schedule=config.lr_schedule,
            warmup_steps=config.warmup_steps,
        )
        return tinker.AdamParams(
            learning_rate=rate,
            beta1=config.adam_beta1,
            beta2=config.adam_beta2,
            eps=config.adam_eps,
            weight_decay=config.weight_decay,
            grad_clip_norm=config.grad_clip_norm,
        )

    def _rhythm(self) -> Rhythm:
        config = self._settings
        return Rhythm(
            self.total_steps,
            config.eval_every,
            config.save_every,
            self.submit_ahead,
            self.until_step,
        )

    def metadata(self) -> dict[str, str]:
        """What the service keeps with the run."""
        # The key under which tinker-cookbook looks for a checkpoint's renderer.
        return {"run_name": self._settings.run_name, "renderer_name": self._renderer_name}

    @contextlib.contextmanager
    def _tracker(self) -> Iterator[WandbTracker | None]:
        if self._settings.wandb_project is None:
            yield None
            return
        tracker = WandbTracker(
            self._settings.wandb_project,
            self._settings.run_name,
            self.folder,
            to_dict(self._settings),
        )
        code = 1
        try:
            yield tracker
            code = 0
        finally:
            tracker.finish(code)

    def _compare_config(self) -> bool:
        """Whether the folder holds this run already.

        Raises:
            InputError: it holds one with other settings.
        """
        saved = self.folder.read_config()
        if saved is None:
            return False
        settings = {
            key: value
            for key, value in to_dict(self._settings).items()
            if key not in self.free_to_change()
        }
        resume.refuse_changes(
            self.folder,
            {**saved, **saved.get("resolved", {})},
            {**settings, **self.resolved()},
        )
        return True

    def _save_config(self) -> None:
        document = {
            **to_dict(self._settings),
            "resolved": self.resolved(),
            "versions": provenance.versions(),
            "git_commit": provenance.git_commit(Path.cwd()),
            "tool_commit": provenance.git_commit(Path(__file__).parent),
        }
        self.write_inputs()
        self.folder.write_json(self.folder.config_file, document)

    def _begin_attempt(
        self, client: tinker.TrainingClient, point: resume.ResumePoint, dropped: int
    ) -> None:
        if dropped:
            say(f"{dropped} logged steps after the checkpoint will be done again")
        jsonl.repair_tail(self.folder.attempts_file)
        attempt = {
            "training_run": client.model_id,
            "first_step": point.step,
            "resumed_from": point.record.state_path if point.record else None,
        }
        jsonl.append(self.folder.attempts_file, attempt)

    def _summary(
        self,
        status: str,
        last: CheckpointRecord | None,
        training_run: str | None,
        url: str | None,
    ) -> dict[str, Any]:
        if training_run is None:
            attempts = jsonl.read(self.folder.attempts_file)
            training_run = attempts[-1]["training_run"] if attempts else None
        rows = metrics.read(self.folder.path)
        return outcome.summarize(
            self.folder,
            rows,
            last,
            self.figures(rows),
            status=status,
            training_run=training_run,
            wandb_url=url,
        )


def _last_good(writer: CheckpointWriter) -> str:
    good = writer.last
    if good is None:
        return "no good checkpoint was saved before it"
    return f"last good checkpoint: {good.state_path} ({good.step} steps)"
