"""What must hold of a renderer by itself, without a template to compare it with.

First: the prompt that the model samples from is the beginning of what it is trained on, the
loss starts where the prompt ends, the end of the answer is trained, and the renderer can read
back the answer that it wrote.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tinkerlab.diagnosis.rendering.sides import Rendered, short

CONTEXT = 12  # tokens that are shown before a difference, and after it


@dataclass(frozen=True)
class Fault:
    """One thing that does not hold: a cause's name and the evidence in one line."""

    cause: str
    evidence: str


def first_difference(ours: list[int], theirs: list[int]) -> int:
    """Position of the first differing token; the shorter length when one begins the other."""
    pairs = zip(ours, theirs, strict=False)
    shorter = min(len(ours), len(theirs))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)


def shown(tokens: list[int], at: int, tokenizer: Any) -> str:
    """The tokens around ``at`` as text, with a bar before it."""
    before, after = tokens[max(0, at - CONTEXT) : at], tokens[at : at + CONTEXT]
    return f"{tokenizer.decode(before)!r} | {tokenizer.decode(after)!r}"


def faults(it: Rendered, renderer: Any, tokenizer: Any) -> Iterator[Fault]:
    """What is wrong with one rendered conversation, the most fundamental first."""
    tokens, weights = it.example.tokens, it.example.weights
    trained = [i for i, weight in enumerate(weights) if weight > 0]
    if not trained:
        yield Fault("answer-not-trained", "no token of the answer carries weight")
        return
    if tokens[: len(it.prompt)] != it.prompt:
        at = first_difference(tokens, it.prompt)
        yield Fault(
            "prompt-not-a-prefix",
            f"token {at}: trained on {shown(tokens, at, tokenizer)}, "
            f"sampled from {shown(it.prompt, at, tokenizer)}",
        )
        return
    yield from _mask(it, trained, renderer, tokenizer)
    yield from _round_trip(it, renderer)


def _mask(it: Rendered, trained: list[int], renderer: Any, tokenizer: Any) -> Iterator[Fault]:
    tokens, start = it.example.tokens, len(it.prompt)
    if trained[0] < start:
        text = tokenizer.decode(tokens[trained[0] : start])
        yield Fault("header-trained", f"{start - trained[0]} tokens of the prompt: {text!r}")
    elif trained[0] > start:
        text = tokenizer.decode(tokens[start : trained[0]])
        yield Fault("answer-not-trained", f"its first {trained[0] - start} tokens: {text!r}")
    gaps = [i for i in range(max(start, trained[0]), trained[-1]) if it.example.weights[i] <= 0]
    if gaps:
        yield Fault("answer-not-trained", f"{len(gaps)} tokens within it, from token {gaps[0]}")
    if not _stops(tokens[trained[0] : trained[-1] + 1], renderer, tokenizer):
        stops = renderer.get_stop_sequences()
        names = [tokenizer.decode([stop]) if isinstance(stop, int) else stop for stop in stops]
        yield Fault(
            "end-of-turn-not-trained",
            f"the trained part ends with {tokenizer.decode(tokens[trained[-1] :][:1])!r}; sampling "
            f"stops at {names}",
        )


def _stops(trained: list[int], renderer: Any, tokenizer: Any) -> bool:
    text = tokenizer.decode(trained[-8:])
    return any(
        trained[-1] == stop if isinstance(stop, int) else text.endswith(stop)
        for stop in renderer.get_stop_sequences()
    )


def _round_trip(it: Rendered, renderer: Any) -> Iterator[Fault]:
    answer = it.example.tokens[len(it.prompt) :]
    try:
        message, ending = renderer.parse_response(answer)
    except Exception as error:  # parsers index and decode; anything may come
        yield Fault("answer-not-parsed", f"parse_response raises {short(error)}")
        return
    # In 0.5.8 and later an ending (always truthy: ask is_clean), before that a bool.
    clean = ending.is_clean if hasattr(ending, "is_clean") else bool(ending)
    if not clean:
        yield Fault("answer-not-parsed", f"parse_response ends with {ending!s}")
        return
    wrote, read = _said(it.messages[-1]), _said(message)
    if wrote != read:
        yield Fault("answer-not-parsed", f"wrote {wrote}, read {read}")


def _said(message: Any) -> dict[str, Any]:
    """What a message says, whitespace at the ends and Unicode composition aside.

    Qwen's tokenizers compose characters (NFC). The text beside tool calls is not compared: the
    parser of gpt_oss leaves the call's own markup in it.
    """
    content = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    calls = message.get("tool_calls") or []

    def joined(kind: str) -> str:
        text = "".join(part.get(kind, "") for part in parts).strip()
        return unicodedata.normalize("NFC", text)

    return {
        "text": "" if calls else joined("text"),
        "thinking": joined("thinking"),
        "tool_calls": [(c.function.name, _arguments(c.function.arguments)) for c in calls],
    }


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
