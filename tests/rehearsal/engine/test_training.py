"""What a training run promises: order, isolation, determinism, exact resume."""

from __future__ import annotations

import threading
from typing import Any

import engine_reference as reference
import numpy as np
import pytest
import torch

from tinkerlab.rehearsal.engine.adapter import FrozenAdapter
from tinkerlab.rehearsal.engine.lora import use_adapter
from tinkerlab.rehearsal.engine.training import OPTIMIZER, TrainableAdapter
from tinkerlab.rehearsal.engine.types import AdamSettings, AdapterConfig, TrainingDatum
from tinkerlab.rehearsal.errors import UserError

FAST = AdamSettings(learning_rate=1e-2, weight_decay=0.01, grad_clip_norm=1.0)
each_architecture = reference.each_architecture


def _new(architecture: str = "llama", **options: Any) -> TrainableAdapter:
    settings: dict[str, Any] = {"rank": 4, "seed": 5, **options}
    return TrainableAdapter(reference.base(architecture), AdapterConfig(**settings))


def _data(seed: int = 0, count: int = 3) -> list[TrainingDatum]:
    rng = np.random.default_rng(seed)
    data = []
    for length in rng.integers(5, 40, count):
        datum = reference.sft_datum(rng, int(length))
        datum.loss_inputs["weights"] = np.ones(length, np.float32)
        data.append(datum)
    return data


def _train(adapter: TrainableAdapter, steps: range) -> list[float]:
    losses = []
    for step in steps:
        result = adapter.forward_backward(_data(step), "cross_entropy", {})
        losses.append(result.metrics["loss:sum"])
        adapter.optim_step(FAST)
    return losses


def _bits(adapter: TrainableAdapter) -> dict[str, bytes]:
    return {
        f"{site}.{factor}": tensor.detach().numpy().tobytes()
        for site, pair in adapter.snapshot().weights.pairs.items()
        for factor, tensor in zip("AB", pair, strict=True)
    }


@each_architecture
def test_the_loss_falls(architecture: str) -> None:
    adapter = _new(architecture, rank=8)
    data = _data()
    first = adapter.forward_backward(data, "cross_entropy", {}).metrics
    for _ in range(8):
        adapter.optim_step(FAST)
        last = adapter.forward_backward(data, "cross_entropy", {}).metrics
    assert last["loss:sum"] < 0.7 * first["loss:sum"]
    experts = {key for key in last if key.startswith("e_")}
    assert len(experts) == (0 if architecture in ("llama", "qwen3") else 5)


def test_a_new_adapter_changes_nothing() -> None:
    adapter = _new()
    tokens = torch.arange(20).unsqueeze(0)
    base = adapter.base
    with torch.no_grad():
        bare = base.hidden_states(tokens)
        with use_adapter(adapter.snapshot().weights):
            assert torch.equal(base.hidden_states(tokens), bare)


def test_the_seed_alone_decides_the_first_weights() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = _bits(_new(seed=7))
    assert torch.equal(torch.get_rng_state(), state)  # the caller's random numbers are his
    torch.manual_seed(2)
    assert _bits(_new(seed=7)) == first
    assert _bits(_new(seed=8)) != first
    assert _bits(_new(seed=None)) != _bits(_new(seed=None))


def test_first_weights_are_peft_s() -> None:
    adapter = _new(rank=64)
    for site in adapter.snapshot().sites:
        a, b = adapter.snapshot().weights.pairs[site.name]
        bound = site.d_in**-0.5
        assert float(a.abs().max()) <= bound
        assert float(a.std()) == pytest.approx(bound / 3**0.5, rel=0.05)
        assert not b.any()


def test_gradients_of_several_calls_add_up() -> None:
    data = _data(count=6)
    together, apart = _new(), _new()
    together.forward_backward(data, "cross_entropy", {})
    for call in (data[:1], data[1:4], data[4:]):
        apart.forward_backward(call, "cross_entropy", {})
    assert reference.worst_relative_error(apart.gradients(), together.gradients()) < 1e-5
    norm = sum(float(f.norm()) ** 2 for pair in apart.gradients().values() for f in pair) ** 0.5
    assert apart.optim_step(FAST)["grad_norm:mean"] == pytest.approx(norm, rel=1e-5)
    assert not any(f.any() for pair in apart.gradients().values() for f in pair)


