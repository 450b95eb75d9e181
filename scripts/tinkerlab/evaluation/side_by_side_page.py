"""The comparison as text for a terminal and as one self-contained HTML page."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab import cli
from tinkerlab.evaluation.attempts import Reply
from tinkerlab.evaluation.side_by_side import Comparison, equals
from tinkerlab.evaluation.side_by_side_columns import BASE
from tinkerlab.evaluation.side_by_side_prompts import message_text
from tinkerlab.tasks import Task

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

TEMPLATE = Path(__file__).with_name("side_by_side.html.j2")
_FACTS = {
    "mean_tokens": ("mean tokens", "{:.0f}"),
    "cut": ("cut off", "{:.0%}"),
    "empty": ("empty", "{:.0%}"),
    "looping": ("looping", "{:.0%}"),
    "same_as_base": ("same as base", "{:.0%}"),
    "matches_reference": ("equals reference", "{:.0%}"),
}
NO_GRADE = "Equals reference: letter by letter, white space aside. eval_offline.py grades replies."
# A model may write what a terminal would obey, such as escape sequences.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

Pieces = list[tuple[bool, str]]


def html(comparison: Comparison) -> str:
    """The page; whatever models and users wrote is escaped."""
    from tinkerlab import pages

    titles, rows = fact_table(comparison)
    return pages.fill(
        TEMPLATE,
        {
            "comparison": comparison,
            "facts": rows,
            "titles": titles,
            "note": NO_GRADE if "equals reference" in titles else "",
            "warnings": comparison.warnings(),
            "prompts": [
                {
                    "place": task.place,
                    "messages": [(m["role"], message_text(m)) for m in task.prompt],
                    "reference": reference_text(task),
                    "cells": {name: _cell(comparison, name, index) for name in comparison.models},
                }
                for index, task in enumerate(comparison.tasks)
            ],
        },
    )


def terminal(comparison: Comparison) -> Group:
    """Each prompt with the replies below each other, then the facts as a table."""
    from rich.console import Group
    from rich.rule import Rule
    from rich.text import Text

    parts: list[Any] = []
    for index, task in enumerate(comparison.tasks):
        title = f"{index + 1} of {len(comparison.tasks)}"
        if task.place:
            title += f" · {task.place}"
        parts += [Rule(_text(title), align="left", style="dim"), _prompt(task)]
        parts += [_replies(comparison, index), Text()]
    parts += [Rule(f"renderer {comparison.renderer}", align="left", style="dim")]
    titles, rows = fact_table(comparison)
    parts += [_facts(titles, rows)]
    if "equals reference" in titles:
        parts.append(_text(NO_GRADE, "dim"))
    parts += [_text(f"warning: {line}", "bold yellow") for line in comparison.warnings()]
    return Group(*parts)


def fact_table(comparison: Comparison) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """(titles of the facts that some model has; each column's name with a cell for each title)."""
    found = {name: comparison.facts(name) for name in comparison.models}
    known = [key for key in _FACTS if any(facts[key] is not None for facts in found.values())]
    rows = [
        (name, ["–" if facts[k] is None else _FACTS[k][1].format(facts[k]) for k in known])
        for name, facts in found.items()
    ]
    return [_FACTS[key][0] for key in known], rows


def changed_words(before: str, after: str) -> Pieces:
    """``after`` in pieces, each with whether it is not in ``before``, word by word.

    White space alone is no change: models differ in it without a meaning.
    """
    old = before.split()
    new = re.findall(r"\S+", after)
    spaces = re.split(r"\S+", after)  # one more than words: around and between them
    pieces: Pieces = [(False, spaces[0])]
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for kind, _, _, start, end in matcher.get_opcodes():
        if start == end:
            continue
        run = new[start] + "".join(spaces[i] + new[i] for i in range(start + 1, end))
        pieces += [(kind != "equal", run), (False, spaces[end])]
    return [piece for piece in pieces if piece[1]]


def reference_text(task: Task) -> str | None:
    """The reference for people; one that is no text, as JSON."""
    if task.answer is None or isinstance(task.answer, str):
        return task.answer
    return json.dumps(task.answer, ensure_ascii=False)


def _cell(comparison: Comparison, name: str, index: int) -> dict[str, Any]:
    """A model's replies to one prompt, each in pieces, with its tags."""
    same = comparison.same_as_base(name, index)
    shown = []
    for place, reply in enumerate(comparison.replies[name][index]):
        base = comparison.replies[BASE][index][place].text
        pieces = [(False, reply.text)] if name == BASE else changed_words(base, reply.text)
        shown.append({"pieces": pieces, "tags": _tags(comparison.tasks[index], reply, same)})
    return {"same": same, "replies": shown}


def _tags(task: Task, reply: Reply, same: bool) -> list[str]:
    tags = ["same as base"] if same else []
    if not reply.text:
        tags.append("empty")
    if reply.truncated:
        tags.append(f"cut off at {reply.tokens} tokens")
    if task.answer is not None and equals(reply, task.answer):
        tags.append("equals reference")
    return tags


def _prompt(task: Task) -> Text:
    from rich.text import Text

    if len(task.prompt) == 1:
        return _text(message_text(task.prompt[0]), "bold")
    lines = [Text.assemble((f"{m['role']}: ", "dim"), _text(message_text(m))) for m in task.prompt]
    return Text("\n").join(lines)


def _replies(comparison: Comparison, index: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="cyan", max_width=24, overflow="fold")
    table.add_column(ratio=1, overflow="fold")
    reference = reference_text(comparison.tasks[index])
    if reference is not None:
        table.add_row("reference", _text(reference, "dim"))
    for name in comparison.models:
        cell = _cell(comparison, name, index)
        for reply in cell["replies"]:
            tags = [_text(f" [{tag}]", "yellow") for tag in reply["tags"]]
            # On the page the columns are side by side; here the same text would stand twice.
            pieces = [] if cell["same"] else reply["pieces"]
            shown = [_text(piece, "green" if new else "") for new, piece in pieces]
            table.add_row(_text(name), Text.assemble(*shown, *tags))
    return table


def _facts(titles: Sequence[str], rows: Sequence[tuple[str, list[str]]]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", style="cyan", max_width=24, overflow="fold")
    for title in titles:
        table.add_column(title, justify="right", header_style="dim")
    for name, cells in rows:
        table.add_row(_text(name), *cells)
    return table


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(cli.redact(_CONTROL.sub("\ufffd", text.replace("\r\n", "\n"))), style)
