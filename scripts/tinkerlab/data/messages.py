"""Check one conversation, and bring its messages into the shape that the renderers take.

Pure Python on parsed JSON: knows nothing about files, tokenizers or renderers. What comes out
is plain JSON data again (tool calls become the cookbook's objects only when rendered).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

Messages = list[dict[str, Any]]

ROLES = ("system", "user", "assistant", "tool")

# The members of tinker_cookbook.renderers.TrainOnWhat, spelled out because importing them
# takes seconds (tests compare the two).
TrainOnWhat = Literal[
    "last_assistant_message",
    "last_assistant_turn",
    "all_assistant_messages",
    "all_messages",
    "all_tokens",
    "all_user_and_system_messages",
    "customized",
]

_ROLE_HINTS = {
    "human": "user",
    "gpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "ai": "assistant",
    "chatbot": "assistant",
    "function": "tool",
    "developer": "system",
}

# Keys whose meaning would be lost if they were ignored, and what to write instead.
_REFUSED_KEYS = {
    "function_call": 'the older form of "tool_calls"',
    "weight": '"trainable": true or false on every message and train_on_what=customized',
    "audio": "text only: audio isn't trained on here",
    "images": "text only: images aren't trained on here",
    "unparsed_tool_calls": '"tool_calls", or text',
}


class RowError(Exception):
    """A row can't be used; the message is the reason, without file or line."""


def clean_messages(value: Any) -> Messages:
    """Return the messages in the renderers' shape, or say what is wrong with them.

    Content stays text, or a list of text and thinking parts. ``reasoning_content`` becomes a
    thinking part; ``null`` content beside tool calls becomes empty text; tool arguments given
    as an object become JSON text. Keys without a meaning here (ids, timestamps) are dropped.

    Raises:
        RowError: the first fault, with the message's place ("messages[2]: ...").
    """
    if not isinstance(value, list):
        raise RowError(f'"messages" must be a list, not {kind(value)}')
    if not value:
        raise RowError('"messages" is an empty list')
    return [_clean_message(message, f"messages[{i}]") for i, message in enumerate(value)]


def check_text(text: str, where: str) -> str:
    """Return ``text`` if a tokenizer can take it.

    Raises:
        RowError: it holds NUL, or half of a surrogate pair (which no encoding can write).
    """
    if "\0" in text:
        raise RowError(f"{where}: holds a NUL character (\\u0000); remove it")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        found = f"\\u{ord(text[error.start]):04x}"
        raise RowError(
            f"{where}: holds half a surrogate pair ({found}); re-export the data"
        ) from None
    return text


def clean_tools(value: Any) -> list[dict[str, Any]]:
    """Return tool declarations as ``{name, description, parameters}``, from OpenAI's form or this.

    Raises:
        RowError: not a list of such objects.
    """
    if not isinstance(value, list):
        raise RowError(f'"tools" must be a list, not {kind(value)}')
    tools = []
    for i, item in enumerate(value):
        where = f"tools[{i}]"
        spec = item.get("function", item) if isinstance(item, dict) else item
        if not isinstance(spec, dict) or not isinstance(spec.get("name"), str) or not spec["name"]:
            raise RowError(f'{where}: must be an object with "name" and "parameters"')
        description, parameters = spec.get("description", ""), spec.get("parameters", {})
        if not isinstance(description, str) or not isinstance(parameters, dict):
            raise RowError(f'{where}: "description" must be text and "parameters" an object')
        for text in _strings(spec):
            check_text(text, where)
        tools.append({"name": spec["name"], "description": description, "parameters": parameters})
    return tools


def nothing_to_train_on(messages: Messages, train_on_what: str) -> str | None:
    """Say why ``train_on_what`` gives this conversation no trained message; None if it does.

    Also finds where ``trainable`` flags and ``train_on_what`` contradict each other, which the
    renderers refuse.
    """
    roles = [message["role"] for message in messages]
    flags = [message.get("trainable") for message in messages]
    if train_on_what == "customized":
        if None in flags:
            return (
                f"messages[{flags.index(None)}]: train_on_what=customized needs "
                '"trainable": true or false on every message'
            )
        return None if any(flags) else 'no message has "trainable": true'
    if any(flag is not None for flag in flags):
        return '"trainable" flags need train_on_what=customized'
    if train_on_what in ("all_messages", "all_tokens"):
        return None
    if train_on_what == "all_user_and_system_messages":
        return None if {"user", "system"} & set(roles) else "no user or system message"
    if "assistant" not in roles:
        return "no assistant message: nothing to train on"
    if train_on_what == "last_assistant_message" and roles[-1] != "assistant":
        return (
            f"ends with a {roles[-1]} message, so train_on_what=last_assistant_message has "
            "nothing to train on"
        )
    if train_on_what == "last_assistant_turn" and "assistant" not in roles[_turn_start(roles) :]:
        return (
            "no assistant message after the last user message (train_on_what=last_assistant_turn)"
        )
    return None


def text_of(message: dict[str, Any]) -> str:
    """Everything readable in a message: text, thinking and tool calls, in order."""
    content = message["content"]
    parts = (
        [content]
        if isinstance(content, str)
        else [p.get("text") or p.get("thinking", "") for p in content]
    )
    parts += [
        f"{call['function']['name']} {call['function']['arguments']}"
        for call in message.get("tool_calls", ())
    ]
    return "\n".join(parts)


