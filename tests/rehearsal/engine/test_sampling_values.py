"""The sampler's numbers against plain transformers and against the training engine."""

from __future__ import annotations

from collections.abc import Iterator

import engine_reference
import numpy as np
import pytest
from sampling_reference import TOLERANCE, Plain, prompt, request, trained

from tinkerlab.rehearsal.engine.base import BaseModel
from tinkerlab.rehearsal.engine.sampling import Sampler
from tinkerlab.rehearsal.engine.sampling_rows import SamplerLimits
from tinkerlab.rehearsal.engine.training import TrainableAdapter
from tinkerlab.rehearsal.engine.types import (
    AdamSettings,
    AdapterConfig,
    SamplingRequest,
    TrainingDatum,
)

# tiny:gpt_oss' sliding window is 32: passed before, at and after the prompt's end.
LENGTHS = (1, 7, 30, 41)

architectures = pytest.mark.parametrize("architecture", engine_reference.ARCHITECTURES)


@pytest.fixture
def base(architecture: str) -> BaseModel:
    return engine_reference.base(architecture)


@pytest.fixture
def sampler(base: BaseModel) -> Iterator[Sampler]:
    sampler = Sampler(base)
    yield sampler
    sampler.close()


@architectures
def test_greedy_equals_generate_in_a_mixed_batch(base, sampler):
    plain = Plain(base)
    prompts = [prompt(length) for length in LENGTHS]
    futures = [
        sampler.submit(request(tokens, 15, temperature=0.0, prompt_logprobs=True))
        for tokens in prompts
    ]
    for tokens, future in zip(prompts, futures, strict=True):
        result = future.result(120)
        sequence = result.sequences[0]
        assert sequence.tokens.tolist() == plain.generate(tokens, 15)
        assert sequence.stop_reason == "length"
        expected = plain.logprobs([*tokens, *sequence.tokens.tolist()])
        assert np.isnan(result.prompt_logprobs[0])
        found = np.concatenate([result.prompt_logprobs[1:], sequence.logprobs])
        np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=0)


@architectures
def test_adapters_and_the_bare_model_share_a_batch(base, sampler, tmp_path):
    adapters = [
        trained(base, tmp_path / "first", seed=1),
        None,
        trained(base, tmp_path / "second", seed=2, rank=4),
    ]
    plains = [Plain(base, adapter) for adapter in adapters]
    # Every length with every adapter, in an order in which neighbours never share one.
    work = [(which, prompt(length, which)) for length in LENGTHS for which in range(3)]
    futures = [
        sampler.submit(
            request(tokens, 6 + 5 * which, temperature=1.0, seed=which, prompt_logprobs=True),
            adapters[which],
        )
        for which, tokens in work
    ]
    for (which, tokens), future in zip(work, futures, strict=True):
        result = future.result(120)
        sampled = result.sequences[0]
        assert len(sampled.tokens) == 6 + 5 * which
        found = np.concatenate([result.prompt_logprobs[1:], sampled.logprobs])
        expected = plains[which].logprobs([*tokens, *sampled.tokens.tolist()])
        np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=0)
        # The adapters must matter, or this test shows nothing.
        others = [p.logprobs([*tokens, *sampled.tokens.tolist()]) for p in plains]
        assert all(
            np.abs(others[which] - others[other]).max() > 0.05 for other in {0, 1, 2} - {which}
        )
    assert sampler.counts.most_rows == len(work)


@architectures
def test_sampling_logprobs_equal_training_logprobs(base, sampler):
    """After real steps of training, through the snapshot that the service samples from."""
    trainable = TrainableAdapter(base, AdapterConfig(rank=4, seed=3))
    rng = np.random.default_rng(0)
    for _ in range(3):
        trainable.forward_backward(
            [engine_reference.sft_datum(rng, 20)], "cross_entropy", {}, forward_only=False
        )
        trainable.optim_step(AdamSettings(learning_rate=1e-2))
    frozen = trainable.snapshot()
    futures = [
        sampler.submit(request(prompt(length, 5), 12, seed=length), frozen) for length in LENGTHS
    ]
    data = []
    for length, future in zip(LENGTHS, futures, strict=True):
        full = prompt(length, 5) + future.result(120).sequences[0].tokens.tolist()
        targets = np.array(full[1:])
        weights = np.ones(len(targets), dtype=np.float32)
        data.append(
            TrainingDatum(np.array(full[:-1]), {"target_tokens": targets, "weights": weights})
        )
    outputs = trainable.forward_backward(data, "cross_entropy", {}, forward_only=True).outputs
    for future, output in zip(futures, outputs, strict=True):
        found = future.result().sequences[0].logprobs
        np.testing.assert_allclose(found, output["logprobs"][-12:], atol=TOLERANCE, rtol=0)


