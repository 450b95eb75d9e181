"""Continuous batching: who runs when, what one request may do to another, how it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, wait
from dataclasses import replace

import engine_reference
import numpy as np
import pytest
import torch
from sampling_reference import prompt, request, trained

from tinkerlab.rehearsal.engine import sampling
from tinkerlab.rehearsal.engine.base import BaseModel
from tinkerlab.rehearsal.engine.lora import LoraWeights
from tinkerlab.rehearsal.engine.sampling import Sampler
from tinkerlab.rehearsal.engine.sampling_rows import SamplerLimits
from tinkerlab.rehearsal.engine.training import TrainableAdapter
from tinkerlab.rehearsal.engine.types import AdapterConfig
from tinkerlab.rehearsal.errors import UserError


@pytest.fixture(scope="module")
def base() -> BaseModel:
    return engine_reference.base("llama")


@pytest.fixture
def sampler(base) -> Iterator[Sampler]:
    sampler = Sampler(base)
    yield sampler
    sampler.close()


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.002)


def tokens_of(future) -> list[list[int]]:
    return [sequence.tokens.tolist() for sequence in future.result(120).sequences]


def test_a_seeded_request_gives_the_same_whatever_runs_beside_it(base, sampler, tmp_path):
    adapter = trained(base, tmp_path / "adapter", seed=1)
    ours = request(prompt(12), 40, seed=9, num_samples=2, temperature=0.9, top_p=0.95)
    alone = tokens_of(sampler.submit(ours, adapter))
    crowd = [
        sampler.submit(request(prompt(3 + n, n), 10 + n), (adapter, None)[n % 2]) for n in range(24)
    ]
    among = sampler.submit(ours, adapter)
    wait(crowd, 120)
    assert tokens_of(among) == alone
    assert alone[0] != alone[1]
    other_seed = sampler.submit(replace(ours, seed=10), adapter)
    assert tokens_of(other_seed) != alone
    unseeded = [tokens_of(sampler.submit(replace(ours, seed=None), adapter)) for _ in range(2)]
    assert unseeded[0] != unseeded[1]


def test_requests_share_passes(sampler):
    """Sixteen at a time cost about as many steps as one, wherever they join."""
    futures = [sampler.submit(request(prompt(5 + n, n), 30)) for n in range(16)]
    wait(futures, 120)
    assert sampler.counts.most_rows == 16
    assert sampler.counts.decode_passes < 3 * 30
    assert sampler.counts.sampled_tokens == 16 * 30


def test_samples_of_one_prompt_share_its_pass(sampler):
    result = sampler.submit(request(prompt(20), 5, num_samples=10)).result(60)
    assert len({tuple(s.tokens.tolist()) for s in result.sequences}) > 5
    assert sampler.counts.prompt_tokens == 20


def test_more_samples_than_places_are_all_given(base):
    sampler = Sampler(base, SamplerLimits(rows=4))
    try:
        many = sampler.submit(request(prompt(6), 7, num_samples=11, seed=1))
        after = sampler.submit(request(prompt(4), 3, seed=2))
        assert [len(tokens) for tokens in tokens_of(many)] == [7] * 11
        assert len(tokens_of(after)[0]) == 3
        assert sampler.counts.most_rows <= 4
    finally:
        sampler.close()


def test_a_newcomer_joins_while_others_decode(sampler):
    long = sampler.submit(request(prompt(5), 1000))
    until(lambda: sampler.counts.decode_passes > 5)
    short = sampler.submit(request(prompt(5, 1), 3))
    short.result(60)
    assert not long.done()
    sampler.cancel(long)


def test_a_client_with_many_requests_does_not_hold_up_another(base, tmp_path):
    """Turns go round the adapters: the last to come is served among the first."""
    flood, single = (trained(base, tmp_path / name, seed=1) for name in ("flood", "single"))
    sampler = Sampler(base, SamplerLimits(rows=2))
    try:
        first = [sampler.submit(request(prompt(5, n), 20), flood) for n in range(20)]
        last = sampler.submit(request(prompt(5), 20), single)
        last.result(120)
        assert sum(future.done() for future in first) < 10
    finally:
        sampler.close()


def test_decoding_goes_on_beside_a_long_prompt_and_many_to_score(base, monkeypatch):
    """Between two prompt passes there is always a decoding step."""
    order: list[str] = []
    for name in ("run_prompts",):
        original = getattr(sampling, name)
        monkeypatch.setattr(
            sampling, name, lambda *a, _f=original: (order.append("prompt"), _f(*a))[1]
        )
    long_advance = sampling.LongPrompt.advance
    monkeypatch.setattr(
        sampling.LongPrompt, "advance", lambda *a: (order.append("prompt"), long_advance(*a))[1]
    )
    step = sampling.RowGroup.step
    monkeypatch.setattr(sampling.RowGroup, "step", lambda *a: (order.append("step"), step(*a))[1])
    sampler = Sampler(base, SamplerLimits(long_prompt=100, busy_tokens=50))
    try:
        running = sampler.submit(request(prompt(5), 900))
        until(lambda: "step" in order)
        order.clear()
        long = sampler.submit(request(prompt(900), 1, prompt_logprobs=True))
        scored = [
            sampler.submit(request(prompt(45, n), 1, prompt_logprobs=True)) for n in range(20)
        ]
        for future in (long, *scored):
            future.result(120)
        sampler.cancel(running)
    finally:
        sampler.close()
    text = "".join(name[0] for name in order)
    assert text.count("p") >= 18 + 20 - 1
    # A turn's prompts of very different length make two passes; a step follows every turn.
    assert "ppp" not in text


def test_cancelling_frees_the_place(sampler):
    running = [sampler.submit(request(prompt(5, n), 1000)) for n in range(3)]
    queued = sampler.submit(request(prompt(5), 1000, num_samples=200))
    until(lambda: sampler.counts.decode_passes > 2)
    assert all(sampler.cancel(future) for future in (*running, queued))
    with pytest.raises(CancelledError):
        running[0].result(5)
    until(lambda: not sampler._busy())
    done = sampler.submit(request(prompt(5), 3))
    assert len(tokens_of(done)[0]) == 3
    assert not sampler.cancel(done)


def test_an_adapter_of_another_shape_fails_only_its_own_request(base, sampler, tmp_path):
    good = trained(base, tmp_path / "good", seed=1)
    site = base.sites[0]
    broken = replace(
        good, weights=LoraWeights(1.0, {site.name: (torch.zeros(2, 7), torch.zeros(5, 2))})
    )
    expected = tokens_of(sampler.submit(request(prompt(9), 20, seed=1), good))
    futures = [
        sampler.submit(request(prompt(9), 20, seed=1), adapter) for adapter in (good, broken, good)
    ]
    with pytest.raises(RuntimeError):
        futures[1].result(60)
    assert tokens_of(futures[0]) == tokens_of(futures[2]) == expected


def test_a_step_that_fails_for_one_row_fails_only_that_request(base, sampler, monkeypatch):
    """A failure in the middle of decoding, when the common pass is already under way."""
    expected = tokens_of(sampler.submit(request(prompt(9), 20, seed=1)))
    cursed = request(prompt(11), 20, seed=2)
    step = sampling.RowGroup.step

    def failing(group, model, start, end):
        for row in group.rows[start:end]:
            if row.job.request is cursed and len(row.tokens) == 7:
                raise MemoryError("no room for this one")
        return step(group, model, start, end)

    monkeypatch.setattr(sampling.RowGroup, "step", failing)
    bad = sampler.submit(cursed)
    good = sampler.submit(request(prompt(9), 20, seed=1))
    with pytest.raises(MemoryError):
        bad.result(60)
    assert tokens_of(good) == expected


@pytest.mark.parametrize("spoiled", ["prompt", "decoding"])
def test_weights_with_nan_are_named_and_spoil_nobody(base, sampler, tmp_path, monkeypatch, spoiled):
    """NaN in a shared buffer would reach rows that use the place later: 0 * NaN is NaN."""
    good = trained(base, tmp_path / "good", seed=1)
    pairs = {name: (a.clone(), b.clone()) for name, (a, b) in good.weights.pairs.items()}
    bad = replace(good, weights=LoraWeights(good.weights.scale, pairs))
    work = request(prompt(9), 30, seed=1)
    expected = tokens_of(sampler.submit(work, good))
    step = sampling.RowGroup.step

    def spoil() -> None:
        for _, b in pairs.values():
            b.mul_(torch.nan)

    def spoiling(group, model, start, end):
        for row in group.rows[start:end]:
            if row.job.adapter is bad and len(row.tokens) == 12:
                spoil()
        return step(group, model, start, end)

    monkeypatch.setattr(sampling.RowGroup, "step", spoiling)
    if spoiled == "prompt":
        spoil()
    futures = [sampler.submit(work, adapter) for adapter in (good, bad, good)]
    with pytest.raises(UserError, match=r"NaN.*adapter"):
        futures[1].result(60)
    # Rows that join now, in the place that was freed.
    again = [sampler.submit(work, good) for _ in range(4)]
    assert all(tokens_of(future) == expected for future in (futures[0], futures[2], *again))


def test_a_defect_fails_the_requests_and_leaves_the_thread_alive(base, sampler, monkeypatch):
    original = sampling.similar_lengths
    monkeypatch.setattr(sampling, "similar_lengths", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sampler.submit(request(prompt(5), 3)).result(60)
    monkeypatch.setattr(sampling, "similar_lengths", original)
    assert len(tokens_of(sampler.submit(request(prompt(5), 3)))[0]) == 3


def test_a_slow_callback_does_not_stop_the_batch(sampler):
    """The service stores results in callbacks."""
    release = threading.Event()
    first = sampler.submit(request(prompt(5), 1))
    first.add_done_callback(lambda _: release.wait(60))
    first.result(60)
    steps = sampler.counts.decode_passes
    sampler.submit(request(prompt(5), 30))
    until(lambda: sampler.counts.decode_passes >= steps + 29)
    release.set()


def test_sampling_goes_on_during_a_training_step(base, sampler, monkeypatch):
    """The step is held in the middle, with every lock that training takes."""
    trainable = TrainableAdapter(base, AdapterConfig(rank=4, seed=0))
    data = [engine_reference.sft_datum(np.random.default_rng(0), 20)]
    inside, release = threading.Event(), threading.Event()
    run = TrainableAdapter._run

    def held(*arguments, **options):
        run(*arguments, **options)
        inside.set()
        assert release.wait(120)

    monkeypatch.setattr(TrainableAdapter, "_run", held)
    thread = threading.Thread(
        target=lambda: trainable.forward_backward(data, "cross_entropy", {}, forward_only=False)
    )
    thread.start()
    try:
        assert inside.wait(60)
        result = sampler.submit(request(prompt(5), 20)).result(60)
        assert len(result.sequences[0].tokens) == 20
        assert thread.is_alive()
    finally:
        release.set()
        thread.join()


def test_closing_cancels_what_runs_and_refuses_what_comes(base):
    sampler = Sampler(base)
    futures = [sampler.submit(request(prompt(5, n), 1000)) for n in range(4)]
    futures.append(sampler.submit(request(prompt(900), 1)))
    until(lambda: sampler.counts.decode_passes > 2)
    sampler.close()
    for future in futures:
        assert future.cancelled() or future.done()
    assert futures[0].cancelled()
    with pytest.raises(RuntimeError, match="closed"):
        sampler.submit(request(prompt(5), 1))


def test_the_sampler_is_quiet_when_there_is_nothing_to_do(sampler):
    sampler.submit(request(prompt(5), 3)).result(60)
    until(lambda: not sampler._busy())
    before = replace(sampler.counts)
    time.sleep(0.1)
    assert sampler.counts == before
    assert not sampler._rows.groups()
