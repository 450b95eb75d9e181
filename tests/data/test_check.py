"""What stands against training stops it; what only might hurt is a warning; nothing is hidden."""

from __future__ import annotations

from typing import Any

import pytest

from tinkerlab.data import check_dataset
from tinkerlab.data.preview import Preview, decode_spans, pick
from tinkerlab.data.reading import Row
from tinkerlab.data.renderers import resolve_renderer
from tinkerlab.data.report import DataReport, statistics_lines
from tinkerlab.data.splits import Splits
from tinkerlab.data.statistics import spread
from tinkerlab.data.tokenizers import ModelLimits
from tinkerlab.errors import InputError

LIMITS = ModelLimits(vocab_size=259, context_length=512)


def pair(index: int, question: str, answer: str, file: str = "t.jsonl") -> Row:
    ask, reply = (
        {"role": "user", "content": question},
        {"role": "assistant", "content": answer},
    )
    return Row(index, index + 1, [ask, reply], (), file)


TRAIN = [
    pair(0, "Name a colour.", "Blue."),
    pair(1, "Name a fruit that grows on trees.", "An apple, for one."),
    pair(2, "How long is a metre, in words?", "A hundred centimetres."),
]
VAL = [pair(0, "Which river flows through Cologne?", "The Rhine.", "v.jsonl")]


def check(
    tokenizer: Any, train: list[Row], val: list[Row], renderer: str = "auto", **more: Any
) -> DataReport:
    resolved = resolve_renderer("nobody/model", tokenizer, renderer)
    settings: dict[str, Any] = {"max_length": 200, "limits": LIMITS, **more}
    return check_dataset(Splits(train, val), resolved, tokenizer, **settings)


def kinds(report: DataReport) -> tuple[list[str], list[str]]:
    return [f.kind for f in report.problems], [f.kind for f in report.warnings]


def test_good_data_pass(chatml: Any) -> None:
    report = check(chatml, TRAIN, VAL)
    assert kinds(report) == ([], [])
    assert report.verdict == "READY: 3 rows to train on, 1 to evaluate on"
    report.refuse_problems()
    stats = report.statistics["train"]
    assert stats.length is not None and stats.trained is not None
    assert stats.length.min == len(chatml.encode(report.preview[0].spans[0][0])) + 6
    assert stats.trained.min == len("Blue.") + 1
    # A byte is a token here, and an answer's end marker is one more.
    assert stats.trained_tokens == sum(len(r.messages[1]["content"]) + 1 for r in TRAIN)
    assert statistics_lines(report)[0].startswith("train: 3 rows, ")


def test_a_row_whose_every_weight_is_zero(chatml: Any) -> None:
    long = pair(3, "Why? " * 60, "Because.")
    report = check(chatml, [*TRAIN, long], VAL)
    assert kinds(report)[0] == ["zero_weight"]
    assert (
        "t.jsonl line 4: every weight is zero: the first trained token is number 3"
        in (report.problems[0].examples[0])
    )
    assert report.train == TRAIN
    with pytest.raises(InputError, match="1 row with nothing to train on") as caught:
        report.refuse_problems()
    assert "raise max_seq_len" in str(caught.value)

    skipping = check(chatml, [*TRAIN, long], VAL, skip_bad_rows=True)
    assert skipping.ok and skipping.train == TRAIN
    assert [text[:14] for text in skipping.dropped] == ["t.jsonl line 4"]


def test_all_rows_lost_is_a_problem_even_when_skipping(chatml: Any) -> None:
    report = check(chatml, TRAIN, VAL, max_length=10, skip_bad_rows=True)
    assert kinds(report)[0] == ["nothing_usable", "nothing_usable"]
    assert "0 of 3 training rows can be used" in report.verdict


def test_ids_over_the_vocabulary_are_refused_even_when_skipping(chatml: Any) -> None:
    report = check(chatml, TRAIN, [], limits=ModelLimits(vocab_size=258), skip_bad_rows=True)
    assert kinds(report)[0] == ["vocabulary", "nothing_usable"]
    assert "has id 258, over the model's vocabulary of 258" in report.problems[0].examples[0]


def test_a_row_that_the_renderer_refuses(chatml: Any) -> None:
    call = {"type": "function", "id": None, "function": {"name": "f", "arguments": "{}"}}
    calling = Row(3, 4, [TRAIN[0].messages[0], {**TRAIN[0].messages[1], "tool_calls": [call]}])
    report = check(chatml, [*TRAIN, calling], VAL, renderer="role_colon")
    assert kinds(report)[0] == ["render"]
    assert "line 4: has tool calls" in report.problems[0].examples[0]


def test_contamination_stops_unless_allowed(chatml: Any) -> None:
    leak = pair(1, "name a  COLOUR.", "Blue.", "v.jsonl")
    report = check(chatml, TRAIN, [*VAL, leak])
    assert kinds(report)[0] == ["contamination"]
    assert report.problems[0].examples == ["v.jsonl line 2 ~ t.jsonl line 1 (similarity 1.00)"]
    allowed = check(chatml, TRAIN, [*VAL, leak], allow_contamination=True)
    assert kinds(allowed) == ([], ["contamination"])


def test_likeness_only_warns(chatml: Any) -> None:
    val = [
        pair(0, "Name a colour.", "Red.", "v.jsonl"),
        pair(1, "Name a fruit that grows on trees!", "An apple, for one thing.", "v.jsonl"),
    ]
    assert kinds(check(chatml, TRAIN, val)) == ([], ["same_prompt", "near_duplicates"])


