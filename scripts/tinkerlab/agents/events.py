"""An agent's JSON lines as a log for people. Everything in them was written by a model or a tool,
so nothing is taken on trust: not its type, not its length, not its control characters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tinkerlab.data.preview import printable

WIDEST = 300  # characters of one line
MOST_LINES = 30  # of one message


class Transcript:
    """Reads the lines of one agent, one after the other.

    Attributes:
        events: JSON events seen.
        unread: lines that were no JSON object.
        turns, cost_usd: as the agent counts them; None until it has told.
        plugins: those that it loaded; None until it has told.
        final: its last message.
        error: why it says that it failed; "" while it does not.
        finished: whether it said that it is done.
    """

    def __init__(self) -> None:
        self.events = 0
        self.unread = 0
        self.turns: int | None = None
        self.cost_usd: float | None = None
        self.plugins: list[str] | None = None
        self.final = ""
        self.error = ""
        self.finished = False

    def read(self, line: str) -> list[str]:
        """What to show of one line."""
        if not line.strip():
            return []
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            self.unread += 1
            return _lines("", line, most=1)
        self.events += 1
        try:
            return list(self._shown(event))
        except RecursionError:  # read, but nested too deeply to be written again
            self.unread += 1
            return []

    def _shown(self, event: dict[str, Any]) -> Iterator[str]:
        kind = event.get("type")
        if kind == "system" and event.get("subtype") == "init":
            self.plugins = [_text(_get(plugin, "name")) for plugin in _list(event.get("plugins"))]
            yield from _lines("", f"agent started: {_text(event.get('model'))}")
        elif kind in ("assistant", "user"):
            for part in _list(_get(event.get("message"), "content")):
                yield from self._part(part)
        elif kind == "result":
            self._result(event)
        elif kind == "item.completed":
            yield from self._item(event.get("item"))
        elif kind == "turn.completed":
            self.finished, self.error = True, ""
            self.turns = (self.turns or 0) + 1
        elif kind in ("turn.failed", "error"):
            nested = _get(event.get("error"), "message")
            self.error = _text(nested or event.get("message")) or "it gives no reason"
            yield from _lines("! ", self.error)

    def _part(self, part: Any) -> Iterator[str]:
        """One part of a Claude Code message."""
        kind = _get(part, "type")
        if kind == "text":
            self.final = _text(part.get("text"))
            yield from _lines("", self.final)
        elif kind == "tool_use":
            yield from _lines("> ", f"{_text(part.get('name'))}: {_asked(part.get('input'))}", 1)
        elif kind == "tool_result":
            content = part.get("content")
            if isinstance(content, list):
                content = "\n".join(_text(_get(piece, "text")) for piece in content)
            mark = "< error: " if part.get("is_error") is True else "< "
            yield from _lines(mark, _text(content), 1)

    def _item(self, item: Any) -> Iterator[str]:
        """One item of a Codex turn."""
        kind = _get(item, "type")
        if kind == "agent_message":
            self.final = _text(item.get("text"))
            yield from _lines("", self.final)
        elif kind == "command_execution":
            yield from _lines("> ", _text(item.get("command")), 1)
            yield from _lines("< ", _text(item.get("aggregated_output")), 1)
        elif kind == "error":
            yield from _lines("! ", _text(item.get("message")), 1)

    def _result(self, event: dict[str, Any]) -> None:
        """Claude Code's last word."""
        self.finished = True
        turns, cost = event.get("num_turns"), event.get("total_cost_usd")
        self.turns = turns if isinstance(turns, int) else None
        self.cost_usd = float(cost) if isinstance(cost, (int, float)) and cost >= 0 else None
        said = _text(event.get("result"))
        self.final = said or self.final
        subtype = event.get("subtype")
        if event.get("is_error") is True or subtype != "success":
            self.error = said or _text(subtype) or "it gives no reason"


def one_line(text: str) -> str:
    """The first line of what an agent wrote, harmless and short."""
    return next(iter(_lines("", text, most=1)), "")


def _asked(given: Any) -> str:
    """The argument of a tool that says most."""
    if not isinstance(given, dict):
        return _text(given)
    for key in ("command", "file_path", "skill", "pattern", "url", "description"):
        if isinstance(given.get(key), str):
            return given[key]
    return json.dumps(given, ensure_ascii=False, default=str)


def _lines(mark: str, text: str, most: int = MOST_LINES) -> list[str]:
    """``text`` so that it can do no harm to a terminal, at most ``most`` lines of it."""
    # Cut before it is escaped: a line may hold megabytes.
    found = [line for line in text[: WIDEST * (most + 1) * 4].splitlines() if line.strip()]
    shown = []
    for line in found[:most]:
        cut = printable(line[:WIDEST])
        shown.append(f"{mark}{cut} ..." if len(line) > WIDEST else f"{mark}{cut}")
    if len(found) > most:
        shown[-1] += f"  (+{len(found) - most} lines)"
    return shown


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None
