"""The conversations on which a renderer is tried.

Every sample ends with the assistant message that would be trained. ``kind`` says what the sample
needs from a renderer, so that one without tools or reasoning isn't asked for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["plain", "thinking", "tools"]

_SYSTEM = {"role": "system", "content": "You answer in one sentence."}
_ASK = {"role": "user", "content": "What is 15 + 27?"}
_ANSWER = {"role": "assistant", "content": "It is 42."}
_AGAIN = {"role": "user", "content": "And twice that?\nShow the steps."}
_TWICE = {"role": "assistant", "content": "Twice 42 is 84."}

WEATHER_TOOL = {
    "name": "get_weather",
    "description": "Current weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}


def _reasoned(thinking: str, text: str) -> dict[str, Any]:
    parts = [{"type": "thinking", "thinking": thinking}, {"type": "text", "text": text}]
    return {"role": "assistant", "content": parts}


def _calling(text: str, city: str) -> dict[str, Any]:
    call = {
        "type": "function",
        "id": "call_0",
        "function": {"name": "get_weather", "arguments": f'{{"city": "{city}"}}'},
    }
    return {"role": "assistant", "content": text, "tool_calls": [call]}


_RESULT = {"role": "tool", "content": "18 C", "name": "get_weather", "tool_call_id": "call_0"}


@dataclass(frozen=True)
class Sample:
    """One conversation.

    Attributes:
        name: for messages and the table of intended differences.
        messages: ends with an assistant message; tool calls are plain JSON.
        kind: what the renderer must be able to write.
        tools: declarations that stand in front of the conversation.
    """

    name: str
    messages: tuple[dict[str, Any], ...]
    kind: Kind = "plain"
    tools: tuple[dict[str, Any], ...] = ()


SAMPLES = (
    Sample("plain", (_ASK, _ANSWER)),
    Sample("system", (_SYSTEM, _ASK, _ANSWER)),
    Sample("multi-turn", (_ASK, _ANSWER, _AGAIN, _TWICE)),
    Sample("multi-turn with system", (_SYSTEM, _ASK, _ANSWER, _AGAIN, _TWICE)),
    Sample("empty answer in history", (_ASK, {**_ANSWER, "content": ""}, _AGAIN, _TWICE)),
    Sample("empty question", ({**_ASK, "content": ""}, _ANSWER)),
    Sample(
        "unicode",
        (
            {"role": "user", "content": "Où est le café? \u4f60\u597d \U0001f469\u200d\U0001f680"},
            {"role": "assistant", "content": "Là-bas \u2192 e\u0301t\u00e9 \U0001f600."},
        ),
    ),
    Sample("trailing whitespace in the question", ({**_ASK, "content": "Sum? \n"}, _ANSWER)),
    Sample("trailing whitespace in the answer", (_ASK, {**_ANSWER, "content": "It is 42. \n"})),
    Sample("leading newline in the answer", (_ASK, {**_ANSWER, "content": "\n\nIt is 42."})),
    Sample(
        "think tags in a user's text",
        ({"role": "user", "content": "What does <think>x</think> mean?"}, _ANSWER),
    ),
    Sample("reasoning", (_ASK, _reasoned("15 + 27 is 42.", "It is 42.")), "thinking"),
    Sample(
        "reasoning in an earlier turn",
        (_ASK, _reasoned("15 + 27 is 42.", "It is 42."), _AGAIN, _reasoned("2 x 42.", "84.")),
        "thinking",
    ),
    Sample(
        "tool call",
        ({"role": "user", "content": "Weather in Oslo?"}, _calling("", "Oslo")),
        "tools",
        (WEATHER_TOOL,),
    ),
    Sample(
        "tool result",
        (
            _SYSTEM,
            {"role": "user", "content": "Weather in Oslo?"},
            _calling("I look it up.", "Oslo"),
            _RESULT,
            {"role": "assistant", "content": "18 C."},
        ),
        "tools",
        (WEATHER_TOOL,),
    ),
)
