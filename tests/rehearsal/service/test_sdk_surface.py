"""The unmodified SDK against the rehearsal: every public method, on a model that really trains."""

from __future__ import annotations

import pickle
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker
import torch
from tinker import types

PROMPT = tinker.ModelInput.from_ints([72, 101, 108, 108, 111])


def datum(tokens: list[int], weight: float = 1.0) -> tinker.Datum:
    """Next-token prediction over all of ``tokens``."""
    inputs: dict[str, Any] = {
        "target_tokens": tokens[1:],
        "weights": np.full(len(tokens) - 1, weight, np.float32),
    }
    prompt = tinker.ModelInput.from_ints(tokens[:-1])
    return tinker.Datum(model_input=prompt, loss_fn_inputs=inputs)


DATA = [datum([10, 20, 30, 40, 50, 60]), datum([7, 8, 9])]


@pytest.fixture(scope="module")
def service(rehearsal) -> tinker.ServiceClient:
    return rehearsal.client()


@pytest.fixture(scope="module")
def training(rehearsal, service) -> tinker.TrainingClient:
    """A client with one optimizer step behind it."""
    client = service.create_lora_training_client(rehearsal.model, rank=4, seed=1).result()
    step(client)
    return client


def step(client: tinker.TrainingClient, learning_rate: float = 1e-2) -> float:
    """One pipelined training step; returns the loss before it."""
    forward = client.forward_backward(DATA, "cross_entropy")
    update = client.optim_step(types.AdamParams(learning_rate=learning_rate))
    loss = forward.result().metrics["loss:sum"]
    update.result()
    return loss


def unique(stem: str) -> str:
    return f"{stem}-{uuid.uuid4().hex[:8]}"


def test_training_lowers_the_loss(rehearsal, service) -> None:
    client = service.create_lora_training_client(rehearsal.model, rank=4, seed=3).result()
    losses = [step(client) for _ in range(12)]
    assert losses[-1] < 0.7 * losses[0]


def test_info_names_the_model_and_a_tokenizer_that_loads(rehearsal, training) -> None:
    info = training.get_info()
    assert info.model_data.model_name == rehearsal.model
    assert info.lora_rank == 4
    tokenizer = training.get_tokenizer()
    assert tokenizer.decode(tokenizer.encode("Hello")) == "Hello"


def test_forward_leaves_the_gradients_alone(training) -> None:
    before = training.forward(DATA, "cross_entropy").result()
    training.optim_step(types.AdamParams(learning_rate=0.5)).result()
    after = training.forward(DATA, "cross_entropy").result()
    for a, b in zip(before.loss_fn_outputs, after.loss_fn_outputs, strict=True):
        np.testing.assert_allclose(a["logprobs"].to_numpy(), b["logprobs"].to_numpy(), atol=1e-6)


def test_loss_is_the_weighted_sum_of_the_negative_logprobs(training) -> None:
    output = training.forward([datum([5, 6, 7, 8], 0.5)], "cross_entropy").result()
    logprobs = output.loss_fn_outputs[0]["logprobs"].to_numpy()
    assert output.metrics["loss:sum"] == pytest.approx(-0.5 * logprobs.sum(), rel=1e-5)


def test_a_custom_loss_trains(rehearsal, service) -> None:
    client = service.create_lora_training_client(rehearsal.model, rank=4, seed=5).result()

    def squared(data, logprobs):
        loss = torch.cat(list(logprobs)).square().sum()
        return loss, {"squared:sum": float(loss.detach())}

    values = []
    for _ in range(6):
        future = client.forward_backward_custom(DATA, squared)
        client.optim_step(types.AdamParams(learning_rate=1e-2))
        values.append(future.result().metrics["squared:sum"])
    assert values[-1] < values[0]


