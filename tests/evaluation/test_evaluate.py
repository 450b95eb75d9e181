"""evaluate.py against a service that really trained: true numbers, resume, refusals."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tinkerlab.errors import InputError
from tinkerlab.evaluation import items, results, sft
from tinkerlab.evaluation.checking import check_results

SCRIPT = Path(__file__).parents[2] / "scripts" / "evaluate.py"


def command(*arguments) -> list[str]:
    return [sys.executable, str(SCRIPT), "nll", *map(str, arguments)]


def evaluate(*arguments) -> int:
    """The script's ``main`` in this process, which saves seconds of imports per call."""
    import evaluate as script

    return script.main(["nll", *map(str, arguments)])


@pytest.fixture(autouse=True)
def service(rehearsal, monkeypatch):
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY"):
        monkeypatch.setenv(name, rehearsal.env[name])


@pytest.fixture(scope="module")
def evaluated(rehearsal, trained_run, tmp_path_factory):
    """(results folder, summary) of one complete evaluation through the script."""
    folder = tmp_path_factory.mktemp("evaluated") / "results"
    done = subprocess.run(
        command("--run", trained_run.folder, "--output", folder, "--max-tokens", 8, "--json"),
        env=rehearsal.env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def test_the_folder_obeys_the_contract(evaluated, trained_run):
    folder, summary = evaluated
    verdict = check_results(folder)
    assert verdict.ok, verdict.findings
    assert verdict.notes == []
    assert verdict.items == len(trained_run.conversations)
    assert summary == json.loads((folder / results.SUMMARY_FILE).read_text())
    assert summary["seed"] == 3
    assert summary["tinker_run_id"] in trained_run.sampler_path
    assert not (folder / sft.PARTIAL_FILE).exists()
    assert {path.name for path in (folder / "logs" / "tiny-run").iterdir()} == {
        "checkpoints.jsonl",
        "config.json",
        "held_out.jsonl",
        "metrics.jsonl",
    }


def test_the_trained_figure_is_the_trainers_own_and_training_lowered_it(evaluated, trained_run):
    _, summary = evaluated
    assert summary["trained_nll"] == pytest.approx(trained_run.trainer_nll, abs=1e-4)
    assert summary["trained_nll"] < summary["baseline_nll"] - 0.5
    assert not summary["scores"]["difference"]["includes_zero"]


def test_the_base_figure_is_what_transformers_computes(evaluated, rehearsal):
    """Independent of our rendering and scoring: from the recorded text to a mean of logprobs."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, _ = evaluated
    tokenizer = AutoTokenizer.from_pretrained(rehearsal.model_dir)
    model = AutoModelForCausalLM.from_pretrained(rehearsal.model_dir, dtype=torch.float32)
    for record in results.read_jsonl(folder / results.BASE_FILE)[:3]:
        prompt = tokenizer.encode(record["prompt"], add_special_tokens=False)
        completion = tokenizer.encode(record["completion"], add_special_tokens=False)
        assert len(completion) == record["num_tokens"]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + completion])).logits[0].double()
        logprobs = torch.log_softmax(logits, -1)
        picked = [logprobs[len(prompt) + i - 1, token] for i, token in enumerate(completion)]
        assert record["nll"] == pytest.approx(-float(torch.stack(picked).mean()), abs=1e-4)


def test_examples_are_the_first_items_with_both_answers(evaluated, trained_run):
    folder, _ = evaluated
    examples = results.read_jsonl(folder / results.EXAMPLES_FILE)
    assert [example["index"] for example in examples] == [0, 1, 2, 3, 4]
    assert [example["reference"] for example in examples] == [
        messages[-1]["content"] for messages in trained_run.conversations[:5]
    ]
    assert any(example["base"] != example["trained"] for example in examples)


def test_done_before_means_nothing_to_do(evaluated, trained_run, monkeypatch, capsys):
    folder, summary = evaluated
    before = (folder / results.SUMMARY_FILE).stat().st_mtime_ns
    monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:9")  # nobody answers there
    assert evaluate("--run", trained_run.folder, "--output", folder, "--json") == 0
    printed = capsys.readouterr()
    assert "nothing to do" in printed.err
    assert json.loads(printed.out) == summary
    assert (folder / results.SUMMARY_FILE).stat().st_mtime_ns == before


def test_other_results_are_replaced_only_when_asked(evaluated, trained_run, tmp_path):
    folder = tmp_path / "results"
    shutil.copytree(evaluated[0], folder)
    data = tmp_path / "other.jsonl"
    data.write_text('{"prompt": "What is snow?", "completion": "Snow is frozen rain."}\n')
    arguments = ("--run", trained_run.folder, "--data", data, "--output", folder)
    with pytest.raises(InputError, match="other items"):
        evaluate(*arguments)
    assert len(results.read_jsonl(folder / results.BASE_FILE)) == len(trained_run.conversations)
    assert evaluate(*arguments, "--overwrite", "--max-tokens", 2) == 0
    assert len(results.read_jsonl(folder / results.BASE_FILE)) == 1
    verdict = check_results(folder)
    assert verdict.ok, verdict.findings


@pytest.mark.slow
def test_an_interrupted_evaluation_goes_on_and_ends_the_same(
    start_rehearsal, train_run, tmp_path, monkeypatch
):
    """Interrupted by Ctrl-C, gone on with, killed, gone on with: as if nothing had been."""
    folder = tmp_path / "results"
    partial = folder / sft.PARTIAL_FILE
    # Slow enough that a signal surely comes in the middle of the items.
    with start_rehearsal(faults=["latency:200ms,on=asample"]) as service:
        run = train_run(service, tmp_path / "tiny-run")
        monkeypatch.setenv("TINKER_BASE_URL", service.base_url)
        arguments = ("--run", run.folder, "--output", folder, "--max-tokens", 2)
        kept = 0
        for ending in (signal.SIGINT, signal.SIGKILL):
            process = subprocess.Popen(
                command(*arguments, "--in-flight", 1), env=service.env, stderr=subprocess.DEVNULL
            )
            while process.poll() is None and lines_in(partial) <= kept + 1:
                time.sleep(0.01)
            process.send_signal(ending)
            process.wait()
            assert process.returncode in (130, -ending), "it was over before the signal came"
            assert not (folder / results.SUMMARY_FILE).exists()
            kept = lines_in(partial)

        asked = []
        original = sft.nll.mean_nll
        monkeypatch.setattr(
            sft.nll, "mean_nll", lambda *call: asked.append(call) or original(*call)
        )
        assert evaluate(*arguments) == 0
        assert len(asked) == 2 * len(run.conversations) - kept
        assert evaluate(*arguments[:3], tmp_path / "whole", *arguments[4:]) == 0
    assert check_results(folder).ok
    for name in (results.BASE_FILE, results.TRAINED_FILE):
        whole = [record["nll"] for record in results.read_jsonl(tmp_path / "whole" / name)]
        found = [record["nll"] for record in results.read_jsonl(folder / name)]
        assert found == pytest.approx(whole, abs=1e-5)


def lines_in(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize(
    ("phrase", "arguments"),
    [
        ("no such folder", ["--run", "NOWHERE"]),
        ("no config.json", ["--run", "EMPTY"]),
        ("give --run LOG_PATH", []),
        ("weights cannot be sampled from", ["--run", "RUN", "--checkpoint", "STATE"]),
        ("is not a path like tinker://", ["--run", "RUN", "--checkpoint", "final"]),
        ("cannot sample from", ["--run", "RUN", "--checkpoint", "UNKNOWN"]),
        ("no-such-model", ["--run", "RUN", "--base-model", "no-such-model"]),
        ("No such file", ["--run", "RUN", "--data", "NOWHERE"]),
        ("at least 1", ["--run", "RUN", "--in-flight", "0"]),
    ],
)
def test_bad_input_is_one_line_that_says_what(trained_run, tmp_path, phrase, arguments):
    values = {
        "NOWHERE": str(tmp_path / "nowhere"),
        "EMPTY": str(tmp_path),
        "RUN": str(trained_run.folder),
        "STATE": trained_run.state_path,
        "UNKNOWN": trained_run.sampler_path.rsplit("/", 1)[0] + "/nowhere",
    }
    output = tmp_path / "results"
    with pytest.raises(InputError, match=phrase) as caught:
        evaluate(*[values.get(argument, argument) for argument in arguments], "--output", output)
    assert "\n" not in str(caught.value)
    assert not (output / results.SUMMARY_FILE).exists()


def test_a_model_that_the_checkpoint_was_not_trained_on_is_refused(trained_run, tmp_path):
    with pytest.raises(InputError, match=r"cannot sample from tiny:qwen3|was trained on"):
        evaluate(
            "--run", trained_run.folder, "--base-model", "tiny:qwen3",
            "--output", tmp_path / "results",
        )  # fmt: skip


class Tensor:
    def __init__(self, values):
        self.values = values

    def to_numpy(self):
        return np.array(self.values)


class Datum:
    """The parts of a tinker.Datum that scoring reads; targets are shifted by one."""

    def __init__(self, tokens, weights):
        self.tokens = tokens[:-1]
        self.loss_fn_inputs = {"target_tokens": Tensor(tokens[1:]), "weights": Tensor(weights)}

    @property
    def model_input(self):
        return self

    def to_ints(self):
        return self.tokens


class Letters:
    def decode(self, tokens):
        return "".join(chr(96 + token) for token in tokens)


def test_weights_are_those_of_the_next_token():
    # Weight i belongs to target i, which is token i + 1: "c" and "d" are scored here.
    item = items.item_of_datum(0, Datum([1, 2, 3, 4, 5], [0.0, 0.5, 0.5, 0.0]), Letters())
    assert item.tokens == (1, 2, 3, 4, 5)
    assert item.scored == (2, 3)
    assert (item.prompt, item.completion) == ("ab", "cde")
    assert item.prompt_tokens == (1, 2)


def test_an_item_without_a_scored_token_is_refused():
    with pytest.raises(InputError, match="item 4: none of its tokens is scored"):
        items.item_of_datum(4, Datum([1, 2, 3], [0.0, 0.0]), Letters())


@pytest.mark.parametrize(
    ("name", "content", "phrase"),
    [
        ("held_out.jsonl", "", "held no rows out"),
        ("checkpoints.jsonl", '{"name": "a", "state_path": "x"}\n', "no checkpoint to sample"),
        ("config.json", "{}", "not a config of sl_trainer"),
        ("config.json", "[", "not JSON"),
    ],
)
def test_an_unusable_run_folder_is_refused(trained_run, tmp_path, name, content, phrase):
    folder = tmp_path / "run"
    shutil.copytree(trained_run.folder, folder)
    (folder / name).write_text(content)
    with pytest.raises(InputError, match=phrase):
        items.read_run(folder)


def test_help_imports_nothing_heavy():
    code = (
        "import sys, evaluate\n"
        "try: evaluate.main(['nll', '--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'transformers', 'tinker', 'numpy'} & set(sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": str(SCRIPT.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
