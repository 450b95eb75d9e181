"""Where a run begins that does not begin from the base model, and what it refuses to begin from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinkerlab.errors import InputError
from tinkerlab.runs import jsonl
from tinkerlab.training.starting import client_from, resolve_checkpoint


@pytest.fixture(scope="module")
def state(rehearsal) -> str:
    client = rehearsal.client().create_lora_training_client(rehearsal.model, rank=4).result()
    return client.save_state("starting").result().path


def start(rehearsal, monkeypatch, path: str, base_model: str, rank: int):
    monkeypatch.setenv("TINKER_BASE_URL", rehearsal.base_url)
    monkeypatch.setenv("TINKER_API_KEY", "tml-rehearsal")
    return client_from(
        rehearsal.client(), path, base_model=base_model, lora_rank=rank, metadata={"run_name": "x"}
    )


def test_a_client_on_the_checkpoints_weights(rehearsal, state, monkeypatch) -> None:
    client = start(rehearsal, monkeypatch, state, rehearsal.model, 4)
    assert client.get_info().lora_rank == 4


@pytest.mark.parametrize(
    ("model", "rank", "words"),
    [("tiny:qwen3", 4, "set base_model=tiny:llama"), (None, 8, "set lora_rank=4")],
)
def test_another_model_or_rank_is_refused(
    rehearsal, state, monkeypatch, model: str | None, rank: int, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        start(rehearsal, monkeypatch, state, model or rehearsal.model, rank)


def test_a_checkpoint_that_is_gone(rehearsal, state, monkeypatch) -> None:
    with pytest.raises(InputError, match=r"load_checkpoint_path .*expired, was deleted"):
        start(rehearsal, monkeypatch, f"{state}-gone", rehearsal.model, 4)


def test_a_run_folder_means_its_newest_state(tmp_path: Path) -> None:
    rows = [
        {"name": "000002", "step": 2, "state_path": "tinker://r/weights/000002"},
        {"name": "final", "step": 4, "state_path": "tinker://r/weights/final"},
    ]
    jsonl.rewrite(tmp_path / "checkpoints.jsonl", rows)
    assert resolve_checkpoint(str(tmp_path)) == "tinker://r/weights/final"
    assert resolve_checkpoint("tinker://r/weights/a") == "tinker://r/weights/a"
    assert resolve_checkpoint(None) is None


def test_no_folder_and_one_without_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither a tinker://"):
        resolve_checkpoint(str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="records no checkpoint"):
        resolve_checkpoint(str(tmp_path))
