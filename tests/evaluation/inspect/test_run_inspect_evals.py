"""run_inspect_evals.py: Inspect itself, through the bridge, on a service that really samples."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tinkerlab.errors import InputError
from tinkerlab.evaluation import results, suite_results
from tinkerlab.evaluation.checking import check_results
from tinkerlab.rehearsal.models.registry import DEFAULT_MODEL

SCRIPTS = Path(__file__).parents[3] / "scripts"
DEAD = "http://127.0.0.1:9"
pytestmark = pytest.mark.usefixtures("service")


def run(*arguments) -> int:
    import run_inspect_evals as script

    return script.main([*map(str, arguments)])


@pytest.fixture
def start(task_file, rehearsal, tmp_path):
    """``start("sums", ...)`` runs tasks of the file on the base model; returns the exit code."""
    output = tmp_path / "results"

    def go(*names: str, options=(), max_tokens=12) -> int:
        named = [part for name in names for part in ("--task", f"{task_file}@{name}")]
        length = ("--max-tokens", max_tokens) if max_tokens else ()
        model = ("--model", rehearsal.model) if "--run" not in options else ()
        return run(*model, *named, *length, "--output", output, *options)

    go.output = output
    return go


def scores(folder: Path) -> dict:
    return results.read_json(folder / suite_results.SCORES_FILE)


def samples(output: Path, task: str) -> list:
    """The samples of the newest log of a task, read as any user of Inspect reads them."""
    from inspect_ai.log import list_eval_logs, read_eval_log

    logs = [read_eval_log(info) for info in list_eval_logs(str(output / "logs"))]
    return next(log for log in logs if log.eval.task == task).samples or []


def test_base_against_trained(start, trained_run, capsys):
    options = ("--run", trained_run.folder, "--json")
    assert start("sums", "exact", options=options) == 0
    sums, exact = json.loads(capsys.readouterr().out)
    assert sums["summary"]["suite"] == "inspect:sums"
    assert exact["summary"]["suite"] == "inspect:exact"
    for found in (sums, exact):
        folder = start.output / found["summary"]["suite"].partition(":")[2]
        verdict = check_results(folder)
        assert verdict.ok, verdict.findings
        assert (verdict.task_type, verdict.items, verdict.notes) == ("rl", 6, [])
        assert found["summary"] == results.read_json(folder / results.SUMMARY_FILE)
    folder = start.output / "sums"
    base = results.read_jsonl(folder / results.BASE_FILE)
    trained = results.read_jsonl(folder / results.TRAINED_FILE)
    for records, key, name in (
        (base, "base", "baseline_score"),
        (trained, "trained", "trained_score"),
    ):
        # Counted by hand from the replies: the task's rule, nothing of ours.
        right = [len(record["completion"]) % 2 == 0 for record in records]
        assert [record["correct"] for record in records] == right
        assert sums["summary"][name] == pytest.approx(sum(right) / 6)
        told = sums["summary"]["inspect"][key]
        assert told["metrics"]["accuracy"] == pytest.approx(sums["summary"][name])
        assert told["agrees"] is True
        assert told["temperatures"] == [0.0] and told["max_tokens"] == [12]
        assert all(
            record["extracted_answer"] == str(len(record["completion"])) for record in records
        )
    assert [record["completion"] for record in base] != [record["completion"] for record in trained]
    assert [record["question"] for record in base] == [f"What is {i} plus 1?" for i in range(6)]
    assert [record["ground_truth"] for record in base] == ["1", "2", "3", "4", "5", "6"]


@pytest.mark.parametrize("in_flight, most", [(256, 12), (2, 2)])
def test_requests_of_both_models_are_in_flight_together(
    start, trained_run, monkeypatch, in_flight, most
):
    from tinkerlab.evaluation.inspect import bridge

    active: list[object] = []
    seen = []
    original = bridge._Recorder.sample_async

    async def counted(self, **request):
        active.append(request)
        seen.append(len(active))
        try:
            return await original(self, **request)
        finally:
            active.remove(request)

    monkeypatch.setattr(bridge._Recorder, "sample_async", counted)
    assert start("sums", options=("--run", trained_run.folder, "--in-flight", in_flight)) == 0
    assert (len(seen), max(seen)) == (12, most)


def test_replies_are_what_the_service_samples(start, rehearsal):
    """The greedy reply to the first sample, asked for without our code and without Inspect."""
    import tinker

    from tinkerlab.data import load_tokenizer, resolve_renderer

    assert start("sums", options=("--limit", 3)) == 0
    tokenizer = load_tokenizer(rehearsal.model)
    renderer = resolve_renderer(rehearsal.model, tokenizer).renderer
    client = rehearsal.client().create_sampling_client(base_model=rehearsal.model).result()
    response = client.sample(
        prompt=renderer.build_generation_prompt([{"role": "user", "content": "What is 0 plus 1?"}]),
        num_samples=1,
        sampling_params=tinker.SamplingParams(
            max_tokens=12, temperature=0.0, stop=renderer.get_stop_sequences()
        ),
    ).result()
    records = results.read_jsonl(start.output / "sums" / results.BASE_FILE)
    assert len(records) == 3
    expected = tokenizer.decode(response.sequences[0].tokens, skip_special_tokens=True)
    assert records[0]["completion"].strip() == expected.strip()


def test_kinds_of_tasks(start):
    assert start("colours", "calculator", "conversation") == 0
    record = results.read_jsonl(start.output / "colours" / results.BASE_FILE)[0]
    assert record["question"] == "Which is a colour?\nA) Table\nB) Blue\nC) Seven"
    assert record["ground_truth"] == "B"
    (event,) = [e for e in samples(start.output, "calculator")[0].events if e.event == "model"]
    assert [tool.name for tool in event.tools] == ["add"]
    record = results.read_jsonl(start.output / "conversation" / results.BASE_FILE)[0]
    assert record["question"] == "system: Be brief.\n\nuser: Say hello."
    assert record["ground_truth"] == '["hello", "hi"]'


def test_truncated_replies_are_counted_and_said(start, capsys):
    assert start("sums") == 0
    records = results.read_jsonl(start.output / "sums" / results.BASE_FILE)
    events = [e for s in samples(start.output, "sums") for e in s.events if e.event == "model"]
    # The bridge says nothing of this; the lengths do.
    cut = [event.output.usage.output_tokens == 12 for event in events]
    assert any(cut)
    found = scores(start.output / "sums")
    assert found["inspect"]["base"]["truncated_replies"] == sum(cut)
    assert found["facts"]["base"]["truncated"] == sum(record["truncated"] for record in records)
    assert "cut off at max_tokens=12; raise --max-tokens" in capsys.readouterr().out


def test_a_share_over_epochs_is_inspects_mean(start):
    assert start("share") == 0
    found = scores(start.output / "share")
    assert found["inspect"]["base"]["temperatures"] == [1.0]  # the task's own
    by_id: dict[str, list] = {}
    for sample in samples(start.output, "share"):
        text = sample.output.completion
        by_id.setdefault(sample.id, []).append(sum(c.isalpha() for c in text) / max(len(text), 1))
    assert {len(values) for values in by_id.values()} == {2}
    # Another seed for each epoch: the same would give the same reply twice.
    assert any(first != second for first, second in by_id.values())
    records = results.read_jsonl(start.output / "share" / results.BASE_FILE)
    assert [r["correct"] for r in records] == pytest.approx([sum(v) / 2 for v in by_id.values()])
    assert found["score"] == pytest.approx(found["inspect"]["base"]["metrics"]["mean"])
    assert found["inspect"]["base"]["agrees"] is True


def test_a_given_temperature_wins_over_the_tasks(start):
    assert start("share", options=("--temperature", 0, "--limit", 2)) == 0
    found = scores(start.output / "share")
    assert found["inspect"]["base"]["temperatures"] == [0.0]


def logs(output: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (output / "logs").glob("*.eval")}


def test_several_values(start, capsys):
    assert start("many_values") == 1
    assert "several values (even, length); say which" in capsys.readouterr().out
    before = logs(start.output)
    assert start("many_values", options=("--score", "even")) == 0
    assert logs(start.output) == before  # nothing was sampled
    found = scores(start.output / "many_values")
    records = results.read_jsonl(start.output / "many_values" / results.BASE_FILE)
    assert found["score"] == sum(len(r["completion"]) % 2 == 0 for r in records) / 6
    assert found["inspect"]["base"]["metrics"] == {"accuracy": found["score"]}
    assert start("many_values", options=("--score", "odd", "--overwrite")) == 1
    assert "several values (even, length)" in capsys.readouterr().out


def test_two_scorers(start, capsys):
    assert start("two_scorers") == 0
    assert scores(start.output / "two_scorers")["inspect"]["base"]["scorer"] == "even"
    assert start("two_scorers", options=("--score", "match", "--overwrite")) == 0
    found = scores(start.output / "two_scorers")
    assert (found["inspect"]["base"]["scorer"], found["score"]) == ("match", 0.0)
    assert start("two_scorers", options=("--score", "nope/x", "--overwrite")) == 1
    assert "no scorer 'nope'; it has even, match" in capsys.readouterr().out


def test_scores_out_of_range(start, capsys):
    assert start("too_large") == 1
    assert "not in 0..1; say with --correct-at" in capsys.readouterr().out
    assert not (start.output / "too_large").exists()
    assert start("too_large", options=("--correct-at", 10)) == 0
    records = results.read_jsonl(start.output / "too_large" / results.BASE_FILE)
    assert [r["correct"] for r in records] == [len(r["completion"]) >= 10 for r in records]


def test_items_without_a_score_are_left_out_and_counted(start, capsys):
    assert start("unscored") == 0
    assert "1 item left out (base: not scored: no verdict)" in capsys.readouterr().out
    found = scores(start.output / "unscored")
    assert (found["score"], found["dataset"]["items"], found["left_out"]["items"]) == (1.0, 5, 1)
    assert found["inspect"]["base"]["agrees"] is True


def test_a_failed_sample_is_asked_again_and_no_other(start, monkeypatch, capsys):
    monkeypatch.setenv("FAIL_AT", "2")
    assert start("fragile", "sums") == 1
    out = capsys.readouterr().out
    assert "1 item left out" in out and "the tool broke" in out
    assert scores(start.output / "fragile")["dataset"]["items"] == 5
    assert scores(start.output / "sums")["dataset"]["items"] == 6  # the others are not stopped
    first = {s.id: s.uuid for s in samples(start.output, "fragile")}
    monkeypatch.delenv("FAIL_AT")
    assert start("fragile", "sums") == 0
    second = {s.id: s.uuid for s in samples(start.output, "fragile")}
    assert [name for name in first if first[name] != second[name]] == ["sum-2"]
    found = scores(start.output / "fragile")
    assert (found["dataset"]["items"], found["left_out"]["items"]) == (6, 0)


def test_when_every_sample_fails(start, monkeypatch, capsys):
    monkeypatch.setenv("FAIL_AT", "0")
    assert start("fragile", options=("--limit", 1)) == 1
    assert "no item has an outcome" in capsys.readouterr().out
    assert not (start.output / "fragile" / suite_results.SCORES_FILE).exists()


@pytest.mark.slow
@pytest.mark.parametrize("ended", [signal.SIGINT, signal.SIGKILL], ids=lambda s: s.name)
def test_an_interrupted_command_goes_on(start, task_file, rehearsal, ended, tmp_path):
    trace = tmp_path / "trace"
    command = [sys.executable, SCRIPTS / "run_inspect_evals.py", "--model", rehearsal.model]
    command += ["--task", f"{task_file}@fragile", "--max-tokens", "12", "--in-flight", "1"]
    command += ["--output", start.output]
    whole = {**os.environ, **rehearsal.env, "TRACE": str(trace)}

    def go(code, **environment):
        trace.write_text("")
        env = {**whole, **environment}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        assert code == 0 or "there from before" not in done.stderr
        return sorted(trace.read_text().split())

    order = [f"sum-{i}" for i in range(6)]
    code = 130 if ended == signal.SIGINT else -signal.SIGKILL
    assert go(code, END_AT="4", END_WITH=str(int(ended))) == order[:5]
    assert not (start.output / "fragile" / suite_results.SCORES_FILE).exists()
    assert go(0) == order[4:]  # what was finished before is not asked again
    command[-1] = tmp_path / "whole"
    assert go(0) == order
    file = Path("fragile") / results.BASE_FILE
    assert (start.output / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_done_before_means_nothing_to_do(start, monkeypatch, capsys):
    assert start("sums") == 0
    before = (start.output / "sums" / suite_results.SCORES_FILE).read_bytes()
    monkeypatch.setenv("TINKER_BASE_URL", DEAD)
    assert start("sums") == 0
    assert "nothing to do" in capsys.readouterr().err
    assert (start.output / "sums" / suite_results.SCORES_FILE).read_bytes() == before


def test_a_log_that_was_cut_short_is_named(start):
    assert start("sums", options=("--limit", 1)) == 0
    (log,) = (start.output / "logs").glob("*.eval")
    log.write_bytes(log.read_bytes()[:-100])
    with pytest.raises(InputError, match=rf"{log.name}: no whole log"):
        start("sums", options=("--limit", 2, "--overwrite"))
    log.unlink()
    assert start("sums", options=("--limit", 2, "--overwrite")) == 0


def test_a_file_in_the_way_of_results_is_found_before_anything_is_sampled(start):
    start.output.mkdir()
    (start.output / "sums").touch()
    with pytest.raises(InputError, match="sums is a file"):
        start("sums")
    assert list(start.output.iterdir()) == [start.output / "sums"]


def test_another_evaluation_is_refused(start, task_file):
    assert start("sums") == 0
    with pytest.raises(InputError, match=r"other max_tokens"):
        start("sums", max_tokens=13)
    with pytest.raises(InputError, match=r"other limit"):
        start("sums", options=("--limit", 2))
    task_file.write_text(task_file.read_text().replace("plus 1?", "plus one?"))
    with pytest.raises(InputError, match=r"other task_file"):
        start("sums")
    assert start("sums", options=("--overwrite",)) == 0
    questions = results.read_jsonl(start.output / "sums" / results.BASE_FILE)
    assert questions[0]["question"] == "What is 0 plus one?"


def test_a_task_beside_others(start):
    assert start("sums") == 0
    before = logs(start.output)
    assert start("sums", "exact") == 0
    assert before.items() <= logs(start.output).items()
    assert (start.output / "exact" / suite_results.SCORES_FILE).exists()


def test_a_judge_is_another_model(start, rehearsal, capsys):
    assert start("graded", options=("--judge-model", rehearsal.model)) in (0, 1)
    by_model: dict[str, int] = {}
    for sample in samples(start.output, "graded"):
        for event in sample.events:
            if event.event == "model":
                by_model[event.model] = by_model.get(event.model, 0) + 1
    assert by_model == {
        f"tinkerlab/{rehearsal.model}": 2,
        f"tinkerlab/judge/{rehearsal.model}": 2,
    }


def test_a_renderer_without_tools(start, capsys):
    assert start("calculator", options=("--renderer", "role_colon")) == 1
    assert "renderer role_colon can't declare tools" in capsys.readouterr().out
    (first, _) = samples(start.output, "calculator")
    assert not [e for e in first.events if e.event == "model" and e.error is None]


def test_a_preset_with_tools_is_refused_before_anything_runs(rehearsal, tmp_path):
    with pytest.raises(InputError, match=r"tau2_airline: renderer role_colon can't declare tools"):
        run("--model", rehearsal.model, "--judge-model", rehearsal.model, "--task", "tau2_airline",
            "--renderer", "role_colon", "--output", tmp_path / "results")  # fmt: skip
    assert not (tmp_path / "results").exists()


def test_a_task_of_inspect_evals_itself(rehearsal, task_file, tmp_path, capsys):
    """tau2_airline, whose data are in the package. Its prompts are over the tiny model's window, and
    the task catches the service's refusal: nothing but the log tells."""
    output = tmp_path / "results"
    code = run(
        "--model", rehearsal.model, "--judge-model", rehearsal.model, "--task", "tau2_airline",
        "--limit", 2, "-T", "message_limit=1", "--max-tokens", 8, "--output", output,
    )  # fmt: skip
    assert code == 0
    found = scores(output / "tau2_airline")
    assert found["dataset"]["items"] == 2 and found["inspect"]["base"]["agrees"] is True
    assert found["inspect"]["base"]["requests_passed_over"] == 2
    assert "2 requests failed (base), and the task went on" in capsys.readouterr().out


@pytest.mark.slow
def test_a_real_model(start_rehearsal, task_file, tmp_path, monkeypatch):
    """SmolLM2 answers in words, and sees the tool that it is given."""
    with start_rehearsal(model=DEFAULT_MODEL) as server:
        for name in ("TINKER_BASE_URL", "TINKER_API_KEY"):
            monkeypatch.setenv(name, server.env[name])
        named = [
            part for name in ("sums", "calculator") for part in ("--task", f"{task_file}@{name}")
        ]
        output = tmp_path / "results"
        assert run("--model", server.model, *named, "--max-tokens", 48, "--output", output) == 0
        records = results.read_jsonl(output / "sums" / results.BASE_FILE)
        assert any(str(i + 1) in record["completion"] for i, record in enumerate(records))
        assert scores(output / "calculator")["inspect"]["base"]["agrees"] is True
