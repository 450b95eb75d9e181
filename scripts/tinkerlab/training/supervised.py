"""Supervised fine-tuning from a config: what it trains on, and what its settings come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tinkerlab.runs import jsonl
from tinkerlab.training import outcome
from tinkerlab.training.batches import BatchPlan
from tinkerlab.training.progress import SUPERVISED
from tinkerlab.training.run import TrainingRun
from tinkerlab.training.supervised_config import SupervisedConfig
from tinkerlab.training.supervised_data import SupervisedData, fingerprint
from tinkerlab.training.supervised_objective import SupervisedObjective

if TYPE_CHECKING:
    import tinker


class SupervisedRun(TrainingRun):
    """One supervised run: its config, its checked data, and what both resolve to.

    Args:
        peak_rate: of the learning rate's schedule, see ``run.peak_learning_rate``.
        command: the command that goes on with the run, for messages.

    Raises:
        InputError: fewer rows than a batch.
    """

    # Files are compared by what was read from them, the numbers of epochs and steps by the
    # steps they come to.
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
    SHOWN = SUPERVISED

    def __init__(
        self, config: SupervisedConfig, data: SupervisedData, peak_rate: float, command: str
    ) -> None:
        self.config = config
        self.data = data
        self.plan = BatchPlan(len(data.train), config.train_batch_size, config.seed)
        self.submit_ahead = config.submit_ahead
        super().__init__(
            config,
            peak_rate=peak_rate,
            total_steps=self.plan.total_steps(config.num_epochs, config.num_steps),
            renderer_name=data.renderer_name,
            command=command,
        )

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

    def position(self, step: int) -> tuple[int, int]:
        return self.plan.position(step)

    def make_objective(
        self, connection: tinker.ServiceClient, client: tinker.TrainingClient
    ) -> SupervisedObjective:
        return SupervisedObjective(
            client,
            self.plan,
            self.data.train_datum,
            self.data.held_out_datums(),
            self.data.tokenizer,
        )

    def write_inputs(self) -> None:
        self.folder.write_json(self.folder.data_report_file, self.data.report_document())
        jsonl.rewrite(self.folder.held_out_file, self.data.held_out_documents())

    def figures(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {
            **outcome.first_and_last(rows, "train_mean_nll", "train_nll"),
            **outcome.first_and_last(rows, "test/nll", "held_out_nll"),
        }

    def diverged_advice(self) -> str:
        return "Use a lower learning_rate or set grad_clip_norm"
