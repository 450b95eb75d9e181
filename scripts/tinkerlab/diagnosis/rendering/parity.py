"""Second oracle: the tokens of the model's own chat template."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tinkerlab.data.datums import conversation
from tinkerlab.data.reading import Row
from tinkerlab.diagnosis.rendering.families import Comparison, intended, template_arguments
from tinkerlab.diagnosis.rendering.oracles import first_difference, shown
from tinkerlab.diagnosis.rendering.samples import Sample
from tinkerlab.diagnosis.rendering.sides import Rendered, templated


@dataclass
class Parity:
    """Outcome of the comparison.

    Attributes:
        compared: pairs of token sequences that were compared.
        differences: what differs without a reason that we know, a line each.
        samples: names of the samples that differ so.
        accepted: reasons of the differences that are meant, with the samples.
        notes: what could not be compared.
    """

    compared: int = 0
    differences: list[str] = field(default_factory=list)
    samples: list[str] = field(default_factory=list)
    accepted: dict[str, list[str]] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)


class Comparer:
    """Holds one renderer against one tokenizer's template, sample by sample."""

    def __init__(self, renderer: Any, name: str, tokenizer: Any) -> None:
        self._renderer, self._name, self._tokenizer = renderer, name, tokenizer
        self._arguments = template_arguments(name)
        self.result = Parity()

    def compare(self, sample: Sample, ours: Rendered) -> None:
        """Compare the prompt, and the whole conversation, with the template's."""
        plain = conversation(Row(0, 0, list(sample.messages)), self._renderer)
        whole = self._template(plain, sample.tools, generate=False)
        if whole is None:
            self._note("the template refuses", sample)
            return
        if sample.tools and whole == self._template(plain, (), generate=False):
            self._note("the template has no place for tools; not compared", sample)
            return
        if sample.kind == "thinking" and whole == self._template(
            [_without_reasoning(m) for m in plain], (), generate=False
        ):
            self._note("the template leaves reasoning out; not compared", sample)
            return
        self._pair(
            sample, "prompt", ours.prompt, self._template(plain[:-1], sample.tools, generate=True)
        )
        self._pair(sample, "example", ours.example.tokens, whole)

    def _template(self, messages: list[Any], tools: Any, *, generate: bool) -> list[int] | None:
        return templated(
            self._tokenizer, self._renderer, messages, tools, self._arguments, generate=generate
        )

    def _pair(self, sample: Sample, side: str, ours: list[int], theirs: list[int] | None) -> None:
        if theirs is None:
            self._note("the template refuses", sample)
            return
        self.result.compared += 1
        if ours == theirs:
            return
        decode = self._tokenizer.decode
        entries = intended(
            Comparison(
                self._name,
                sample.name,
                decode(ours),
                decode(theirs),
                sample.messages[0]["role"] == "system",
            )
        )
        for entry in entries:
            self.result.accepted.setdefault(entry.key, []).append(f"{sample.name} ({side})")
        if entries:
            return
        at = first_difference(ours, theirs)
        if sample.name not in self.result.samples:
            self.result.samples.append(sample.name)
        self.result.differences.append(
            f"{sample.name}, {side}, token {at}: renderer {shown(ours, at, self._tokenizer)}; "
            f"template {shown(theirs, at, self._tokenizer)}"
        )

    def _note(self, text: str, sample: Sample) -> None:
        self.result.notes.setdefault(text, []).append(sample.name)


def _without_reasoning(message: Any) -> Any:
    content = message["content"]
    if isinstance(content, str):
        return message
    return {**message, "content": [part for part in content if part["type"] != "thinking"]}
