"""Whether a reply states the reference answer: a second opinion on a grader that gave zero."""

from __future__ import annotations

import re

_MARKED = (
    re.compile(r"\\boxed\s*\{([^{}]*)\}"),
    re.compile(r"####\s*([^\n]+)"),
    re.compile(r"<answer>\s*(.*?)\s*</answer>", re.DOTALL | re.IGNORECASE),
    re.compile(r"answer(?:\s+is)?\s*[:=]?\s*\**\s*([^\s.*][^\n]*)", re.IGNORECASE),
)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def states_answer(reply: str, expected: str) -> bool:
    """Whether the last marked answer of ``reply``, or its last number, is ``expected``.

    Strict on purpose: a reference that merely occurs somewhere in the reasoning is no answer.
    """
    wanted = _plain(expected)
    if not wanted:
        return False
    for pattern in _MARKED:
        found = pattern.findall(reply)
        if found:
            stated = _plain(found[-1])
            return stated == wanted or _number(stated) == _number(wanted) is not None
    if _number(wanted) is not None:
        numbers = _NUMBER.findall(reply)
        return bool(numbers) and _number(_plain(numbers[-1])) == _number(wanted)
    lines = reply.strip().splitlines()
    return bool(lines) and _plain(lines[-1]) == wanted


def _plain(text: str) -> str:
    return text.strip().strip("$*`'\"() ").rstrip(".").strip().lower()


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", "").replace("$", "").replace("%", ""))
    except ValueError:
        return None
