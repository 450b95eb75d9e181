"""The two sides that are compared: what the renderer writes, and what the chat template writes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinkerlab.data.datums import conversation
from tinkerlab.data.messages import RowError
from tinkerlab.data.reading import Row
from tinkerlab.diagnosis.rendering.samples import Sample


@dataclass(frozen=True)
class Example:
    """A supervised example: ``tokens[N]`` and ``weights[N]`` (0 = not trained)."""

    tokens: list[int]
    weights: list[float]


@dataclass(frozen=True)
class Rendered:
    """A conversation as the renderer writes it.

    Attributes:
        messages: the cookbook's messages, tool declarations first.
        prompt: tokens that the model would be given to write the last message.
        example: what it is trained on for that message.
    """

    messages: list[Any]
    prompt: list[int]
    example: Example


def as_messages(sample: Sample, renderer: Any) -> list[Any]:
    """The sample as the cookbook's messages, its tool declarations in front.

    Raises:
        RowError: this renderer has no form for tools.
    """
    return conversation(Row(0, 0, list(sample.messages), sample.tools), renderer)


def rendered(messages: list[Any], renderer: Any) -> Rendered:
    """Render a conversation that ends with an assistant message, and the prompt before it.

    Raises:
        RowError: the renderer refuses this conversation, in its own words.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            prompt = renderer.build_generation_prompt(messages[:-1]).to_ints()
            tokens, weights = renderer.build_supervised_example(messages)
    except Exception as error:  # renderers assert, index and encode; anything may come
        raise RowError(short(error)) from None
    return Rendered(messages, prompt, Example(tokens.to_ints(), weights.tolist()))


def templated(
    tokenizer: Any,
    renderer: Any,
    messages: Sequence[Any],
    tools: Sequence[dict[str, Any]],
    arguments: dict[str, Any],
    *,
    generate: bool,
) -> list[int] | None:
    """What the tokenizer's chat template writes; None when it refuses the conversation.

    Rendered to text first: since transformers 5 ``tokenize=True`` returns a mapping, whose
    ``list()`` is its keys.

    Args:
        messages: the cookbook's messages *without* the tool declarations.
        arguments: such as ``enable_thinking``. A template ignores a name that it doesn't know.
        generate: end with the header of the answer.
    """
    declared = [{"type": "function", "function": tool} for tool in tools]
    try:
        text = tokenizer.apply_chat_template(
            [renderer.to_openai_message(message) for message in messages],
            tools=declared or None,
            add_generation_prompt=generate,
            tokenize=False,
            **arguments,
        )
        return tokenizer.encode(text, add_special_tokens=False)
    except Exception:  # templates raise what they like, for example on a system message
        return None


def short(error: Exception) -> str:
    """An exception in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:240]