def test_sampling_logprobs_equal_training_logprobs(service, training) -> None:
    """Tolerance 1e-4 absolute in float32: the two differ only in batch shape and caching."""
    sampler = training.save_weights_and_get_sampling_client().result()
    tokens = [10, 20, 30, 40, 50, 60]
    scored = sampler.compute_logprobs(tinker.ModelInput.from_ints(tokens)).result()
    trained = training.forward([datum(tokens)], "cross_entropy").result()
    expected = trained.loss_fn_outputs[0]["logprobs"].to_numpy()
    assert scored[0] is None
    np.testing.assert_allclose(np.asarray(scored[1:], np.float64), expected, atol=1e-4)
    sampled = sampler.sample(
        PROMPT, 2, types.SamplingParams(max_tokens=6, seed=1, stop=[])
    ).result()
    for sequence in sampled.sequences:
        assert len(sequence.tokens) == 6
        whole = PROMPT.to_ints() + list(sequence.tokens)
        again = sampler.compute_logprobs(tinker.ModelInput.from_ints(whole)).result()
        assert sequence.logprobs is not None
        np.testing.assert_allclose(again[len(PROMPT.to_ints()) :], sequence.logprobs, atol=1e-4)


def test_every_kind_of_logprob_that_a_sample_can_carry(training) -> None:
    sampler = training.save_weights_and_get_sampling_client().result()
    prompt = tinker.ModelInput.from_ints([1, 2, 3, 4])
    targets = types.TensorData(data=[5, -1, 6, 7, -1, 8], dtype="int64", shape=[3, 2])
    result = sampler.sample(
        prompt,
        1,
        types.SamplingParams(max_tokens=2, temperature=0.0, stop=[]),
        include_prompt_logprobs=True,
        topk_prompt_logprobs=3,
        topk_sample_logprobs=2,
        target_prompt_logprobs=targets,
        prompt_alt_tokens_k=2,
        prompt_logprobs_last_n=2,
    ).result()
    assert result.prompt_logprobs is not None
    assert [value is None for value in result.prompt_logprobs] == [True, True, False, False]
    assert result.topk_prompt_logprobs is not None
    assert result.target_prompt_logprobs is not None
    scores = result.target_prompt_logprobs.to_numpy()
    assert scores.shape == (3, 2)
    assert (scores[[0, 1, 2], [1, 0, 1]] != 0).sum() == 2  # two asked, one placeholder
    assert result.prompt_alt_tokens is not None
    assert result.prompt_alt_tokens.tokens.to_numpy().shape == (3, 2)
    (sequence,) = result.sequences
    topk = sequence.topk_logprobs
    assert topk is not None
    # Greedy: the sampled token leads the table.
    assert topk[0][0][0] == sequence.tokens[0]


def test_a_sampling_client_keeps_its_weights_while_training_goes_on(rehearsal, service) -> None:
    client = service.create_lora_training_client(rehearsal.model, rank=4, seed=7).result()
    old = client.save_weights_and_get_sampling_client().result()
    before = old.compute_logprobs(PROMPT).result()[1:]
    for _ in range(3):
        step(client)
    new = client.save_weights_and_get_sampling_client().result()
    assert old.compute_logprobs(PROMPT).result()[1:] == pytest.approx(before, abs=1e-6)
    assert new.compute_logprobs(PROMPT).result()[1:] != pytest.approx(before, abs=1e-3)


def test_inflight_clients_follow_the_last_published_weights(rehearsal, service) -> None:
    client = service.create_lora_training_client(rehearsal.model, rank=4, seed=8).result()
    old = client.save_weights_and_get_sampling_client(kind="inflight").result()
    before = old.compute_logprobs(PROMPT).result()[1:]
    for _ in range(3):
        step(client)
    new = client.save_weights_and_get_sampling_client(kind="inflight").result()
    after = new.compute_logprobs(PROMPT).result()[1:]
    assert after != pytest.approx(before, abs=1e-3)
    assert old.compute_logprobs(PROMPT).result()[1:] == pytest.approx(after, abs=1e-6)


