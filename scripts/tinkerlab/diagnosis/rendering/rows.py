"""The user's own conversations through the renderer: which rows it can't teach as they stand."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tinkerlab.data.datums import conversation
from tinkerlab.data.messages import RowError
from tinkerlab.data.reading import LoadedData, Row, scan
from tinkerlab.data.text_checks import check_text_markup
from tinkerlab.diagnosis.findings import Finding
from tinkerlab.diagnosis.rendering.oracles import Fault, faults
from tinkerlab.diagnosis.rendering.sides import Rendered, rendered, short

LISTED = 5  # rows that a finding shows

# What each cause means for data, and what to do: (what, fix).
_MEANING = {
    "bad-rows": ("can't be used", "mend the lines; check_data.py lists them all"),
    "row-not-rendered": ("are refused by the renderer", "mend them, or choose another renderer"),
    "tools-not-supported": (
        "declare or call tools, which this renderer does not write",
        "choose a renderer whose model has a tool format, or leave the tools out of the data",
    ),
    "thinking-with-disabled-renderer": (
        "hold reasoning, but the renderer tells the model not to reason",
        "use the thinking renderer of this model, or remove the reasoning",
    ),
    "reasoning-dropped": (
        "hold reasoning in the trained answer, which this renderer leaves out",
        "use the thinking renderer of this model, or remove the reasoning knowingly",
    ),
    "earlier-thinking-stripped": (
        "hold reasoning in an earlier turn, which the renderer strips from history: in one "
        "example it is never trained",
        "build_supervised_examples (plural) makes one example for each answer; or a "
        "_preserve_thinking renderer where the model has one",
    ),
    "earlier-turn-unseen": (
        "have an earlier answer that stands in the example after other tokens than it is "
        "sampled after",
        "train on it with build_supervised_examples (plural), or train on the last answer only "
        "(train_on_what=last_assistant_message)",
    ),
    "prompt-not-a-prefix": (
        "have an answer that does not follow the prompt it is sampled from",
        "answers without reasoning under a thinking renderer: use its _disable_thinking "
        "sibling, or give them reasoning; otherwise report the renderer",
    ),
    "think-tags-in-text": ("", ""),  # words come from the text check
    "special-tokens-in-text": ("", ""),
}
_GENERAL = (
    "are not rendered as they should be",
    "look at the first row; if the text is plain, the renderer is at fault: choose another",
)


def check_rows(
    path: Path, renderer: Any, name: str, tokenizer: Any, limit: int
) -> tuple[list[Finding], int, int]:
    """(findings, rows looked at, rows left out because of ``limit``).

    Raises:
        InputError: the file can't be read, or holds no JSON lines.
    """
    data = scan(path)
    rows = data.rows[:limit]
    found: dict[str, list[str]] = {}
    if data.bad:
        found["bad-rows"] = [f"line {row.line}: {row.reason}" for row in data.bad]
    markup = list(_markup(rows, renderer, name, tokenizer))
    tagged = {place for finding in markup for place in finding.evidence}
    for row in rows:
        for fault in _faults_of(row, renderer, tokenizer):
            # A tag that is read back as reasoning is already named as such.
            if fault.cause == "answer-not-parsed" and any(row.place in it for it in tagged):
                continue
            found.setdefault(fault.cause, []).append(f"line {row.line}: {fault.evidence}")
    findings = [
        _finding(cause, places, data, len(rows), path.name) for cause, places in found.items()
    ]
    cut = [Finding(**{**f.__dict__, "evidence": f.evidence[:LISTED]}) for f in markup]
    return [*findings, *cut], len(rows) + len(data.bad), len(data.rows) - len(rows)


def _finding(cause: str, places: list[str], data: LoadedData, looked_at: int, file: str) -> Finding:
    what, fix = _MEANING.get(cause, _GENERAL)
    total = looked_at + len(data.bad)
    more = (f"... and {len(places) - LISTED} more",) if len(places) > LISTED else ()
    return Finding(
        cause,
        f"{len(places)} of {total} rows {what}",
        file,
        (*places[:LISTED], *more),
        fix,
        # True of every renderer without the extension property, and harmless where the last
        # answer alone is trained.
        severity="warning" if cause == "earlier-turn-unseen" else "problem",
    )


def _markup(rows: Sequence[Row], renderer: Any, name: str, tokenizer: Any) -> Iterator[Finding]:
    causes = {
        "thinking_in_text": "think-tags-in-text",
        "special_tokens_in_text": "special-tokens-in-text",
    }
    for found in check_text_markup(rows, renderer, name, tokenizer):
        lines = list(found.lines())
        yield Finding(causes[found.kind], lines[0], rows[0].file, tuple(found.examples), found.fix)


def _faults_of(row: Row, renderer: Any, tokenizer: Any) -> Iterator[Fault]:
    try:
        messages = conversation(row, renderer)
    except RowError as error:
        cause = "tools-not-supported" if "tool" in str(error) else "row-not-rendered"
        yield Fault(cause, str(error))
        return
    for message in messages:
        message.pop("trainable", None)  # which messages are trained is not looked at here
    answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if not answers:
        yield Fault("row-not-rendered", "no assistant message")
        return
    messages = messages[: answers[-1] + 1]
    try:
        last = rendered(messages, renderer)
    except RowError as error:
        disabled = getattr(renderer, "disables_thinking", False) and _any_reasoning(messages)
        yield Fault(
            "thinking-with-disabled-renderer" if disabled else "row-not-rendered", str(error)
        )
        return
    if _left_out(messages, len(messages) - 1, last, renderer):
        yield Fault("reasoning-dropped", f"not written: {_reasoning(messages[-1])[:60]!r}")
    else:
        yield from faults(last, renderer, tokenizer)
    yield from _earlier(messages, answers[:-1], last, renderer)


def _left_out(messages: list[Any], i: int, it: Rendered, renderer: Any) -> bool:
    """Whether message ``i`` reasons, and the example would be the same without its reasoning."""
    if not _reasoning(messages[i]):
        return False
    bare = [part for part in messages[i]["content"] if part["type"] != "thinking"]
    changed = [*messages[:i], {**messages[i], "content": bare}, *messages[i + 1 :]]
    try:
        return rendered(changed, renderer).example.tokens == it.example.tokens
    except RowError:
        return False


def _earlier(
    messages: list[Any], answers: list[int], last: Rendered, renderer: Any
) -> Iterator[Fault]:
    """Answers before the last, as the one example of the whole conversation shows them."""
    for i in answers:
        if _left_out(messages, i, last, renderer):
            text = _reasoning(messages[i])[:60]
            yield Fault("earlier-thinking-stripped", f"messages[{i}]: {text!r}")
            return
    for i in answers:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                prompt = renderer.build_generation_prompt(messages[:i]).to_ints()
        except Exception as error:  # as in sides.rendered
            yield Fault("row-not-rendered", f"messages[{i}]: {short(error)}")
            return
        if last.example.tokens[: len(prompt)] != prompt:
            yield Fault("earlier-turn-unseen", f"messages[{i}]")
            return


def _any_reasoning(messages: Sequence[Any]) -> bool:
    return any(_reasoning(message) for message in messages)


def _reasoning(message: Any) -> str:
    content = message["content"]
    if isinstance(content, str):
        return ""
    return "".join(part.get("thinking", "") for part in content).strip()