def test_repeats_truncation_and_unanswered_ends_warn(chatml: Any) -> None:
    unanswered = Row(4, 5, [*TRAIN[1].messages, {"role": "user", "content": "And?"}])
    long = pair(5, "Go on.", "x" * 190)
    report = check(chatml, [*TRAIN, pair(3, "Name a colour.", "Blue."), unanswered, long], VAL)
    assert kinds(report) == ([], ["repeated_rows", "truncation", "ends_without_answer"])
    stats = report.statistics["train"]
    assert (stats.truncated_rows, stats.trained_tokens_lost) == (1, stats.truncated_tokens)
    assert f"loses {stats.trained_tokens_lost} trained tokens" in report.warnings[1].message
    longest = next(p for p in report.preview if p.label.startswith("longest"))
    assert longest.plain().endswith(f"]] ... (+{stats.truncated_tokens} tokens cut off)")


def test_rows_over_the_models_context(chatml: Any) -> None:
    short = ModelLimits(vocab_size=259, context_length=40)
    assert kinds(check(chatml, TRAIN, VAL, limits=short))[0] == ["context_length"]
    assert check(chatml, TRAIN, VAL, limits=short, max_length=1000).problems
    # A limit over the context does no harm while every row is short enough.
    assert check(chatml, TRAIN, VAL, max_length=10_000).ok


def test_reasoning_in_plain_text(chatml: Any) -> None:
    rows = [pair(0, "1 + 1?", "<think>\nAdd.\n</think>\n\n2"), *TRAIN[1:]]

    thinking = check(chatml, rows, VAL, renderer="qwen3")
    assert kinds(thinking) == ([], ["thinking_in_text"])
    assert '"thinking"' in thinking.warnings[0].fix

    told_not_to = check(chatml, rows, VAL, renderer="qwen3_disable_thinking")
    assert kinds(told_not_to) == (["prompt_mismatch"], ["thinking_in_text"])
    assert told_not_to.problems[0].examples == ["t.jsonl line 1: messages[1]"]

    without = check(chatml, rows, VAL, renderer="role_colon")
    assert "has no thinking format" in without.warnings[-1].message


def test_turns_that_change_once_they_are_history(chatml: Any) -> None:
    chat = Row(3, 4, [*TRAIN[0].messages, *TRAIN[1].messages])
    report = check(chatml, [*TRAIN, chat], VAL, renderer="qwen3_disable_thinking")
    assert kinds(report) == ([], ["history_mismatch"])
    assert report.warnings[0].examples == ["line 4: messages[1]"]
    last = {"train_on_what": "last_assistant_message"}
    assert check(chatml, [*TRAIN, chat], VAL, renderer="qwen3_disable_thinking", **last).ok


def test_a_template_already_applied(chatml: Any) -> None:
    templated = pair(3, "<|im_start|>user\nHi<|im_end|>", "Hello.")
    report = check(chatml, [*TRAIN, templated], VAL)
    assert kinds(report) == ([], ["special_tokens_in_text"])
    assert report.warnings[0].examples == ["t.jsonl line 4: <|im_start|>"]


def test_the_templates_own_system_message_is_missed(default_system: Any) -> None:
    report = check(default_system, TRAIN, VAL)
    assert kinds(report) == ([], ["default_system_prompt"])
    system = {"role": "system", "content": "Be brief."}
    rows = [Row(r.index, r.line, [system, *r.messages]) for r in TRAIN]
    assert kinds(check(default_system, rows, VAL)) == ([], [])


def test_the_preview_marks_exactly_the_trained_tokens(chatml: Any) -> None:
    report = check(chatml, [TRAIN[0]], VAL)
    shown = report.preview[0].plain()
    assert shown == (
        "<|im_start|>user\nName a colour.<|im_end|>\n<|im_start|>assistant\n[[Blue.<|im_end|>]]"
    )
    coloured = report.preview[0].coloured()
    assert "[[" not in coloured and "\x1b[1;32mBlue.<|im_end|>\x1b[0m" in coloured


def test_a_preview_cannot_write_to_the_terminal() -> None:
    preview = Preview("p", "l", (("a\x1b[2Jb\u202ec\n\td", True),), 0)
    assert preview.plain() == "[[a\\x1b[2Jb\\u202ec\n\td]]"
    assert len(Preview("p", "l", (("x" * 100_000, False),), 0).plain()) < 700


def test_the_first_token_is_never_trained(chatml: Any) -> None:
    assert decode_spans([65, 66, 67], [1.0, 1.0, 0.0], chatml) == (
        (chatml.decode([65]), False),
        (chatml.decode([66]), True),
        (chatml.decode([67]), False),
    )


def test_three_examples_are_picked() -> None:
    assert [i for i, _ in pick([5, 1, 9, 3, 7])] == [1, 0, 2]
    assert [i for i, _ in pick([5, 1])] == [0, 1]
    assert pick([]) == []


def test_percentiles_are_nearest_rank() -> None:
    values = spread(list(range(100, 0, -1)))
    assert values is not None
    assert (values.min, values.p50, values.p90, values.p99, values.max) == (1, 50, 90, 99, 100)
    one = spread([7])
    assert one is not None and (one.min, one.p50, one.p99, one.mean) == (7, 7, 7, 7.0)
    assert spread([]) is None
