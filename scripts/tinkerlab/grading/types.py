"""What a grader takes and gives: the same for RL rewards and for evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Attempt:
    """One completion to be scored.

    Attributes:
        completion: the model's reply as text, without end-of-turn tokens.
        prompt: the messages that it replies to, as ``{"role", "content"}``.
        answer: the reference answer of the row; None where the grader needs none.
        row: the row's further fields, for a user's function.
        place: where the row stands (file and line), for messages.
    """

    completion: str
    prompt: Sequence[Mapping[str, Any]] = ()
    answer: Any = None
    row: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""


@dataclass(frozen=True)
class Grade:
    """What a grader says of one attempt.

    Attributes:
        score: the reward; finite.
        correct: whether the attempt counts as right; None where that has no meaning.
        extracted: the answer that was found in the completion, as text; None if there was none.
        error: why the grader failed, in one line; ``score`` is then its failure score.
        detail: why the attempt is not correct, in one line, where the grader knows.
    """

    score: float
    correct: bool | None = None
    extracted: str | None = None
    error: str | None = None
    detail: str | None = None


class Grader(Protocol):
    """Scores attempts; safe to call from several threads."""

    @property
    def name(self) -> str:
        """As the user wrote it, such as ``numeric`` or ``my_rewards.py:score``."""
        ...

    def grade(self, attempts: Sequence[Attempt]) -> list[Grade]:
        """One grade for each attempt, in order; never raises for what a completion holds."""
        ...

    def close(self) -> None:
        """Stop what the grader started, such as a process of its own."""
        ...
