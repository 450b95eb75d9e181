"""Every loss: its value and its gradient against plain torch, and what it refuses."""

from __future__ import annotations

import math

import engine_reference as reference
import numpy as np
import pytest
import torch

from tinkerlab.rehearsal.engine import losses
from tinkerlab.rehearsal.engine.training import TrainableAdapter
from tinkerlab.rehearsal.engine.types import AdapterConfig, TrainingDatum
from tinkerlab.rehearsal.errors import UserError

POLICY = {
    "importance_sampling": {},
    "ppo": {},
    "ppo, own clip": {"clip_low_threshold": 0.9, "clip_high_threshold": 1.05},
    "cispo": {},
    "cispo, two-sided": {"clip_low_threshold": 0.8, "clip_high_threshold": 1.1},
    "dro": {},
    "dro, own beta": {"beta": 0.7},
    "gspo": {},
    "gspo, tight": {"clip_low_threshold": 0.99, "clip_high_threshold": 1.001},
}
TOLERANCE = 1e-4


def _adapter(architecture: str, tmp_path, **choice: bool) -> TrainableAdapter:
    adapter = TrainableAdapter(
        reference.base(architecture), AdapterConfig(rank=4, seed=1, **choice)
    )
    reference.randomise(adapter, tmp_path / "random")
    return adapter


def _compare(adapter: TrainableAdapter, data, name: str, config=None) -> None:
    result = adapter.forward_backward(data, name, config or {})
    total, expected = reference.gradients(adapter.base, adapter.snapshot(), data, name, config)
    assert result.metrics["loss:sum"] == pytest.approx(total, rel=TOLERANCE, abs=1e-4)
    assert any(float(b.norm()) > 0 for _, b in expected.values())
    assert reference.worst_relative_error(adapter.gradients(), expected) < TOLERANCE


@reference.each_architecture
def test_cross_entropy_gradient(architecture: str, tmp_path) -> None:
    rng = np.random.default_rng(3)
    data = [reference.sft_datum(rng, n) for n in (7, 40, 1, 12)]
    _compare(_adapter(architecture, tmp_path), data, "cross_entropy")


@pytest.mark.parametrize("case", POLICY)
def test_policy_loss_gradient(case: str, tmp_path) -> None:
    rng = np.random.default_rng(4)
    adapter = _adapter("qwen3", tmp_path)
    data = [reference.rl_datum(rng, n) for n in (9, 30, 17)]
    data = reference.near_policy(adapter, data, rng, spread=0.3)
    _compare(adapter, data, case.split(",")[0], POLICY[case])


@pytest.mark.parametrize("name", ["ppo", "cispo", "gspo"])
def test_thresholds_for_each_token(name: str, tmp_path) -> None:
    rng = np.random.default_rng(5)
    adapter = _adapter("llama", tmp_path)
    data = reference.near_policy(
        adapter, [reference.rl_datum(rng, n) for n in (12, 20)], rng, spread=0.3
    )
    for datum in data:
        n = len(datum.tokens)
        datum.loss_inputs["clip_low_threshold"] = rng.uniform(0.7, 1.0, n).astype(np.float32)
        datum.loss_inputs["clip_high_threshold"] = rng.uniform(1.0, 1.3, n).astype(np.float32)
    _compare(adapter, data, name)