@architectures
def test_a_long_prompt_in_chunks_equals_one_pass(base, tmp_path):
    adapter = trained(base, tmp_path / "adapter", seed=1)
    plain = Plain(base, adapter)
    tokens = prompt(150)
    sampler = Sampler(base, SamplerLimits(long_prompt=64, busy_tokens=37))
    try:
        beside = sampler.submit(request(prompt(9), 60), adapter)
        long = sampler.submit(request(tokens, 20, temperature=0.0, prompt_logprobs=True), adapter)
        result = long.result(120)
        assert sampler.counts.prompt_passes >= 1 + -(-150 // 37)
        assert len(beside.result(120).sequences[0].tokens) == 60
    finally:
        sampler.close()
    sampled = result.sequences[0].tokens.tolist()
    assert result.prompt_logprobs is not None
    found = np.concatenate([result.prompt_logprobs[1:], result.sequences[0].logprobs])
    np.testing.assert_allclose(found, plain.logprobs(tokens + sampled), atol=TOLERANCE, rtol=0)
    assert plain.logits(tokens + sampled)[149:-1].argmax(dim=-1).tolist() == sampled


@pytest.mark.parametrize("architecture", ["llama", "gpt_oss"])
def test_a_row_that_outgrows_its_buffers_goes_on(base, sampler):
    """512 columns is the narrowest buffer; this one crosses into the next."""
    tokens = prompt(490)
    short = sampler.submit(request(prompt(5), 50, temperature=0.0))
    result = sampler.submit(request(tokens, 40, temperature=0.0)).result(120)
    plain = Plain(base)
    assert result.sequences[0].tokens.tolist() == plain.generate(tokens, 40)
    assert short.result(120).sequences[0].tokens.tolist() == plain.generate(prompt(5), 50)


@pytest.mark.parametrize("architecture", ["qwen3", "gpt_oss"])
def test_rows_that_gave_up_their_place_go_on_where_they_were(base, tmp_path):
    """A budget for some 100 cached tokens; the same completions as without one."""
    adapter = trained(base, tmp_path / "adapter", seed=1)
    work = [request(prompt(20, seed), 30, seed=seed) for seed in range(6)]
    layers, heads, width, numbers = 2, 2, 24, 2
    budget = 100 * layers * heads * width * numbers * 4
    outcomes = []
    for limits in (SamplerLimits(), SamplerLimits(cache_bytes=budget)):
        sampler = Sampler(base, limits)
        try:
            futures = [sampler.submit(one, adapter) for one in work]
            outcomes.append([f.result(120).sequences[0] for f in futures])
            set_back = sampler.counts.set_back
        finally:
            sampler.close()
    assert set_back > 0
    for free, tight in zip(*outcomes, strict=True):
        assert free.tokens.tolist() == tight.tokens.tolist()
        np.testing.assert_allclose(free.logprobs, tight.logprobs, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe"])
def test_a_base_that_cannot_mix_adapters_gives_the_same(base, tmp_path):
    adapters = [trained(base, tmp_path / str(seed), seed=seed) for seed in range(2)]
    work = [(request(prompt(10 + n, n), 10, seed=n), adapters[n % 2]) for n in range(6)]

    def sample() -> list[list[int]]:
        sampler = Sampler(base)
        try:
            futures = [sampler.submit(one, adapter) for one, adapter in work]
            return [f.result(120).sequences[0].tokens.tolist() for f in futures]
        finally:
            sampler.close()

    mixed = sample()
    base.supports_mixed_batches = False
    try:
        assert sample() == mixed
    finally:
        del base.supports_mixed_batches


@pytest.mark.parametrize("architecture", ["llama"])
def test_temperature_tempers_the_logprobs_and_greedy_does_not(base, sampler):
    plain = Plain(base)
    tokens = prompt(12)
    for temperature in (0.0, 0.5, 1.0, 2.0):
        sequence = (
            sampler.submit(request(tokens, 10, temperature=temperature, seed=4))
            .result(60)
            .sequences[0]
        )
        full = tokens + sequence.tokens.tolist()
        table = (plain.logits(full)[11:-1] / (temperature or 1.0)).log_softmax(dim=-1)
        expected = [float(table[i, t]) for i, t in enumerate(sequence.tokens.tolist())]
        np.testing.assert_allclose(sequence.logprobs, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("architecture", ["llama"])
def test_the_model_trains_the_same_after_a_sampler_was_put_on_it(base):
    """The sampler installs its own attention; outside of its passes nothing may change."""
    rng = np.random.default_rng(1)
    data = [engine_reference.sft_datum(rng, length) for length in (5, 17)]

    def step() -> list[np.ndarray]:
        trainable = TrainableAdapter(base, AdapterConfig(rank=2, seed=0))
        out = trainable.forward_backward(data, "cross_entropy", {}, forward_only=False)
        return [output["logprobs"] for output in out.outputs]

    first = step()
    sampler = Sampler(base)
    try:
        running = sampler.submit(request(prompt(5), 200, seed=0))
        second = step()
        running.result(120)
    finally:
        sampler.close()
    for before, after in zip(first, second, strict=True):
        np.testing.assert_array_equal(before, after)


def test_default_stop_tokens_are_the_models():
    base = engine_reference.base("llama")
    sampler = Sampler(base)
    try:
        # Hot enough that the end-of-sequence token comes by chance within the context.
        result = sampler.submit(
            SamplingRequest(prompt(5), max_tokens=None, temperature=50.0, seed=1)
        ).result(120)
    finally:
        sampler.close()
    sequence = result.sequences[0]
    assert sequence.stop_reason == "stop"
    assert int(sequence.tokens[-1]) in base.eos_token_ids
    assert not base.eos_token_ids & set(sequence.tokens[:-1].tolist())
