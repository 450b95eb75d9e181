"""What distillation puts into the loop, on the student's samples or on the teacher's.

Sampling is the RL trainer's; datums, the reverse KL and its metrics are tinker-cookbook's own
functions. Both methods are measured alike: ``test/teacher_kl`` is the mean over the tokens of
new samples of the student, on held-out prompts, of log p_student - log p_teacher.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from tinkerlab.training.distill.config import DistillConfig
from tinkerlab.training.distill.data import DistillData
from tinkerlab.training.distill.traces import Trace
from tinkerlab.training.loop import Await, Metrics
from tinkerlab.training.rl.rollouts import Group, Sampling, collect, sample_seed, submit
from tinkerlab.training.rl.training_data import trajectory_metrics, without_mask

if TYPE_CHECKING:
    import tinker

    from tinkerlab.tasks import Task

# Of the RL metrics, those that mean nothing without a reward.
MEANINGLESS = ("env/all/reward", "env/all/by_group", "env/all/grader_error", "env/all/total_turns")


class Distillation:
    """What both methods share: the student's samples, and how far they are from the teacher's.

    Args:
        teachers: a client for each of the data's sources, in their order.
    """

    watched: tuple[str, ...] = ("teacher_kl", "optim/", "grad_norm", "train_mean_nll", "test/")

    def __init__(
        self,
        client: tinker.TrainingClient,
        config: DistillConfig,
        data: DistillData,
        teachers: Sequence[tinker.SamplingClient],
    ) -> None:
        self._client = client
        self._config = config
        self._data = data
        self._teachers = teachers
        self._sampler: tuple[int, tinker.SamplingClient] | None = None

    def position(self, step: int) -> tuple[int, int]:
        return self._data.sources[0].plan.position(step)

    def submit_evaluation(self, step: int) -> Await | None:
        """A sample of each held-out prompt by the student after ``step`` updates, and its KL.

        The seeds are the same every time, so that two evaluations differ by the weights alone.
        """
        held_out = self._data.held_out()
        if not held_out:
            return None
        started = time.monotonic()
        submitted = self._ask(self._policy(step), held_out, 1, "test", 0)

        def finish() -> Metrics:
            groups = collect(submitted, self._data.rendering)
            _, metrics = self._judged(groups, [place for place, _ in held_out])
            found = {f"test/{key}": value for key, value in metrics.items()}
            return {**found, "time/run_evals": time.monotonic() - started}

        return finish

    def _ask(
        self,
        sampler: tinker.SamplingClient,
        tasks: Sequence[tuple[int, Task]],
        group_size: int,
        purpose: str,
        step: int,
    ) -> Any:
        config = self._config
        return submit(
            sampler,
            self._data.rendering,
            [task for _, task in tasks],
            Sampling(group_size, config.max_tokens, config.temperature),
            seeds=[sample_seed(config.seed, purpose, step, index) for index in range(len(tasks))],
            step=step,
        )

    def _policy(self, step: int) -> tinker.SamplingClient:
        """Samples from the weights after ``step`` updates; call it when no later one is submitted.

        Waiting for the answer keeps the save in its place in the queue (see ``ordering``).
        """
        if self._sampler is None or self._sampler[0] != step:
            client = self._client.save_weights_and_get_sampling_client().result()
            self._sampler = (step, client)
        return self._sampler[1]

    def _judged(
        self, groups: Sequence[Group], places: Sequence[int]
    ) -> tuple[list[tinker.Datum], Metrics]:
        """The samples as datums whose advantages are the negative reverse KL, and the metrics.

        Args:
            places: of each group's teacher.
        """
        from tinker_cookbook.distillation.train_on_policy import incorporate_kl_penalty
        from tinker_cookbook.rl.data_processing import assemble_training_data, compute_advantages

        trajectories = [group.trajectories() for group in groups]
        data, origins = assemble_training_data(trajectories, compute_advantages(trajectories))
        chosen = [places[origin["group_idx"]] for origin in origins]
        metrics = _run(
            incorporate_kl_penalty(
                data,
                [self._teachers[place] for place in chosen],
                chosen,
                self._config.kl_penalty_coef,
                self._config.kl_discount_factor,
            )
        )
        sampled = {
            key: value
            for key, value in trajectory_metrics(groups).items()
            if not key.startswith(MEANINGLESS)
        }
        return data, {**sampled, **metrics}


class OnPolicy(Distillation):
    """The student samples, the teacher judges every token."""

    def submit(self, step: int) -> Await:
        """Sample the groups of ``step``, ask the teachers, then submit the gradients."""
        config = self._config
        tasks = self._data.batch(step)
        started = time.monotonic()
        submitted = self._ask(self._policy(step), tasks, config.group_size, "train", step)
        groups = collect(submitted, self._data.rendering)
        sampled = time.monotonic()
        data, metrics = self._judged(groups, [place for place, _ in tasks])
        timings = {
            "time/sampling": sampled - started,
            "time/compute_kl_penalty": time.monotonic() - sampled,
        }
        future = self._client.forward_backward(
            [without_mask(datum) for datum in data],
            config.loss_fn,
            loss_fn_config=config.loss_fn_config,
        )

        def finish() -> Metrics:
            from tinker_cookbook.rl.metrics import compute_kl_sample_train

            output = future.result()
            logprobs = [fields["logprobs"].to_torch() for fields in output.loss_fn_outputs]
            return {
                **metrics,
                "num_sequences": len(data),
                "num_tokens": sum(datum.model_input.length for datum in data),
                **compute_kl_sample_train(data, logprobs),
                **timings,
            }

        return finish


class OffPolicy(Distillation):
    """The student imitates samples of the teacher that were taken before."""

    def __init__(self, *args: Any, traces: Sequence[Sequence[Trace]]) -> None:
        super().__init__(*args)
        self._traces = traces

    def submit(self, step: int) -> Await:
        """Submit the cross-entropy of the traces of the prompts of ``step``."""
        batch = [
            trace.datum()
            for place, source in enumerate(self._data.sources)
            for index in source.plan.indices(step)
            for trace in self._traces[place][index * self._config.group_size :][
                : self._config.group_size
            ]
        ]
        future = self._client.forward_backward(batch, "cross_entropy")

        def finish() -> Metrics:
            from tinker_cookbook.supervised.common import compute_mean_nll

            output = future.result()
            logprobs = [fields["logprobs"] for fields in output.loss_fn_outputs]
            weights = [datum.loss_fn_inputs["weights"] for datum in batch]
            return {
                "num_sequences": len(batch),
                "num_tokens": sum(datum.model_input.length for datum in batch),
                "train_mean_nll": compute_mean_nll(logprobs, weights),
            }

        return finish


def _run(coroutine: Coroutine[Any, Any, dict[str, float]]) -> dict[str, float]:
    """Run one of the cookbook's coroutines, which use forms of the SDK that it calls deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return asyncio.run(coroutine)
