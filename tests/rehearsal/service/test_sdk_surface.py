"""The unmodified SDK against the rehearsal: training and sampling, on a model that really trains."""

from __future__ import annotations

import pickle
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import tinker
import torch
from sdk_calls import DATA, PROMPT, datum, step, unique
from tinker import types


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
