"""A row becomes the datum that the cookbook would make, and nothing is dropped in silence."""

from __future__ import annotations

from typing import Any

import pytest

from tinkerlab.data.datums import (
    build_datum,
    conversation,
    render,
    renders_tool_calls,
    unseen_prompts,
)
from tinkerlab.data.messages import RowError
from tinkerlab.data.reading import Row
from tinkerlab.data.renderers import try_renderer

SYSTEM = {"role": "system", "content": "S"}
TURNS = [
    {"role": "user", "content": "Q1"},
    {"role": "assistant", "content": "A1"},
    {"role": "user", "content": "Q2"},
    {"role": "assistant", "content": "A2!"},
]
CALL = {"type": "function", "id": "1", "function": {"name": "f", "arguments": '{"x": 1}'}}
TOOL = {"name": "f", "description": "Does f.", "parameters": {"type": "object"}}


def row(*messages: dict[str, Any], tools: tuple[dict[str, Any], ...] = ()) -> Row:
    return Row(0, 1, list(messages), tools)


@pytest.fixture(scope="module")
def chatml_renderer(chatml: Any) -> Any:
    return try_renderer("qwen3_instruct", chatml, "m")[0]


def trained_text(datum: Any, tokenizer: Any) -> str:
    targets, weights = (datum.loss_fn_inputs[k].data for k in ("target_tokens", "weights"))
    return tokenizer.decode([t for t, w in zip(targets, weights, strict=True) if w > 0])


END = "<|im_end|>"


@pytest.mark.parametrize(
    ("train_on_what", "expected"),
    [
        ("last_assistant_message", f"A2!{END}"),
        ("last_assistant_turn", f"A2!{END}"),
        ("all_assistant_messages", f"A1{END}A2!{END}"),
        ("all_messages", f"S{END}Q1{END}A1{END}Q2{END}A2!{END}"),
        ("all_user_and_system_messages", f"S{END}Q1{END}Q2{END}"),
    ],
)
def test_what_is_trained(
    chatml: Any, chatml_renderer: Any, train_on_what: str, expected: str
) -> None:
    datum = build_datum(row(SYSTEM, *TURNS), chatml_renderer, None, train_on_what, "none")
    assert trained_text(datum, chatml) == expected
    assert set(datum.loss_fn_inputs["weights"].data) == {0.0, 1.0}


def test_all_tokens_and_customized(chatml: Any, chatml_renderer: Any) -> None:
    datum = build_datum(row(*TURNS), chatml_renderer, None, "all_tokens", "none")
    assert min(datum.loss_fn_inputs["weights"].data) == 1.0
    flagged = [{**turn, "trainable": turn["content"] == "A1"} for turn in TURNS]
    datum = build_datum(row(*flagged), chatml_renderer, None, "customized", "none")
    assert trained_text(datum, chatml) == f"A1{END}"


def test_the_default_is_the_cookbooks_conversation_to_datum(chatml_renderer: Any) -> None:
    from tinker_cookbook.renderers import TrainOnWhat
    from tinker_cookbook.supervised.data import conversation_to_datum

    messages: Any = list(TURNS)
    theirs = conversation_to_datum(
        messages, chatml_renderer, 40, TrainOnWhat.ALL_ASSISTANT_MESSAGES
    )
    ours = build_datum(row(*TURNS), chatml_renderer, 40)
    assert ours.model_input.to_ints() == theirs.model_input.to_ints()
    for name in ("weights", "target_tokens"):
        assert ours.loss_fn_inputs[name].data == theirs.loss_fn_inputs[name].data
    assert sum(ours.loss_fn_inputs["weights"].data) == pytest.approx(1.0)


def test_the_length_limit_keeps_that_many_tokens(chatml_renderer: Any) -> None:
    whole = render(row(*TURNS), chatml_renderer)
    datum = build_datum(row(*TURNS), chatml_renderer, 30, reduction="none")
    assert datum.model_input.to_ints() == whole.tokens[:29]
    assert datum.loss_fn_inputs["target_tokens"].data == whole.tokens[1:30]
    assert datum.loss_fn_inputs["weights"].data == whole.weights[1:30]


def test_a_row_cut_to_one_token_is_refused(chatml_renderer: Any) -> None:
    with pytest.raises(RowError, match="2 tokens"):
        build_datum(row(*TURNS), chatml_renderer, 1)


def test_tool_calls_are_rendered_or_refused_never_dropped(
    chatml: Any, chatml_renderer: Any
) -> None:
    calling = row(
        TURNS[0],
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "5", "tool_call_id": "1", "name": "f"},
        TURNS[3],
    )
    assert renders_tool_calls(chatml_renderer)
    text = chatml.decode(render(calling, chatml_renderer).tokens)
    assert '"name": "f"' in text and '"x": 1' in text and "<tool_response>\n5" in text

    plain = try_renderer("role_colon", chatml, "m")[0]
    assert not renders_tool_calls(plain)
    with pytest.raises(RowError, match="RoleColonRenderer would silently leave out"):
        render(calling, plain)


def test_tool_declarations_join_the_system_message(chatml: Any, chatml_renderer: Any) -> None:
    text = chatml.decode(render(row(SYSTEM, *TURNS, tools=(TOOL,)), chatml_renderer).tokens)
    assert text.count("<|im_start|>system\nS") == 1
    assert '"name": "f"' in text
    plain = try_renderer("role_colon", chatml, "m")[0]
    with pytest.raises(RowError, match="can't render"):
        render(row(*TURNS, tools=(TOOL,)), plain)
    with pytest.raises(RowError, match="system message of several parts"):
        parts = {"role": "system", "content": [{"type": "text", "text": "S"}]}
        conversation(row(parts, *TURNS, tools=(TOOL,)), chatml_renderer)


def test_the_renderers_own_refusal_is_the_reason(chatml: Any) -> None:
    plain = try_renderer("role_colon", chatml, "m")[0]
    thinking = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "A"}]
    with pytest.raises(RowError, match="the renderer refuses it: "):
        render(row(TURNS[0], {"role": "assistant", "content": thinking}), plain)


def unseen(
    of: Row, renderer: Any, train_on_what: str = "all_assistant_messages"
) -> list[tuple[int, bool]]:
    tokens = render(of, renderer, train_on_what).tokens
    turns = unseen_prompts(of, renderer, train_on_what, tokens)
    return [(turn.index, turn.as_last) for turn in turns]


def test_turns_that_do_not_follow_their_prompt_are_found(chatml: Any, chatml_renderer: Any) -> None:
    assert unseen(row(*TURNS), chatml_renderer) == []
    # With tools the declarations come first; indices are still those of the row.
    assert unseen(row(SYSTEM, *TURNS, tools=(TOOL,)), chatml_renderer) == []

    closed = try_renderer("qwen3_disable_thinking", chatml, "m")[0]
    reasoned = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nA"}
    assert unseen(row(TURNS[0], reasoned), closed) == [(1, True)]
    # The prompt closes the think block; the example writes it only around the last turn.
    assert unseen(row(*TURNS), closed) == [(1, False)]
    assert unseen(row(*TURNS, TURNS[2], reasoned), closed) == [(1, False), (3, False), (5, True)]
    assert unseen(row(*TURNS), closed, "last_assistant_message") == []
