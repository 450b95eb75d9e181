"""eval_offline.py against a service that really samples: true scores, resume, refusals."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tinkerlab.errors import CheckFailed, InputError
from tinkerlab.evaluation import attempts, offline, results
from tinkerlab.evaluation.checking import check_results

SCRIPTS = Path(__file__).parents[2] / "scripts"
# Right where the reply holds an even number of characters: about half of them, for any model.
EVEN = "def score(completion, answer):\n    return len(completion) % 2 == 0\n"


def evaluate(*arguments) -> int:
    import eval_offline as script

    return script.main([*map(str, arguments)])


@pytest.fixture(autouse=True)
def service(rehearsal, monkeypatch):
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY"):
        monkeypatch.setenv(name, rehearsal.env[name])


@pytest.fixture
def data(tmp_path):
    file = tmp_path / "questions.jsonl"
    rows = [
        {"prompt": f"What is {i} plus 1?", "answer": i + 1, "size": "odd" if i % 2 else "even"}
        for i in range(12)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def grader(tmp_path):
    file = tmp_path / "my_grader.py"
    file.write_text(EVEN)
    return f"{file}:score"


@pytest.fixture
def pair(trained_run, data, grader, tmp_path):
    """Arguments that compare base and trained, and the folder of their results."""
    folder = tmp_path / "results"
    chosen = ("--data", data, "--grader", grader, "--max-tokens", 12, "--output", folder)
    return ("--run", trained_run.folder, *chosen), folder


def test_base_against_trained(pair, trained_run, data, capsys):
    arguments, folder = pair
    assert evaluate(*arguments, "--slice-by", "size", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    verdict = check_results(folder)
    assert verdict.ok, verdict.findings
    assert verdict.notes == []
    assert (verdict.task_type, verdict.items) == ("rl", 12)
    assert summary == json.loads((folder / results.SUMMARY_FILE).read_text())

    base = results.read_jsonl(folder / results.BASE_FILE)
    trained = results.read_jsonl(folder / results.TRAINED_FILE)
    for records, name in ((base, "baseline_score"), (trained, "trained_score")):
        # Counted by hand from the replies: the grader decides, nothing else.
        right = [len(record["completion"]) % 2 == 0 for record in records]
        assert [record["correct"] for record in records] == right
        assert summary[name] == pytest.approx(sum(right) / 12)
    assert [r["completion"] for r in base] != [r["completion"] for r in trained]
    assert [r["ground_truth"] for r in base] == list(range(1, 13))
    assert {r["slice"]: r["items"] for r in summary["slices"]["rows"]} == {"even": 6, "odd": 6}
    assert summary["pass_at_k"]["base"]["pass@1"] == pytest.approx(summary["baseline_score"])
    assert summary["models"]["trained"] == trained_run.sampler_path


def test_replies_are_what_the_service_samples(pair, rehearsal):
    """The base model's greedy reply to the first prompt, asked for without our code."""
    import tinker

    from tinkerlab.data import load_tokenizer, resolve_renderer

    arguments, folder = pair
    assert evaluate(*arguments, "--limit", 3) == 0
    tokenizer = load_tokenizer(rehearsal.model)
    renderer = resolve_renderer(rehearsal.model, tokenizer).renderer
    client = rehearsal.client().create_sampling_client(base_model=rehearsal.model).result()
    first = results.read_jsonl(folder / results.BASE_FILE)[0]
    response = client.sample(
        prompt=renderer.build_generation_prompt([{"role": "user", "content": first["question"]}]),
        num_samples=1,
        sampling_params=tinker.SamplingParams(
            max_tokens=12, temperature=0.0, stop=renderer.get_stop_sequences()
        ),
    ).result()
    text = tokenizer.decode(response.sequences[0].tokens, skip_special_tokens=True)
    assert first["completion"] == text.strip()


