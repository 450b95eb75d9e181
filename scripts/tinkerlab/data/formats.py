"""The four shapes that a row of supervised data may have, and how each becomes a conversation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tinkerlab.data.messages import Messages, RowError, check_text, clean_messages, kind


@dataclass(frozen=True)
class Format:
    """One shape of row.

    Attributes:
        name: what reports call it.
        required: keys that make a row of this format.
        optional: keys that belong to it as well.
        convert: from the row to checked messages; raises RowError.
    """

    name: str
    required: tuple[str, ...]
    optional: tuple[str, ...]
    convert: Callable[[dict[str, Any]], Messages]


def detect(row: dict[str, Any]) -> Format:
    """Return the format whose keys ``row`` has.

    Raises:
        RowError: no known format, with a hint for the shapes that are often met.
    """
    for candidate in FORMATS:
        if all(key in row for key in candidate.required):
            return candidate
    raise RowError(_unknown(row))


def extra_keys(row: dict[str, Any], used: Format) -> list[str]:
    """Keys of ``row`` that its format has no use for."""
    return [key for key in row if key not in used.required and key not in used.optional]


def _from_messages(row: dict[str, Any]) -> Messages:
    return clean_messages(row["messages"])


def _from_prompt(row: dict[str, Any]) -> Messages:
    return _pair(_field(row, "prompt"), _field(row, "completion"))


def _from_instruction(row: dict[str, Any]) -> Messages:
    instruction, answer = _field(row, "instruction"), _field(row, "output")
    extra = row.get("input")
    if extra is None or (isinstance(extra, str) and not extra.strip()):
        return _pair(instruction, answer)
    return _pair(f"{instruction}\n\n{_field(row, 'input')}", answer)


def _from_input(row: dict[str, Any]) -> Messages:
    return _pair(_field(row, "input"), _field(row, "output"))


# The first whose keys are all there wins, so the more particular come first.
FORMATS = (
    Format("messages", ("messages",), ("tools",), _from_messages),
    Format("prompt/completion", ("prompt", "completion"), (), _from_prompt),
    Format("instruction/input/output", ("instruction", "output"), ("input",), _from_instruction),
    Format("input/output", ("input", "output"), (), _from_input),
)


def _pair(question: str, answer: str) -> Messages:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _field(row: dict[str, Any], key: str) -> str:
    value = row[key]
    if not isinstance(value, str):
        raise RowError(f'"{key}" must be text, not {kind(value)}')
    if not value.strip():
        raise RowError(f'"{key}" is empty')
    return check_text(value, f'"{key}"')


def _unknown(row: dict[str, Any]) -> str:
    if "chosen" in row and "rejected" in row:
        if row["chosen"] == row["rejected"]:
            return (
                "a preference pair whose chosen and rejected replies are identical: "
                "it holds no preference, and supervised training doesn't take pairs"
            )
        return (
            "a preference pair (chosen/rejected): supervised training takes one reply a row, "
            'for example {"prompt": ..., "completion": the chosen reply}'
        )
    if "conversations" in row:
        return 'has "conversations" (ShareGPT); write {"messages": [{"role": ..., "content": ...}]}'
    if not row:
        return "an empty object"
    keys = ", ".join(repr(key[:40]) for key in list(row)[:8])
    known = ", ".join("+".join(known.required) for known in FORMATS)
    return f"no known format: has the keys {keys}; known formats have {known}"
