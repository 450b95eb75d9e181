"""Look for markup in the text of messages that doesn't mean there what the author thinks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tinkerlab.data.messages import text_of
from tinkerlab.data.reading import Row
from tinkerlab.data.report import Finding
from tinkerlab.data.words import of_rows

_THINK = re.compile(r"</?think>")


def check_text_markup(
    rows: Sequence[Row], renderer: Any, name: str, tokenizer: Any
) -> list[Finding]:
    """Warnings about reasoning tags and special tokens that stand in plain text."""
    return [*_thinking(rows, renderer, name), *_special_tokens(rows, tokenizer)]


def renders_thinking(renderer: Any) -> bool:
    """Whether the renderer has a form of its own for thinking parts."""
    ask: Any = {"role": "user", "content": "How much is 1 + 1?"}
    parts = [{"type": "thinking", "thinking": "Add."}, {"type": "text", "text": "2"}]
    answer: Any = {"role": "assistant", "content": parts}
    try:
        with_thinking = renderer.build_supervised_example([ask, answer])[0].to_ints()
        without = renderer.build_supervised_example([ask, {**answer, "content": "2"}])[0].to_ints()
    except Exception:  # refusing thinking parts is how several renderers say that they have none
        return False
    return with_thinking != without


def _thinking(rows: Sequence[Row], renderer: Any, name: str) -> list[Finding]:
    found = [row for row in rows if any(_has_tag(message) for message in row.messages)]
    if not found:
        return []
    if getattr(renderer, "disables_thinking", False):
        effect = f"renderer {name} tells the model not to think, so it learns to disobey that"
        fix = "remove the reasoning, or choose the thinking renderer of this model"
    elif renders_thinking(renderer):
        effect = (
            f"renderer {name} knows reasoning by its own kind of part: as text it isn't taken out "
            "of earlier turns, and its spacing may not be what the model was tuned on"
        )
        fix = (
            'write the content as [{"type": "thinking", "thinking": ...}, '
            '{"type": "text", "text": ...}], or move the reasoning to "reasoning_content"'
        )
    else:
        effect = f"renderer {name} has no thinking format: the tags are trained as ordinary text"
        fix = "remove the reasoning if the model isn't meant to write it, or keep it knowingly"
    return [
        Finding(
            "thinking_in_text",
            f"{of_rows(len(found), len(rows))} hold <think> tags in plain assistant text; {effect}",
            fix,
            [row.place for row in found],
        )
    ]


def _has_tag(message: dict[str, Any]) -> bool:
    if message["role"] != "assistant":
        return False
    content = message["content"]
    texts = [content] if isinstance(content, str) else [p.get("text", "") for p in content]
    return any(_THINK.search(text) for text in texts)


def _special_tokens(rows: Sequence[Row], tokenizer: Any) -> list[Finding]:
    # all_special_tokens holds only those with a role (bos, eos, ...); <|im_start|> may have none.
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    special = {str(token) for token in added.values() if token.special}
    special.update(getattr(tokenizer, "all_special_tokens", None) or [])
    # One-character and word-like "special" tokens would match ordinary text.
    marks = [token for token in special if re.fullmatch(r"[<\[].+[>\]]", token)]
    if not marks:
        return []
    pattern = re.compile("|".join(map(re.escape, sorted(marks, key=lambda m: (-len(m), m)))))
    examples = []
    for row in rows:
        hit = next((m for message in row.messages if (m := pattern.search(text_of(message)))), None)
        if hit:
            examples.append(f"{row.place}: {hit.group()}")
    if not examples:
        return []
    return [
        Finding(
            "special_tokens_in_text",
            f"{of_rows(len(examples), len(rows))} hold the tokenizer's special tokens as text: "
            "was a chat template already applied to them?",
            "give the bare messages; the renderer adds the markers",
            examples,
        )
    ]
