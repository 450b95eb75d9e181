"""What skills/debug/references/async-task-dump.md says of the SDK's threads, checked."""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
import time

import pytest
import tinker
from sdk_calls import DATA, PROMPT, step
from tinker import types
from tinker.lib import internal_client_holder as holder_module
from tinker.lib.public_interfaces import training_client

SDK = holder_module._internal_client_holder_thread_singleton


@pytest.fixture(scope="module")
def training(rehearsal) -> tinker.TrainingClient:
    client = rehearsal.client().create_lora_training_client(rehearsal.model, rank=4).result()
    step(client)
    return client


def sdk_thread() -> threading.Thread:
    assert SDK._thread is not None
    return SDK._thread


def test_one_daemon_thread_serves_all_clients(rehearsal, training):
    other = rehearsal.client().create_lora_training_client(rehearsal.model, rank=4).result()
    assert other.holder.get_loop() is training.holder.get_loop() is SDK.loop_if_started()
    assert sdk_thread().daemon


def test_training_data_is_converted_on_that_thread(training, monkeypatch):
    from tinker.resources import training as resource

    seen: list[threading.Thread] = []
    real = getattr(resource, "forward_backward_request_to_proto")  # noqa: B009

    def watched(request):
        seen.append(threading.current_thread())
        return real(request)

    monkeypatch.setattr(resource, "forward_backward_request_to_proto", watched)
    step(training)
    assert seen == [sdk_thread()]


def test_calls_return_futures_at_once(training):
    future = training.forward_backward(DATA, "cross_entropy")
    assert isinstance(future, tinker.APIFuture) and not future.future().done()
    future.result()


def test_only_futures_of_clients_check_where_result_is_called(training, caplog):
    """Those of forward_backward and sample block in silence, on the SDK's own loop for ever."""

    async def call(future, timeout: float):
        return future.result(timeout)

    def on_the_sdks_loop(future) -> None:
        loop = training.holder.get_loop()
        asyncio.run_coroutine_threadsafe(call(future, 0.5), loop).result(30)

    with caplog.at_level("WARNING"):
        step_future = training.forward_backward(DATA, "cross_entropy")
        asyncio.run(call(step_future, 30))
        assert "async context" not in caplog.text
        sampler = asyncio.run(call(training.save_weights_and_get_sampling_client(), 30))
        assert "called from async context" in caplog.text
    with pytest.raises(TimeoutError):
        on_the_sdks_loop(training.forward_backward(DATA, "cross_entropy"))
    with pytest.raises(TimeoutError):
        on_the_sdks_loop(sampler.sample(PROMPT, 1, types.SamplingParams(max_tokens=5)))
    with pytest.raises(RuntimeError, match="Tinker SDK's own event loop"):
        on_the_sdks_loop(training.save_weights_and_get_sampling_client())


def test_the_next_request_waits_for_the_acknowledgement_not_for_the_answer(training):
    """``_take_turn`` encloses the sending and ends before the answer is polled for."""
    source = inspect.getsource(training_client.TrainingClient.optim_step)
    body = source[source.index("async with self._take_turn") :]
    inside, after = body.split("return await", 1)
    assert "execute_with_retries" in inside or "_send" in inside
    assert "_APIFuture" in after


def test_done_callbacks_run_on_the_sdks_thread(training):
    seen: list[threading.Thread] = []
    future = training.forward_backward(DATA, "cross_entropy").future()
    future.add_done_callback(lambda _: seen.append(threading.current_thread()))
    future.result()
    until = time.monotonic() + 5
    while not seen and time.monotonic() < until:
        time.sleep(0.01)
    assert seen == [sdk_thread()]


def test_heartbeats_every_ten_seconds_and_a_warning_after_two_minutes():
    source = inspect.getsource(holder_module.InternalClientHolder._session_heartbeat)
    assert re.search(r"HEARTBEAT_PERIOD_SEC = 10\n", source)
    assert re.search(r"WARNING_THRESHOLD_SEC = 60 \* 2\n", source)


def test_custom_losses_run_on_a_third_thread(training):
    seen: list[threading.Thread] = []

    def loss(data, logprobs):
        seen.append(threading.current_thread())
        return sum(-row.sum() for row in logprobs), {}

    plain = [
        tinker.Datum(
            model_input=datum.model_input,
            loss_fn_inputs={"target_tokens": datum.loss_fn_inputs["target_tokens"]},
        )
        for datum in DATA
    ]
    training.forward_backward_custom(plain, loss).result()
    assert seen[0] not in (sdk_thread(), threading.main_thread())


def test_limits_of_a_request_are_as_the_page_says():
    from tinker.types.client_config_response import ClientConfigResponse

    config = ClientConfigResponse()
    assert config.fwdbwd_max_chunk_len == 1024
    assert config.fwdbwd_max_chunk_bytes_count == 5_000_000
    assert config.proto_compress_fwdbwd is False


def test_float64_is_sent_as_float32():
    import numpy as np

    inputs = {"target_tokens": np.arange(3), "weights": np.ones(3, np.float64)}
    datum = tinker.Datum(model_input=PROMPT, loss_fn_inputs=inputs)
    assert datum.loss_fn_inputs["weights"].dtype == "float32"