def test_the_base_model_can_be_sampled_and_copies_of_a_client_work(rehearsal, service) -> None:
    sampler = service.create_sampling_client(base_model=rehearsal.model).result()
    params = types.SamplingParams(max_tokens=5, temperature=0.0)
    expected = sampler.sample(PROMPT, 1, params).result().sequences[0].tokens
    for copy in (
        pickle.loads(pickle.dumps(sampler)),
        tinker.SamplingClient.from_sampler_handle(
            sampler.get_sampler_handle(), api_key="tml-rehearsal"
        ),
    ):
        assert copy.sample(PROMPT, 1, params).result().sequences[0].tokens == expected
    assert sampler.get_base_model() == rehearsal.model


def test_saved_state_goes_on_to_the_same_bits(rehearsal, service) -> None:
    one = service.create_lora_training_client(rehearsal.model, rank=4, seed=11).result()
    step(one)
    path = one.save_state(unique("state")).result().path
    two = service.create_training_client_from_state_with_optimizer(path).result()
    for client in (one, two):
        step(client)
        step(client)
    logprobs = [c.forward(DATA, "cross_entropy").result().loss_fn_outputs for c in (one, two)]
    for a, b in zip(*logprobs, strict=True):
        np.testing.assert_array_equal(a["logprobs"].to_numpy(), b["logprobs"].to_numpy())
    fresh = service.create_training_client_from_state(path).result()
    assert fresh.get_info().lora_rank == 4


def test_named_sampler_weights_outlive_their_client(service, training) -> None:
    path = training.save_weights_for_sampler(unique("s"), ttl_seconds=7200).result().path
    sampler = service.create_sampling_client(model_path=path).result()
    assert len(sampler.compute_logprobs(PROMPT).result()) == 5


def test_external_weights_download_as_a_peft_adapter(rehearsal, training, tmp_path: Path) -> None:
    from safetensors.numpy import load_file
    from tinker_cookbook import weights

    external = training.save_weights_external(unique("e")).result().path
    urls = rehearsal.rest().get_external_weights_urls(external).result().urls
    assert set(urls) >= {"adapter_model.safetensors", "adapter_config.json"}
    for name, url in urls.items():
        urllib.request.urlretrieve(url, tmp_path / name)
    direct = load_file(tmp_path / "adapter_model.safetensors")

    # The cookbook's download of a training checkpoint goes through an age-encrypted export.
    state = training.save_state(unique("d")).result().path
    out = tmp_path / "downloaded"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINKER_API_KEY", "tml-rehearsal")
        weights.download(tinker_path=state, output_dir=str(out), base_url=rehearsal.base_url)
    downloaded = load_file(out / "adapter_model.safetensors")
    assert direct.keys() == downloaded.keys()
    for name in direct:
        np.testing.assert_array_equal(direct[name], downloaded[name])


def test_a_download_url_cannot_be_changed(rehearsal, training) -> None:
    import httpx

    external = training.save_weights_external(unique("u")).result().path
    url = next(iter(rehearsal.rest().get_external_weights_urls(external).result().urls.values()))
    assert httpx.get(url).status_code == 200
    directory = url.split("/files/")[1].split("/")[0]
    for forged in (
        url[:-1] + ("0" if url[-1] != "0" else "1"),
        url.split("?")[0],
        f"{rehearsal.base_url}/files/{directory}/%2e%2e/%2e%2e/rehearsal.sqlite?{url.split('?')[1]}",
    ):
        assert httpx.get(forged).status_code in (401, 404)


