"""Supervised fine-tuning from a config: check the data, train or go on training, sum up."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab import service
from tinkerlab.cli import EXIT_OK, say
from tinkerlab.errors import CheckFailed
from tinkerlab.runs import jsonl, metrics, provenance
from tinkerlab.runs.folder import RunFolder
from tinkerlab.training import outcome, resume
from tinkerlab.training.batches import BatchPlan
from tinkerlab.training.checkpointing import CheckpointWriter
from tinkerlab.training.config import to_dict
from tinkerlab.training.interrupts import Interrupts
from tinkerlab.training.loop import Diverged, Listener, Rhythm, TrainingLoop
from tinkerlab.training.progress import make_progress
from tinkerlab.training.schedule import learning_rate_at, recommended_learning_rate
from tinkerlab.training.supervised_config import SupervisedConfig
from tinkerlab.training.supervised_data import SupervisedData, fingerprint
from tinkerlab.training.supervised_objective import SupervisedObjective
from tinkerlab.training.tracking import WandbTracker

if TYPE_CHECKING:
    import tinker

# What may change between two starts of a run without changing its result. Files are compared
# by what was read from them, the numbers of epochs and steps by the steps they come to.
FREE_TO_CHANGE = frozenset(
    {
        "run_name",
        "log_path",
        "train_file",
        "val_file",
        "val_fraction",
        "max_train_rows",
        "max_val_rows",
        "skip_bad_rows",
        "allow_contamination",
        "renderer",
        "learning_rate",
        "num_epochs",
        "num_steps",
        "save_every",
        "submit_ahead",
        "ttl_seconds",
        "wandb_project",
    }
)


def peak_learning_rate(config: SupervisedConfig) -> float:
    """The config's learning rate, ``auto`` looked up.

    Raises:
        InputError: there is no recommended rate for the model.
    """
    if config.learning_rate == "auto":
        return recommended_learning_rate(config.base_model)
    return float(config.learning_rate)


class SupervisedRun:
    """One supervised run: its config, its checked data, and what both resolve to.

    Args:
        peak_rate: of the learning rate's schedule, see ``peak_learning_rate``.
        command: the command that goes on with the run, for messages.

    Raises:
        InputError: fewer rows than a batch.
    """

    def __init__(
        self, config: SupervisedConfig, data: SupervisedData, peak_rate: float, command: str
    ) -> None:
        self.config = config
        self.data = data
        self.command = command
        self.folder = RunFolder(config.folder)
        self.plan = BatchPlan(len(data.train), config.train_batch_size, config.seed)
        self.total_steps = self.plan.total_steps(config.num_epochs, config.num_steps)
        self.peak_rate = peak_rate

    def resolved(self) -> dict[str, Any]:
        """What the config and the data come to; with the config it decides the result."""
        return {
            "learning_rate": self.peak_rate,
            "renderer": self.data.renderer_name,
            "total_steps": self.total_steps,
            "steps_per_epoch": self.plan.steps_per_epoch,
            "train_rows": len(self.data.train),
            "held_out_rows": len(self.data.held_out),
            "train_sha256": fingerprint(self.data.train),
            "held_out_sha256": fingerprint(self.data.held_out),
        }

    def describe(self) -> str:
        """What is about to happen, in a few lines."""
        config, plan = self.config, self.plan
        rate = f"{self.peak_rate:g}"
        if config.learning_rate == "auto":
            rate += " (tinker-cookbook's get_lr)"
        held_out = len(self.data.held_out)
        left_out = plan.num_examples % plan.batch_size
        lines = [
            f"{self.total_steps} steps of {plan.batch_size} examples,"
            f" {self.total_steps / plan.steps_per_epoch:.2f} epochs of {plan.num_examples} rows"
            + (f" (each leaves out {left_out}, different ones)" if left_out else ""),
            f"held out: {held_out} rows"
            + (
                f", scored every {config.eval_every} steps"
                if held_out and config.eval_every
                else ""
            ),
            f"LoRA rank {config.lora_rank} on {config.base_model}, renderer"
            f" {self.data.renderer_name}",
            f"learning rate {rate}, {config.lr_schedule} after {config.warmup_steps} warm-up steps",
            f"run folder: {self.folder.path}",
        ]
        return "\n".join(lines)

    def train(self) -> tuple[int, dict[str, Any]]:
        """Train, or go on where the last start ended: the exit code and the summary.

        Raises:
            CheckFailed: the loss is not finite, or the service stopped answering.
            InputError: other settings than the run began with; an unusable service or model.
        """
        with self.folder.locked():
            self._save_or_compare_config()
            connection = service.connect(self.config.run_name, self._metadata())
            status = "errored"
            try:
                code, summary = self._train(connection)
                status = "success" if code == EXIT_OK else "interrupted"
                return code, summary
            except service.service_errors() as error:
                raise CheckFailed(self._stopped(service.brief(error))) from None
            finally:
                with contextlib.suppress(Exception):  # closing is a courtesy, not a result
                    connection.close(status).result(timeout=10)

    def _train(self, connection: tinker.ServiceClient) -> tuple[int, dict[str, Any]]:

        rest = service.rest_client()
        point = resume.find_resume_point(self.folder, rest)
        if point.complete:
            say("this run is complete; nothing to do")
            return EXIT_OK, self._summary("already complete", point.record, None, None)
        client = self._client(connection, point)
        dropped = resume.rewind(self.folder, point)
        self._begin_attempt(client, point, dropped)
        writer = CheckpointWriter(
            client, rest, self.folder, self.plan.position, self.config.ttl_seconds, point.record
        )
        objective = SupervisedObjective(
            client,
            self.plan,
            self.data.train_datum,
            self.data.held_out_datums(),
            self.data.tokenizer,
        )
        with (
            self._tracker() as tracker,
            make_progress(self.total_steps, point.step) as progress,
            Interrupts() as interrupts,
        ):
            listeners: list[Listener] = [progress, tracker] if tracker else [progress]
            loop = TrainingLoop(
                client, objective, self._adam_params, self._rhythm(), self.folder, writer, listeners
            )
            try:
                complete = loop.run(point.step, interrupts)
            except Diverged as error:
                raise CheckFailed(self._diverged(error, writer)) from None
        url = tracker.url if tracker else None
        if complete:
            return EXIT_OK, self._summary("complete", writer.last, client.model_id, url)
        say(f"interrupted; this goes on with it: {self.command}")
        summary = self._summary("interrupted", writer.last, client.model_id, url)
        return interrupts.exit_code, summary

    def _client(
        self, connection: tinker.ServiceClient, point: resume.ResumePoint
    ) -> tinker.TrainingClient:
        if point.record and point.record.state_path:
            say(f"going on after step {point.step} from {point.record.state_path}")
            return connection.create_training_client_from_state_with_optimizer(
                point.record.state_path, user_metadata=self._metadata()
            ).result()
        return service.create_adapter(
            connection,
            self.config.base_model,
            rank=self.config.lora_rank,
            seed=self.config.seed,
            train_mlp=self.config.train_mlp,
            train_attn=self.config.train_attn,
            train_unembed=self.config.train_unembed,
            metadata=self._metadata(),
        )

    def _adam_params(self, step: int) -> tinker.AdamParams:
        import tinker

        config = self.config
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
        config = self.config
        return Rhythm(self.total_steps, config.eval_every, config.save_every, config.submit_ahead)

    def _metadata(self) -> dict[str, str]:
        # The key under which tinker-cookbook looks for a checkpoint's renderer.
        return {"run_name": self.config.run_name, "renderer_name": self.data.renderer_name}

    @contextlib.contextmanager
    def _tracker(self) -> Iterator[WandbTracker | None]:
        if self.config.wandb_project is None:
            yield None
            return
        tracker = WandbTracker(
            self.config.wandb_project, self.config.run_name, self.folder, to_dict(self.config)
        )
        code = 1
        try:
            yield tracker
            code = 0
        finally:
            tracker.finish(code)

    def _save_or_compare_config(self) -> None:
        settings = {
            key: value for key, value in to_dict(self.config).items() if key not in FREE_TO_CHANGE
        }
        resolved = self.resolved()
        saved = self.folder.read_config()
        if saved is not None:
            resume.refuse_changes(
                self.folder, {**saved, **saved.get("resolved", {})}, {**settings, **resolved}
            )
            return
        document = {
            **to_dict(self.config),
            "resolved": resolved,
            "versions": provenance.versions(),
            "git_commit": provenance.git_commit(Path.cwd()),
            "tool_commit": provenance.git_commit(Path(__file__).parent),
        }
        self.folder.write_json(self.folder.data_report_file, self.data.report_document())
        jsonl.rewrite(self.folder.held_out_file, self.data.held_out_documents())
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
        self, status: str, last: Any, training_run: str | None, url: str | None
    ) -> dict[str, Any]:
        if training_run is None:
            attempts = jsonl.read(self.folder.attempts_file)
            training_run = attempts[-1]["training_run"] if attempts else None
        return outcome.summarize(
            self.folder,
            metrics.read(self.folder.path),
            last,
            status=status,
            training_run=training_run,
            wandb_url=url,
        )

    def _stopped(self, reason: str) -> str:
        return f"the service stopped the run: {reason}. This goes on with it: {self.command}"

    def _diverged(self, error: Diverged, writer: CheckpointWriter) -> str:
        good = writer.last
        checkpoint = (
            f"last good checkpoint: {good.state_path} ({good.step} steps)"
            if good
            else "no good checkpoint was saved before it"
        )
        return (
            f"{error}, at a peak learning rate of {self.peak_rate:g}; {checkpoint}. Use a lower"
            " learning_rate or set grad_clip_norm, and a new run_name"
        )
