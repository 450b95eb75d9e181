"""Check a data set as a whole, as it will be trained: the gate before every supervised run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from tinkerlab.data.datums import Reduction
from tinkerlab.data.duplicates import Overlap, Pair, count_repeats, find_overlap
from tinkerlab.data.inspection import Inspected, inspect_rows, previews
from tinkerlab.data.renderers import ResolvedRenderer
from tinkerlab.data.report import DataReport, Finding
from tinkerlab.data.splits import Splits
from tinkerlab.data.statistics import SplitStatistics, summarise
from tinkerlab.data.text_checks import check_text_markup
from tinkerlab.data.tokenizers import ModelLimits
from tinkerlab.data.words import counted, of_rows

_REFUSED = {
    "render": (
        "that can't be rendered",
        "mend these rows, choose another renderer, or set skip_bad_rows=true",
    ),
    "zero_weight": (
        "with nothing to train on: every weight is zero",
        "mend these rows, raise max_seq_len, change train_on_what, or set skip_bad_rows=true",
    ),
    "vocabulary": (
        "with token ids over the model's vocabulary",
        "use the tokenizer that belongs to the model",
    ),
}


def check_dataset(
    splits: Splits,
    resolved: ResolvedRenderer,
    tokenizer: Any,
    *,
    max_length: int,
    train_on_what: str = "all_assistant_messages",
    reduction: Reduction = "mean",
    limits: ModelLimits | None = None,
    allow_contamination: bool = False,
    skip_bad_rows: bool = False,
    progress: Callable[[str], None] | None = None,
) -> DataReport:
    """Render everything, and say what stands against training on it.

    Args:
        max_length: tokens of a row that are kept (``max_seq_len``).
        limits: the model's vocabulary and context, as far as known.
        allow_contamination: rows that stand in both training and evaluation only warn.
        skip_bad_rows: rows that can't be rendered or train nothing are dropped and counted,
            not refused; ids over the vocabulary and a wholly unusable side are always refused.
        progress: is given a line now and then while rows are rendered.
    """
    limits = limits or ModelLimits()
    sides = {
        name: inspect_rows(
            rows,
            resolved.renderer,
            max_length=max_length,
            train_on_what=train_on_what,
            vocab_size=limits.vocab_size,
            progress=progress,
        )
        for name, rows in (("train", splits.train), ("val", splits.val))
    }
    statistics = {name: summarise(side.sizes) for name, side in sides.items()}
    train, val = sides["train"], sides["val"]
    refused = _refused_rows(sides, skip_bad_rows)
    leaks, alike = _overlap(find_overlap(train.rows, val.rows), len(val.rows), allow_contamination)
    disobeyed, unseen = _unseen_prompts(train, resolved)
    problems = [
        *refused,
        *_nothing_left(sides, splits),
        *leaks,
        *_over_context(statistics, max_length, limits),
        *disobeyed,
    ]
    warnings = [
        *(Finding("renderer", text, "check renderer=...") for text in resolved.warnings),
        *unseen,
        *check_text_markup([*train.rows, *val.rows], resolved.renderer, resolved.name, tokenizer),
        *_default_system(train, resolved),
        *alike,
        *_repeats(train),
        *_truncation(statistics, max_length),
        *_unfinished(train, train_on_what),
    ]
    return DataReport(
        train=train.rows,
        val=val.rows,
        problems=problems,
        warnings=warnings,
        statistics=statistics,
        preview=previews(
            train,
            resolved.renderer,
            tokenizer,
            max_length=max_length,
            train_on_what=train_on_what,
        ),
        renderer=resolved.name,
        renderer_reason=resolved.reason,
        settings={
            "max_length": max_length,
            "train_on_what": train_on_what,
            "reduction": reduction,
            "vocab_size": limits.vocab_size,
            "context_length": limits.context_length,
        },
        notes=list(splits.notes),
        dropped=[
            f"{row.place}: {reason}"
            for side in sides.values()
            for row, kind, reason in side.refused
            if skip_bad_rows and kind != "vocabulary"
        ],
    )


def _refused_rows(sides: dict[str, Inspected], skip_bad_rows: bool) -> list[Finding]:
    by_kind: dict[str, list[str]] = defaultdict(list)
    for side in sides.values():
        for row, kind, reason in side.refused:
            by_kind[kind].append(f"{row.place}: {reason}")
    return [
        Finding(
            kind, f"{counted(len(places), 'row')} {_REFUSED[kind][0]}", _REFUSED[kind][1], places
        )
        for kind, places in by_kind.items()
        if kind == "vocabulary" or not skip_bad_rows
    ]


def _nothing_left(sides: dict[str, Inspected], splits: Splits) -> list[Finding]:
    given = {"train": splits.train, "val": splits.val}
    findings = []
    for name, side in sides.items():
        # Having no evaluation rows at all is a choice (val_fraction=0); losing all isn't.
        if side.rows or (name == "val" and not given[name]):
            continue
        reasons = [f"{row.place}: {reason}" for row, _, reason in side.refused]
        findings.append(
            Finding(
                "nothing_usable",
                f"{of_rows(0, len(given[name]), _NAMES[name])} can be used",
                "mend the rows, or give another file",
                reasons,
            )
        )
    return findings


_NAMES = {"train": "training", "val": "evaluation"}


def _overlap(found: Overlap, val_rows: int, allowed: bool) -> tuple[list[Finding], list[Finding]]:
    problems: list[Finding] = []
    warnings: list[Finding] = []
    if found.exact:
        leak = Finding(
            "contamination",
            f"{of_rows(len(found.exact), val_rows, 'evaluation')} also stand in the training data "
            "word for word: scoring them would measure memory",
            "remove them from one side, or set allow_contamination=true to go on knowingly",
            _pairs(found.exact),
        )
        (warnings if allowed else problems).append(leak)
    if found.same_prompt:
        warnings.append(
            Finding(
                "same_prompt",
                f"{of_rows(len(found.same_prompt), val_rows, 'evaluation')} have the prompt of a "
                "training row, with another answer",
                "keep all answers to one prompt on one side (a val_file of your own)",
                _pairs(found.same_prompt),
            )
        )
    if found.near:
        warnings.append(
            Finding(
                "near_duplicates",
                f"{of_rows(len(found.near), val_rows, 'evaluation')} nearly repeat a training row",
                "look at the pairs; remove the ones that are rewordings",
                _pairs(found.near),
            )
        )
    return problems, warnings


def _pairs(pairs: list[Pair]) -> list[str]:
    return [f"{p.val.place} ~ {p.train.place} (similarity {p.similarity:.2f})" for p in pairs]


def _over_context(
    statistics: dict[str, SplitStatistics], max_length: int, limits: ModelLimits
) -> list[Finding]:
    if limits.context_length is None or max_length <= limits.context_length:
        return []
    longest = max((s.length.max for s in statistics.values() if s.length), default=0)
    if min(longest, max_length) <= limits.context_length:
        return []
    return [
        Finding(
            "context_length",
            f"rows of up to {min(longest, max_length)} tokens are kept, but the model's context "
            f"is {limits.context_length}",
            f"set max_seq_len={limits.context_length} or less",
        )
    ]


def _unseen_prompts(
    train: Inspected, resolved: ResolvedRenderer
) -> tuple[list[Finding], list[Finding]]:
    """Problems and warnings about turns that don't follow the prompt they are sampled from."""
    checked, name = train.prompts_checked, resolved.name
    as_last, in_history = (
        [
            f"{row.place}: messages[{', '.join(str(turn.index) for turn in turns)}]"
            for row, all_turns in train.unseen
            if (turns := [turn for turn in all_turns if turn.as_last == wanted])
        ]
        for wanted in (True, False)
    )
    problems: list[Finding] = []
    warnings: list[Finding] = []
    if as_last and getattr(resolved.renderer, "disables_thinking", False):
        problems.append(
            Finding(
                "prompt_mismatch",
                f"{of_rows(len(as_last), checked)} hold reasoning, but renderer {name} ends "
                "every prompt with a closed think block: the trained turn doesn't follow the "
                "prompt that it will be sampled from",
                "use the thinking renderer of this model, or remove the reasoning",
                as_last,
            )
        )
    elif as_last:
        warnings.append(
            Finding(
                "prompt_mismatch",
                f"in {of_rows(len(as_last), checked)} the trained turn doesn't follow the prompt "
                f"that renderer {name} gives when sampling: its prompt and its examples disagree "
                "about such turns",
                "compare the preview with the prompt; a sibling of this renderer may fit the data",
                as_last,
            )
        )
    if in_history:
        warnings.append(
            Finding(
                "history_mismatch",
                f"in {of_rows(len(in_history), checked)} earlier turns are trained in a form "
                f"that the model never writes: renderer {name} changes turns once they are history",
                "give one row per turn with train_on_what=last_assistant_message, or use a "
                "renderer of the model whose has_extension_property is true",
                in_history,
            )
        )
    return problems, warnings


