"""Sample groups of completions, grade them, and hand them to tinker-cookbook's RL functions.

A group is one request for ``group_size`` samples with a seed that depends on the run's seed and
the task's place in it alone. tinker-cookbook's loop sends a request for each sample, without a
seed, so a repeated step is another step; here it is the same one as far as the service honours
seeds (``run`` says how far the rehearsal does).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tinkerlab.errors import CheckFailed
from tinkerlab.grading.types import Attempt, Grade
from tinkerlab.training.rl.data import RLData

if TYPE_CHECKING:
    import tinker
    from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup

    from tinkerlab.tasks import Task


@dataclass(frozen=True)
class Completion:
    """One graded sample.

    Attributes:
        text: what was graded, without end-of-turn tokens.
        truncated: ``max_tokens`` ended it.
        well_formed: it ended as the renderer expects a turn to end.
    """

    tokens: Sequence[int]
    logprobs: Sequence[float]
    text: str
    truncated: bool
    well_formed: bool
    grade: Grade

    @property
    def metrics(self) -> dict[str, float]:
        """What is averaged over completions, under ``env/all/``."""
        grade = self.grade
        found: dict[str, float] = {
            "format": float(self.well_formed),
            "truncated": float(self.truncated),
            "grader_error": float(grade.error is not None),
        }
        if grade.correct is not None:
            found["correct"] = float(grade.correct)
            found["answer_found"] = float(grade.extracted is not None)
        return found


@dataclass(frozen=True)
class Group:
    """The completions of one task.

    Attributes:
        prompt_logprobs: of the prompt's tokens, the first None; empty unless asked for.
    """

    task: Task
    prompt: tinker.ModelInput
    completions: Sequence[Completion]
    prompt_logprobs: Sequence[float | None] = ()

    @property
    def rewards(self) -> list[float]:
        return [completion.grade.score for completion in self.completions]

    @property
    def mixed(self) -> bool:
        """Whether rewards differ; otherwise every advantage is zero."""
        return len(set(self.rewards)) > 1

    def trajectories(self) -> TrajectoryGroup:
        """The group as tinker-cookbook's functions take it."""
        from tinker_cookbook.rl.types import TrajectoryGroup

        return TrajectoryGroup(
            trajectories_G=[self._trajectory(completion) for completion in self.completions],
            final_rewards_G=[0.0] * len(self.completions),
            metrics_G=[{} for _ in self.completions],
        )

    def _trajectory(self, completion: Completion) -> Trajectory:
        import tinker
        from tinker_cookbook.completers import TokensWithLogprobs
        from tinker_cookbook.rl.types import Trajectory, Transition

        action = TokensWithLogprobs(
            tokens=list(completion.tokens),
            maybe_logprobs=list(completion.logprobs),
            stop_reason="length" if completion.truncated else "stop",
        )
        step = Transition(
            ob=self.prompt,
            ac=action,
            reward=completion.grade.score,
            episode_done=True,
            metrics=dict(completion.metrics),
        )
        return Trajectory(transitions=[step], final_ob=tinker.ModelInput.empty())


@dataclass(frozen=True)
class Sampling:
    """How to sample: the same for every group of a batch."""

    num_samples: int
    max_tokens: int
    temperature: float
    prompt_logprobs: bool = False


@dataclass(frozen=True)
class Submitted:
    """Groups that are being sampled; ``step`` is of the weights that they are sampled from."""

    step: int
    tasks: Sequence[Task]
    prompts: Sequence[tinker.ModelInput]
    futures: Sequence[Any]


@dataclass
class Timings:
    """Seconds spent waiting for samples, and grading them."""

    sampling: float = 0.0
    grading: float = 0.0


def sample_seed(*place: object) -> int:
    """A seed of 48 bits that depends on ``place`` alone."""
    return int.from_bytes(hashlib.sha256(repr(place).encode()).digest()[:6], "big")


def submit(
    sampler: tinker.SamplingClient,
    data: RLData,
    tasks: Sequence[Task],
    how: Sampling,
    *,
    seeds: Sequence[int | None],
    step: int = 0,
) -> Submitted:
    """Ask for a group of completions of each task, without waiting for them."""
    import tinker

    prompts = [data.prompt(task) for task in tasks]
    futures = [
        sampler.sample(
            prompt=prompt,
            num_samples=how.num_samples,
            sampling_params=tinker.SamplingParams(
                max_tokens=how.max_tokens,
                temperature=how.temperature,
                stop=data.stop,
                seed=seed,
            ),
            include_prompt_logprobs=how.prompt_logprobs,
        )
        for prompt, seed in zip(prompts, seeds, strict=True)
    ]
    return Submitted(step, tasks, prompts, futures)


def collect(submitted: Submitted, data: RLData, timings: Timings | None = None) -> list[Group]:
    """Wait for the samples and grade them, group by group while others are still sampled.

    Raises:
        CheckFailed: the service gave no logprobs, without which there is nothing to train on.
        tinker.TinkerError: it refused a request.
    """
    timings = timings if timings is not None else Timings()
    groups = []
    for task, prompt, future in zip(
        submitted.tasks, submitted.prompts, submitted.futures, strict=True
    ):
        started = time.monotonic()
        response = future.result()
        sampled = time.monotonic()
        graded = _graded(task, response.sequences, data)
        groups.append(Group(task, prompt, graded, response.prompt_logprobs or ()))
        timings.sampling += sampled - started
        timings.grading += time.monotonic() - sampled
    return groups


def _graded(task: Task, sequences: Sequence[Any], data: RLData) -> list[Completion]:
    from tinker_cookbook.renderers import get_text_content

    parsed = [data.renderer.parse_response(list(sequence.tokens)) for sequence in sequences]
    texts = [get_text_content(message) for message, _ in parsed]
    messages = data.messages(task)
    grades = data.grader.grade(
        [
            Attempt(
                completion=text,
                prompt=messages,
                answer=task.answer,
                row=task.row,
                place=task.place,
            )
            for text in texts
        ]
    )
    completions = []
    for sequence, text, (_, termination), grade in zip(
        sequences, texts, parsed, grades, strict=True
    ):
        if sequence.logprobs is None:
            raise CheckFailed("the service gave samples without logprobs: nothing to train on")
        truncated = sequence.stop_reason == "length"
        if truncated and data.zero_reward_on_limit:
            # As tinker-cookbook's TerminationRewardPolicy: graded, then at most 0.
            grade = replace(grade, score=min(grade.score, 0.0))
        completions.append(
            Completion(
                tokens=sequence.tokens,
                logprobs=sequence.logprobs,
                text=text,
                truncated=truncated,
                well_formed=termination.is_clean or (data.stops_of_its_own and not truncated),
                grade=grade,
            )
        )
    return completions