def test_done_before_means_nothing_to_do(pair, monkeypatch, capsys):
    arguments, folder = pair
    assert evaluate(*arguments) == 0
    before = (folder / results.SUMMARY_FILE).read_bytes()
    monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:9")  # nobody answers there
    assert evaluate(*arguments) == 0
    assert "nothing to do" in capsys.readouterr().err
    assert (folder / results.SUMMARY_FILE).read_bytes() == before


def test_another_evaluation_is_refused_then_reuses_the_replies(pair, grader, monkeypatch):
    arguments, folder = pair
    assert evaluate(*arguments) == 0
    before = (folder / results.SUMMARY_FILE).read_bytes()
    with pytest.raises(InputError, match=r"other slice by"):
        evaluate(*arguments, "--slice-by", "size")
    Path(grader.rpartition(":")[0]).write_text("def score(completion): return 0.25")
    with pytest.raises(InputError, match="other grader"):
        evaluate(*arguments)
    assert any(finding.rule == "grader-hash" for finding in check_results(folder).findings)
    assert (folder / results.SUMMARY_FILE).read_bytes() == before

    monkeypatch.setattr(attempts._Run, "_sample", None)  # sampling again would fail
    assert evaluate(*arguments, "--overwrite") == 0
    summary = json.loads((folder / results.SUMMARY_FILE).read_text())
    assert summary["baseline_score"] == summary["trained_score"] == 0.25
    assert check_results(folder).ok


def test_an_interrupted_evaluation_goes_on_and_ends_the_same(pair, monkeypatch, tmp_path):
    arguments, folder = pair
    original = attempts._Run._sample
    asked = []

    async def sample(self, model, item):
        asked.append((model, item.index))
        if len(asked) == 9:
            os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C does
        await original(self, model, item)

    monkeypatch.setattr(attempts._Run, "_sample", sample)
    with pytest.raises(KeyboardInterrupt):
        evaluate(*arguments, "--in-flight", 2)
    assert not (folder / results.SUMMARY_FILE).exists()
    kept = sum("replies" in row for row in results.read_jsonl(folder / offline.LOG_FILE))
    assert kept >= 6
    with (folder / offline.LOG_FILE).open("ab") as log:
        log.write(b'{"model": "torn')
    asked.clear()
    asked.extend([("", 0)] * 9)  # past the place of the interruption
    assert evaluate(*arguments) == 0
    assert len(asked) - 9 == 2 * 12 - kept
    assert check_results(folder).ok

    monkeypatch.setattr(attempts._Run, "_sample", original)
    whole = tmp_path / "whole"
    assert evaluate(*arguments[:-1], whole) == 0
    for name in (results.BASE_FILE, results.TRAINED_FILE):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


def test_several_samples(pair, capsys):
    arguments, folder = pair
    assert evaluate(*arguments, "--samples", 4, "--temperature", 1) == 0
    shown = capsys.readouterr().out
    assert check_results(folder).ok
    summary = json.loads((folder / results.SUMMARY_FILE).read_text())
    records = results.read_jsonl(folder / results.BASE_FILE)
    means = [sum(s["correct"] for s in r["samples"]) / 4 for r in records]
    assert [record["correct"] for record in records] == pytest.approx(means)
    assert any(len({s["completion"] for s in r["samples"]}) > 1 for r in records)
    found = summary["pass_at_k"]["base"]
    assert found["pass@1"] == pytest.approx(summary["baseline_score"])
    assert found["pass@4"] == pytest.approx(sum(mean > 0 for mean in means) / 12)
    assert found["pass@1"] <= found["pass@2"] <= found["pass@4"]
    assert "pass@4" in shown


def test_one_model_alone(rehearsal, data, tmp_path, capsys):
    folder = tmp_path / "single"
    arguments = ("--model", rehearsal.model, "--data", data, "--grader", r"regex:\S")
    assert evaluate(*arguments, "--max-tokens", 4, "--output", folder, "--json") == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores == json.loads((folder / offline.SCORES_FILE).read_text())
    records = results.read_jsonl(folder / results.BASE_FILE)
    assert scores["score"] == pytest.approx(sum(bool(r["completion"]) for r in records) / 12)
    assert scores["interval"]["low"] <= scores["score"] <= scores["interval"]["high"]
    assert not (folder / results.SUMMARY_FILE).exists()


