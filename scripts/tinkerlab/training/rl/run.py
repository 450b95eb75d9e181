"""One RL run: what it trains on, whether to begin, when to stop.

Why the loop is ours and not ``tinker_cookbook.rl.train.main``: main makes its adapter and its
samples without seeds, leaves rows in metrics.jsonl that a resumed run writes again, records
checkpoints before a loss has shown them to be finite, and has no place where a run can be
stopped for a reason. So the loop is the one that all our trainers share, and everything that
is reinforcement learning (advantages, datums, KL penalty, metrics) is imported from the
cookbook: see ``objective``.

The resume promise: tasks, seeds and settings of a step depend on the step alone and every step
samples from the weights that its checkpoint holds, so an interrupted run repeats exactly the
same requests. Its result is the same as far as the service answers equal requests equally. The
rehearsal's logits differ in the last bits (some 1e-6) with what else it is sampling. That moves
a draw only where it falls on the border between two tokens; but of a vocabulary of 49,152 the
improbable ones are all border: about one in a thousand of SmolLM2's sampled tokens changes (seen,
and what its probabilities predict for borders that move by 1e-7 to 4e-7). From there on two runs
are two samples of the same training; the tests, on a model with few tokens, see none change.
With ``max_steps_off_policy`` the promise holds for periodic checkpoints; after Ctrl-C between
two of them, the steps up to the next are closer to on-policy than they would have been.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tinkerlab import service
from tinkerlab.cli import EXIT_BAD_INPUT, EXIT_FOUND, EXIT_OK, say
from tinkerlab.errors import CheckFailed, InputError
from tinkerlab.runs import jsonl, metrics
from tinkerlab.training import outcome
from tinkerlab.training.batches import BatchPlan
from tinkerlab.training.loop import Listener
from tinkerlab.training.progress import Shown
from tinkerlab.training.rl.config import RLConfig
from tinkerlab.training.rl.data import RLData, fingerprint, reward_fingerprint
from tinkerlab.training.rl.objective import RLObjective, batch_tasks, group_seeds
from tinkerlab.training.rl.preflight import GRADER_ERRORS, Preflight
from tinkerlab.training.rl.rollout_log import RolloutLog
from tinkerlab.training.rl.rollouts import Sampling, collect, submit
from tinkerlab.training.rl.watch import CollapseWatch
from tinkerlab.training.run import TrainingRun

if TYPE_CHECKING:
    import tinker

PREFLIGHT_FILE = "preflight.json"


class RLRun(TrainingRun):
    """One RL run: its config, its tasks and grader, and what both resolve to.

    Args:
        checkpoint: the training state to begin from, resolved; None for the base model.
    """

    FREE_TO_CHANGE = frozenset(
        {
            "run_name",
            "log_path",
            "load_checkpoint_path",
            "dataset",
            "eval_dataset",
            "max_train_tasks",
            "max_eval_tasks",
            "renderer",
            "learning_rate",
            "num_steps",
            "eval_every",
            "preflight_groups",
            "stop_on_collapse",
            "collapse_patience",
            "rollouts_per_step",
            "ttl_seconds",
            "wandb_project",
        }
    )
    SHOWN = Shown(
        figures={
            "env/all/reward/total": "reward {:.3f}",
            "env/all/by_group/frac_mixed": "mixed {:.0%}",
            "env/all/truncated": "cut {:.0%}",
            "env/all/ac_tokens_per_turn": "{:.0f} tokens each",
            "optim/kl_sample_train_v2": "KL {:.1e}",
            "optim/entropy": "entropy {:.2f}",
        },
        held_out="test/env/all/reward/total",
        held_out_figure="held-out reward {:.3f}",
        at_the_end="held-out reward {:.3f}",
    )

    def __init__(
        self,
        config: RLConfig,
        data: RLData,
        peak_rate: float,
        command: str,
        checkpoint: str | None = None,
    ) -> None:
        self.config = config
        self.data = data
        self.plan = BatchPlan(len(data.train), config.groups_per_batch, config.seed)
        self.log = RolloutLog(config.folder, config.rollouts_per_step)
        super().__init__(
            config,
            peak_rate=peak_rate,
            total_steps=config.num_steps,
            renderer_name=data.renderer_name,
            command=command,
            checkpoint=checkpoint,
        )

    def resolved(self) -> dict[str, Any]:
        """What the config and the tasks come to; with the config it decides the result."""
        return {
            "learning_rate": self.peak_rate,
            "renderer": self.data.renderer_name,
            "load_checkpoint_path": self.checkpoint,
            "total_steps": self.total_steps,
            "train_tasks": len(self.data.train),
            "held_out_tasks": len(self.data.held_out),
            "train_sha256": fingerprint(self.data.train),
            "held_out_sha256": fingerprint(self.data.held_out),
            "reward_sha256": reward_fingerprint(self.config.reward),
        }

    def describe(self) -> str:
        """What is about to happen, in a few lines."""
        config = self.config
        rate = f"{self.peak_rate:g}"
        if config.learning_rate == "auto":
            rate += " (tinker-cookbook's get_lr)"
        lines = [
            f"{self.total_steps} steps of {config.groups_per_batch} groups of"
            f" {config.group_size} completions, at most {config.max_tokens} tokens each,"
            f" temperature {config.temperature:g}",
            f"{len(self.data.train)} training tasks; held out: {len(self.data.held_out)}"
            + (f", tried every {config.eval_every} steps" if config.eval_every else ""),
            f"reward {config.reward}; loss {config.loss_fn}"
            + (f" {config.loss_fn_config}" if config.loss_fn_config else "")
            + (f"; KL penalty {config.kl_penalty_coef:g}" if config.kl_penalty_coef else ""),
            f"LoRA rank {config.lora_rank} on {self.checkpoint or config.base_model}, renderer"
            f" {self.data.renderer_name}",
            f"learning rate {rate}, {config.lr_schedule} after {config.warmup_steps} warm-up steps",
            f"run folder: {self.folder.path}",
        ]
        if config.kl_penalty_coef and config.temperature != 1:
            lines.append(
                f"warning: kl_penalty_coef with temperature={config.temperature:g}: the penalty"
                " compares logprobs at that temperature with the reference's at 1"
            )
        return "\n".join(lines)

    # -- before the first step ----------------------------------------------------------------

    def dry_run(self) -> tuple[int, dict[str, Any]]:
        """The pre-flight alone: the exit code and its document.

        Raises:
            CheckFailed: the service stopped answering.
            InputError: an unusable service, model or checkpoint.
        """
        connection = service.connect(self.config.run_name, self.metadata())
        try:
            preflight = self.preflight(connection)
        except service.service_errors() as error:
            raise CheckFailed(f"the service stopped: {service.brief(error)}") from None
        refusal = preflight.refusal()
        if refusal is None:
            return EXIT_OK, preflight.document()
        say(f"failed: not worth training: {refusal.message}")
        code = EXIT_BAD_INPUT if refusal.reason == GRADER_ERRORS else EXIT_FOUND
        return code, preflight.document()

    def before_training(self, connection: tinker.ServiceClient) -> None:
        preflight = self.preflight(connection)
        self.folder.write_json(self.folder.path / PREFLIGHT_FILE, preflight.document())
        refusal = preflight.refusal()
        if refusal is None:
            return
        # A reward that fails is the user's to mend; a lack of signal is a finding.
        kind = InputError if refusal.reason == GRADER_ERRORS else CheckFailed
        raise kind(f"not worth training: {refusal.message}")

    def preflight(self, connection: tinker.ServiceClient) -> Preflight:
        """Sample the first tasks by the starting policy, grade them, and print what they show."""
        config = self.config
        tasks, seeds = [], []
        step = 0
        while len(tasks) < config.preflight_groups:
            tasks += batch_tasks(self.data, self.plan, step)
            seeds += group_seeds(config, step)
            step += 1
        how = Sampling(config.group_size, config.max_tokens, config.temperature)
        groups = config.preflight_groups
        say(f"pre-flight: sampling {groups} groups of {config.group_size} completions ...")
        submitted = submit(
            self._starting_policy(connection),
            self.data,
            tasks[:groups],
            how,
            seeds=seeds[:groups],
        )
        preflight = Preflight(collect(submitted, self.data), config)
        for line in preflight.lines():
            say(line)
        for warning in preflight.warnings():
            say(f"warning: {warning}")
        return preflight

    def _starting_policy(self, connection: tinker.ServiceClient) -> tinker.SamplingClient:
        if self.checkpoint:
            return self.fresh_client(connection).save_weights_and_get_sampling_client().result()
        try:
            return connection.create_sampling_client(base_model=self.config.base_model).result()
        except service.refusals() as error:
            raise InputError(
                f"the service does not sample from base_model {self.config.base_model}:"
                f" {service.brief(error)}"
            ) from None

    # -- the loop's parts ---------------------------------------------------------------------

    def position(self, step: int) -> tuple[int, int]:
        return self.plan.position(step)

    def make_objective(
        self, connection: tinker.ServiceClient, client: tinker.TrainingClient
    ) -> RLObjective:
        return RLObjective(
            client,
            self.config,
            self.data,
            self.plan,
            self.adam_params,
            self.total_steps,
            self.log,
            self._reference(connection),
        )

    def _reference(self, connection: tinker.ServiceClient) -> tinker.SamplingClient | None:
        """The policy of the KL penalty; the base model unless the config says otherwise."""
        if self.config.kl_penalty_coef == 0:
            return None
        path = self.config.kl_reference_path
        if path in (None, "base"):
            return connection.create_sampling_client(base_model=self.config.base_model).result()
        try:
            return connection.create_sampling_client(model_path=path).result()
        except service.refusals() as error:
            raise InputError(
                f"kl_reference_path {path}: {service.brief(error)}; it expired, was deleted, or"
                " TINKER_BASE_URL points elsewhere"
            ) from None

    def free_to_change(self) -> frozenset[str]:
        # Only with samples of older weights does the place of a checkpoint matter.
        on_policy = self.config.max_steps_off_policy == 0
        return self.FREE_TO_CHANGE | ({"save_every"} if on_policy else frozenset())

    def watchers(self) -> list[Listener]:
        return [CollapseWatch(self.config, metrics.read(self.folder.path))]

    def rewind(self, step: int) -> None:
        self.log.keep_before(step)

    def write_inputs(self) -> None:
        rows = [
            {"messages": self.data.messages(task), "answer": task.answer, **task.row}
            for task in self.data.held_out
        ]
        jsonl.rewrite(self.folder.held_out_file, rows)

    def figures(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {
            **outcome.first_and_last(rows, "env/all/reward/total", "reward"),
            **outcome.first_and_last(rows, "test/env/all/reward/total", "held_out_reward"),
            **outcome.first_and_last(rows, "test/env/all/correct", "held_out_correct"),
        }

    def diverged_advice(self) -> str:
        return "Use a lower learning_rate, loss_fn=ppo or a grad_clip_norm"
