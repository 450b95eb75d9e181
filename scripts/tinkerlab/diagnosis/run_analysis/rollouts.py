"""What rollout summaries and stored evaluation trajectories add up to, read as a stream.

Formats: ``*_rollout_summaries.jsonl`` by tinker_cookbook/rl/rollout_logging.py
(serialize_rollout_summaries), ``trajectories.jsonl`` by tinker_cookbook/eval/benchmarks
(StoredTrajectory). Only counts are kept.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tinkerlab.diagnosis.run_analysis.answers import states_answer

# Tool calls as the model families write them; "tool" or "function" occurs in each, so that a
# plain search may skip nearly every text.
TOOL_MARKUP = re.compile(
    r"<tool_call>|<function=|<\|tool_calls_section_begin\|>|<｜tool▁calls▁begin｜>"
    r"|<｜tool▁call▁begin｜>|\[TOOL_CALLS\]|<\|channel\|>commentary to=functions|<invoke name="
    r"|<tool_calls>"
)
_PARSED_LOGS = ("tool_call_", "tool_result_")  # tool_use/agent_tool_message_env.py
_PARSED_METRICS = ("tool_calls", "num_tool_calls", "tool_call_count")
EXAMPLES = 3


def has_tool_markup(text: str) -> bool:
    """Whether a tool call is written in ``text``; the plain searches pass over most texts fast."""
    hints = ("tool", "function", "invoke", "TOOL_CALLS")
    return any(hint in text for hint in hints) and TOOL_MARKUP.search(text) is not None


@dataclass
class RolloutTotals:
    """Counts over the training rollouts of a run.

    Attributes:
        reply_lengths: how many sampled turns had this many tokens.
        stops: how many rollouts ended for which reason (``stop/<reason>`` metrics).
        sums: sum and count of the per-turn metrics ``format``, ``correct`` and ``parse_error``.
    """

    count: int = 0
    groups: int = 0
    equal_groups: int = 0
    first_iteration: int | None = None
    last_iteration: int | None = None
    reply_lengths: Counter[int] = field(default_factory=Counter)
    stops: Counter[str] = field(default_factory=Counter)
    sums: dict[str, list[float]] = field(default_factory=dict)
    with_markup: int = 0
    parsed: int = 0
    parse_errors: int = 0
    markup_example: str = ""
    reward_low: float = float("inf")
    reward_high: float = float("-inf")
    _group: tuple[Any, ...] | None = None
    _group_low: float = 0.0
    _group_high: float = 0.0
    _group_size: int = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Count one rollout."""
        self.count += 1
        reward = row.get("total_reward")
        if isinstance(reward, (int, float)):
            self._reward((row.get("split"), row.get("iteration"), row.get("group_idx")), reward)
        iteration = row.get("iteration")
        if isinstance(iteration, int):
            if self.first_iteration is None or iteration < self.first_iteration:
                self.first_iteration = iteration
            if self.last_iteration is None or iteration > self.last_iteration:
                self.last_iteration = iteration
        markup = parsed = False
        steps = row.get("steps")
        for step in steps if isinstance(steps, list) else ():
            if not isinstance(step, dict):
                continue
            length = step.get("ac_len")
            if isinstance(length, int):
                self.reply_lengths[length] += 1
            metrics = step.get("metrics")
            if isinstance(metrics, dict):
                parsed |= self._metrics(metrics)
            logs = step.get("logs")
            if isinstance(logs, dict):
                for key, value in logs.items():
                    if key.startswith(_PARSED_LOGS):
                        parsed = True
                    elif isinstance(value, str) and not markup and has_tool_markup(value):
                        markup = True
                        self.markup_example = self.markup_example or _excerpt(value)
        self.with_markup += markup
        self.parsed += parsed

    def finish_group(self) -> None:
        """Close the group that is being read; call it at the end of each file."""
        if self._group is not None and self._group_size > 1:
            self.groups += 1
            self.equal_groups += self._group_high - self._group_low < 1e-12
        self._group = None

    def _reward(self, group: tuple[Any, ...], reward: float) -> None:
        self.reward_low = min(self.reward_low, reward)
        self.reward_high = max(self.reward_high, reward)
        if group == self._group:
            self._group_size += 1
            if reward < self._group_low:
                self._group_low = reward
            elif reward > self._group_high:
                self._group_high = reward
            return
        self.finish_group()
        self._group, self._group_size = group, 1
        self._group_low = self._group_high = reward

    def _metrics(self, metrics: Mapping[str, Any]) -> bool:
        """Count a turn's metrics; whether they tell of a parsed tool call."""
        parsed = False
        for key, value in metrics.items():
            if not isinstance(value, (int, float)):
                continue
            if key.startswith("stop/") and value:
                self.stops[key[5:]] += 1
            elif key in ("format", "correct"):
                total = self.sums.setdefault(key, [0.0, 0])
                total[0] += value
                total[1] += 1
            elif key in ("parse_error", "parse_errors") and value:
                self.parse_errors += 1
            elif key in _PARSED_METRICS and value:
                parsed = True
        return parsed

    def mean(self, key: str) -> float | None:
        total = self.sums.get(key)
        return total[0] / total[1] if total and total[1] else None


