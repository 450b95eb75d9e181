"""One task: what a model is asked, and what its reply is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Task:
    """A prompt with its reference answer.

    Attributes:
        prompt: messages ``{"role", "content"}`` that the model replies to.
        answer: the reference answer as the source has it; None where it has none.
        row: the source's further fields, JSON data.
        place: where it stands, for messages: ``rows.jsonl line 7``.
    """

    prompt: Sequence[Mapping[str, Any]]
    answer: Any = None
    row: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""

    @property
    def question(self) -> str:
        """The prompt as one text: the one message's, or all of them with their roles."""
        if len(self.prompt) == 1:
            return str(self.prompt[0]["content"])
        return "\n\n".join(f"{m['role']}: {m['content']}" for m in self.prompt)

    @cached_property
    def key(self) -> str:
        """A hash of the prompt, equal for prompts that differ in white space or case only."""
        from tinkerlab.data.duplicates import exact_key
        from tinkerlab.data.reading import Row

        return exact_key(Row(0, 0, [dict(message) for message in self.prompt]))