def _default_system(train: Inspected, resolved: ResolvedRenderer) -> list[Finding]:
    if not resolved.template_adds_system:
        return []
    bare = [row.place for row in train.rows if row.messages[0]["role"] != "system"]
    if not bare:
        return []
    return [
        Finding(
            "default_system_prompt",
            f"{of_rows(len(bare), len(train.rows), 'training')} have no system message; the tokenizer's chat "
            "template would add a default one, the renderer doesn't",
            "add the system message that you will serve with, or serve with the renderer's prompt",
            bare,
        )
    ]


def _repeats(train: Inspected) -> list[Finding]:
    repeats = count_repeats(train.rows)
    if not repeats:
        return []
    return [
        Finding(
            "repeated_rows",
            f"{of_rows(repeats, len(train.rows), 'training')} repeat an earlier one word for word",
            "remove them, unless you mean to weight these rows",
        )
    ]


def _truncation(statistics: dict[str, SplitStatistics], max_length: int) -> list[Finding]:
    cut, lost, rows = (
        sum(getattr(stats, name) for stats in statistics.values())
        for name in ("truncated_rows", "trained_tokens_lost", "rows")
    )
    if not cut:
        return []
    return [
        Finding(
            "truncation",
            f"{of_rows(cut, rows)} are longer than {max_length} tokens and get cut, "
            f"which loses {lost:,} trained tokens, ends of answers included",
            "raise max_seq_len, or shorten these rows",
        )
    ]


def _unfinished(train: Inspected, train_on_what: str) -> list[Finding]:
    if train_on_what not in ("all_assistant_messages", "last_assistant_turn"):
        return []
    open_rows = [row.place for row in train.rows if row.messages[-1]["role"] != "assistant"]
    if not open_rows:
        return []
    return [
        Finding(
            "ends_without_answer",
            f"{of_rows(len(open_rows), len(train.rows), 'training')} end with a message that no "
            "assistant answers; that message trains nothing",
            "cut these rows after the last assistant message",
            open_rows,
        )
    ]
