"""What RL puts into the training loop: samples of the current policy, graded, and their gradients.

Advantages, datums, the KL penalty and the metrics are tinker-cookbook's own functions.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from tinkerlab.cli import say
from tinkerlab.training.batches import BatchPlan
from tinkerlab.training.loop import Await, Metrics
from tinkerlab.training.rl.config import RLConfig
from tinkerlab.training.rl.data import RLData
from tinkerlab.training.rl.rollout_log import RolloutLog, quoted
from tinkerlab.training.rl.rollouts import (
    Group,
    Sampling,
    Submitted,
    Timings,
    collect,
    sample_seed,
    submit,
)
from tinkerlab.training.rl.training_data import (
    COUNTS_EVERY_TOKEN,
    substep_data,
    trajectory_metrics,
    without_mask,
)

if TYPE_CHECKING:
    import tinker
    import torch

    from tinkerlab.tasks import Task

EVALUATION_SAMPLES = 1
MAX_REPORTED = 5


class RLObjective:
    """Group-centred policy gradients on graded samples.

    Args:
        adam_params: the optimizer's settings at a step, for the substeps within it.
        total_steps: of the run; nothing is sampled beyond.
        reference: the policy of the KL penalty; None without one.
    """

    watched: tuple[str, ...] = ("env/all/reward/total", "optim/", "kl_", "grad_norm", "test/env/")

    def __init__(
        self,
        client: tinker.TrainingClient,
        config: RLConfig,
        data: RLData,
        plan: BatchPlan,
        adam_params: Callable[[int], tinker.AdamParams],
        total_steps: int,
        log: RolloutLog,
        reference: tinker.SamplingClient | None = None,
    ) -> None:
        self._client = client
        self._config = config
        self._data = data
        self._plan = plan
        self._adam_params = adam_params
        self._total_steps = total_steps
        self._log = log
        self._reference = reference
        self._sampler: tuple[int, tinker.SamplingClient] | None = None
        self._in_flight: dict[int, Submitted] = {}
        self._reported: set[str] = set()

    def position(self, step: int) -> tuple[int, int]:
        return self._plan.position(step)

    def submit(self, step: int) -> Await:
        """Sample and grade the groups of ``step``, then submit their gradients."""
        timings: dict[str, float] = {}
        started = time.monotonic()
        sampler = self._policy(step)
        timings["time/save_checkpoint"] = time.monotonic() - started
        for ahead in range(step, self._horizon(step) + 1):
            if ahead not in self._in_flight:
                self._in_flight[ahead] = self._sample(sampler, ahead, step)
        batch = self._in_flight.pop(step)
        spent = Timings()
        groups = collect(batch, self._data, spent)
        timings |= {"time/sampling": spent.sampling, "time/grading": spent.grading}

        self._report_failures(step, groups)

        metrics = trajectory_metrics(groups)
        metrics |= {
            "progress/batch": step,
            "progress/done_frac": (step + 1) / self._total_steps,
            "optim/lr": self._adam_params(step).learning_rate,
            "sampling_client/step_mean": batch.step,
        }
        started = time.monotonic()
        substeps = substep_data(groups, self._config)
        timings["time/assemble_training_data"] = time.monotonic() - started
        metrics |= self._penalty(substeps, timings)
        futures = self._submit_gradients(substeps, step)

        def finish() -> Metrics:
            waiting_since = time.monotonic()
            outputs = [future.result() for future in futures]
            timings["time/train_step"] = time.monotonic() - waiting_since
            self._log.write(step, "train", groups)
            return metrics | self._training_metrics(substeps, outputs, step) | timings

        return finish

    def submit_evaluation(self, step: int) -> Await | None:
        """One completion of each held-out task by the policy after ``step`` updates.

        Its metrics are those of training under ``test/env/all/``, as tinker-cookbook's
        RLTestSetEvaluator names them.
        """
        tasks = self._data.held_out
        if not tasks:
            return None
        config = self._config
        started = time.monotonic()
        submitted = submit(
            self._policy(step),
            self._data,
            tasks,
            Sampling(EVALUATION_SAMPLES, config.max_tokens, config.eval_temperature),
            seeds=[sample_seed(config.seed, "test", index) for index in range(len(tasks))],
            step=step,
        )

        def finish() -> Metrics:
            groups = collect(submitted, self._data)
            self._log.write(step, "test", groups)
            found = {f"test/{key}": value for key, value in trajectory_metrics(groups).items()}
            return {**found, "time/run_evals": time.monotonic() - started}

        return finish

    def _policy(self, step: int) -> tinker.SamplingClient:
        """Samples from the weights after ``step`` updates; call it when no later one is submitted.

        Waiting for the answer keeps the save in its place in the queue (see ``ordering``).
        """
        if self._sampler is None or self._sampler[0] != step:
            client = self._client.save_weights_and_get_sampling_client().result()
            self._sampler = (step, client)
        return self._sampler[1]

    def _horizon(self, step: int) -> int:
        """The last step whose samples may come from the weights of ``step``.

        Nothing is sampled across a periodic checkpoint: a run that resumes there has no older
        weights to sample from, and must do the same as one that was never interrupted.
        """
        last = min(step + self._config.max_steps_off_policy, self._total_steps - 1)
        every = self._config.save_every
        return min(last, (step // every + 1) * every - 1) if every else last

    def _sample(self, sampler: tinker.SamplingClient, batch: int, step: int) -> Submitted:
        config = self._config
        return submit(
            sampler,
            self._data,
            batch_tasks(self._data, self._plan, batch),
            Sampling(
                config.group_size,
                config.max_tokens,
                config.temperature,
                prompt_logprobs=config.loss_fn in COUNTS_EVERY_TOKEN,
            ),
            seeds=group_seeds(config, batch),
            step=step,
        )

    def _report_failures(self, step: int, groups: Sequence[Group]) -> None:
        """Say, once for each kind of failure, on what the grader failed."""
        everything = [completion for group in groups for completion in group.completions]
        failed = [c for c in everything if c.grade.error is not None]
        new = [c for c in failed if c.grade.error not in self._reported]
        if not new or len(self._reported) >= MAX_REPORTED:
            return
        self._reported.add(str(new[0].grade.error))
        say(
            f"warning: step {step + 1}: reward {self._config.reward} failed on {len(failed)} of"
            f" {len(everything)} completions, which count as {self._config.failure_reward:g}:"
            f" {new[0].grade.error}; the first: {quoted(new[0].text)}"
        )

    def _penalty(
        self, substeps: Sequence[Sequence[tinker.Datum]], timings: dict[str, float]
    ) -> Metrics:
        """Put the KL penalty into the advantages; its metrics."""
        from tinker_cookbook.rl.metrics import incorporate_kl_penalty

        if self._reference is None:
            return {}
        started = time.monotonic()
        config = self._config
        found = _run(
            incorporate_kl_penalty(
                [datum for substep in substeps for datum in substep],
                self._reference,
                config.kl_penalty_coef,
                config.kl_discount_factor,
            )
        )
        timings["time/kl_vs_base"] = time.monotonic() - started
        return dict(found)

    def _submit_gradients(
        self, substeps: Sequence[Sequence[tinker.Datum]], step: int
    ) -> list[tinker.APIFuture[tinker.ForwardBackwardOutput]]:
        """One gradient for each substep, with an update between two; the loop makes the last."""
        futures = []
        for index, substep in enumerate(substeps):
            if index:
                self._client.optim_step(self._adam_params(step))
            futures.append(
                self._client.forward_backward(
                    [without_mask(datum) for datum in substep],
                    self._config.loss_fn,  # type: ignore[arg-type]
                    loss_fn_config=self._config.loss_fn_config,
                )
            )
        return futures

    def _training_metrics(
        self,
        substeps: Sequence[Sequence[tinker.Datum]],
        outputs: Sequence[tinker.ForwardBackwardOutput],
        step: int,
    ) -> Metrics:
        from tinker_cookbook.rl.metrics import compute_kl_sample_train, compute_post_kl

        data = [datum for substep in substeps for datum in substep]
        logprobs: list[torch.Tensor] = [
            fields["logprobs"].to_torch() for output in outputs for fields in output.loss_fn_outputs
        ]
        metrics: Metrics = {
            "num_sequences": len(data),
            "num_tokens": sum(datum.model_input.length for datum in data),
            **compute_kl_sample_train(data, logprobs),
        }
        losses = [(output.metrics or {}).get("loss:sum") for output in outputs]
        if all(loss is not None for loss in losses):
            metrics["optim/loss"] = sum(losses)  # type: ignore[arg-type]
        if self._config.compute_post_kl:
            metrics |= _run(compute_post_kl(data, self._policy(step + 1)))
        return metrics


def batch_tasks(data: RLData, plan: BatchPlan, step: int) -> list[Task]:
    """The tasks of ``step``, a pure function of it."""
    return [data.train[index] for index in plan.indices(step)]


def group_seeds(config: RLConfig, step: int) -> list[int | None]:
    """The sampling seed of each group of ``step``."""
    if not config.seed_samples:
        return [None] * config.groups_per_batch
    return [
        sample_seed(config.seed, "train", step, group) for group in range(config.groups_per_batch)
    ]


def _run(coroutine: Coroutine[Any, Any, dict[str, float]]) -> dict[str, float]:
    """Run one of the cookbook's coroutines, which use forms of the SDK that it calls deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return asyncio.run(coroutine)