def test_a_checkpoint_alone_on_generated_tasks(trained_run, tmp_path):
    folder = tmp_path / "single"
    assert (
        evaluate(
            "--checkpoint", trained_run.sampler_path, "--data", "reasoning_gym:chain_sum",
            "--split", "test", "--limit", 4, "--grader", "reasoning_gym",
            "--slice-by", "num_terms", "--max-tokens", 4, "--output", folder,
        )
        == 0
    )  # fmt: skip
    assert len(results.read_jsonl(folder / results.TRAINED_FILE)) == 4
    items = results.read_jsonl(folder / offline.ITEMS_FILE)
    assert items[0]["answer"] == str(eval(items[0]["expression"]))
    from tinkerlab.tasks import load_tasks

    again = load_tasks(folder / offline.ITEMS_FILE)
    assert [task.answer for task in again] == [item["answer"] for item in items]


def test_an_rl_run_brings_its_own_tasks_and_reward(trained_run, tmp_path, grader):
    import shutil

    run = tmp_path / "rl-run"
    shutil.copytree(trained_run.folder, run)
    config = json.loads((run / "config.json").read_text())
    config |= {
        "dataset": "reasoning_gym:chain_sum:max_terms=2",
        "reward": grader,
        "max_eval_tasks": 5,
        "eval_temperature": 0.0,
        "max_tokens": 3,
        "system_prompt": "Be brief.",
        "stop": ["\n"],
    }
    (run / "config.json").write_text(json.dumps(config))
    folder = tmp_path / "results"
    assert evaluate("--run", run, "--output", folder) == 0
    assert check_results(folder).ok
    from tinkerlab.tasks import load_tasks

    held_out = load_tasks(config["dataset"], "test", 5, config["seed"])
    records = results.read_jsonl(folder / results.BASE_FILE)
    assert [r["question"] for r in records] == [task.question for task in held_out]
    sampling = json.loads((folder / results.SUMMARY_FILE).read_text())["sampling"]
    assert (sampling["max_tokens"], sampling["stop"]) == (3, ["\n"])


def test_a_grader_that_always_fails_ends_with_its_reason(pair, grader):
    arguments, folder = pair
    Path(grader.rpartition(":")[0]).write_text("def score(completion): return None")
    with pytest.raises(CheckFailed, match=r"failed on every reply.*returned None"):
        evaluate(*arguments)
    assert not (folder / results.SUMMARY_FILE).exists()


def test_a_grader_that_sometimes_fails_is_reported(pair, grader, capsys):
    arguments, folder = pair
    Path(grader.rpartition(":")[0]).write_text(
        "def score(completion, answer):\n    return None if answer < 4 else 1"
    )
    assert evaluate(*arguments) == 0
    assert "grader failed on 3 of 12 replies (base)" in capsys.readouterr().out
    records = results.read_jsonl(folder / results.BASE_FILE)
    assert [record["correct"] for record in records] == [False] * 3 + [1.0] * 9
    assert check_results(folder).ok


def test_scores_out_of_range_need_a_threshold(pair, grader):
    arguments, folder = pair
    Path(grader.rpartition(":")[0]).write_text("def score(completion, answer): return answer")
    with pytest.raises(CheckFailed, match="--correct-at"):
        evaluate(*arguments)
    assert evaluate(*arguments, "--correct-at", 7) == 0
    records = results.read_jsonl(folder / results.BASE_FILE)
    assert [record["correct"] for record in records] == [False] * 6 + [True] * 6


def test_a_judge_that_gives_no_verdict_ends_with_its_reply(pair, rehearsal):
    """A model of random weights judges; it is asked, and its words are shown."""
    (_, run, _, data, *_), folder = pair
    with pytest.raises(CheckFailed, match="the judge gave no verdict"):
        evaluate(
            "--run", run, "--data", data, "--limit", 2, "--grader", "judge",
            "--judge-model", rehearsal.model, "--judge-max-tokens", 8, "--max-tokens", 4, "--output", folder,
        )  # fmt: skip


