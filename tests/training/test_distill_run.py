"""Distillation on a rehearsal: the KL to the teacher falls, and who may teach is checked."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tinker
import torch
from dpo_tools import adapter, final_adapter, rows_of, write
from merged_model import MergedModel
from safetensors.torch import load as load_tensors

import distill_trainer
from tinkerlab.errors import InputError
from tinkerlab.runs import checkpoints, metrics
from tinkerlab.training.distill.teachers import require_same_tokenizer

ROUNDING = 1e-3  # of the sampler's logits, carried through a few steps of training
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "distill_trainer.py"
RANK = 4


@pytest.fixture(autouse=True)
def use(rehearsal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY"):
        monkeypatch.setenv(name, rehearsal.env[name])


def prompts(count: int = 30, word: str = "plus") -> list[dict[str, str]]:
    return [{"prompt": f"What is {n} {word} one?"} for n in range(count)]


def teach(rehearsal: Any, folder: Path, reply: str) -> Path:
    """A run folder whose adapter was trained to answer every prompt by ``reply``."""
    import sl_trainer

    rows = [{"prompt": row["prompt"], "completion": reply} for row in prompts(40)]
    settings = {
        "base_model": rehearsal.model,
        "train_file": write(folder.parent / f"{folder.name}.jsonl", rows),
        "log_path": folder,
        "renderer": "qwen3_instruct",
        "learning_rate": 0.01,
        "lora_rank": RANK,
        "train_unembed": "false",
        "train_batch_size": 4,
        "num_steps": 20,
        "val_fraction": 0,
        "max_seq_len": 128,
    }
    assert sl_trainer.main([f"{key}={value}" for key, value in settings.items()]) == 0
    return folder


@pytest.fixture(scope="module")
def teachers(rehearsal: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two trained adapters, as run folders."""
    folder = tmp_path_factory.mktemp("teachers")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("TINKER_BASE_URL", "TINKER_API_KEY"):
            patch.setenv(name, rehearsal.env[name])
        return {reply: teach(rehearsal, folder / reply, reply * 3) for reply in ("yes", "NO")}


def settings(folder: Path, teacher: Any, **changes: Any) -> list[str]:
    if not (folder.parent / "prompts.jsonl").exists():
        write(folder.parent / "prompts.jsonl", prompts())
    values: dict[str, Any] = {
        "base_model": "tiny:llama",
        "dataset": folder.parent / "prompts.jsonl",
        "teacher": teacher,
        "log_path": folder,
        "renderer": "qwen3_instruct",
        "num_steps": 3,
        "groups_per_batch": 2,
        "group_size": 4,
        "max_tokens": 8,
        "learning_rate": 0.01,
        "lora_rank": RANK,
        "eval_every": 2,
        "save_every": 2,
        "max_eval_tasks": 3,
        **changes,
    }
    return [f"{key}={value}" for key, value in values.items() if value is not None]


Distil = Callable[..., dict[str, Any]]