@dataclass
class EvaluationTotals:
    """Counts over the stored trajectories of one evaluation, and its result file.

    Attributes:
        zero: trajectories whose reward is exactly zero.
        right_but_zero: of these, how many state the reference answer themselves.
        ends_of_right: how the parse of the latter ended (``parse_termination``).
    """

    name: str
    result: dict[str, Any] = field(default_factory=dict)
    count: int = 0
    errors: int = 0
    zero: int = 0
    judged: int = 0
    right_but_zero: int = 0
    ends_of_right: Counter[str] = field(default_factory=Counter)
    right_examples: list[str] = field(default_factory=list)
    cut: int = 0
    with_markup: int = 0
    parsed: int = 0
    markup_example: str = ""

    def add(self, row: Mapping[str, Any]) -> None:
        """Count one trajectory."""
        self.count += 1
        logs = row["logs"] if isinstance(row.get("logs"), dict) else {}
        metrics = row["metrics"] if isinstance(row.get("metrics"), dict) else {}
        turns = row["turns"] if isinstance(row.get("turns"), list) else []
        if row.get("error"):
            self.errors += 1
            return
        replies = [
            turn["content"]
            for turn in turns
            if isinstance(turn, dict)
            and turn.get("role") == "assistant"
            and isinstance(turn.get("content"), str)
        ]
        texts = replies or [
            logs[key] for key in ("output", "response", "completion") if key in logs
        ]
        self._count_markup([text for text in texts if isinstance(text, str)], logs, metrics, turns)
        if logs.get("stop_reason") == "length" or metrics.get("stop/max_tokens"):
            self.cut += 1
        reward = row.get("reward", metrics.get("correct"))
        if not isinstance(reward, (int, float)) or reward != 0:
            return
        self.zero += 1
        expected = next(
            (logs[key] for key in ("expected", "ground_truth", "answer") if key in logs), None
        )
        if expected is None or not texts:
            return
        self.judged += 1
        if states_answer(str(texts[-1]), str(expected)):
            self.right_but_zero += 1
            self.ends_of_right[str(logs.get("parse_termination", "not recorded")).lower()] += 1
            if len(self.right_examples) < EXAMPLES:
                name = row.get("example_id") or f"number {row.get('idx', self.count - 1)}"
                ending = str(texts[-1]).strip()[-60:]
                self.right_examples.append(
                    f"{name}: expected {str(expected)[:40]!r}, the reply ends {ending!r}, graded 0"
                )

    def _count_markup(
        self,
        texts: list[str],
        logs: Mapping[str, Any],
        metrics: Mapping[str, Any],
        turns: list[Any],
    ) -> None:
        marked = next((text for text in texts if has_tool_markup(text)), None)
        if marked is None:
            return
        self.with_markup += 1
        self.markup_example = self.markup_example or _excerpt(marked)
        later = any(
            isinstance(turn, dict) and turn.get("role") in ("environment", "tool") for turn in turns
        )
        called = any(key.startswith(_PARSED_LOGS) for key in logs)
        self.parsed += bool(later or called or any(metrics.get(key) for key in _PARSED_METRICS))

    @property
    def score(self) -> float | None:
        score = self.result.get("score")
        return float(score) if isinstance(score, (int, float)) else None


def _excerpt(text: str) -> str:
    match = TOOL_MARKUP.search(text)
    start = match.start() if match else 0
    return text[start : start + 80].replace("\n", " ")


def is_rollout(row: Mapping[str, Any]) -> bool:
    """Whether a row is a training rollout rather than an evaluation trajectory."""
    return "steps" in row or "total_reward" in row


def describe_lengths(lengths: Counter[int]) -> Iterator[tuple[int, int]]:
    """(length, turns) of the longest replies, longest first."""
    yield from sorted(lengths.items(), reverse=True)