def test_forward_only_leaves_gradient_and_weights_alone() -> None:
    adapter = _new()
    adapter.forward_backward(_data(1), "cross_entropy", {})
    before = adapter.gradients()
    backward = adapter.forward_backward(_data(2), "cross_entropy", {}, forward_only=True)
    for site, pair in adapter.gradients().items():
        assert all(torch.equal(x, y) for x, y in zip(pair, before[site], strict=True))
    adapter.optim_step(FAST)
    weights = _bits(adapter)
    adapter.forward_backward(_data(2), "cross_entropy", {}, forward_only=True)
    assert adapter.optim_step(FAST) == {"grad_norm:mean": 0.0}  # nothing to step with
    assert _bits(adapter) == weights
    assert backward.metrics["loss:sum"] > 0


def test_a_refused_request_changes_nothing() -> None:
    adapter = _new()
    adapter.forward_backward(_data(1), "cross_entropy", {})
    before = adapter.gradients()
    long = 1 + adapter.base.context_length
    refused = {
        "datum 1: target_tokens holds token 320": np.array([1, 320]),
        "datum 1: target_tokens holds token -1": np.array([-1, 3]),
        f"datum 1: {long} tokens are more than the context": np.zeros(long, np.int64),
    }
    for words, tokens in refused.items():
        inputs = {"target_tokens": tokens, "weights": np.ones(len(tokens), np.float32)}
        bad = TrainingDatum(np.zeros(len(tokens), np.int64), inputs)
        with pytest.raises(UserError, match=words):
            adapter.forward_backward([*_data(2, 1), bad], "cross_entropy", {})
    for site, pair in adapter.gradients().items():
        assert all(torch.equal(x, y) for x, y in zip(pair, before[site], strict=True))


def test_adapters_on_one_base_do_not_touch_each_other() -> None:
    alone = [_new(seed=1), _new(seed=2, rank=3, train_mlp=False)]
    for adapter in alone:
        _train(adapter, range(4))
    mixed = [_new(seed=1), _new(seed=2, rank=3, train_mlp=False)]
    for step in range(4):
        for adapter in mixed:
            adapter.forward_backward(_data(step), "cross_entropy", {})
        for adapter in reversed(mixed):
            adapter.optim_step(FAST)
    assert [_bits(a) for a in mixed] == [_bits(a) for a in alone]


def test_two_runs_are_the_same_to_the_bit() -> None:
    first, second = _new("qwen3_moe"), _new("qwen3_moe")
    assert _train(first, range(3)) == _train(second, range(3))
    assert _bits(first) == _bits(second)


@each_architecture
def test_resuming_is_exact(architecture: str, tmp_path) -> None:
    straight = _new(architecture)
    expected = _train(straight, range(6))

    stopped = _new(architecture)
    losses = _train(stopped, range(3))
    stopped.save(tmp_path / "state", with_optimizer=True)
    resumed = _new(architecture, seed=99)
    resumed.load(tmp_path / "state", with_optimizer=True)
    losses += _train(resumed, range(3, 6))
    assert losses == expected
    assert _bits(resumed) == _bits(straight)

    # Without the optimizer's state it goes on too, but not as if it had never stopped.
    fresh = _new(architecture)
    fresh.load(tmp_path / "state", with_optimizer=False)
    _train(fresh, range(3, 6))
    assert _bits(fresh) != _bits(straight)


def test_saving_before_the_first_step_and_dropping_a_gradient(tmp_path) -> None:
    adapter = _new()
    adapter.forward_backward(_data(), "cross_entropy", {})
    adapter.save(tmp_path / "state", with_optimizer=True)
    other = _new(seed=1)
    other.forward_backward(_data(3), "cross_entropy", {})
    other.load(tmp_path / "state", with_optimizer=True)
    assert other.optim_step(FAST) == {"grad_norm:mean": 0.0}
    assert _bits(other) == _bits(_new())


