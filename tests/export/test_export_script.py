"""The script from end to end: train at the rehearsal, export, verify, damage, verify again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tinkerlab.runs import jsonl

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "export_model.py"


def run(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=env,
        timeout=300,
    )


@pytest.fixture(scope="module")
def checkpoint(rehearsal) -> str:
    """Train a few steps and return the training checkpoint's path."""
    from tinker import AdamParams, Datum, ModelInput, TensorData

    with rehearsal.client() as client:
        trainer = client.create_lora_training_client(base_model=rehearsal.model, rank=4).result()
        tokens = list(b"user: Which planet is the largest? assistant: Jupiter, by far.")
        count = len(tokens) - 1
        datum = Datum(
            model_input=ModelInput.from_ints(tokens[:-1]),
            loss_fn_inputs={
                "target_tokens": TensorData(data=tokens[1:], dtype="int64", shape=[count]),
                "weights": TensorData(data=[1.0] * count, dtype="float32", shape=[count]),
            },
        )
        for _ in range(8):
            trainer.forward_backward([datum], "cross_entropy")
            trainer.optim_step(AdamParams(learning_rate=2e-2)).result()
        return trainer.save_state("export-test").result().path


@pytest.mark.slow
def test_export_verify_damage_verify(rehearsal, checkpoint, edit, tmp_path) -> None:
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    older = {"name": "000002", "step": 2, "state_path": "tinker://gone:train:0/weights/older"}
    newest = {"name": "final", "step": 8, "state_path": checkpoint}
    jsonl.rewrite(run_folder / "checkpoints.jsonl", [older, newest])
    command = ["--run", run_folder, "--output", tmp_path / "out", "--max-tokens", 64]
    first = run(*command, "--json", env=rehearsal.env)
    assert first.returncode == 0, first.stdout + first.stderr
    document = json.loads(first.stdout)
    assert document["good"] is True
    assert document["weights"]["changed"] == 15
    assert document["behaviour"]["effect"]["mean"] > 0.05
    assert document["behaviour"]["merged"]["distance"]["largest"] < 1e-3
    assert document["behaviour"]["adapter"]["good"] is True

    name = "model.layers.1.self_attn.o_proj.weight"
    edit(tmp_path / "out/merged", name, lambda tensor: tensor.flip(0))
    second = run(*command, "--engine", "vllm", env=rehearsal.env)
    assert second.returncode == 1, second.stdout + second.stderr
    assert "from an earlier run" in second.stderr
    assert second.stdout.startswith("NOT GOOD")
    assert "layers 1" in second.stdout
    assert name in second.stdout
    assert "note: vllm: uncertain: lm_head" in second.stdout  # tiny:llama ties it to the input

    engine = run("check-adapter", tmp_path / "out/adapter", "--engine", "peft", "--json")
    assert engine.returncode == 0, engine.stderr
    assert json.loads(engine.stdout)["verdict"] == "applies all"


def test_a_checkpoint_that_is_not_there(rehearsal, tmp_path) -> None:
    missing = "tinker://00000000-0000-4000-8000-000000000000:train:0/weights/none"
    result = run("--checkpoint", missing, "--output", tmp_path / "out", env=rehearsal.env)
    assert result.returncode in (1, 2), result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--checkpoint", "tinker://r:train:0/sampler_weights/x"], "can't be downloaded"),
        (["--checkpoint", "nonsense"], "not a checkpoint path"),
        (["--run", "."], "checkpoints.jsonl names no training state"),
        (["--checkpoint", "."], "--base-model"),
        (["--checkpoint", ".", "--base-model", "tiny:llama"], "--sampler"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, words, tmp_path) -> None:
    result = run(*arguments, "--output", tmp_path / "out")
    assert result.returncode == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("arguments", [["--help"], ["check-adapter", "--help"]])
def test_help_imports_nothing_heavy(arguments) -> None:
    code = (
        "import sys, runpy\n"
        f"sys.argv = ['export_model.py', *{arguments!r}]\n"
        "try:\n"
        f"    runpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n"
        "except SystemExit as stop:\n"
        "    assert not stop.code\n"
        "print([m for m in ('torch', 'transformers', 'tinker', 'numpy') if m in sys.modules])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=SCRIPT.parent,
        env={"PYTHONPATH": str(SCRIPT.parent)},
    )
    assert "example" in result.stdout
    assert result.stdout.endswith("[]\n"), result.stdout + result.stderr