def test_gspo_mask_and_policy_weights(tmp_path) -> None:
    rng = np.random.default_rng(6)
    adapter = _adapter("llama", tmp_path)
    data = reference.near_policy(
        adapter, [reference.rl_datum(rng, n) for n in (12, 20)], rng, spread=0.05
    )
    for datum in data:
        n = len(datum.tokens)
        datum.loss_inputs["sequence_ratio_mask"] = (np.arange(n) > n // 2).astype(np.float32)
        datum.loss_inputs["weights"] = rng.random(n).astype(np.float32)
    _compare(adapter, data, "gspo")


def test_soft_targets_mixed_with_hard_ones(tmp_path) -> None:
    rng = np.random.default_rng(7)
    adapter = _adapter("qwen3_moe", tmp_path)
    data = [
        reference.sft_datum(rng, 6, k=3),
        reference.sft_datum(rng, 11),
        reference.sft_datum(rng, 9, k=1),
        reference.sft_datum(rng, 14, k=3),
    ]
    # Two targets of one position that are the same token must add up.
    data[0].loss_inputs["target_tokens"][2] = 17
    result = adapter.forward_backward(data, "cross_entropy", {}, forward_only=True)
    assert [o["logprobs"].shape for o in result.outputs] == [(6, 3), (11,), (9, 1), (14, 3)]
    _compare(adapter, data, "cross_entropy")


@pytest.mark.parametrize(
    "choice",
    [
        {"train_mlp": False, "train_unembed": False},
        {"train_attn": False, "train_unembed": False},
        {"train_attn": False, "train_mlp": False},
    ],
)
def test_gradient_of_a_part(choice: dict[str, bool], tmp_path) -> None:
    rng = np.random.default_rng(8)
    adapter = _adapter("deepseek_v3", tmp_path, **choice)
    kinds = {site.kind for site in adapter.snapshot().sites}
    assert len(kinds) == 1
    _compare(adapter, [reference.sft_datum(rng, n) for n in (8, 15)], "cross_entropy")


def test_logprobs_and_elementwise_loss_come_back_in_order(tmp_path) -> None:
    rng = np.random.default_rng(9)
    adapter = _adapter("qwen3", tmp_path)
    data = [reference.sft_datum(rng, n) for n in (25, 3, 14)]
    result = adapter.forward_backward(data, "cross_entropy", {})
    frozen = adapter.snapshot()
    hf = reference.plain(adapter.base)
    state = reference.merged_state(hf, dict(frozen.weights.pairs), frozen.weights.scale)
    for datum, output in zip(data, result.outputs, strict=True):
        with torch.no_grad():
            expected = reference.merged_logprobs(hf, state, datum).numpy()
        assert output["logprobs"].dtype == output["elementwise_loss"].dtype == np.float32
        np.testing.assert_allclose(output["logprobs"], expected, atol=2e-5)
        np.testing.assert_allclose(
            output["elementwise_loss"], -expected * datum.loss_inputs["weights"], atol=1e-4
        )


def test_many_small_chunks_give_the_same(tmp_path, monkeypatch) -> None:
    rng = np.random.default_rng(10)
    adapter = _adapter("llama", tmp_path)
    data = [reference.sft_datum(rng, n) for n in (60, 70)]
    adapter.forward_backward(data, "cross_entropy", {})
    whole = adapter.gradients()
    monkeypatch.setattr("tinkerlab.rehearsal.engine.head.rows_per_chunk", lambda vocabulary: 16)
    monkeypatch.setattr("tinkerlab.rehearsal.engine.passes._TOKENS_PER_PASS", 64)
    other = _adapter("llama", tmp_path)
    other.forward_backward(data, "cross_entropy", {})
    assert reference.worst_relative_error(other.gradients(), whole) < 1e-5


@reference.each_architecture
def test_recomputing_layers_gives_the_same(architecture: str, tmp_path, monkeypatch) -> None:
    rng = np.random.default_rng(10)
    data = [reference.sft_datum(rng, n) for n in (60, 70)]
    kept, recomputed = _adapter(architecture, tmp_path), _adapter(architecture, tmp_path)
    first = kept.forward_backward(data, "cross_entropy", {})
    monkeypatch.setattr("tinkerlab.rehearsal.engine.training._TOKENS_BEFORE_RECOMPUTING", 1)
    calls = []
    run = kept.base.hf.model.layers[0].mlp.forward
    monkeypatch.setattr(
        kept.base.hf.model.layers[0].mlp, "forward", lambda x: [calls.append(1), run(x)][1]
    )
    second = recomputed.forward_backward(data, "cross_entropy", {})
    assert len(calls) == 2  # it did compute twice
    assert second.metrics == first.metrics
    for site, pair in recomputed.gradients().items():
        for found, expected in zip(pair, kept.gradients()[site], strict=True):
            assert torch.equal(found, expected)


def test_doubled_weights_double_the_gradient(tmp_path) -> None:
    rng = np.random.default_rng(11)
    adapter = _adapter("llama", tmp_path)
    data = [reference.sft_datum(rng, n) for n in (10, 20)]
    once = adapter.forward_backward(data, "cross_entropy", {})
    single = adapter.gradients()
    doubled = [
        TrainingDatum(d.tokens, d.loss_inputs | {"weights": d.loss_inputs["weights"] * 2})
        for d in data
    ]
    other = _adapter("llama", tmp_path)
    twice = other.forward_backward(doubled, "cross_entropy", {})
    assert twice.metrics["loss:sum"] == pytest.approx(2 * once.metrics["loss:sum"], rel=1e-6)
    expected = {site: (a * 2, b * 2) for site, (a, b) in single.items()}
    assert reference.worst_relative_error(other.gradients(), expected) < 1e-6


def test_what_a_client_side_custom_loss_needs(tmp_path) -> None:
    """forward with zero weights, then weights = -dC/dlogprobs: the gradient of C."""
    rng = np.random.default_rng(12)
    adapter = _adapter("llama", tmp_path)
    data = [reference.sft_datum(rng, n) for n in (10, 14)]
    for datum in data:
        datum.loss_inputs["weights"] = np.zeros(len(datum.tokens), np.float32)
    forward = adapter.forward_backward(data, "cross_entropy", {}, forward_only=True)
    logprobs = [torch.tensor(o["logprobs"], requires_grad=True) for o in forward.outputs]
    (torch.cat(logprobs).var() + (logprobs[0].sum() - logprobs[1].sum()).square()).backward()
    for datum, logprob in zip(data, logprobs, strict=True):
        assert logprob.grad is not None
        datum.loss_inputs["weights"] = -logprob.grad.numpy()
    adapter.forward_backward(data, "cross_entropy", {})

    frozen = adapter.snapshot()
    hf, pairs = reference.plain(adapter.base), reference.leaves(frozen)
    state = reference.merged_state(hf, pairs, frozen.weights.scale)
    own = [reference.merged_logprobs(hf, state, datum) for datum in data]
    (torch.cat(own).var() + (own[0].sum() - own[1].sum()).square()).backward()
    expected = {site: (a.grad, b.grad) for site, (a, b) in pairs.items()}
    assert reference.worst_relative_error(adapter.gradients(), expected) < TOLERANCE  # type: ignore[arg-type]


def _datum(**changes) -> TrainingDatum:
    inputs = {
        "target_tokens": np.array([1, 2, 3]),
        "logprobs": np.zeros(3, np.float32),
        "advantages": np.ones(3, np.float32),
    }
    inputs.update(changes)
    return TrainingDatum(np.array([4, 5, 6]), {k: v for k, v in inputs.items() if v is not None})


BAD_REQUESTS = [
    ("stable_reinforce", {}, _datum(), "'stable_reinforce' is not supported"),
    ("custom", {}, _datum(), "'custom' is not supported"),
    ("mse", {}, _datum(), "it has cross_entropy"),
    ("ppo", {"epsilon": 0.2}, _datum(), "ppo has no 'epsilon'; it has clip_low_threshold"),
    ("importance_sampling", {"beta": 0.2}, _datum(), "it has no settings"),
    ("ppo", {"clip_low_threshold": "low"}, _datum(), "must be a finite number, got 'low'"),
    ("ppo", {"clip_low_threshold": math.nan}, _datum(), "must be a finite number, got nan"),
    ("ppo", {"clip_low_threshold": 2.0}, _datum(), "is over clip_high_threshold 1.2"),
    ("dro", {"beta": -1.0}, _datum(), "beta must not be negative"),
    ("ppo", {}, _datum(advantages=None), "datum 1: loss_fn ppo needs advantages"),
    ("ppo", {}, _datum(mask=np.ones(3, np.float32)), "datum 1: loss_fn ppo has no input 'mask'"),
    ("cross_entropy", {}, _datum(), "datum 1: loss_fn cross_entropy needs weights"),
    ("ppo", {}, _datum(target_tokens=np.array([1, 2])), "datum 1: target_tokens has 2 positions"),
    ("ppo", {}, _datum(target_tokens=np.ones((3, 2), int)), "shape [3, 2]; ppo takes [3]"),
    ("ppo", {}, _datum(target_tokens=np.ones(3, np.float32)), "must be integers, got float32"),
    ("ppo", {}, _datum(advantages=np.ones(4, np.float32)), "advantages has shape [4]"),
    ("ppo", {}, _datum(logprobs=np.array([0, np.nan, 0])), "logprobs holds a value that is not"),
    ("ppo", {}, _datum(logprobs=np.array([0, -np.inf, 0])), "logprobs holds a value that is not"),
    ("ppo", {}, TrainingDatum(np.array([], int), _datum().loss_inputs), "model_input is empty"),
    ("gspo", {}, _datum(sequence_ratio_mask=np.zeros(3, np.float32)), "marks no token"),
]


@pytest.mark.parametrize(("name", "config", "bad", "words"), BAD_REQUESTS)
def test_refusals_name_the_datum_and_the_input(name, config, bad, words) -> None:
    extra = {"weights": np.ones(3, np.float32)} if name == "cross_entropy" else {}
    good = (
        _datum(**extra)
        if name != "cross_entropy"
        else TrainingDatum(np.array([4, 5, 6]), {"target_tokens": np.array([1, 2, 3]), **extra})
    )
    with pytest.raises(UserError) as caught:
        losses.check_inputs(name, config, [good, bad])
    assert words in caught.value.message
    assert "\n" not in caught.value.message


def test_no_data_is_refused() -> None:
    with pytest.raises(UserError, match="at least one datum"):
        losses.check_inputs("cross_entropy", {}, [])