def test_runs_and_checkpoints_are_listed_and_managed(rehearsal, service, training) -> None:
    rest = rehearsal.rest()
    name = unique("m")
    path = training.save_state(name, user_metadata={"step": "1"}).result().path
    run_id = training.model_id
    assert rest.get_training_run(run_id).result().last_checkpoint.tinker_path == path
    assert rest.get_training_run_by_tinker_path(path).result().training_run_id == run_id
    runs = rest.list_training_runs(limit=100).result()
    assert run_id in [run.training_run_id for run in runs.training_runs]
    assert runs.cursor.total_count >= 1

    def listed():
        checkpoints = rest.list_checkpoints(run_id).result().checkpoints
        return {checkpoint.tinker_path: checkpoint for checkpoint in checkpoints}

    assert listed()[path].user_metadata == {"step": "1"}
    assert listed()[path].checkpoint_type == "training"
    assert listed()[path].size_bytes > 0
    rest.publish_checkpoint_from_tinker_path(path).result()
    assert listed()[path].public
    rest.unpublish_checkpoint_from_tinker_path(path).result()
    assert not listed()[path].public
    rest.set_checkpoint_ttl_from_tinker_path(path, 3600).result()
    assert listed()[path].expires_at is not None
    rest.set_checkpoint_ttl_from_tinker_path(path, None).result()
    assert listed()[path].expires_at is None
    info = rest.get_weights_info_by_tinker_path(path).result()
    assert (info.base_model, info.lora_rank, info.train_mlp) == (rehearsal.model, 4, True)
    everything = rest.list_user_checkpoints(limit=1000).result().checkpoints
    assert path in [checkpoint.tinker_path for checkpoint in everything]
    copy = rest.copy_weights(path, destination_project_id="p").result()
    assert copy != path
    again = service.create_training_client_from_state_with_optimizer(copy).result()
    assert again.get_info().lora_rank == 4
    rest.delete_checkpoint_from_tinker_path(path).result()
    assert path not in listed()
    # A deleted name is free again, and can be replaced when the user says so.
    training.save_state(name).result()
    training.save_state(name, overwrite=True).result()
    rest.delete_checkpoint(run_id, f"weights/{name}").result()


def test_sessions_are_listed_searched_and_closed(rehearsal) -> None:
    rest = rehearsal.rest()
    label = unique("label")
    client = tinker.ServiceClient(
        {"purpose": label}, display_name=label, base_url=rehearsal.base_url, api_key="tml-x"
    )
    training = client.create_lora_training_client(rehearsal.model, rank=2).result()
    session_id = training.model_id.split(":train:")[0]
    assert session_id in rest.list_sessions(limit=1000).result().sessions
    session = rest.get_session(session_id).result()
    assert session.training_run_ids == [training.model_id]
    assert session.user_metadata == {"purpose": label}
    rest.assign_session_project(session_id, "thesis").result()
    client.close("success", detail="done").result()
    with pytest.raises(tinker.APIStatusError) as refusal:
        rehearsal_post(rehearsal, "session_heartbeat", {"session_id": session_id})
    assert refusal.value.status_code == 410


def rehearsal_post(rehearsal, route: str, body: dict) -> dict:
    """POST as the SDK's low-level client would, without its retries."""
    import httpx

    response = httpx.post(
        f"{rehearsal.base_url}/api/v1/{route}", json=body, headers={"X-API-Key": "tml-x"}
    )
    if response.is_error:
        raise tinker.APIStatusError(response.text, response=response, body=None)
    return response.json()


def test_search_filters_by_name_status_and_page(rehearsal) -> None:
    label = unique("searched")
    for _ in range(3):
        rehearsal_post(
            rehearsal,
            "create_session",
            {"tags": [], "user_metadata": {}, "sdk_version": "0", "display_name": f"{label} run"},
        )
    query = {"display_name": f"run {label}", "limit": 2}
    first = rehearsal_post(rehearsal, "sessions/search", query)
    assert len(first["sessions"]) == 2
    second = rehearsal_post(rehearsal, "sessions/search", {**query, "cursor": first["next_cursor"]})
    assert len(second["sessions"]) == 1
    assert second["next_cursor"] is None
    finished = {**query, "statuses": [{"type": "client_finished"}]}
    assert rehearsal_post(rehearsal, "sessions/search", finished)["sessions"] == []


