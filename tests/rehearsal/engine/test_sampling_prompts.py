"""What a request may ask about its prompt, against plain transformers."""

from __future__ import annotations

from collections.abc import Iterator

import engine_reference
import numpy as np
import pytest
import torch
from sampling_reference import TOLERANCE, Plain, prompt, request, trained

from tinkerlab.rehearsal.engine import prompt_scoring
from tinkerlab.rehearsal.engine.base import BaseModel
from tinkerlab.rehearsal.engine.sampling import Sampler
from tinkerlab.rehearsal.engine.types import SamplingResult

LENGTH = 24


@pytest.fixture(scope="module")
def base() -> BaseModel:
    return engine_reference.base("qwen3")


@pytest.fixture(scope="module")
def sampler(base) -> Iterator[Sampler]:
    sampler = Sampler(base)
    yield sampler
    sampler.close()


@pytest.fixture(scope="module")
def table(base) -> torch.Tensor:
    """Logprobs ``[LENGTH, vocabulary]``; row i predicts token i + 1."""
    return Plain(base).logits(prompt(LENGTH)).log_softmax(dim=-1)


def _scores(result: SamplingResult) -> np.ndarray:
    assert result.prompt_logprobs is not None
    return result.prompt_logprobs


def test_top_k_of_the_prompt(sampler, table):
    result = sampler.submit(request(prompt(LENGTH), 1, topk_prompt_logprobs=4)).result(60)
    topk = result.topk_prompt_logprobs
    assert topk.token_ids.shape == topk.logprobs.shape == (LENGTH, 4)
    assert topk.token_ids.dtype == np.int32 and topk.logprobs.dtype == np.float32
    assert (topk.token_ids[0] == 0).all() and (topk.logprobs[0] == -99999.0).all()
    best = table[:-1].topk(4)
    np.testing.assert_array_equal(topk.token_ids[1:], best.indices.numpy())
    np.testing.assert_allclose(topk.logprobs[1:], best.values.numpy(), atol=TOLERANCE, rtol=0)
    assert result.prompt_logprobs is None


@pytest.mark.parametrize("last_n", [1, 5, LENGTH - 1])
def test_only_the_last_tokens(sampler, table, last_n):
    result = sampler.submit(
        request(
            prompt(LENGTH),
            1,
            prompt_logprobs=True,
            topk_prompt_logprobs=2,
            prompt_logprobs_last_n=last_n,
        )
    ).result(60)
    first = LENGTH - last_n
    assert np.isnan(result.prompt_logprobs[:first]).all()
    assert (result.topk_prompt_logprobs.logprobs[:first] == -99999.0).all()
    tokens = torch.tensor(prompt(LENGTH)[1:]).unsqueeze(-1)
    expected = table[:-1].gather(-1, tokens).squeeze(-1).numpy()
    np.testing.assert_allclose(
        result.prompt_logprobs[first:], expected[first - 1 :], atol=TOLERANCE, rtol=0
    )
    np.testing.assert_array_equal(
        result.topk_prompt_logprobs.token_ids[first:],
        table[first - 1 : -1].topk(2).indices.numpy(),
    )


def test_named_tokens_and_nothing_where_none_is_named(sampler, table):
    targets = np.full((LENGTH - 1, 3), -1, dtype=np.int64)
    targets[4, 0], targets[4, 2], targets[22, 1] = 17, 300, 5
    result = sampler.submit(
        request(
            prompt(LENGTH),
            1,
            prompt_logprobs=True,
            prompt_logprobs_last_n=2,  # doesn't limit the named ones
            target_prompt_logprobs=targets,
        )
    ).result(60)
    found = result.target_prompt_logprobs
    assert found.shape == targets.shape and found.dtype == np.float32
    expected = np.zeros_like(found)
    for row, column in zip(*np.nonzero(targets >= 0), strict=True):
        expected[row, column] = table[row, targets[row, column]]
    np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=0)
    assert (found[targets < 0] == 0).all()


def test_alternatives_are_drawn_at_the_requests_temperature_and_seeded(sampler, table):
    options = {"prompt_alt_tokens_k": 400, "temperature": 0.5, "seed": 11}
    drawn = [
        sampler.submit(request(prompt(LENGTH), 1, **options)).result(60).alt_tokens
        for _ in range(2)
    ]
    tokens, logprobs = drawn[0]
    assert tokens.shape == logprobs.shape == (LENGTH - 1, 400)
    np.testing.assert_array_equal(tokens, drawn[1][0])
    expected = table[:-1].gather(-1, torch.from_numpy(tokens.astype(np.int64))).numpy()
    np.testing.assert_allclose(logprobs, expected, atol=TOLERANCE, rtol=0)
    # The best token's share, averaged over the positions, is that of temperature 0.5.
    best = table[:-1].argmax(dim=-1)
    share = (tokens == best.numpy()[:, None]).mean()
    tempered = (table[:-1] / 0.5).softmax(dim=-1)
    wanted = tempered.gather(-1, best.unsqueeze(-1)).mean()
    plain = table[:-1].exp().gather(-1, best.unsqueeze(-1)).mean()
    assert abs(share - wanted) < 0.03 < abs(wanted - plain)