@pytest.fixture
def distil(capsys: pytest.CaptureFixture[str]) -> Distil:
    """Runs the script and gives its summary."""

    def run(folder: Path, teacher: Any, code: int = 0, **changes: Any) -> dict[str, Any]:
        capsys.readouterr()
        assert distill_trainer.main([*settings(folder, teacher, **changes), "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return run


LONG = {"num_steps": 12, "groups_per_batch": 4, "group_size": 8, "eval_every": 6}


def test_on_policy_lowers_the_kl_to_the_teacher(
    tmp_path: Path, teachers: dict[str, Path], distil: Distil
) -> None:
    found = distil(tmp_path / "run", teachers["yes"], **LONG)
    assert found["status"] == "complete"
    assert found["teacher_kl_first"] > 0.5
    assert found["held_out_teacher_kl_last"] < 0.5 * found["held_out_teacher_kl_first"]
    rows = rows_of(tmp_path / "run")
    assert {"teacher_kl", "teacher_kl/dataset_0", "num_tokens"} <= set(rows[0])
    assert abs(rows[0]["optim/kl_sample_train_v1"]) < 1e-4  # on-policy: only rounding
    assert not any(key.startswith("env/all/reward") for key in rows[0])


def test_off_policy_lowers_the_same_kl(
    tmp_path: Path, teachers: dict[str, Path], distil: Distil
) -> None:
    found = distil(tmp_path / "run", teachers["yes"], method="off_policy", **LONG)
    assert found["held_out_teacher_kl_last"] < 0.5 * found["held_out_teacher_kl_first"]
    assert found["train_nll_last"] < found["train_nll_first"]
    traces = (tmp_path / "run" / "traces.jsonl").read_text().splitlines()
    assert len(traces) == 28 * 8  # two prompts are held out
    first = json.loads(traces[0])
    assert first["messages"][-1]["role"] == "assistant"
    assert len(first["completion_tokens"]) <= 8


def test_each_dataset_learns_from_its_own_teacher(
    tmp_path: Path, rehearsal: Any, teachers: dict[str, Path], distil: Distil
) -> None:
    both = {
        str(write(tmp_path / f"{word}.jsonl", prompts(word=word))): str(teachers[teacher])
        for word, teacher in (("plus", "yes"), ("minus", "NO"))
    }
    asked: list[str] = []
    original = tinker.SamplingClient.compute_logprobs_async

    async def record(client: Any, prompt: Any) -> Any:
        text = MergedModel(rehearsal.model_dir, RANK).tokenizer.decode(prompt.to_ints())
        asked.append((client._sampling_session_id, "minus" in text))  # type: ignore[arg-type]
        return await original(client, prompt)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tinker.SamplingClient, "compute_logprobs_async", record)
        changes = {"dataset": None, "teachers": json.dumps(both), "group_size": 1, "num_steps": 1}
        distil(tmp_path / "short", None, **changes)
    assert len(set(asked)) == 2  # one teacher for each kind of prompt
    row = rows_of(tmp_path / "short")[0]
    assert row["num_sequences"] == 4
    assert {"teacher_kl/dataset_0", "teacher_kl/dataset_1", "test/teacher_kl/dataset_1"} <= set(row)


def test_the_kl_and_the_advantages_are_those_computed_by_hand(
    tmp_path: Path,
    rehearsal: Any,
    teachers: dict[str, Path],
    distil: Distil,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of step 0, whose student is the base model; the teacher is merged in transformers."""
    sent: list[list[tinker.Datum]] = []
    original = tinker.TrainingClient.forward_backward

    def record(client: Any, batch: Any, loss_fn: Any, loss_fn_config: Any = None) -> Any:
        sent.append(batch)
        assert (loss_fn, loss_fn_config) == ("importance_sampling", None)
        return original(client, batch, loss_fn, loss_fn_config=loss_fn_config)

    monkeypatch.setattr(tinker.TrainingClient, "forward_backward", record)
    distil(tmp_path / "run", teachers["yes"], num_steps=1, kl_penalty_coef=0.5, eval_every=0)
    model = MergedModel(rehearsal.model_dir, RANK)
    state = str(checkpoints.read(teachers["yes"])[-1].state_path)
    teacher = model.merged(load_tensors(adapter(rehearsal, state)))
    total = count = 0.0
    for datum in sent[0]:
        inputs = datum.loss_fn_inputs
        tokens = [*datum.model_input.to_ints(), int(inputs["target_tokens"].data[-1])]
        with torch.no_grad():
            student, judged = (
                model.token_logprobs(weights, tokens) for weights in (model.base(), teacher)
            )
        sampled = inputs["logprobs"].to_torch() != 0
        kl = (student - judged)[sampled]
        expected = torch.zeros(len(tokens) - 1)
        expected[sampled] = -0.5 * kl
        assert torch.allclose(inputs["advantages"].to_torch(), expected, atol=1e-4)
        assert torch.allclose(inputs["logprobs"].to_torch()[sampled], student[sampled], atol=1e-4)
        total, count = total + float(kl.sum()), count + len(kl)
    logged = rows_of(tmp_path / "run")[0]["teacher_kl"]
    assert math.isclose(logged, total / count, rel_tol=1e-3)


def same(folder: Path, other: Path) -> None:
    """The numbers agree to rounding."""
    for row, expected in zip(rows_of(folder), rows_of(other), strict=True):
        assert row.keys() == expected.keys()
        for key, value in expected.items():
            assert math.isclose(row[key], value, rel_tol=ROUNDING, abs_tol=ROUNDING), key


def test_the_same_seed_gives_the_same_run(
    tmp_path: Path, teachers: dict[str, Path], distil: Distil
) -> None:
    distil(tmp_path / "one", teachers["yes"])
    distil(tmp_path / "two", teachers["yes"])
    same(tmp_path / "two", tmp_path / "one")
    assert distil(tmp_path / "two", teachers["yes"])["status"] == "already complete"


@pytest.mark.parametrize("method", ["on_policy", "off_policy"])
@pytest.mark.parametrize("stop_after", [0, 1])
def test_interrupted_after_any_step_it_ends_the_same(
    tmp_path: Path,
    rehearsal: Any,
    teachers: dict[str, Path],
    distil: Distil,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    stop_after: int,
) -> None:
    distil(tmp_path / "whole", teachers["yes"], method=method)
    append = metrics.append

    def append_and_press(path: Path, step: int, row: Any) -> None:
        append(path, step, row)
        if step == stop_after:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(metrics, "append", append_and_press)
        stopped = distil(tmp_path / "run", teachers["yes"], code=130, method=method)
    assert stopped["status"] == "interrupted"
    assert distil(tmp_path / "run", teachers["yes"], method=method)["status"] == "complete"
    same(tmp_path / "run", tmp_path / "whole")
    if method == "off_policy":  # the same traces give the same bits
        files = [final_adapter(rehearsal, tmp_path / name) for name in ("run", "whole")]
        assert files[0] == files[1]


@pytest.mark.parametrize(
    ("teacher", "changes", "message"),
    [
        ("tiny:llama", {}, "is the student itself; there is nothing to learn"),
        ("tinker://run/weights/x", {}, "give the sampler_weights path"),
        ("tinker://none/sampler_weights/x", {}, "does not sample from teacher tinker://none"),
        ("no/such", {}, "does not sample from teacher no/such"),
        (".", {}, "this folder records no sampler checkpoint"),
        (None, {}, "missing: dataset and teacher"),
        ("t", {"dataset": "none.jsonl"}, "none.jsonl"),
        ("t", {"groups_per_batch": 40}, "fewer than groups_per_batch=40; set it to 28 or less"),
        ("t", {"max_tokens": 100_000}, "more do not fit into the context"),
        ("t", {"learning_rate": "auto"}, "learning_rate=auto: no value for tiny:llama"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    teacher: str | None,
    changes: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        distill_trainer.main(settings(tmp_path / "run", teacher, **changes))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_teacher_of_another_tokenizer_is_refused() -> None:
    from tinkerlab.data import load_tokenizer
    from tinkerlab.rehearsal.models.registry import DEFAULT_MODEL

    student = load_tokenizer("tiny:llama")
    require_same_tokenizer("t", "tiny:qwen3", "tiny:llama", student)  # the same bytes
    with pytest.raises(InputError, match=r"has another tokenizer than tiny:llama: .* differ") as e:
        require_same_tokenizer("runs/x", DEFAULT_MODEL, "tiny:llama", student)
    assert "\n" not in str(e.value)


def test_other_settings_do_not_go_on_with_a_run(
    tmp_path: Path, teachers: dict[str, Path], distil: Distil
) -> None:
    distil(tmp_path / "run", teachers["yes"], num_steps=1)
    with pytest.raises(InputError, match="teacher_models was"):
        distil(tmp_path / "run", teachers["NO"], num_steps=1)
    with pytest.raises(InputError, match="max_tokens was 8 and is 9"):
        distil(tmp_path / "run", teachers["yes"], num_steps=1, max_tokens=9)


def test_traces_that_are_gone_are_not_trained_on(
    tmp_path: Path, teachers: dict[str, Path], distil: Distil, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = metrics.append

    def append_and_press(path: Path, step: int, row: Any) -> None:
        append(path, step, row)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(metrics, "append", append_and_press)
        distil(tmp_path / "run", teachers["yes"], code=130, method="off_policy")
    traces = tmp_path / "run" / "traces.jsonl"
    whole = traces.read_text()
    traces.write_text(whole[: len(whole) // 2].rsplit("\n", 1)[0] + "\n")
    with pytest.raises(InputError, match=r"holds \d+ traces of 112; it is not as this run left it"):
        distil(tmp_path / "run", teachers["yes"], method="off_policy")
    traces.write_text(whole)
    distil(tmp_path / "run", teachers["yes"], method="off_policy")


def test_help_and_a_dry_run(
    tmp_path: Path, teachers: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    code = (
        "import sys, distill_trainer\n"
        "try: distill_trainer.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'tinker', 'tinker_cookbook', 'rich'}\n"
        "sys.exit(1 if heavy & set(sys.modules) else 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(SCRIPT.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0
    assert "python scripts/distill_trainer.py --config" in result.stdout
    arguments = settings(tmp_path / "run", teachers["yes"])
    assert distill_trainer.main([*arguments, "--dry-run", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["status"], document["train_prompts"]) == ("checked", 28)
    assert not (tmp_path / "run").exists()