def test_identity_and_capabilities(rehearsal) -> None:
    rest = rehearsal.rest()
    assert rest.whoami().result().user_urn == "tml:user:rehearsal"
    (model,) = rest.get_server_capabilities().result().supported_models
    assert (model.model_name, model.trainable, model.sampleable) == (rehearsal.model, True, True)
    sampler_id = rehearsal.client().create_sampling_client(base_model=rehearsal.model).result()
    assert sampler_id.get_base_model() == rehearsal.model


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ["proto_compress_fwdbwd=true", "sample_use_retrieve_futures=true"],
        ["sample_join_sampling_session=true", "pjwt_auth_enabled=false"],
        ["fwdbwd_max_chunk_len=1", "parallel_fwdbwd_chunks=true", "use_pyqwest_transport=false"],
        ["fwdbwd_max_chunk_len=1", "parallel_fwdbwd_chunks=false"],
    ],
    ids=["compressed-polled", "joined-plain-key", "parallel-chunks", "serial-chunks"],
)
def test_the_other_paths_through_the_client(start_rehearsal, flags: list[str]) -> None:
    with start_rehearsal(client_flags=flags) as server:
        service = server.client()
        client = service.create_lora_training_client(server.model, rank=4, seed=1).result()
        losses = [step(client) for _ in range(4)]
        assert losses[-1] < losses[0]
        sampler = client.save_weights_and_get_sampling_client().result()
        copy = pickle.loads(pickle.dumps(sampler))
        params = types.SamplingParams(max_tokens=4, temperature=0.0)
        futures = [s.sample(PROMPT, 2, params) for s in (sampler, copy) for _ in range(4)]
        tokens = {tuple(seq.tokens) for f in futures for seq in f.result().sequences}
        assert len(tokens) == 1


# Methods of RestClient that this file exercises, and those that a rehearsal answers with a
# refusal; the two must be all that the SDK has.
_EXERCISED = {
    "assign_session_project",
    "copy_weights",
    "delete_checkpoint",
    "delete_checkpoint_from_tinker_path",
    "get_external_weights_urls",
    "get_sampler",
    "get_server_capabilities",
    "get_session",
    "get_training_run",
    "get_training_run_by_tinker_path",
    "get_weights_info_by_tinker_path",
    "list_checkpoints",
    "list_sessions",
    "list_training_runs",
    "list_user_checkpoints",
    "publish_checkpoint_from_tinker_path",
    "search_sessions",
    "set_checkpoint_ttl_from_tinker_path",
    "unpublish_checkpoint_from_tinker_path",
    "whoami",
}
_REFUSED = {
    "export_session_trace",
    "get_audit_log",
    "get_billing_usage",
    "get_current_checkpoint_storage_usage",
}


def test_no_public_rest_method_is_forgotten() -> None:
    public = {
        name
        for name in dir(tinker.RestClient)
        if not name.startswith("_") and not name.endswith("_async") and name != "get_telemetry"
    }
    assert public == _EXERCISED | _REFUSED


def test_what_is_not_supported_says_so(rehearsal) -> None:
    with pytest.raises(tinker.NotFoundError, match="not supported by the rehearsal"):
        rehearsal.rest().export_session_trace("x").result()


def test_a_sampler_can_be_looked_up(rehearsal, service, training) -> None:
    rest = rehearsal.rest()
    path = training.save_weights_for_sampler(unique("l")).result().path
    service.create_sampling_client(model_path=path).result()
    session = rest.get_session(training.model_id.split(":train:")[0]).result()
    found = [rest.get_sampler(sampler).result() for sampler in session.sampler_ids]
    assert path in [sampler.model_path for sampler in found]
    assert {sampler.base_model for sampler in found} == {rehearsal.model}
    query = types.SessionSearchRequest(session_id=training.model_id.split(":train:")[0])
    page = rest.search_sessions(query).result()
    assert page.sessions[0].checkpoints_count >= 1


def test_sampling_does_not_wait_behind_a_long_training_step(rehearsal, service) -> None:
    client = service.create_lora_training_client(rehearsal.model, rank=4).result()
    sampler = service.create_sampling_client(base_model=rehearsal.model).result()
    tokens = [1 + i % 250 for i in range(501)]
    short = client.forward_backward(DATA, "cross_entropy")
    long = client.forward_backward([datum(tokens)] * 400, "cross_entropy")
    short.result()  # from here on the service works on the long one
    params = types.SamplingParams(max_tokens=2, temperature=0.0)
    for _ in range(3):
        sampler.sample(PROMPT, 1, params).result()
    assert not long.future().done()
    assert long.result().metrics["loss:sum"] > 0
