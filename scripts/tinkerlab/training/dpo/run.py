"""One DPO run: what it trains on, what it is measured against, and its results.

Why the loop is ours and not ``tinker_cookbook.preference.train_dpo.main``: after a resume, main
takes its reference from the weights it resumed with instead of those it started from, which is
another loss; it submits nothing ahead, records checkpoints before a loss has shown them to be
finite, and measures the NLL of held-out pairs but no preference. So the loop is the one that all
our trainers share, and the loss is imported from the cookbook: see ``objective``.

The resume promise: pairs and settings of a step depend on the step alone, and the reference is
made again from where the run started, so an interrupted run ends in the same weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tinkerlab import service
from tinkerlab.errors import CheckFailed
from tinkerlab.runs import jsonl
from tinkerlab.training import outcome
from tinkerlab.training.batches import BatchPlan
from tinkerlab.training.dpo.config import DPOConfig
from tinkerlab.training.dpo.data import DPOData, fingerprint
from tinkerlab.training.dpo.objective import DPOObjective
from tinkerlab.training.dpo.results import write_results
from tinkerlab.training.progress import Shown
from tinkerlab.training.run import TrainingRun

if TYPE_CHECKING:
    import tinker


class DPORun(TrainingRun):
    """One DPO run: its config, its checked pairs, and what both resolve to.

    Args:
        checkpoint: the training state to begin from, resolved; None for the base model. It is
            the reference as well.
        command: the command that goes on with the run, for messages.

    Raises:
        InputError: fewer pairs than a batch.
    """

    FREE_TO_CHANGE = frozenset(
        {
            "run_name",
            "log_path",
            "load_checkpoint_path",
            "train_file",
            "comparison_builder",
            "comparison_builder_args",
            "val_file",
            "val_fraction",
            "max_train_rows",
            "max_val_rows",
            "skip_bad_rows",
            "allow_contamination",
            "renderer",
            "num_epochs",
            "num_steps",
            "save_every",
            "submit_ahead",
            "ttl_seconds",
            "wandb_project",
        }
    )
    SHOWN = Shown(
        figures={"dpo_loss": "loss {:.4f}", "margin": "margin {:.3f}", "accuracy": "right {:.0%}"},
        held_out="test/margin",
        held_out_figure="held-out margin {:.3f}",
        at_the_end="held-out margin {:.3f}",
    )

    def __init__(
        self, config: DPOConfig, data: DPOData, command: str, checkpoint: str | None = None
    ) -> None:
        self.config = config
        self.data = data
        self.plan = BatchPlan(len(data.train), config.train_batch_size, config.seed)
        self.submit_ahead = config.submit_ahead
        super().__init__(
            config,
            peak_rate=config.learning_rate,
            total_steps=self.plan.total_steps(config.num_epochs, config.num_steps),
            renderer_name=data.renderer_name,
            command=command,
            checkpoint=checkpoint,
        )

    def resolved(self) -> dict[str, Any]:
        """What the config and the pairs come to; with the config it decides the result."""
        return {
            "renderer": self.data.renderer_name,
            "load_checkpoint_path": self.checkpoint,
            "total_steps": self.total_steps,
            "steps_per_epoch": self.plan.steps_per_epoch,
            "train_pairs": len(self.data.train),
            "held_out_pairs": len(self.data.held_out),
            "train_sha256": fingerprint(self.data.train),
            "held_out_sha256": fingerprint(self.data.held_out),
        }

    def describe(self) -> str:
        """What is about to happen, in a few lines."""
        config, plan = self.config, self.plan
        held_out = len(self.data.held_out)
        start = self.checkpoint or config.base_model
        lines = [
            f"{self.total_steps} steps of {plan.batch_size} pairs,"
            f" {self.total_steps / plan.steps_per_epoch:.2f} epochs of {plan.num_examples} pairs",
            f"held out: {held_out} pairs"
            + (
                f", scored every {config.eval_every} steps"
                if held_out and config.eval_every
                else ""
            ),
            f"LoRA rank {config.lora_rank} from {start}, which is the reference; renderer"
            f" {self.data.renderer_name}",
            f"dpo_beta {config.dpo_beta:g}, learning rate {config.learning_rate:g},"
            f" {config.lr_schedule} after {config.warmup_steps} warm-up steps",
            f"run folder: {self.folder.path}",
        ]
        return "\n".join(lines)

    def train(self) -> tuple[int, dict[str, Any]]:
        """Train, and once complete compare start and end on the held-out pairs.

        Raises:
            CheckFailed, InputError: as ``TrainingRun.train``.
        """
        code, summary = super().train()
        if summary["status"] not in outcome.COMPLETE or not self.data.held_out:
            return code, summary
        try:
            return code, {**summary, "results": write_results(self, summary)}
        except service.service_errors() as error:
            raise CheckFailed(
                f"trained, but the service stopped the comparison: {service.brief(error)}. This"
                f" goes on with it: {self.command}"
            ) from None

    def position(self, step: int) -> tuple[int, int]:
        return self.plan.position(step)

    def make_objective(
        self, connection: tinker.ServiceClient, client: tinker.TrainingClient
    ) -> DPOObjective:
        return DPOObjective(
            client,
            self.fresh_client(connection),
            self.plan,
            self.data,
            self.config.dpo_beta,
            self.total_steps,
        )

    def write_inputs(self) -> None:
        self.folder.write_json(self.folder.data_report_file, self.data.report.to_json())
        jsonl.rewrite(self.folder.held_out_file, self.data.held_out_documents())

    def figures(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        names = {
            "dpo_loss": "loss",
            "margin": "margin",
            "test/dpo_loss": "held_out_loss",
            "test/margin": "held_out_margin",
            "test/accuracy": "held_out_accuracy",
            "test/policy_accuracy": "held_out_policy_accuracy",
        }
        found: dict[str, Any] = {}
        for key, name in names.items():
            found |= outcome.first_and_last(rows, key, name)
        return found

    def diverged_advice(self) -> str:
        return "Use a lower learning_rate or set grad_clip_norm"