def test_a_checkpoint_that_does_not_fit_changes_nothing(tmp_path) -> None:
    adapter = _new()
    _train(adapter, range(2))
    adapter.save(tmp_path / "good", with_optimizer=True)
    before = _bits(adapter)

    def saved(name: str, **options):
        _new(**options).save(tmp_path / name, with_optimizer=True)
        return tmp_path / name

    broken = saved("broken")
    (broken / OPTIMIZER).write_bytes((broken / OPTIMIZER).read_bytes()[:-3])
    weights_only = tmp_path / "weights"
    adapter.save(weights_only, with_optimizer=False)
    fewer = _new(train_mlp=False)
    _train(fewer, range(1))
    fewer.save(tmp_path / "fewer", with_optimizer=True)
    part = saved("part of an optimizer")
    (tmp_path / "fewer" / OPTIMIZER).replace(part / OPTIMIZER)

    cases = {
        saved("other rank", rank=7): "has LoRA rank 7, this run has 4",
        saved("other layers", train_mlp=False): "trains other layers",
        saved("other model", architecture="qwen3"): "another model",
        broken: "not a whole safetensors file",
        weights_only: "no such file",
        part: "doesn't fit this adapter",
    }
    for folder, words in cases.items():
        with pytest.raises(UserError, match=words):
            adapter.load(folder, with_optimizer=True)
        assert _bits(adapter) == before
    adapter.load(tmp_path / "good", with_optimizer=True)
    assert _bits(adapter) == before


def test_a_snapshot_stays_while_training_goes_on(tmp_path) -> None:
    adapter = _new()
    _train(adapter, range(1))
    snapshot = adapter.snapshot()
    adapter.save(tmp_path / "saved", with_optimizer=False)
    loaded = FrozenAdapter.load(adapter.base, tmp_path / "saved")
    tokens = torch.arange(24).unsqueeze(0)

    def logits(frozen: FrozenAdapter) -> torch.Tensor:
        with torch.no_grad(), use_adapter(frozen.weights):
            return adapter.base.logits(adapter.base.hidden_states(tokens))

    before = logits(snapshot)
    assert torch.equal(logits(loaded), before)
    seen: list[bool] = []
    stop = threading.Event()

    def sample() -> None:
        while not stop.is_set():
            seen.append(torch.allclose(logits(snapshot), before, atol=1e-5))

    thread = threading.Thread(target=sample)
    thread.start()
    losses = _train(adapter, range(1, 6))
    stop.set()
    thread.join()
    assert seen and all(seen)
    quiet = _new()
    _train(quiet, range(1))
    assert _train(quiet, range(1, 6)) == losses  # sampling didn't disturb training either
    assert _bits(quiet) == _bits(adapter)
    assert not torch.equal(logits(adapter.snapshot()), before)


def test_expert_metrics_count_real_tokens_only() -> None:
    adapter = _new("qwen3_moe")
    rng = np.random.default_rng(3)
    short, long = reference.sft_datum(rng, 5), reference.sft_datum(rng, 60)

    def metrics(*data: TrainingDatum) -> dict[str, float]:
        return adapter.forward_backward(list(data), "cross_entropy", {}, forward_only=True).metrics

    # Together the short one is padded to 60 tokens; its padding must count for nothing.
    together, alone = metrics(short, long), [metrics(short), metrics(long)]
    fair = [n * 2 / 5 for n in (5, 60)]  # 2 of 5 experts for each token
    for found, each in zip(alone, fair, strict=True):
        busiest = (1 + found["e_max_violation:max"]) * each
        assert busiest == pytest.approx(round(busiest), abs=1e-9)
    busiest = (1 + together["e_max_violation:max"]) * sum(fair)
    assert busiest == pytest.approx(round(busiest), abs=1e-9)
    bound = sum((1 + m["e_max_violation:max"]) * f for m, f in zip(alone, fair, strict=True))
    assert busiest <= bound + 1e-9
    assert together["loss:sum"] == pytest.approx(sum(m["loss:sum"] for m in alone), rel=1e-5)
    assert together["e_min_violation:mean"] <= 0 <= together["e_max_violation:mean"]
