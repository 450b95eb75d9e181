"""The script's verdict, exit code and JSON; the inputs are of the kinds that users reported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from repository import ROOT

import check_data
from tinkerlab.errors import InputError

Write = Callable[..., Path]
Run = Callable[..., tuple[int, str]]


def chat(question: str, answer: str | None = None, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    if answer is not None:
        messages.append({"role": "assistant", "content": answer})
    return {"messages": messages, **more}


@pytest.fixture
def run(chatml_folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the script on a file: (exit code, stdout)."""

    def call(data: Path, *options: str) -> tuple[int, str]:
        arguments: Sequence[str] = ["--data", str(data), "--tokenizer", str(chatml_folder)]
        model = [] if "--model" in options else ["--model", "nobody/model"]
        code = check_data.main([*arguments, *model, *options])
        return code, capsys.readouterr().out

    return call


def test_good_data(run: Run, write_rows: Write) -> None:
    code, out = run(write_rows(*(chat(f"Is {i} even?", f"Ask me {i}.") for i in range(22))))
    assert code == 0
    assert out.splitlines()[0] == "READY: 20 rows to train on, 2 to evaluate on"
    assert out.count("trained tokens marked:") == 3
    assert "[[Ask me " in out


def test_a_mixed_and_broken_file_is_listed_line_by_line(run: Run, write_rows: Write) -> None:
    path = write_rows(
        chat("Hello?", "Yes."),
        {"prompt": "3 * 3", "completion": "9"},
        '{"messages": [{"role": "user", "content": "Hello?"}, {"role": "assistant", "conte',
        {"messages": []},
        "",
        {"messages": [{"role": "assistant", "content": None}]},
        {"messages": [{"role": "user", "content": "x"}, {"role": "bot", "content": "y"}]},
        chat("x", ""),
        ["a", "list"],
    )
    code, out = run(path)
    assert code == 1
    assert out.startswith("NOT READY: data.jsonl: 7 of 8 rows can't be used")
    for line, reason in {
        2: "a prompt/completion row in a file whose format is messages",
        3: "not JSON: Unterminated string",
        4: '"messages" is an empty list',
        6: "assistant message is null",
        7: "unknown role 'bot'",
        8: "empty assistant turn",
        9: "must be a JSON object, not a list",
    }.items():
        assert f"\n    line {line}: " in out and reason in out
    assert "1 blank line between rows, ignored: 5" in out
    assert "fix: mend these lines, or leave them out" in out


def test_nothing_to_train_on(run: Run, write_rows: Write) -> None:
    path = write_rows(*(chat(f"Question {i}?") for i in range(3)))
    code, out = run(path)
    assert code == 1
    assert "3 of 3 rows can't be used (no assistant message: nothing to train on)" in out
    # Skipping them leaves nothing, which is no success.
    assert run(path, "--skip-bad-rows")[0] == 1
    assert run(path, "--train-on-what", "all_messages", "--val-fraction", "0")[0] == 0


def test_preference_pairs(run: Run, write_rows: Write) -> None:
    code, out = run(
        write_rows(
            {"prompt": "A colour?", "chosen": "Green.", "rejected": "Green."},
            {"prompt": "A colour?", "chosen": "Green.", "rejected": "No."},
        )
    )
    assert code == 1
    assert "line 1: chosen and rejected are identical: the pair holds no preference" in out
    assert "line 2:" not in out
    assert "1 row, 1 bad, format preference prompt/chosen/rejected" in out


def test_good_preference_pairs(run: Run, write_rows: Write) -> None:
    path = write_rows(
        *({"prompt": f"{i}?", "chosen": f"Yes, {i}.", "rejected": f"No {i}."} for i in range(20))
    )
    code, out = run(path, "--json")
    document = json.loads(out)
    assert (code, document["problems"], document["warnings"]) == (0, [], [])
    assert document["files"][0]["format"] == "preference prompt/chosen/rejected"
    assert any("scripts/dpo_trainer.py" in note for note in document["notes"])


def test_thinking_in_plain_text_for_a_thinking_model(run: Run, write_rows: Write) -> None:
    path = write_rows(
        *(chat(f"What is {i} + 1?", f"<think>Count.</think>\n\n{i + 1}") for i in range(4))
    )
    code, out = run(path, "--model", "Qwen/Qwen3-8B")
    assert code == 0
    assert "warning [thinking_in_text]: 4 of 4 rows hold <think> tags" in out
    assert "renderer qwen3 knows reasoning by its own kind of part" in out


def test_json_holds_everything(run: Run, write_rows: Write) -> None:
    train = write_rows(*(chat(f"Is {i} even?", f"Ask {i}.", id=i) for i in range(9)), {"x": 1})
    val = write_rows(chat("is 3 EVEN?", "ask 3."), name="val.jsonl")
    code, out = run(train, "--val", str(val), "--skip-bad-rows", "--json")
    document = json.loads(out)
    assert code == 1 and document["ok"] is False
    assert [problem["kind"] for problem in document["problems"]] == ["contamination"]
    assert document["problems"][0]["examples"] == [
        "val.jsonl line 1 ~ data.jsonl line 4 (similarity 1.00)"
    ]
    assert document["files"][0] == {
        "path": str(train),
        "format": "messages",
        "rows": 9,
        "bad_rows": [
            {
                "line": 10,
                "reason": "no known format: has the keys 'x'; known formats have messages, "
                "prompt+completion, instruction+output, input+output",
            }
        ],
        "notes": ["keys without a use here: id (9 rows)"],
    }
    assert document["dropped"][0].startswith("data.jsonl line 10: no known format")
    assert document["statistics"]["train"]["rows"] == 9
    assert document["renderer"]["name"] == "qwen3_instruct"
    assert document["settings"]["reduction"] == "mean"
    assert len(document["preview"]) == 3
    assert run(train, "--val", str(val), "--skip-bad-rows", "--allow-contamination")[0] == 0


def test_too_few_rows_to_split(run: Run, write_rows: Write) -> None:
    code, out = run(write_rows(chat("One?", "Yes.")))
    assert code == 1
    assert "1 row can't be split into training and evaluation" in out
    assert run(write_rows(chat("One?", "Yes.")), "--val-fraction", "0")[0] == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--data", "missing.jsonl"], "No such file"),
        (["--max-seq-len", "1"], "--max-seq-len must be at least 2"),
        (["--val-fraction", "1"], "--val-fraction"),
        (["--max-val-rows", "0"], "at least 1"),
        (["--renderer", "qwen33"], "renderer 'qwen33' can't be used"),
        (["--tokenizer", "/nowhere/at/all"], "/nowhere/at/all"),
    ],
)
def test_bad_usage_is_one_line(run: Run, write_rows: Write, options: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        run(write_rows(chat("One?", "Yes."), chat("Two?", "No.")), *options)
    assert "\n" not in str(caught.value)


def test_exit_codes_and_clean_stdout_from_a_shell(
    write_rows: Write, chatml_folder: Path, tmp_path: Path
) -> None:
    def shell(data: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "scripts/check_data.py", "--data", str(data), "--json"]
        options = ["--model", "nobody/model", "--tokenizer", str(chatml_folder)]
        return subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True)

    found = shell(write_rows({"x": 1}))
    assert found.returncode == 1
    assert json.loads(found.stdout)["ok"] is False
    missing = shell(tmp_path / "missing.jsonl")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr.startswith("error: data file ") and missing.stderr.count("\n") == 1
