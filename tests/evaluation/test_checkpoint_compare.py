"""Replies side by side: what is shown, what is warned of, what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from repository import ROOT

from tinkerlab.errors import InputError
from tinkerlab.evaluation.attempts import Reply, Sampling
from tinkerlab.evaluation.side_by_side import Comparison, held_out_tasks, loops, run_checkpoints
from tinkerlab.evaluation.side_by_side_page import changed_words, html, terminal_lines
from tinkerlab.tasks import Task

SCRIPT = ROOT / "scripts" / "checkpoint_compare.py"


def made(
    base: list[str], tuned: list[str], answers: list[Any] | None = None, **cut: Any
) -> Comparison:
    answers = answers or [None] * len(base)
    tasks = [
        Task([{"role": "user", "content": f"Question {n}?"}], answer, place=f"rows line {n}")
        for n, answer in enumerate(answers)
    ]
    replies = {
        name: [[Reply(text, len(text.split()), bool(cut.get(name)))] for text in texts]
        for name, texts in (("base", base), ("final", tuned))
    }
    models = {"base": "some/base", "final": "tinker://r/sampler_weights/final"}
    return Comparison(tasks, models, "some/base", "role_colon", Sampling(max_tokens=9), replies)


def test_facts_are_those_of_the_replies() -> None:
    comparison = made(["a b", "c", ""], ["a b", "d e f", "g"], ["a  b", None, "x"], final=True)
    base, final = comparison.facts("base"), comparison.facts("final")
    assert (base["mean_tokens"], final["mean_tokens"]) == (1.0, pytest.approx(2.0))
    assert (base["cut"], final["cut"]) == (0.0, 1.0)
    assert (base["empty"], final["empty"]) == (pytest.approx(1 / 3), 0.0)
    assert base["same_as_base"] is None and final["same_as_base"] == pytest.approx(1 / 3)
    assert (base["matches_reference"], final["matches_reference"]) == (0.5, 0.5)


def test_warnings_name_what_must_not_be_overlooked() -> None:
    nothing = made(["same", "too"], ["same", "too"]).warnings()
    assert any("changed nothing here" in line and "final" in line for line in nothing)
    assert not any("changed nothing" in line for line in made(["a"], ["b"]).warnings())
    again = "one two three four five six seven eight "
    told = made(["fine", "fine"], [again * 3, ""], final=True).warnings()
    assert any("cut at max_tokens=9" in line for line in told)
    assert any("repeat themselves" in line for line in told)
    assert any("empty" in line for line in told)
    assert not any("base" in line for line in told)


@pytest.mark.parametrize(
    ("text", "looping"),
    [
        ("a b c d e f g h " * 3, True),
        ("a b c d e f g h " * 2, False),
        ("yes " * 30, True),
        ("Every word of this sentence stands in it only once, and it is long enough.", False),
        ("", False),
    ],
)
def test_loops(text: str, looping: bool) -> None:
    assert loops(text) is looping


def test_changed_words_put_together_are_the_reply() -> None:
    before, after = "The cat sat on the mat.", "The dog sat on a mat,\n happily."
    pieces = changed_words(before, after)
    assert "".join(text for _, text in pieces) == after
    assert next(text for new, text in pieces if new and text.strip()) == "dog"
    assert pieces[0] == (False, "The ")
    assert changed_words(None, after) == [(False, after)]
    assert changed_words(after, after) == [(False, after)]


def test_the_page_escapes_what_models_and_users_wrote() -> None:
    hostile = "<script>alert(1)</script>"
    page = html(made([hostile], [f"new {hostile}"], [hostile]))
    assert "<script" not in page and "&lt;script&gt;" in page
    assert "<mark>new" in page and "http://" not in page and "https://" not in page


def test_the_terminal_stays_within_its_width() -> None:
    lines = list(terminal_lines(made(["word " * 60], ["x" * 30]), 80))
    assert max(map(len, lines)) <= 80
    assert any(line.strip().startswith("base") for line in lines)


def run_folder(folder: Path, held_out: list[dict[str, Any]], records: list[dict[str, Any]]) -> Path:
    folder.mkdir()
    (folder / "held_out.jsonl").write_text("".join(json.dumps(r) + "\n" for r in held_out))
    (folder / "checkpoints.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return folder


@pytest.mark.parametrize(
    ("row", "question", "answer"),
    [
        (
            {
                "messages": [
                    {"role": "user", "content": "Hi"},
                    {"role": "assistant", "content": "Yo"},
                ]
            },
            "Hi",
            "Yo",
        ),
        ({"messages": [{"role": "user", "content": "1+1"}], "answer": "2"}, "1+1", "2"),
        ({"messages": [{"role": "user", "content": "Go"}], "teacher": "x"}, "Go", None),
        ({"prompt": "Rank", "chosen": "good", "rejected": "bad"}, "Rank", "good"),
        (
            {
                "prompt": [{"role": "user", "content": "Rank"}],
                "chosen": [{"role": "assistant", "content": "good"}],
                "rejected": [{"role": "assistant", "content": "bad"}],
            },
            "Rank",
            "good",
        ),
    ],
)
def test_held_out_rows_of_every_trainer(
    tmp_path: Path, row: dict[str, Any], question: str, answer: str | None
) -> None:
    (task,) = held_out_tasks(run_folder(tmp_path / "run", [row], []))
    assert (task.question, task.answer) == (question, answer)


def test_checkpoints_of_a_run(tmp_path: Path) -> None:
    records = [
        {"name": "000002", "sampler_path": "tinker://r/sampler_weights/000002"},
        {"name": "weights-only", "state_path": "tinker://r/weights/x"},
        {"name": "final", "sampler_path": "tinker://r/sampler_weights/final"},
    ]
    folder = run_folder(tmp_path / "run", [{"prompt": "x"}], records)
    assert list(run_checkpoints(folder, every=True)) == ["000002", "final"]
    assert list(run_checkpoints(folder, every=False)) == ["final"]
    empty = run_folder(tmp_path / "empty", [], records[1:2])
    with pytest.raises(InputError, match="no checkpoint to sample from"):
        run_checkpoints(empty, every=True)
    with pytest.raises(InputError, match="held no rows out"):
        held_out_tasks(empty)


def call(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> Any:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        cwd=cwd,
        env=env or dict(os.environ),
        capture_output=True,
        text=True,
        timeout=300,
    )


BAD = [
    ((), "name who is asked"),
    (("--model", "x/y"), "give prompts"),
    (("--model", "x/y", "--prompt", "a", "--prompts", "b.txt"), "not both"),
    (("--model", "x/y", "--prompts", "missing.txt"), "missing.txt: No such file"),
    (("--model", "x/y", "--prompts", "missing.jsonl"), "missing.jsonl"),
    (("--model", "x/y", "--prompts", "empty.txt"), "no prompt in it"),
    (("--run", "no-run"), "no such folder"),
    (("--every-checkpoint", "--model", "x", "--prompt", "a"), "needs --run"),
    (("--model", "x", "--prompt", "a", "--output", "a.txt"), ".html or .json"),
    (("--model", "x", "--prompt", "a", "--output", "taken.html"), "exists"),
    (("--model", "x", "--prompt", "a", "--limit", "0"), "at least 1"),
    (("--model", "x", "--prompt", "a", "--samples", "2", "--temperature", "0"), "same reply"),
    (
        ("--model", "x", "--prompt", "a", "--checkpoint", "tinker://r/weights/final"),
        "sampler_weights",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "complaint"), BAD, ids=lambda value: str(value)[-60:])
def test_bad_input_is_one_line(tmp_path: Path, arguments: tuple[str, ...], complaint: str) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "taken.html").write_text("mine")
    done = call(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert complaint in done.stderr and done.stderr.count("\n") == 1
    assert (tmp_path / "taken.html").read_text() == "mine"


def test_the_whole_of_it(rehearsal: Any, tmp_path: Path) -> None:
    """A trained checkpoint, an untrained one, and the base, on the real service."""
    client = (
        rehearsal.client().create_lora_training_client(rehearsal.model, rank=4, seed=1).result()
    )
    same = client.save_weights_for_sampler("untouched").result().path
    import tinker

    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints([1, 2, 3, 4]),
        loss_fn_inputs={
            "target_tokens": tinker.TensorData(data=[2, 3, 4, 5], dtype="int64"),
            "weights": tinker.TensorData(data=[1.0] * 4, dtype="float32"),
        },
    )
    for _ in range(3):
        client.forward_backward([datum], "cross_entropy")
        client.optim_step(tinker.AdamParams(learning_rate=0.5))
    other = client.save_weights_for_sampler("trained").result().path
    done = call(
        "--model", rehearsal.model, "--checkpoint", same, "--checkpoint", other,
        "--prompt", "Hello", "--prompt", "What is 2 + 2?", "--max-tokens", "6", "--json",
        "--output", "page.html", "--output", "all.json",
        cwd=tmp_path, env=rehearsal.env,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert json.loads((tmp_path / "all.json").read_text()) == document
    base, untouched, trained = document["models"]
    assert base == "base" and untouched.endswith("untouched")
    # An adapter starts with B = 0: its replies are the base model's, to the letter.
    assert document["facts"][untouched]["same_as_base"] == 1.0
    assert document["facts"][trained]["same_as_base"] == 0.0
    assert [len(row["replies"]) for row in document["prompts"]] == [3, 3]
    page = (tmp_path / "page.html").read_text()
    assert "changed nothing here" in page and "What is 2 + 2?" in page


def test_a_checkpoint_that_is_not_there(rehearsal: Any, tmp_path: Path) -> None:
    done = call(
        "--model", rehearsal.model, "--checkpoint", "tinker://nobody/sampler_weights/x",
        "--prompt", "a", cwd=tmp_path, env=rehearsal.env,
    )  # fmt: skip
    assert done.returncode == 2 and "tinker://nobody/sampler_weights/x" in done.stderr


def test_nobody_answers(tmp_path: Path) -> None:
    env = {**os.environ, "TINKER_API_KEY": "tml-test", "TINKER_BASE_URL": "http://127.0.0.1:9"}
    done = call("--model", "x/y", "--prompt", "a", cwd=tmp_path, env=env)
    assert done.returncode == 2 and "does not answer" in done.stderr