def test_everything_at_once_beside_sampling(sampler, table):
    targets = np.tile(np.arange(2, dtype=np.int64), (LENGTH - 1, 1))
    result = sampler.submit(
        request(
            prompt(LENGTH),
            6,
            num_samples=3,
            prompt_logprobs=True,
            topk_prompt_logprobs=3,
            topk_sample_logprobs=2,
            target_prompt_logprobs=targets,
            prompt_alt_tokens_k=2,
            seed=0,
        )
    ).result(60)
    tokens = torch.tensor(prompt(LENGTH)[1:]).unsqueeze(-1)
    expected = table[:-1].gather(-1, tokens).squeeze(-1).numpy()
    np.testing.assert_allclose(result.prompt_logprobs[1:], expected, atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(
        result.target_prompt_logprobs, table[:-1, :2].numpy(), atol=TOLERANCE, rtol=0
    )
    assert result.alt_tokens[0].shape == (LENGTH - 1, 2)
    assert len(result.sequences) == 3
    assert len({tuple(s.tokens.tolist()) for s in result.sequences}) == 3


def test_top_k_of_sampled_tokens(base, sampler):
    plain = Plain(base)
    results = [
        sampler.submit(request(prompt(9, k), 7, topk_sample_logprobs=k, seed=k)) for k in (0, 2, 5)
    ]
    for k, future in zip((0, 2, 5), results, strict=True):
        sequence = future.result(60).sequences[0]
        if k == 0:
            assert sequence.topk is None
            continue
        full = prompt(9, k) + sequence.tokens.tolist()
        best = plain.logits(full)[8:-1].log_softmax(dim=-1).topk(k)
        assert sequence.topk.token_ids.dtype == np.int32
        np.testing.assert_array_equal(sequence.topk.token_ids, best.indices.numpy())
        np.testing.assert_allclose(
            sequence.topk.logprobs, best.values.numpy(), atol=TOLERANCE, rtol=0
        )


def test_a_prompt_of_one_token_has_nothing_to_score(sampler):
    result = sampler.submit(
        request([65], 1, prompt_logprobs=True, topk_prompt_logprobs=2, prompt_alt_tokens_k=2)
    ).result(60)
    assert np.isnan(result.prompt_logprobs).all() and result.prompt_logprobs.shape == (1,)
    assert result.topk_prompt_logprobs.token_ids.shape == (1, 2)
    assert result.alt_tokens[0].shape == (0, 2)
    assert len(result.sequences[0].tokens) == 1


def test_unembedding_in_chunks_changes_nothing(base, sampler, monkeypatch, tmp_path):
    """Chunks of 16 positions, over prompts of two adapters in one pass."""
    adapter = trained(base, tmp_path / "adapter", seed=1)

    def score() -> list[np.ndarray]:
        futures = [
            sampler.submit(
                request(prompt(length), 1, prompt_logprobs=True), (adapter, None)[length % 2]
            )
            for length in (40, 41, 42, 43)
        ]
        return [_scores(future.result(60))[1:] for future in futures]

    whole = score()
    monkeypatch.setattr(prompt_scoring, "_CHUNK_BYTES", 1)
    for chunked, expected in zip(score(), whole, strict=True):
        np.testing.assert_allclose(chunked, expected, atol=1e-5, rtol=0)


def test_a_hundred_prompts_take_few_passes(base):
    """The main path of evaluation: compute_logprobs over a held-out set."""
    sampler = Sampler(base)
    try:
        lengths = [20 + (7 * n) % 40 for n in range(100)]
        futures = [
            sampler.submit(request(prompt(length, n), 1, prompt_logprobs=True))
            for n, length in enumerate(lengths)
        ]
        results = [future.result(120) for future in futures]
        counts = sampler.counts
    finally:
        sampler.close()
    assert counts.prompt_passes <= 25
    assert counts.prompt_tokens == sum(lengths)
    assert counts.decode_passes == 0
    plain = Plain(base)
    for n in (0, 50, 99):
        expected = plain.logprobs(prompt(lengths[n], n))
        np.testing.assert_allclose(_scores(results[n])[1:], expected, atol=TOLERANCE, rtol=0)
