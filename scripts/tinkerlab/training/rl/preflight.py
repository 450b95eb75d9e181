"""Is there anything to learn from? A look at graded samples before any step is trained.

A group gives a gradient only where its rewards differ. If none of the groups of the starting
policy has such a signal, training would be noise and cost, so a run is refused, and the reason
is looked for in what was sampled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinkerlab.training.rl.config import RLConfig
from tinkerlab.training.rl.rollout_log import cut, document, quoted
from tinkerlab.training.rl.rollouts import Completion, Group

BAR_WIDTH = 40
MAX_BARS = 10
EXAMPLE_CHARACTERS = 600
MOST = 0.5  # a share from which a cause is named as the reason
LITTLE_SIGNAL = 0.2  # a share of mixed groups below which learning will be slow
GRADER_ERRORS = "grader_errors"
GOOD_REWARD = 0.5  # tinker-cookbook's threshold of a good group (metric_util, good_thresh)


@dataclass(frozen=True)
class Refusal:
    """Why a run is not worth beginning.

    Attributes:
        reason: ``grader_errors``, ``truncated``, ``identical``, ``parse_failures``,
            ``too_easy``, ``too_hard``, ``constant_reward`` or ``unmixed``.
    """

    reason: str
    message: str


@dataclass(frozen=True)
class Preflight:
    """What the samples of the starting policy show."""

    groups: Sequence[Group]
    config: RLConfig

    @property
    def completions(self) -> list[Completion]:
        return [completion for group in self.groups for completion in group.completions]

    @property
    def rewards(self) -> list[float]:
        return [completion.grade.score for completion in self.completions]

    @property
    def mixed(self) -> int:
        """Groups with signal."""
        return sum(group.mixed for group in self.groups)

    def share(self, metric: str) -> float:
        """Mean of a completion's metric; 0 where none has it."""
        values = [c.metrics[metric] for c in self.completions if metric in c.metrics]
        return sum(values) / len(values) if values else 0.0

    @property
    def unread(self) -> float:
        """Share of completions that are not cut and in which no answer could be read."""
        found = [
            not completion.truncated and completion.grade.extracted is None
            for completion in self.completions
            if completion.grade.correct is False and completion.grade.error is None
        ]
        return sum(found) / len(self.completions)

    def refusal(self) -> Refusal | None:
        """Why not to begin; None where at least one group has signal."""
        failed = [c for c in self.completions if c.grade.error is not None]
        if len(failed) == len(self.completions) or (failed and not self.mixed):
            return self._grader_errors(failed)
        if self.mixed:
            return None
        return self._truncated() or self._identical() or self._parse_failures() or self._constant()

    def _grader_errors(self, failed: Sequence[Completion]) -> Refusal:
        completion = failed[0]
        place = next(g.task.place for g in self.groups if completion in g.completions)
        return Refusal(
            GRADER_ERRORS,
            f"reward {self.config.reward} failed on {len(failed)} of {len(self.completions)}"
            f" completions: {completion.grade.error}; the first, at {place}:"
            f" {quoted(completion.text)}",
        )

    def _truncated(self) -> Refusal | None:
        share = self.share("truncated")
        if share < MOST:
            return None
        return Refusal(
            "truncated",
            f"truncated: {share:.0%} of the completions reach max_tokens={self.config.max_tokens}"
            " before they end; raise it, or ask for short answers in system_prompt",
        )

    def _identical(self) -> Refusal | None:
        if any(len({tuple(c.tokens) for c in group.completions}) > 1 for group in self.groups):
            return None
        seeded = (
            "; if the service gives every sample of a request the same seed, set seed_samples=false"
        )
        return Refusal(
            "identical",
            "the completions of each group are identical: raise temperature (it is"
            f" {self.config.temperature:g}); at 1, this model is sure of its answers and needs"
            f" other tasks{seeded if self.config.seed_samples else ''}",
        )

    def _parse_failures(self) -> Refusal | None:
        if self.unread < MOST:
            return None
        answer = next(c for c in self.completions if c.grade.extracted is None)
        return Refusal(
            "parse_failures",
            f"parse failures: reward {self.config.reward} finds no answer in {self.unread:.0%} of"
            f" the completions, such as {quoted(answer.text)}; ask for the form of the answer in"
            " system_prompt, or begin with a short SFT stage on answers of that form",
        )

    def _constant(self) -> Refusal:
        means = [group.rewards[0] for group in self.groups]
        correct = [completion.grade.correct for completion in self.completions]
        value = f"every reward is {means[0]:g}" if len(set(means)) == 1 else ""
        if all(mark is True for mark in correct):
            return Refusal(
                "too_easy",
                f"too easy: all {len(correct)} completions are right; take harder tasks",
            )
        if any(mark is True for mark in correct):
            return Refusal(
                "unmixed",
                "no group is mixed: each task is solved always or never; raise group_size"
                f" (it is {self.config.group_size}) or preflight_groups, or take tasks between",
            )
        if all(mark is False for mark in correct):
            return Refusal(
                "too_hard",
                f"too hard: none of {len(correct)} completions is right ({value or 'no signal'});"
                " take easier tasks, raise group_size, give partial credit in the reward, or"
                " begin with a short SFT stage (load_checkpoint_path)",
            )
        if len(set(means)) > 1:
            return Refusal(
                "unmixed",
                "no group is mixed: rewards differ between tasks but never within a group; raise"
                f" group_size (it is {self.config.group_size}), or let the reward depend on the"
                " completion",
            )
        easy = "too easy" if means[0] >= GOOD_REWARD else "too hard"
        return Refusal(
            "constant_reward",
            f"no signal: {value} ({easy}, or the reward does not look at the completion)",
        )

    def document(self) -> dict[str, Any]:
        """For ``preflight.json`` and ``--json``."""
        refusal = self.refusal()
        rewards = self.rewards
        return {
            "ok": refusal is None,
            "reason": refusal.reason if refusal else None,
            "message": refusal.message if refusal else None,
            "groups": len(self.groups),
            "groups_with_signal": self.mixed,
            "completions": len(rewards),
            "reward_mean": sum(rewards) / len(rewards),
            "reward_histogram": [
                {"from": low, "to": high, "count": count} for low, high, count in bins(rewards)
            ],
            "truncated": self.share("truncated"),
            "format": self.share("format"),
            "no_answer_found": self.unread,
            "grader_errors": self.share("grader_error"),
            "tokens_mean": sum(len(c.tokens) for c in self.completions) / len(rewards),
            "examples": [document(group, completion) for group, completion in self.examples()],
        }

    def examples(self) -> list[tuple[Group, Completion]]:
        """The completion with the best reward and the one with the worst."""
        everything = [(g, c) for g in self.groups for c in g.completions]
        best = max(everything, key=lambda pair: pair[1].grade.score)
        worst = min(everything, key=lambda pair: pair[1].grade.score)
        if best is worst:
            worst = everything[-1]
        return [best, worst]

    def lines(self) -> list[str]:
        """The report for people, without the verdict."""
        count = len(self.completions)
        tokens = sum(len(c.tokens) for c in self.completions) / count
        lines = [
            f"pre-flight: {len(self.groups)} groups of {self.config.group_size} completions by the"
            f" starting policy at temperature {self.config.temperature:g}"
        ]
        counted = bins(self.rewards)
        most = max(number for _, _, number in counted)
        for low, high, number in counted:
            label = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
            bar = "#" * math.ceil(number / most * BAR_WIDTH)
            lines.append(f"  reward {label:>16} | {bar} {number}")
        lines += [
            f"  mean {sum(self.rewards) / count:.3f}; {self.mixed} of {len(self.groups)} groups"
            " have signal (their rewards differ)",
            f"  {tokens:.0f} tokens on average; truncated {self.share('truncated'):.0%}; no"
            f" answer found {self.unread:.0%}; grader errors {self.share('grader_error'):.0%}",
        ]
        for group, completion in self.examples():
            lines.append(
                f"  example with reward {completion.grade.score:g}, at {group.task.place}:"
                f"\n    prompt: {_indented(str(group.task.prompt[-1]['content']))}"
                f"\n    completion: {_indented(completion.text)}"
            )
        return lines

    def warnings(self) -> list[str]:
        """What may make training slow, where there is some signal."""
        found = []
        share = self.mixed / len(self.groups)
        if 0 < share < LITTLE_SIGNAL:
            found.append(
                f"only {self.mixed} of {len(self.groups)} groups have signal: expect slow learning,"
                " or raise group_size"
            )
        errors = self.share("grader_error")
        if self.mixed and errors:
            first = next(c for c in self.completions if c.grade.error)
            found.append(
                f"reward {self.config.reward} failed on {errors:.0%} of the completions, which"
                f" count as {self.config.failure_reward:g}: {first.grade.error}; the first:"
                f" {quoted(first.text)}"
            )
        if self.mixed and self.share("truncated") >= MOST:
            found.append(
                f"{self.share('truncated'):.0%} of the completions reach"
                f" max_tokens={self.config.max_tokens}"
            )
        return found


def bins(values: Sequence[float]) -> list[tuple[float, float, int]]:
    """(from, to, count): each value by itself if they are few, else equal widths."""
    distinct = sorted(set(values))
    if len(distinct) <= MAX_BARS:
        return [(value, value, values.count(value)) for value in distinct]
    low, high = distinct[0], distinct[-1]
    width = (high - low) / MAX_BARS
    counts = [0] * MAX_BARS
    for value in values:
        counts[min(int((value - low) / width), MAX_BARS - 1)] += 1
    return [(low + i * width, low + (i + 1) * width, count) for i, count in enumerate(counts)]


def _indented(text: str) -> str:
    return cut(text.strip(), EXAMPLE_CHARACTERS).replace("\n", "\n      ")
