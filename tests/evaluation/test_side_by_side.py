"""Replies side by side: what is asked of whom, what is shown, warned of and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from left_runs import REPLY, USER, record, run_folder, sft

from tinkerlab.errors import InputError
from tinkerlab.evaluation import side_by_side_prompts as prompts
from tinkerlab.evaluation.attempts import Reply, Sampling
from tinkerlab.evaluation.side_by_side import Comparison, loops
from tinkerlab.evaluation.side_by_side_columns import choose, short_name
from tinkerlab.evaluation.side_by_side_page import changed_words, html, terminal
from tinkerlab.tasks import Task

CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
RAIN: dict[str, Any] = {"name": "look", "description": "Looks.", "parameters": {}}


def made(
    base: list[str], tuned: list[str], answers: list[Any] | None = None, **cut: bool
) -> Comparison:
    """A comparison of ``base`` and ``final``, with one token a word."""
    answers = answers or [None] * len(base)
    tasks = [
        Task([{"role": "user", "content": f"Question {n}?"}], answer, place=f"rows line {n}")
        for n, answer in enumerate(answers)
    ]
    replies = {
        name: [[Reply(text, len(text.split()), cut.get(name, False))] for text in texts]
        for name, texts in (("base", base), ("final", tuned))
    }
    models = {"base": "some/base", "final": "tinker://r/sampler_weights/final"}
    return Comparison(tasks, models, "role_colon", Sampling(max_tokens=9), replies)


def printed(comparison: Comparison, width: int = 80) -> str:
    from rich.console import Console

    console = Console(width=width)
    with console.capture() as shown:
        console.print(terminal(comparison))
    return shown.get()


# --- facts and warnings


def test_facts_are_those_of_the_replies() -> None:
    comparison = made(["a b", "c", ""], ["a b", "d e f", "g"], ["a  b", None, "x"], final=True)
    base, final = comparison.facts("base"), comparison.facts("final")
    assert (base["mean_tokens"], final["mean_tokens"]) == (1.0, 2.0)
    assert (base["cut"], final["cut"]) == (0.0, 1.0)
    assert (base["empty"], final["empty"]) == (pytest.approx(1 / 3), 0.0)
    assert base["same_as_base"] is None and final["same_as_base"] == pytest.approx(1 / 3)
    assert (base["matches_reference"], final["matches_reference"]) == (0.5, 0.5)


def test_thinking_is_no_answer() -> None:
    comparison = made(["<think>42?\nyes</think>\n42"], ["<think>42</think>"], ["42"])
    base, final = comparison.facts("base"), comparison.facts("final")
    assert (base["matches_reference"], final["matches_reference"]) == (1.0, 0.0)
    assert (base["empty"], final["empty"]) == (0.0, 1.0)


def test_with_several_samples_all_of_a_prompt_must_be_the_base_models() -> None:
    comparison = made(["a", "a"], ["a", "a"])
    comparison.replies["base"][1].append(Reply("b", 1, False))  # type: ignore[attr-defined]
    comparison.replies["final"][1].append(Reply("c", 1, False))  # type: ignore[attr-defined]
    assert comparison.facts("final")["same_as_base"] == 0.5


def test_warnings_name_what_must_not_be_overlooked() -> None:
    (nothing,) = made(["same", "too"], ["same", "too"]).warnings()
    assert nothing.startswith("NOTHING CHANGED: final")
    assert made(["a", "b"], ["b", "b"]).warnings() == []
    again = "one two three four five six seven eight "
    told = made(["fine", "well"], [again * 3, ""], final=True).warnings()
    assert told == [
        "final: 100% of the replies are cut off at 9 tokens; raise --max-tokens",
        "final: 50% of the replies are empty",
        "final: 50% of the replies are going round in a loop",
    ]


@pytest.mark.parametrize(
    ("text", "looping"),
    [
        ("a b c d e f g h " * 3, True),
        ("a b c d e f g h " * 2, False),
        ("yes " * 30, True),
        ("Every word of this sentence stands in it only once, and it is long enough.", False),
        ("我不知道这个问题的答案。" * 4, True),
        (
            "水在一个标准大气压下加热到一百摄氏度时就会沸腾，变成水蒸气。冷却后又变回液态的水。",
            False,
        ),
        ("", False),
    ],
)
def test_loops(text: str, looping: bool) -> None:
    assert loops(text) is looping


# --- page and terminal


def test_changed_words_put_together_are_the_reply() -> None:
    before, after = "The cat sat on the mat.", "  The dog\tsat on a mat,\n happily. "
    pieces = changed_words(before, after)
    assert "".join(text for _, text in pieces) == after
    assert [text for new, text in pieces if new] == ["dog", "a mat,\n happily."]
    assert not any(new for new, _ in changed_words(after, after.replace(" ", "  ")))
    assert changed_words("x", "") == []
    assert changed_words("", "x y") == [(True, "x y")]


def test_long_replies_are_compared_in_no_time() -> None:
    # Were white space compared too, its thousands of equal pieces would take minutes.
    old, new = (" ".join(str(i * k % 997) for i in range(4000)) for k in (7, 13))
    assert "".join(text for _, text in changed_words(old, new)) == new


def test_the_page_escapes_what_models_and_users_wrote() -> None:
    hostile = "<script>alert(1)</script>"
    comparison = made([hostile], [f"new {hostile}"], [hostile])
    object.__setattr__(comparison, "system_prompt", hostile)
    comparison.tasks[0].prompt[0]["content"] = hostile  # type: ignore[index]
    page = html(comparison)
    assert "<script" not in page and page.count("&lt;script&gt;") == 5
    assert "<mark>new</mark>" in page
    assert "http://" not in page and "https://" not in page  # nothing is fetched


def test_the_page_shows_a_column_for_each_model_and_what_is_the_same() -> None:
    page = html(made(["same", "old"], ["same", "new"], ["same", {"tests": ["a"]}]))
    assert page.count("<h2>base</h2>") == page.count("<h2>final</h2>") == 2
    assert page.count('<span class="tag">same as base</span>') == 1
    assert page.count('<span class="tag good">equals reference</span>') == 2
    assert "--columns: 3" in page and "tinker://r/sampler_weights/final" in page
    assert "{&#34;tests&#34;: [&#34;a&#34;]}" in page  # a reference that is no text, as JSON
    assert "NOTHING CHANGED" not in page
    assert "NOTHING CHANGED" in html(made(["same"], ["same"]))


def test_the_terminal_stays_within_its_width() -> None:
    comparison = made(["word " * 60, "水" * 90], ["x" * 300, "short"], ["ref", "ref"])
    many = {**comparison.models, **{f"{n:06}/very-long-name-of-a-run": "t" for n in range(9)}}
    replies = {name: comparison.replies.get(name, comparison.replies["final"]) for name in many}
    from rich.cells import cell_len

    for shown in (comparison, Comparison(comparison.tasks, many, "r", Sampling(), replies)):
        lines = printed(shown).splitlines()
        assert max(map(cell_len, lines)) <= 80
        text = "".join(printed(shown).split())
        assert text.count("x" * 20) and "Question1?" in text and "meantokens" in text


def test_what_a_model_writes_cannot_steer_the_terminal() -> None:
    shown = printed(made(["\x1b[2J\x1b]0;mine\x07\r\nfine"], ["[red]tml-abcdef123456[/red]"]))
    assert "\x1b" not in shown and "\x07" not in shown and "fine" in shown
    assert "[red]" in shown and "abcdef123456" not in shown


def test_a_reply_that_is_the_base_models_stands_there_once() -> None:
    shown = printed(made(["only once"], ["only once"]))
    assert shown.count("only once") == 1 and "[same as base]" in shown


# --- prompts


def dpo() -> dict[str, Any]:
    from tinkerlab.data.preferences import PreferencePair

    return PreferencePair(0, 1, [USER], REPLY, {**REPLY, "content": "No"}).document()


@pytest.mark.parametrize(
    ("row", "question", "answer"),
    [
        (sft([USER, REPLY]), "Hi", "Yo"),
        (sft([USER, REPLY, USER, {**REPLY, "content": "Yo too"}]),
         "user: Hi\n\nassistant: Yo\n\nuser: Hi", "Yo too"),
        (sft([USER, {**REPLY, "content": [{"type": "thinking", "thinking": "Hm"},
                                          {"type": "text", "text": "Yo"}]}]),
         "Hi", "<think>Hm</think>\nYo"),
        (sft([USER, {**REPLY, "content": "", "tool_calls": [CALL]}]), "Hi", 'look({"at": 1})'),
        (sft([USER, REPLY, USER]), "user: Hi\n\nassistant: Yo\n\nuser: Hi", None),
        ({"messages": [USER], "answer": "2", "question": "as it was", "solution": "1+1"},
         "Hi", "2"),
        ({"messages": [USER, REPLY, USER], "answer": None}, "user: Hi\n\nassistant: Yo\n\nuser: Hi",
         None),
        ({"messages": [USER], "teacher": "x"}, "Hi", None),
        (dpo(), "Hi", "Yo"),
    ],
)  # fmt: skip
def test_held_out_rows_of_every_trainer(
    tmp_path: Path, row: dict[str, Any], question: str, answer: str | None
) -> None:
    (task,) = prompts.held_out(run_folder(tmp_path / "run", [row], []))
    assert (task.question, task.answer) == (question, answer)


def test_held_out_rows_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="held no rows out; give prompts"):
        prompts.held_out(run_folder(tmp_path / "empty", [], []))
    with pytest.raises(InputError, match=r"held_out.jsonl:2: no prompt"):
        prompts.held_out(run_folder(tmp_path / "odd", [sft([USER, REPLY]), {"x": 1}], []))


def test_prompts_from_files(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("\ufeffFirst \n\n  Second\u2028still\r\n", encoding="utf-8")
    found = prompts.of_file(text)
    assert [(t.question, t.place) for t in found] == [
        ("First", "a.txt line 1"),
        ("Second\u2028still", "a.txt line 3"),
    ]
    rows = tmp_path / "a.jsonl"
    rows.write_text('{"prompt": "P"}\n{"question": "Q", "answer": 4}\n')
    assert [(t.question, t.answer) for t in prompts.of_file(rows)] == [("P", None), ("Q", 4)]
    text.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        prompts.of_file(text)


class Tooled:
    """A renderer whose prompts name the tools that were declared."""

    def create_conversation_prefix_with_tools(self, tools: Any, system: str) -> list[Any]:
        return [{"role": "system", "content": f"{system}|{tools[0]['name']}"}]


def test_declared_tools_and_system_prompt_are_sent_but_not_shown() -> None:
    (row,) = [sft([USER, REPLY], tools=(RAIN,))]
    task = prompts._held_out(row, "here")
    sent = prompts.rendered(task, Tooled(), "Be kind.")
    assert [m["content"] for m in sent.prompt] == ["Be kind.|look", "Hi"]
    assert [m["content"] for m in task.prompt] == ["Hi"]
    own = Task([{"role": "system", "content": "Own."}, USER])
    assert prompts.rendered(own, Tooled(), "Be kind.").prompt[0]["content"] == "Own."
    with pytest.raises(InputError, match=r"here: \"tools\" must be a list"):
        prompts.rendered(Task([USER], row={"tools": "all"}, place="here"), Tooled(), None)


def test_a_parsed_tool_call_is_shown() -> None:
    from tinker_cookbook.renderers import ToolCall, UnparsedToolCall

    message = {
        "role": "assistant",
        "content": "Wait.",
        "tool_calls": [ToolCall.model_validate(CALL)],
        "unparsed_tool_calls": [UnparsedToolCall(raw_text="<tool_call>{", error="not JSON")],
    }
    assert prompts.message_text(message) == 'Wait.\nlook({"at": 1})\n<tool_call>{'


# --- columns


RECORDS = [record(4), record(2), record(6, sampler_path=None), record(8), record(8, "final")]
FINAL = "tinker://12345678-9/sampler_weights/final"


def test_checkpoints_of_a_run(tmp_path: Path) -> None:
    folder, left_out = run_folder(tmp_path / "run", [], RECORDS), []
    assert choose(folder) == {"final": FINAL}
    assert list(choose(folder, every=True, say=left_out.append)) == ["000002", "000004", "final"]
    assert any("000006: no sampler_path" in line for line in left_out)
    assert any("000008: the same 8 updates as final" in line for line in left_out)
    # Named ones take the place of the newest, by name or path; every one keeps its own column.
    assert list(choose(folder, ["000004"])) == ["000004"]
    assert choose(folder, [FINAL]) == {"final": FINAL}
    other = "tinker://87654321-0/sampler_weights/final"
    assert choose(folder, ["final", other, FINAL]) == {"final": FINAL, "87654321/final": other}
    third = "tinker://87654321-1/sampler_weights/final"
    assert list(choose(None, [other, third])) == ["87654321/final", third]
    assert list(choose(folder, [other], every=True))[-2:] == ["final", "87654321/final"]
    odd = run_folder(tmp_path / "odd", [], [record(1, "base")])
    assert list(choose(odd)) == [short_name(record(1, "base")["sampler_path"])]


def test_checkpoints_that_cannot_be_shown(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", [], RECORDS)
    with pytest.raises(InputError, match=r"no such checkpoint .*000004, 000002, 000008, final"):
        choose(folder, ["000005"])
    with pytest.raises(InputError, match="sampler_weights"):
        choose(folder, ["tinker://12345678-9/weights/final"])
    with pytest.raises(InputError, match="tinker://"):
        choose(None, ["final"])
