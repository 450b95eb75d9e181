"""sample_teacher.py against a service that really samples: rows, counts, resume, refusals."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tinkerlab.data import load_rows
from tinkerlab.errors import CheckFailed, InputError
from tinkerlab.evaluation import attempts

SCRIPTS = Path(__file__).parents[2] / "scripts"
# Right where the reply holds an even number of characters: about half of them, for any model.
EVEN = "def score(completion, answer):\n    return float(len(completion) % 2 == 0)\n"
RULES = "You are a parrot. Repeat every word twice."


def teach(*arguments) -> int:
    import sample_teacher as script

    return script.main([*map(str, arguments)])


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(autouse=True)
def service(rehearsal, monkeypatch, tmp_path):
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY"):
        monkeypatch.setenv(name, rehearsal.env[name])
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"What is {i} plus {i}?", "answer": 2 * i} for i in range(12)]
    write("prompts.jsonl", rows)
    write("held-out.jsonl", [{"prompt": "what is 3 plus 3?"}, {"prompt": "Who are you?"}])
    Path("even.py").write_text(EVEN)
    Path("rules.txt").write_text(RULES + "\n")


def write(name, rows):
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def common(rehearsal):
    # A random model rarely ends its turn: its cut replies are what there is.
    return (
        "--model", rehearsal.model, "--prompts", "prompts.jsonl", "--max-tokens", 6,
        "--keep-truncated", "--output", "out/teacher.jsonl",
    )  # fmt: skip


def test_rows_for_the_trainer(common, rehearsal, capsys):
    assert teach(*common, "--samples", 3, "--exclude", "held-out.jsonl", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    rows = read(Path("out/teacher.jsonl"))
    assert (summary["prompts"], summary["replies"]) == (11, 33)
    assert summary["held_out_prompts_left_out"] == 1
    assert summary["kept"] == len(rows) == 33 - sum(summary["dropped"].values())
    assert 33 <= summary["sampled_tokens"] <= 33 * 6
    assert not any("3 plus 3" in json.dumps(row) for row in rows)
    assert {row["teacher"]["model"] for row in rows} == {rehearsal.model}
    # Every reply that was sampled is either a row or refused, with its reason.
    refused = read(Path("out/teacher.dropped.jsonl"))
    assert len(rows) + len(refused) == 33
    # What sl_trainer.py reads of it.
    loaded = load_rows("out/teacher.jsonl")
    assert (loaded.format, len(loaded.rows), loaded.bad) == ("messages", len(rows), [])
    assert [m["role"] for m in loaded.rows[0].messages] == ["user", "assistant"]


def test_only_right_replies_and_the_threshold(common, capsys):
    graded = ("--samples", 4, "--grader", "even.py:score")
    assert teach(*common, *graded) == 0
    rows, refused = read(Path("out/teacher.jsonl")), read(Path("out/teacher.dropped.jsonl"))
    assert rows
    assert all(len(row["messages"][-1]["content"]) % 2 == 0 for row in rows)
    wrong = [row for row in refused if row["reason"] == "wrong"]
    assert wrong
    assert all(len(row["reply"]) % 2 for row in wrong)
    assert f"dropped: {len(wrong)} wrong" in capsys.readouterr().out
    # Kept, wrong ones too, with the score written down.
    assert teach(*common, *graded, "--keep", "all", "--overwrite") == 0
    scores = {row["teacher"]["score"] for row in read(Path("out/teacher.jsonl"))}
    assert scores == {0.0, 1.0}


def test_the_teacher_sees_the_system_prompt_and_the_rows_do_not(common, rehearsal, monkeypatch):
    from tinkerlab.data import load_tokenizer

    sent = []
    make_items = attempts.make_items
    monkeypatch.setattr(
        attempts, "make_items", lambda *a: sent.extend(made := make_items(*a)) or made
    )
    told = ("--system-prompt-file", "rules.txt")
    assert teach(*common, *told, "--drop-system-prompt") == 0
    tokenizer = load_tokenizer(rehearsal.model)
    assert len(sent) == 12
    assert all(RULES in tokenizer.decode(list(item.tokens)) for item in sent)
    assert "parrot" not in Path("out/teacher.jsonl").read_text()
    # Without the option the student is told what the teacher was told.
    assert teach(*common, *told, "--overwrite") == 0
    assert read(Path("out/teacher.jsonl"))[0]["messages"][0] == {"role": "system", "content": RULES}


def test_a_checkpoint_or_a_run_folder_can_teach(common, rehearsal, capsys):
    client = (
        rehearsal.client().create_lora_training_client(rehearsal.model, rank=4, seed=7).result()
    )
    path = client.save_weights_for_sampler("teacher-data").result().path
    record = {
        "name": "final",
        "step": 1,
        "batch": 1,
        "epoch": 0,
        "sampler_path": path,
        "final": True,
    }
    Path("runs").mkdir()
    write("runs/checkpoints.jsonl", [record])
    of_path = ("--model", path, *common[2:])
    assert teach(*of_path, "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["teacher"], summary["base_model"]) == (path, rehearsal.model)
    rows = Path("out/teacher.jsonl").read_bytes()
    # The folder means the same teacher: nothing is done again.
    assert teach("--model", "runs", *common[2:]) == 0
    assert "already holds these rows" in capsys.readouterr().err
    assert Path("out/teacher.jsonl").read_bytes() == rows


def test_other_filters_sample_nothing_again(common, monkeypatch, capsys):
    assert teach(*common, "--samples", 4, "--grader", "even.py:score") == 0
    asked = []
    sample = attempts._Run._sample
    monkeypatch.setattr(attempts._Run, "_sample", lambda *a: asked.append(a) or sample(*a))
    few = (*common, "--samples", 4, "--grader", "even.py:score", "--per-prompt", 1)
    with pytest.raises(InputError, match="holds other rows \\(other filters\\)"):
        teach(*few)
    before = Path("out/teacher.jsonl").read_bytes()
    assert teach(*few, "--overwrite") == 0
    assert asked == []
    assert Path("out/teacher.jsonl").read_bytes() != before
    places = [row["teacher"]["prompt"] for row in read(Path("out/teacher.jsonl"))]
    assert len(places) == len(set(places))
    # The grader's file decides the grades: once it says something else, they are made again.
    Path("even.py").write_text(EVEN.replace("== 0", "== 1"))
    assert teach(*few, "--overwrite") == 0
    assert asked == []
    rows = read(Path("out/teacher.jsonl"))
    assert all(len(row["messages"][-1]["content"]) % 2 for row in rows)


def test_rows_that_were_edited_are_not_taken_for_these(common):
    assert teach(*common) == 0
    with Path("out/teacher.jsonl").open("a") as file:
        file.write('{"messages": []}\n')
    with pytest.raises(InputError, match="content, which was edited since"):
        teach(*common)


def test_a_file_of_the_users_is_not_overwritten(common):
    Path("out").mkdir()
    Path("out/teacher.jsonl").write_text("mine\n")
    with pytest.raises(InputError, match="exists; choose another"):
        teach(*common)
    assert Path("out/teacher.jsonl").read_text() == "mine\n"


def test_killed_and_started_again_it_gives_the_same_rows(common, rehearsal, tmp_path):
    many = [{"prompt": f"Tell me about number {i}."} for i in range(150)]
    write("prompts.jsonl", many)
    slow = ("--in-flight", 1)
    command = [
        sys.executable,
        str(SCRIPTS / "sample_teacher.py"),
        *map(str, common),
        *map(str, slow),
    ]
    process = subprocess.Popen(command, env={**os.environ, **rehearsal.env}, cwd=tmp_path)
    log = Path("out/teacher.attempts.jsonl")
    while not (log.exists() and log.read_bytes().count(b'"replies"') >= 10):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    sampled = log.read_bytes().count(b'"replies"')
    assert sampled < 150
    assert not Path("out/teacher.jsonl").exists()
    assert teach(*common) == 0
    resumed = Path("out/teacher.jsonl").read_bytes()
    # Each prompt was answered once in all, and as it is in one go.
    assert log.read_bytes().count(b'"replies"') == 150
    whole = (*common[:-1], "whole/teacher.jsonl")
    assert teach(*whole) == 0
    assert Path("whole/teacher.jsonl").read_bytes() == resumed


def test_nothing_kept_is_a_failure_that_says_why(common):
    arguments = [word for word in common if word != "--keep-truncated"]
    with pytest.raises(CheckFailed, match=r"none of \d+ replies was kept: \d+ truncated"):
        teach(*arguments, "--prompts", "prompts.jsonl", "--max-tokens", 1)
    assert not Path("out/teacher.jsonl").exists()
    assert {row["reason"] for row in read(Path("out/teacher.dropped.jsonl"))} == {"truncated"}


def test_a_grader_that_fails_on_everything_decides_nothing(common):
    Path("even.py").write_text("def score(completion, answer):\n    raise ValueError('broken')\n")
    with pytest.raises(CheckFailed, match=r"failed on every reply: .*broken"):
        teach(*common, "--grader", "even.py:score")


def test_warnings_name_what_to_look_at(common, capsys):
    near = "Tell me in a few words where the old lighthouse of the harbour stands"
    write("prompts.jsonl", [{"prompt": f"{near} today"}, {"prompt": "What is tea?"}])
    write("held-out.jsonl", [{"prompt": f"{near} now"}])
    assert teach(*common, "--exclude", "held-out.jsonl") == 0
    assert "1 prompts nearly repeat a held-out one and are kept" in capsys.readouterr().out
    strict = ("--exclude", "held-out.jsonl", "--exclude-near", "--overwrite")
    assert teach(*common, *strict) == 0
    assert "were left out" in capsys.readouterr().out
    assert len(read(Path("out/teacher.jsonl"))) == 1


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (("--samples", 2, "--temperature", 0), "would be the same reply 2 times"),
        (("--samples", 0), "must be at least 1"),
        (("--per-prompt", 0), "must be at least 1"),
        (("--top-p", 0), "--top-p is in"),
        (("--temperature", "nan"), "numbers of at least 0"),
        (("--temperature", "inf"), "numbers of at least 0"),
        (("--output", ".", "--overwrite"), "is a folder"),
        (("--keep", "right"), "needs a --grader"),
        (("--exclude-near",), "needs --exclude FILE"),
        (("--exclude", "prompts.jsonl"), "none is left"),
        (("--exclude", "gone.jsonl"), "gone.jsonl"),
        (("--drop-system-prompt",), "no system prompt to drop"),
        (("--system-prompt", "a", "--system-prompt-file", "rules.txt"), "not both"),
        (("--system-prompt", " "), "--system-prompt is empty"),
        (("--system-prompt-file", "gone.txt"), "gone.txt: No such file"),
        (("--system-prompt-file", "empty.txt"), "is empty"),
        (("--grader", "numerics"), "did you mean numeric"),
        (("--grader", "judge"), "for eval_offline.py"),
        (("--model", "no/such-model"), "cannot sample from no/such-model"),
        (("--model", "tinker://a/weights/b"), "give the sampler_weights path"),
        (("--prompts", "gone.jsonl"), "gone.jsonl"),
        (("--max-tokens", 10_000_000), "the service refused a request"),
    ],
)
def test_what_cannot_be_done_is_one_line(common, arguments, phrase):
    Path("empty.txt").write_text("\n")
    with pytest.raises(InputError, match=phrase) as caught:
        teach(*common, *arguments)
    assert "\n" not in str(caught.value)
    assert not Path("out/teacher.jsonl").exists()