def test_truncated_replies_are_said(pair, capsys):
    arguments, _ = pair
    assert evaluate(*arguments, "--max-tokens", 1) == 0
    assert "cut off at max_tokens=1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("phrase", "arguments"),
    [
        ("name what is evaluated", ["--data", "DATA", "--grader", "exact"]),
        ("give the tasks with --data", ["--model", "M", "--grader", "exact"]),
        ("say with --grader", ["--model", "M", "--data", "DATA"]),
        ("is empty", ["--model", "M", "--data", "EMPTY", "--grader", "exact"]),
        ("No such file", ["--model", "M", "--data", "NOWHERE", "--grader", "exact"]),
        ("no grader 'exat'", ["--model", "M", "--data", "DATA", "--grader", "exat"]),
        ("no file", ["--model", "M", "--data", "DATA", "--grader", "NOWHERE.py:score"]),
        ("needs --judge-model", ["--model", "M", "--data", "DATA", "--grader", "judge"]),
        ("cannot sample from", ["--model", "none/such", "--data", "DATA", "--grader", "exact"]),
        ("is not a path like", ["--checkpoint", "final", "--data", "DATA", "--grader", "exact"]),
        ("cannot be sampled from", ["--checkpoint", "STATE", "--data", "DATA", "--grader", "exact"]),
        ("cannot sample from", ["--checkpoint", "UNKNOWN", "--data", "DATA", "--grader", "exact"]),
        ("no such folder", ["--run", "NOWHERE", "--data", "DATA", "--grader", "exact"]),
        ("has no such field", ["--model", "M", "--data", "DATA", "--grader", "exact",
                               "--slice-by", "level"]),
        ("line 1: no answer", ["--model", "M", "--data", "UNANSWERED", "--grader", "exact"]),
        ("same reply 3 times", ["--model", "M", "--data", "DATA", "--grader", "exact",
                                "--samples", "3", "--temperature", "0"]),
        ("must lie in 1..1", ["--model", "M", "--data", "DATA", "--grader", "exact",
                              "--pass-at", "1,5"]),
        ("context window", ["--model", "M", "--data", "DATA", "--grader", "exact",
                            "--max-tokens", "5000"]),
        ("at least 1", ["--model", "M", "--data", "DATA", "--grader", "exact", "--limit", "0"]),
        ("finite", ["--model", "M", "--data", "DATA", "--grader", "exact",
                    "--temperature", "nan"]),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_writes_nothing(
    phrase, arguments, rehearsal, trained_run, data, tmp_path
):
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "unanswered.jsonl").write_text('{"prompt": "Why?"}\n')
    values = {
        "M": rehearsal.model,
        "DATA": data,
        "EMPTY": tmp_path / "empty.jsonl",
        "UNANSWERED": tmp_path / "unanswered.jsonl",
        "NOWHERE": tmp_path / "nowhere",
        "NOWHERE.py:score": tmp_path / "nowhere.py:score",
        "STATE": trained_run.state_path,
        "UNKNOWN": trained_run.sampler_path.rsplit("/", 1)[0] + "/nowhere",
    }
    output = tmp_path / "results"
    with pytest.raises(InputError, match=phrase) as caught:
        evaluate(*[values.get(argument, argument) for argument in arguments], "--output", output)
    assert "\n" not in str(caught.value)
    assert not output.exists() or not list(output.glob("*.json"))


def test_a_checkpoint_of_another_model_is_refused(trained_run, data, tmp_path):
    with pytest.raises(InputError, match=r"cannot sample from tiny:qwen3|was trained on"):
        evaluate(
            "--model", "tiny:qwen3", "--checkpoint", trained_run.sampler_path, "--data", data,
            "--grader", "exact", "--output", tmp_path / "results",
        )  # fmt: skip


def test_help_imports_nothing_heavy():
    code = (
        "import sys, eval_offline\n"
        "try: eval_offline.main(['--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'transformers', 'tinker', 'numpy', 'datasets'} & set(sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
