"""Every way in which a line or a file can be wrong is said with its place; the rest is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinkerlab.data import reading
from tinkerlab.data.messages import TrainOnWhat
from tinkerlab.data.reading import BadRowsError, load_rows, scan
from tinkerlab.errors import InputError

Write = Callable[..., Path]

USER = {"role": "user", "content": "Which way?"}
REPLY = {"role": "assistant", "content": "Left."}
GOOD = {"messages": [USER, REPLY]}


def chat(*messages: Any) -> dict[str, Any]:
    return {"messages": list(messages)}


def call(arguments: Any, **more: Any) -> dict[str, Any]:
    return {"function": {"name": "look_up", "arguments": arguments}, **more}


FORMATS = [
    ("messages", GOOD, [USER, REPLY]),
    ("prompt/completion", {"prompt": "Which way?", "completion": "Left."}, [USER, REPLY]),
    (
        "instruction/input/output",
        {"instruction": "Translate.", "input": "oui", "output": "yes"},
        [
            {"role": "user", "content": "Translate.\n\noui"},
            {"role": "assistant", "content": "yes"},
        ],
    ),
    (
        "instruction/input/output",
        {"instruction": "Which way?", "input": "", "output": "Left."},
        [USER, REPLY],
    ),
    ("instruction/input/output", {"instruction": "Which way?", "output": "Left."}, [USER, REPLY]),
    ("input/output", {"input": "Which way?", "output": "Left."}, [USER, REPLY]),
]


@pytest.mark.parametrize(("name", "row", "messages"), FORMATS)
def test_each_format_becomes_a_conversation(
    write_rows: Write, name: str, row: Any, messages: Any
) -> None:
    data = load_rows(write_rows(row))
    assert data.format == name
    assert data.rows[0].messages == messages
    assert data.summary == f"data.jsonl: 1 row, format {name}"


BAD = [
    ('{"messages": [{"role": "user"', "not JSON"),
    (["not", "an object"], "must be a JSON object, not a list"),
    ({}, "an empty object"),
    ({"question": "?", "answer": "!"}, "no known format: has the keys 'question', 'answer'"),
    ({"prompt": "a", "chosen": "b", "rejected": "b"}, "identical"),
    ({"prompt": "a", "chosen": "b", "rejected": "c"}, "a preference pair"),
    ({"conversations": []}, "ShareGPT"),
    ({"messages": "hello"}, '"messages" must be a list, not text'),
    ({"messages": []}, '"messages" is an empty list'),
    (chat("hi"), "messages[0]: must be an object with role and content, not text"),
    (chat(USER, {"from": "gpt", "value": "x"}), 'messages[1]: has "from"/"value"'),
    (chat(USER, {"role": "bot", "content": "x"}), "unknown role 'bot'; did you mean 'assistant'?"),
    (chat(USER, {"role": "xyz", "content": "x"}), "unknown role 'xyz'; known: system, user"),
    (chat({"content": "x"}, REPLY), '"role" is missing'),
    (chat({"role": 3, "content": "x"}, REPLY), '"role" must be text, not a number'),
    (chat(USER, {"role": "assistant", "content": None}), "assistant message is null"),
    (chat(USER, {"role": "assistant"}), "assistant message is missing"),
    (chat(USER, {"role": "assistant", "content": 7}), "must be text or a list of parts"),
    (chat(USER, {"role": "assistant", "content": " \n"}), "messages[1]: empty assistant turn"),
    (chat({"role": "user", "content": ""}, REPLY), "messages[0]: empty user turn"),
    (chat(USER, {"role": "assistant", "content": []}), "empty assistant turn"),
    (chat(USER), "no assistant message: nothing to train on"),
    (chat(USER, {"role": "assistant", "content": "a\0b"}), "NUL character"),
    ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "half a surrogate pair (\\ud800)"),
    (chat(USER, {**REPLY, "weight": 0}), '"weight" isn\'t supported; use "trainable"'),
    (chat(USER, {**REPLY, "function_call": {"name": "f"}}), "function_call"),
    (chat(USER, {**REPLY, "trainable": True}), '"trainable" flags need train_on_what=customized'),
    (
        chat({"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}, REPLY),
        "messages[0].content[0]: 'image_url' parts aren't supported",
    ),
    (
        chat({"role": "user", "content": [{"type": "text", "text": None}]}, REPLY),
        '"text" must be text, not null',
    ),
    (
        chat({"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}, REPLY),
        "only an assistant message has thinking parts",
    ),
    (chat(USER, {**REPLY, "tool_calls": [call("{")]}), '"arguments" must be a JSON object'),
    (chat(USER, {**REPLY, "tool_calls": [{"name": "f"}]}), "tool_calls[0]: must be"),
    (chat({**USER, "tool_calls": [call("{}")]}, REPLY), "only an assistant message"),
    ({**GOOD, "tools": [{"type": "function"}]}, "tools[0]: must be an object"),
    ({"prompt": 3, "completion": "x"}, '"prompt" must be text, not a number'),
    ({"prompt": "x", "completion": " "}, '"completion" is empty'),
    ({"instruction": "x", "input": 3, "output": "x"}, '"input" must be text'),
    ('{"prompt": "a", "prompt": "b", "completion": "c"}', "the key 'prompt' occurs twice"),
    ('{"prompt": NaN, "completion": "c"}', "NaN has no meaning in JSON"),
    ("[" * 100_000, "nested too deeply"),
    ('{"prompt": ' + "9" * 5000 + "}", "too many digits"),
]


@pytest.mark.parametrize(("row", "reason"), BAD)
def test_a_bad_row_is_named_by_line_and_reason(write_rows: Write, row: Any, reason: str) -> None:
    path = write_rows(GOOD, row, GOOD)
    with pytest.raises(BadRowsError, match="1 of 3 rows can't be used") as caught:
        load_rows(path)
    (bad,) = caught.value.data.bad
    assert bad.line == 2
    assert reason in bad.reason
    assert f"line 2: {bad.reason}" in str(caught.value)

    kept = load_rows(path, skip_bad_rows=True)
    assert [row.line for row in kept.rows] == [1, 3]
    assert [row.index for row in kept.rows] == [0, 1]
    assert kept.bad == [bad]


def test_the_listing_is_cut_but_counts_all(write_rows: Write) -> None:
    with pytest.raises(BadRowsError, match=r"and 30 more") as caught:
        load_rows(write_rows(GOOD, *[{"x": i} for i in range(50)]))
    assert len(caught.value.data.bad) == 50
    assert str(caught.value).count("\n") == reading.LISTED + 1


def test_rows_of_another_format_than_most_are_bad(write_rows: Write) -> None:
    pair = {"prompt": "a", "completion": "b"}
    data = scan(write_rows(pair, GOOD, GOOD))
    assert data.format == "messages"
    assert [(bad.line, "prompt/completion row" in bad.reason) for bad in data.bad] == [(1, True)]


def test_lines_are_numbered_as_an_editor_does(tmp_path: Path) -> None:
    path = tmp_path / "windows.jsonl"
    good = json.dumps(GOOD).encode()
    path.write_bytes(b"\xef\xbb\xbf" + good + b"\r\n\r\n" + b"{\r\n" + good + b"\r\n\r\n\n")
    data = scan(path)
    assert [row.line for row in data.rows] == [1, 4]
    assert [bad.line for bad in data.bad] == [3]
    assert data.notes == [
        "starts with a byte order mark, ignored",
        "5 lines with a CRLF end (Windows), ignored",
        "1 blank line between rows, ignored: 2",
    ]


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "latin.jsonl"
    line = json.dumps(GOOD).encode()
    path.write_bytes(
        line + b"\n" + line.replace(b"Left", b"L\xe9ft") + b"\n" + line[:-9] + b"\0" * 9
    )
    reasons = {bad.line: bad.reason for bad in scan(path).bad}
    assert "0xe9" in reasons[2] and "UTF-8" in reasons[2]
    assert "NUL bytes" in reasons[3]


def test_a_line_without_end_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_LINE_BYTES", 1000)
    path = tmp_path / "huge.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + '{"x": "' + "y" * 5000 + '"}\n' + json.dumps(GOOD))
    data = scan(path)
    assert [row.line for row in data.rows] == [1, 3]
    assert [(bad.line, bad.reason[:11]) for bad in data.bad] == [(2, "longer than")]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"\x1f\x8b\x08\x00rest", "gzip"),
        (b"PAR1rest", "Parquet"),
        ('{"a": 1}'.encode("utf-16"), "UTF-16"),
        (json.dumps([GOOD, GOOD]).encode(), "one JSON list, not JSON lines"),
        (json.dumps(GOOD, indent=2).encode(), "one JSON object, not JSON lines"),
    ],
)
def test_a_file_that_is_not_json_lines_is_one_error(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said) as caught:
        load_rows(path)
    assert "\n" not in str(caught.value)


def test_no_such_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_rows(tmp_path / "nothing.jsonl")
    with pytest.raises(InputError, match="directory"):
        load_rows(tmp_path)


def test_skipping_every_row_is_refused(write_rows: Write) -> None:
    with pytest.raises(InputError, match="no usable row"):
        load_rows(write_rows({"x": 1}), skip_bad_rows=True)


def test_reasoning_tools_and_parts_are_kept(write_rows: Write) -> None:
    row = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
            {"role": "assistant", "content": None, "tool_calls": [call({"city": "Köln"}, id="1")]},
            {"role": "tool", "content": "", "tool_call_id": "1", "name": "look_up"},
            {"role": "assistant", "content": "Rain.", "reasoning_content": "It said so."},
        ],
        "tools": [{"type": "function", "function": {"name": "look_up", "parameters": {}}}],
        "source": "a log",
    }
    data = load_rows(write_rows(row))
    messages = data.rows[0].messages
    assert messages[0]["content"] == [{"type": "text", "text": "Weather?"}]
    assert messages[1]["content"] == ""
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == '{"city": "Köln"}'
    assert messages[2] == row["messages"][2]
    assert messages[3]["content"] == [
        {"type": "thinking", "thinking": "It said so."},
        {"type": "text", "text": "Rain."},
    ]
    assert data.rows[0].tools == ({"name": "look_up", "description": "", "parameters": {}},)
    assert data.notes == ["keys without a use here: source (1 row)"]
    # What was read can be written and read again: a run keeps its held-out rows like that.
    again = load_rows(write_rows({"messages": messages, "tools": list(data.rows[0].tools)}))
    assert (again.rows[0].messages, again.rows[0].tools) == (messages, data.rows[0].tools)


SELECTION = [
    ("last_assistant_message", [USER, REPLY, USER], "ends with a user message"),
    ("last_assistant_turn", [USER, REPLY, USER], "after the last user message"),
    ("all_assistant_messages", [USER, REPLY, USER], None),
    ("all_messages", [USER], None),
    ("all_tokens", [USER], None),
    ("all_user_and_system_messages", [REPLY], "no user or system message"),
    ("customized", [USER, REPLY], "messages[0]: train_on_what=customized needs"),
    ("customized", [{**USER, "trainable": False}, {**REPLY, "trainable": True}], None),
    ("customized", [{**USER, "trainable": False}, {**REPLY, "trainable": False}], "no message has"),
]


@pytest.mark.parametrize(("train_on_what", "messages", "reason"), SELECTION)
def test_rows_that_train_nothing_under_a_selection(
    write_rows: Write, train_on_what: str, messages: Any, reason: str | None
) -> None:
    bad = scan(write_rows(chat(*messages)), train_on_what).bad
    assert [reason in row.reason for row in bad if reason] == ([True] if reason else [])
    assert len(bad) == (reason is not None)


def test_the_selections_are_the_cookbooks() -> None:
    from tinker_cookbook.renderers import TrainOnWhat as Cookbook

    assert set(get_args(TrainOnWhat)) == {member.value for member in Cookbook}
    assert {name for name, _, _ in SELECTION} == set(get_args(TrainOnWhat))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "tool_calls", "function", "name"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
ROWS = st.one_of(
    JSON_VALUES,
    st.fixed_dictionaries(
        {"messages": st.lists(JSON_VALUES, max_size=3)}, optional={"tools": JSON_VALUES}
    ),
    st.fixed_dictionaries({"prompt": JSON_VALUES, "completion": JSON_VALUES}),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows=st.lists(ROWS, min_size=1, max_size=4), junk=st.binary(max_size=40))
def test_any_line_is_a_row_or_a_bad_row(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], junk: bytes
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "f.jsonl"
    lines = [json.dumps(row).encode() for row in rows]
    path.write_bytes(b"\n".join([*lines, junk.replace(b"\n", b" "), json.dumps(GOOD).encode()]))
    try:
        data = scan(path)
    except InputError as error:
        assert "not JSON lines" in str(error)
        return
    seen = sorted([row.line for row in data.rows] + [bad.line for bad in data.bad])
    blank = 0 if junk.strip() else 1
    assert len(seen) == len(set(seen)) == len(rows) + 2 - blank
    assert all(bad.reason and "\n" not in bad.reason for bad in data.bad)