def kind(value: Any) -> str:
    """The JSON type of ``value`` in words."""
    if value is None:
        return "null"
    names = {bool: "true/false", int: "a number", float: "a number", str: "text"}
    return names.get(type(value), "a list" if isinstance(value, list) else "an object")


def _turn_start(roles: list[str]) -> int:
    return max((i for i, role in enumerate(roles) if role == "user"), default=-1) + 1


def _clean_message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise RowError(f"{where}: must be an object with role and content, not {kind(message)}")
    if "role" not in message and "from" in message and "value" in message:
        raise RowError(f'{where}: has "from"/"value" (ShareGPT); write "role"/"content"')
    role = message.get("role")
    if role not in ROLES:
        raise RowError(f"{where}: {_wrong_role(role)}")
    for key, instead in _REFUSED_KEYS.items():
        if message.get(key) is not None:
            raise RowError(f'{where}: "{key}" isn\'t supported; use {instead}')

    cleaned: dict[str, Any] = {"role": role}
    calls = message.get("tool_calls")
    if calls:
        if role != "assistant":
            raise RowError(f'{where}: only an assistant message has "tool_calls"')
        cleaned["tool_calls"] = _clean_calls(calls, where)
    cleaned["content"] = _clean_content(message, role, where, may_be_empty=bool(calls))
    for key in ("name", "tool_call_id"):
        if message.get(key) is not None and role == "tool":
            if not isinstance(message[key], str):
                raise RowError(f'{where}: "{key}" must be text, not {kind(message[key])}')
            cleaned[key] = check_text(message[key], where)
    if message.get("trainable") is not None:
        if not isinstance(message["trainable"], bool):
            raise RowError(f'{where}: "trainable" must be true or false')
        cleaned["trainable"] = message["trainable"]
    return cleaned


def _wrong_role(role: Any) -> str:
    if not isinstance(role, str):
        return '"role" is missing' if role is None else f'"role" must be text, not {kind(role)}'
    meant = _ROLE_HINTS.get(role.strip().lower(), role.strip().lower())
    hint = f"; did you mean {meant!r}?" if meant in ROLES else f"; known: {', '.join(ROLES)}"
    return f"unknown role {role[:40]!r}{hint}"


def _clean_content(
    message: dict[str, Any], role: str, where: str, *, may_be_empty: bool
) -> str | list[dict[str, str]]:
    content = message.get("content")
    if content is None and may_be_empty:
        content = ""
    if content is None:
        missing = "is null" if "content" in message else "is missing"
        raise RowError(f'{where}: "content" of the {role} message {missing}')
    if isinstance(content, str):
        check_text(content, where)
    elif isinstance(content, list):
        content = [_clean_part(p, role, f"{where}.content[{i}]") for i, p in enumerate(content)]
    else:
        raise RowError(f'{where}: "content" must be text or a list of parts, not {kind(content)}')

    reasoning = message.get("reasoning_content")
    if reasoning:
        if role != "assistant" or not isinstance(reasoning, str):
            raise RowError(f'{where}: "reasoning_content" must be text, in an assistant message')
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        thinking = {"type": "thinking", "thinking": check_text(reasoning, where)}
        content = [thinking, *(part for part in parts if part.get("text") != "")]

    # A tool may return nothing, and a call needs no words; any other empty turn is a hole.
    spoken = content if isinstance(content, str) else "".join(p.get("text", "") for p in content)
    if not spoken.strip() and not may_be_empty and role != "tool":
        raise RowError(f"{where}: empty {role} turn")
    return content


def _clean_part(part: Any, role: str, where: str) -> dict[str, str]:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise RowError(f'{where}: must be an object with "type", not {kind(part)}')
    name = part["type"]
    if name not in ("text", "thinking"):
        raise RowError(
            f"{where}: {name[:40]!r} parts aren't supported here (text and thinking are); "
            "training is on text only"
        )
    if name == "thinking" and role != "assistant":
        raise RowError(f"{where}: only an assistant message has thinking parts")
    text = part.get(name)
    if not isinstance(text, str):
        raise RowError(f'{where}: "{name}" must be text, not {kind(text)}')
    return {"type": name, name: check_text(text, where)}


def _clean_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise RowError(f'{where}: "tool_calls" must be a list, not {kind(calls)}')
    cleaned = []
    for i, call in enumerate(calls):
        place = f"{where}.tool_calls[{i}]"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RowError(f'{place}: must be {{"function": {{"name": ..., "arguments": ...}}}}')
        identifier, arguments = call.get("id"), function.get("arguments", "{}")
        if call.get("type", "function") != "function":
            raise RowError(f'{place}: "type" must be "function"')
        if identifier is not None and not isinstance(identifier, str):
            raise RowError(f'{place}: "id" must be text')
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments, ensure_ascii=False)
        try:
            parsed = json.loads(arguments) if isinstance(arguments, str) else None
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict):
            raise RowError(f'{place}: "arguments" must be a JSON object, as text or as an object')
        body = {"name": function["name"], "arguments": arguments}
        for text in (*body.values(), identifier or ""):
            check_text(text, place)
        cleaned.append({"type": "function", "id": identifier, "function": body})
    return cleaned


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
