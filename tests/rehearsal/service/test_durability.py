"""Nothing that was saved is lost, and nothing half saved is listed, whatever kills the service."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tinker
from tinker import types

from tinkerlab.errors import InputError
from tinkerlab.rehearsal.errors import Conflict, NotFound, UserError
from tinkerlab.rehearsal.service.checkpoints import TRAINING, Checkpoints
from tinkerlab.rehearsal.service.store import Store

HEADERS = {"X-API-Key": "tml-x"}
RUN = {"base_model": "m", "lora": {"rank": 2}}
PATH = f"tinker://run:train:0/{TRAINING}/a"


def datum() -> tinker.Datum:
    inputs: dict[str, Any] = {"target_tokens": [2, 3, 4, 5], "weights": [1.0] * 4}
    prompt = tinker.ModelInput.from_ints([1, 2, 3, 4])
    return tinker.Datum(model_input=prompt, loss_fn_inputs=inputs)


def logprobs(client: tinker.TrainingClient) -> np.ndarray:
    output = client.forward([datum()], "cross_entropy").result()
    return output.loss_fn_outputs[0]["logprobs"].to_numpy()


def step(client: tinker.TrainingClient) -> None:
    client.forward_backward([datum()], "cross_entropy")
    client.optim_step(types.AdamParams(learning_rate=1e-2)).result()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["asked", "killed"])
def test_a_restarted_service_serves_every_saved_path_and_result(
    start_rehearsal, how: str, tmp_path: Path
) -> None:
    with start_rehearsal(store=tmp_path / "store") as server:
        service = server.client()
        client = service.create_lora_training_client(server.model, rank=4, seed=1).result()
        step(client)
        expected = logprobs(client)
        state = client.save_state("kept").result().path
        sampler_path = client.save_weights_for_sampler("kept").result().path
        ephemeral = client.save_weights_and_get_sampling_client().result()
        prompt = tinker.ModelInput.from_ints([1, 2, 3, 4, 5])
        scored = ephemeral.compute_logprobs(prompt).result()
        handle = ephemeral.get_sampler_handle()
        run_id = client.model_id
        if how == "killed":
            os.kill(server.server.process.pid, signal.SIGKILL)
            server.server.process.wait()

    with start_rehearsal(store=tmp_path / "store") as server:
        listed = server.rest().list_checkpoints(run_id).result().checkpoints
        assert {checkpoint.tinker_path for checkpoint in listed} == {state, sampler_path}
        service = server.client()
        again = service.create_training_client_from_state_with_optimizer(state).result()
        np.testing.assert_array_equal(logprobs(again), expected)
        sampler = service.create_sampling_client(model_path=sampler_path).result()
        assert sampler.compute_logprobs(prompt).result()[1:] == pytest.approx(scored[1:], abs=1e-5)
        # The unnamed sampling client goes on too, though the service moved to another port.
        moved = server_handle(handle, server.base_url)
        assert moved.compute_logprobs(prompt).result()[1:] == pytest.approx(scored[1:], abs=1e-5)
        # An old result can still be fetched, by its id.
        reply = httpx.post(
            f"{server.base_url}/api/v1/retrieve_future",
            json={"request_id": f"{run_id}:create"},
            headers=HEADERS,
        )
        assert reply.json()["model_id"] == run_id
        # The run itself lived in memory; what to do instead is said.
        reply = httpx.post(
            f"{server.base_url}/api/v1/optim_step",
            json={"model_id": run_id, "adam_params": {}, "seq_id": 99},
            headers=HEADERS,
        )
        assert reply.status_code == 410
        assert "create_training_client_from_state_with_optimizer" in reply.json()["detail"]


def server_handle(handle: str, base_url: str) -> tinker.SamplingClient:
    """The same sampling client at a new address, with request numbers of its own."""
    import base64
    import json

    fields = json.loads(base64.urlsafe_b64decode(handle))
    fields["holder"]["base_url"] = base_url
    payload = base64.urlsafe_b64encode(json.dumps(fields).encode()).decode()
    return tinker.SamplingClient.from_sampler_handle(payload, api_key="tml-x")


_HALF_A_SAVE = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).resolve().parents[3] / "scripts")!r})
from tinkerlab.rehearsal.service.checkpoints import Checkpoints
from tinkerlab.rehearsal.service.store import Store
root = Path(sys.argv[1])

def write_half_and_hang(folder):
    (folder / "w").write_text("ne")
    (root / "writing").touch()
    time.sleep(600)

Checkpoints(Store(root)).write(sys.argv[2], {RUN!r}, write_half_and_hang)
"""


def test_a_kill_in_the_middle_of_an_overwrite_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    """The process dies while files are being written: in a child, for real."""
    store = Store(tmp_path)
    checkpoints = Checkpoints(store)
    checkpoints.write(PATH, RUN, lambda folder: _write(folder, "old"))
    child = subprocess.Popen([sys.executable, "-c", _HALF_A_SAVE, str(tmp_path), PATH])
    while not (tmp_path / "writing").exists():
        assert child.poll() is None
        time.sleep(0.01)
    child.kill()
    child.wait()
    restarted = Checkpoints(Store(tmp_path))
    (listed,), total = restarted.list()
    assert (listed.tinker_path, total) == (PATH, 1)
    assert (restarted.get(PATH).directory / "w").read_text() == "old"
    assert len(list((tmp_path / "weights").iterdir())) == 1, "the half-written folder is gone"


def _write(folder: Path, text: str) -> None:
    (folder / "w").write_text(text)


def test_a_failed_save_leaves_nothing(tmp_path: Path) -> None:
    checkpoints = Checkpoints(Store(tmp_path))

    def fail(folder: Path) -> None:
        (folder / "w").write_text("x")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        checkpoints.write(PATH, RUN, fail)
    assert checkpoints.list() == ([], 0)
    assert list((tmp_path / "weights").iterdir()) == []


def test_names_are_checked_claimed_and_released(tmp_path: Path) -> None:
    checkpoints = Checkpoints(Store(tmp_path))
    for name in ("", "../x", "a/b", "a\0b", ".hidden", "x" * 300):
        with pytest.raises(UserError, match="name"):
            checkpoints.claim("run", TRAINING, name)
    path = checkpoints.claim("run", TRAINING, "a")
    with pytest.raises(Conflict, match="already exists"):
        checkpoints.claim("run", TRAINING, "a")
    checkpoints.claim("run", TRAINING, "a", overwrite=True)
    checkpoints.release(path)
    checkpoints.claim("run", TRAINING, "a")


def test_expired_checkpoints_disappear(tmp_path: Path) -> None:
    store = Store(tmp_path)
    checkpoints = Checkpoints(store)
    checkpoints.write(PATH, RUN, lambda folder: None, ttl_seconds=3600)
    assert checkpoints.find(PATH) is not None
    store.update("checkpoints", "path", PATH, expires=time.time() - 1)
    assert checkpoints.find(PATH) is None
    assert checkpoints.list() == ([], 0)
    with pytest.raises(NotFound):
        checkpoints.get(PATH)
    checkpoints.write(PATH, RUN, lambda folder: None)
    assert checkpoints.find(PATH) is not None


@pytest.mark.slow
def test_a_store_serves_one_rehearsal_at_a_time(start_rehearsal, tmp_path: Path) -> None:
    with (
        start_rehearsal(store=tmp_path / "store"),
        pytest.raises(InputError, match="in use by another rehearsal"),
        start_rehearsal(store=tmp_path / "store"),
    ):
        pass
