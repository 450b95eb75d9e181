"""Each fault shows up in the unmodified SDK the way the hosted service's would."""

from __future__ import annotations

import logging
import time
from typing import Any

import httpx
import pytest
import tinker
from tinker import types

# Each test starts a service of its own.
pytestmark = pytest.mark.slow

PROMPT = tinker.ModelInput.from_ints([1, 2, 3])
PARAMS = types.SamplingParams(max_tokens=2, temperature=0.0)
INPUTS: dict[str, Any] = {"target_tokens": [2, 3, 4], "weights": [1.0, 1.0, 1.0]}
DATA = [tinker.Datum(model_input=PROMPT, loss_fn_inputs=INPUTS)]


def two_steps(server) -> list[float]:
    """Loss before each of two steps and after them."""
    client = server.client().create_lora_training_client(server.model, rank=4, seed=1).result()
    losses = []
    for _ in range(3):
        forward = client.forward_backward(DATA, "cross_entropy")
        client.optim_step(types.AdamParams(learning_rate=1e-2))
        losses.append(forward.result().metrics["loss:sum"])
    return losses


@pytest.fixture(scope="module")
def undisturbed(rehearsal) -> list[float]:
    return two_steps(rehearsal)


@pytest.mark.parametrize(
    "fault",
    [
        "500:1x,on=/forward_backward",
        "504:2x,on=/retrieve_future",
        "drop:1x,on=/optim_step",
        "drop:1x,on=/forward_backward",
        "drop:1x,on=ForwardBackward",
        "429:1x,on=/optim_step",
        "latency:20ms",
    ],
)
def test_the_sdk_gets_over_it_and_nothing_is_applied_twice(
    start_rehearsal, undisturbed: list[float], fault: str
) -> None:
    with start_rehearsal(faults=[fault]) as server:
        assert two_steps(server) == pytest.approx(undisturbed, rel=1e-6)


def test_429_backs_sampling_off_and_then_lets_it_through(start_rehearsal) -> None:
    with start_rehearsal(faults=["429:1x"]) as server:
        sampler = server.client().create_sampling_client(base_model=server.model).result()
        started = time.monotonic()
        assert len(sampler.sample(PROMPT, 1, PARAMS).result().sequences) == 1
        # SamplingClient waits a second after a 429: a lower bound, so never flaky.
        assert time.monotonic() - started >= 1.0


@pytest.mark.parametrize("kind", ["429", "500", "504"])
def test_the_status_is_on_the_wire(start_rehearsal, kind: str) -> None:
    with start_rehearsal(faults=[f"{kind}:1x,on=/healthz"]) as server:
        url, headers = f"{server.base_url}/api/v1/healthz", {"X-API-Key": "tml-x"}
        replies = [httpx.get(url, headers=headers).status_code for _ in range(2)]
        assert replies == [int(kind), 200]


def test_a_dropped_connection_is_a_connection_error(start_rehearsal) -> None:
    with start_rehearsal(faults=["drop:1x,on=/healthz"]) as server:
        url, headers = f"{server.base_url}/api/v1/healthz", {"X-API-Key": "tml-x"}
        with pytest.raises(httpx.TransportError):
            httpx.get(url, headers=headers)
        assert httpx.get(url, headers=headers).json() == {"status": "ok"}


def test_a_capacity_pause_is_logged_as_one(
    start_rehearsal, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        start_rehearsal(faults=["capacity:3s"]) as server,
        caplog.at_level(logging.WARNING, logger="tinker"),
    ):
        # A sampler's pause is logged at once, a training client's only after a grace period.
        sampler = server.client().create_sampling_client(base_model=server.model).result()
        sampler.sample(PROMPT, 1, PARAMS).result()
    assert "Sampling is paused" in caplog.text
    assert "is running short on capacity" in caplog.text


def test_an_expired_session_is_gone(start_rehearsal) -> None:
    with start_rehearsal(faults=["session-expiry:0s"]) as server:
        service = server.client()
        with pytest.raises(tinker.APIStatusError) as error:
            service.create_lora_training_client(server.model, rank=2).result()
        assert error.value.status_code == 410
        assert "expired" in str(error.value)


def test_a_corrupted_reply_is_noticed(start_rehearsal) -> None:
    with start_rehearsal(faults=["corrupt:on=ForwardBackward"]) as server:
        client = server.client().create_lora_training_client(server.model, rank=2).result()
        with pytest.raises(ValueError, match="Proto deserialization failed"):
            client.forward_backward(DATA, "cross_entropy").result()


def test_slow_creation_hangs_the_client_while_the_service_answers(start_rehearsal) -> None:
    with start_rehearsal(faults=["slow-create:600s"]) as server:
        creation = server.client().create_lora_training_client(server.model, rank=2)
        with pytest.raises(TimeoutError):
            creation.result(timeout=1.5)
        assert server.rest().get_server_capabilities().result().supported_models
