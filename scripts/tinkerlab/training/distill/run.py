"""One distillation run: who learns what from whom.

Why the loop is ours and not ``tinker_cookbook.distillation.train_on_policy.main``: main takes
its samples without seeds, leaves rows in metrics.jsonl that a resumed run writes again, measures
no KL on held-out prompts, and does not ask whether teacher and student have one tokenizer. The
loop is the one that all our trainers share; the reverse KL is imported from the cookbook.

The resume promise is the RL trainer's: a step depends on the seed and the step alone, so an
interrupted run repeats the same requests, and its result is the same up to rounding in the
sampler's logits. Off-policy, the traces are kept with the run and training is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tinkerlab.runs import jsonl
from tinkerlab.training import outcome
from tinkerlab.training.distill import traces
from tinkerlab.training.distill.config import DistillConfig
from tinkerlab.training.distill.data import DistillData, fingerprint
from tinkerlab.training.distill.objective import Distillation, OffPolicy, OnPolicy
from tinkerlab.training.distill.teachers import Teacher, open_teachers
from tinkerlab.training.progress import Shown
from tinkerlab.training.run import TrainingRun

if TYPE_CHECKING:
    import tinker


class DistillRun(TrainingRun):
    """One distillation run: its config, its prompts and teachers, and what they resolve to.

    Args:
        teachers: one for each of the data's sources, in their order.
        checkpoint: the training state that the student begins from, resolved.
    """

    FREE_TO_CHANGE = frozenset(
        {
            "run_name",
            "log_path",
            "load_checkpoint_path",
            "dataset",
            "teacher",
            "teachers",
            "max_train_tasks",
            "max_eval_tasks",
            "renderer",
            "learning_rate",
            "num_steps",
            "save_every",
            "ttl_seconds",
            "wandb_project",
        }
    )
    SHOWN = Shown(
        figures={
            "teacher_kl": "KL to teacher {:.4f}",
            "train_mean_nll": "loss {:.4f}",
            "env/all/ac_tokens_per_turn": "{:.0f} tokens each",
            "env/all/truncated": "cut {:.0%}",
        },
        held_out="test/teacher_kl",
        held_out_figure="held-out KL {:.4f}",
        at_the_end="held-out KL to the teacher {:.4f}",
    )

    def __init__(
        self,
        config: DistillConfig,
        data: DistillData,
        teachers: Sequence[Teacher],
        peak_rate: float,
        command: str,
        checkpoint: str | None = None,
    ) -> None:
        self.config = config
        self.data = data
        self.teachers = teachers
        super().__init__(
            config,
            peak_rate=peak_rate,
            total_steps=config.num_steps,
            renderer_name=data.rendering.renderer_name,
            command=command,
            checkpoint=checkpoint,
        )

    def resolved(self) -> dict[str, Any]:
        """What the config and the prompts come to; with the config it decides the result."""
        train, held_out = self.data.train(), self.data.held_out()
        return {
            "learning_rate": self.peak_rate,
            "renderer": self.data.rendering.renderer_name,
            "load_checkpoint_path": self.checkpoint,
            "total_steps": self.total_steps,
            "teacher_models": [teacher.model for teacher in self.teachers],
            "train_prompts": len(train),
            "held_out_prompts": len(held_out),
            "train_sha256": fingerprint(train),
            "held_out_sha256": fingerprint(held_out),
        }

    def describe(self) -> str:
        """What is about to happen, in a few lines."""
        config = self.config
        whose = "the student" if config.method == "on_policy" else "the teacher"
        lines = [
            f"{self.total_steps} steps of {config.groups_per_batch} prompts"
            + (" from each dataset" if len(self.teachers) > 1 else "")
            + f", {config.group_size} samples each of {whose}, at most {config.max_tokens} tokens",
            *(
                f"{source.name}: teacher {teacher.model}"
                for source, teacher in zip(self.data.sources, self.teachers, strict=True)
            ),
            f"LoRA rank {config.lora_rank} on {self.checkpoint or config.base_model}, renderer"
            f" {self.data.rendering.renderer_name}",
            f"learning rate {self.peak_rate:g}, {config.lr_schedule} after {config.warmup_steps}"
            " warm-up steps",
            f"run folder: {self.folder.path}",
        ]
        if config.temperature != 1:
            lines.append(
                f"warning: temperature={config.temperature:g}: the student's logprobs are at that"
                " temperature, the teacher's at 1"
            )
        return "\n".join(lines)

    def before_training(self, connection: tinker.ServiceClient) -> None:
        """Refuse teachers that can't teach; off-policy, take their samples."""
        clients = self._open(connection)
        if self.config.method == "off_policy":
            rows = traces.sample(clients, self.data, self.config)
            jsonl.rewrite(self.folder.path / traces.FILE_NAME, rows)

    def _open(self, connection: tinker.ServiceClient) -> list[tinker.SamplingClient]:
        return open_teachers(
            connection, self.teachers, self.config.base_model, self.data.rendering.tokenizer
        )

    def position(self, step: int) -> tuple[int, int]:
        return self.data.sources[0].plan.position(step)

    def make_objective(
        self, connection: tinker.ServiceClient, client: tinker.TrainingClient
    ) -> Distillation:
        parts = (client, self.config, self.data, self._open(connection))
        if self.config.method == "on_policy":
            return OnPolicy(*parts)
        found = traces.read(self.folder.path, self.data, self.config)
        return OffPolicy(*parts, traces=found)

    def write_inputs(self) -> None:
        rows = [
            {"messages": self.data.rendering.messages(task), "teacher": self.teachers[place].model}
            for place, task in self.data.held_out()
        ]
        jsonl.rewrite(self.folder.held_out_file, rows)

    def figures(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {
            **outcome.first_and_last(rows, "teacher_kl", "teacher_kl"),
            **outcome.first_and_last(rows, "train_mean_nll", "train_nll"),
            **outcome.first_and_last(rows, "test/teacher_kl", "held_out_teacher_kl"),
        }

    def diverged_advice(self) -> str:
        return "Use a lower learning_rate or set grad_clip_norm"
