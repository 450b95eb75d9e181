"""The script itself: what it prints, and how it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tinker

import sl_trainer
from tinkerlab import service
from tinkerlab.errors import CheckFailed, InputError
from tinkerlab.runs import checkpoints, metrics
from tinkerlab.training.ordering import submit_sampler_save

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "sl_trainer.py"


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    file = tmp_path / "chats.jsonl"
    rows = [{"prompt": f"Say {i}.", "completion": f"{i}, of course."} for i in range(12)]
    file.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return file


def settings(chats: Path, folder: Path, **changes: Any) -> list[str]:
    values = {
        "base_model": "tiny:llama",
        "train_file": chats,
        "log_path": folder,
        "num_steps": 2,
        "train_batch_size": 2,
        "max_seq_len": 64,
        "lora_rank": 2,
        "learning_rate": 0.01,
        "renderer": "qwen3_instruct",
        **changes,
    }
    return [f"{key}={value}" for key, value in values.items()]


def script(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        check=False,
        timeout=300,
    )


def test_help_shows_an_example_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, sl_trainer\n"
        "try: sl_trainer.main(['--help'])\n"
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
    assert "python scripts/sl_trainer.py --config" in result.stdout


def test_a_mistake_in_the_config_is_one_line_and_exit_2() -> None:
    result = script("base_model=m", "train_fil=x.jsonl")
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == (
        "error: command line: unknown key 'train_fil'; did you mean train_file?\n"
    )


def test_a_dry_run_checks_everything_and_trains_nothing(
    chats: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert sl_trainer.main([*settings(chats, folder), "--dry-run", "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["status"] == "checked"
    assert document["total_steps"] == 2
    assert document["train_rows"] == 11 and document["held_out_rows"] == 1
    assert document["data"]["ok"] is True
    assert "learning_rate: 0.01" in captured.err
    assert captured.err.count("trained tokens marked") == 3
    assert "[[" in captured.err
    assert not folder.exists()


def test_bad_data_is_refused_before_anything_is_trained(chats: Path, tmp_path: Path) -> None:
    with chats.open("a") as file:
        file.write('\n{"prompt": "x"}\n')
    with pytest.raises(InputError, match="line 13"):
        sl_trainer.main(settings(chats, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_service_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-dummy")
    monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:9")
    with pytest.raises(InputError, match=r"http://127\.0\.0\.1:9 does not answer") as caught:
        service.connect("run", {})
    assert "rehearse.py run" in str(caught.value)


def test_a_missing_key_is_one_line(
    rehearsal: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", rehearsal.base_url)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InputError, match="can't use http") as caught:
        service.connect("run", {})
    assert "\n" not in str(caught.value)


def use(rehearsal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY"):
        monkeypatch.setenv(name, rehearsal.env[name])


def test_it_trains_for_real_and_says_so(
    rehearsal: Any,
    chats: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    use(rehearsal, monkeypatch)
    folder = tmp_path / "run"
    assert sl_trainer.main([*settings(chats, folder, eval_every=1), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["status"] == "complete"
    assert summary["held_out_nll_last"] < summary["held_out_nll_first"]
    assert len(metrics.read(folder)) == 3
    listed = rehearsal.rest().list_checkpoints(summary["training_run"]).result().checkpoints
    paths = {checkpoint.tinker_path: checkpoint.expires_at for checkpoint in listed}
    assert paths[summary["state_path"]] is None
    assert paths[summary["sampler_path"]] is None


def test_a_real_explosion_stops_the_run(
    rehearsal: Any, chats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(rehearsal, monkeypatch)
    folder = tmp_path / "run"
    changes = {"learning_rate": 1e36, "lr_schedule": "constant", "num_steps": 20, "save_every": 1}
    with pytest.raises(CheckFailed, match=r"is (nan|inf) at step \d+") as caught:
        sl_trainer.main(settings(chats, folder, **changes))
    rows = metrics.read(folder)
    assert len(rows) < 20
    for record in checkpoints.read(folder):
        assert record.step < rows[-1]["step"]
    assert "checkpoint" in str(caught.value)


def test_a_model_that_the_service_does_not_have_names_those_it_has(
    rehearsal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(rehearsal, monkeypatch)
    connection = service.connect("run", {})
    with pytest.raises(InputError, match=r"it serves .*tiny:llama"):
        service.create_adapter(
            connection,
            "Nobody/Nothing-7B",
            rank=4,
            seed=0,
            train_mlp=True,
            train_attn=True,
            train_unembed=True,
            metadata={},
        )


def test_a_sampler_save_is_in_order_with_the_steps_around_it(rehearsal: Any) -> None:
    """The checkpoint of the first step must not hold the second, although it was submitted."""
    client = (
        rehearsal.client().create_lora_training_client(rehearsal.model, rank=2, seed=0).result()
    )
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints([1, 2, 3]),
        loss_fn_inputs={
            "target_tokens": tinker.TensorData(data=[2, 3, 4], dtype="int64"),
            "weights": tinker.TensorData(data=[1.0, 1.0, 1.0], dtype="float32"),
        },
    )

    async def busy() -> None:
        import time

        time.sleep(0.2)  # blocks the SDK's thread, as serialising a big batch does

    def step() -> Any:
        client.forward_backward([datum], "cross_entropy")
        return client.optim_step(tinker.AdamParams(learning_rate=0.1))

    step()
    client.holder.run_coroutine_threadsafe(busy())
    before = client.forward([datum], "cross_entropy")
    saved = submit_sampler_save(client, "ordered", None)
    step().result()
    after = client.forward([datum], "cross_entropy")
    sampler = rehearsal.client().create_sampling_client(model_path=saved.result().path).result()
    prompt = tinker.ModelInput.from_ints([1, 2, 3, 4])
    logprobs = sampler.compute_logprobs(prompt).result()[1:]
    expected, later = (f.result().loss_fn_outputs[0]["logprobs"].data for f in (before, after))
    assert logprobs == pytest.approx(expected, abs=1e-4)
    assert logprobs != pytest.approx(later, abs=1e-2)
