"""What the engine must compute, computed another way: merged weights in plain transformers.

Nothing here uses the engine's forward pass, losses or optimizer: each datum runs alone, without
padding, through a fresh transformers model whose weights are W + scale * B A, and autograd goes
through that sum.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tinkerlab.rehearsal.engine import adapter_files
from tinkerlab.rehearsal.engine.adapter import FrozenAdapter
from tinkerlab.rehearsal.engine.base import BaseModel
from tinkerlab.rehearsal.engine.training import TrainableAdapter
from tinkerlab.rehearsal.engine.types import TrainingDatum
from tinkerlab.rehearsal.models.registry import resolve

ARCHITECTURES = ("llama", "qwen3", "qwen3_moe", "gpt_oss", "deepseek_v3")
each_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)
Pairs = dict[str, tuple[Tensor, Tensor]]

_bases: dict[str, BaseModel] = {}


def base(architecture: str) -> BaseModel:
    """The tiny model of an architecture, loaded once for all tests."""
    if architecture not in _bases:
        _bases[architecture] = BaseModel.load(resolve(f"tiny:{architecture}"))
    return _bases[architecture]


def plain(model: BaseModel) -> Any:
    """A fresh transformers model of the same folder."""
    from transformers import AutoModelForCausalLM

    hf = AutoModelForCausalLM.from_pretrained(str(model.directory), dtype=torch.float32)
    return hf.eval().requires_grad_(False)


def randomise(adapter: TrainableAdapter, directory: Path, seed: int = 0) -> FrozenAdapter:
    """Give every factor random weights (B starts at zero otherwise), through adapter files."""
    generator = torch.Generator().manual_seed(seed)
    pairs = {
        site: (
            torch.randn(a.shape, generator=generator) * 0.05,
            torch.randn(b.shape, generator=generator) * 0.05,
        )
        for site, (a, b) in adapter.snapshot().weights.pairs.items()
    }
    adapter_files.write(adapter.base, directory, adapter.config, pairs)
    adapter.load(directory, with_optimizer=False)
    return adapter.snapshot()


def leaves(frozen: FrozenAdapter) -> Pairs:
    return {
        site: (a.clone().requires_grad_(True), b.clone().requires_grad_(True))
        for site, (a, b) in frozen.weights.pairs.items()
    }


def merged_state(hf: Any, pairs: Pairs, scale: float) -> dict[str, Tensor]:
    """The state dict of ``hf`` with every pair added to the weight that it belongs to."""
    state = dict(hf.state_dict())
    for site, (a, b) in pairs.items():
        stem, _, leaf = site.rpartition(".")
        if leaf not in ("w1", "w2", "w3"):
            state[f"{site}.weight"] = state[f"{site}.weight"] + scale * b @ a
            continue
        delta = scale * torch.matmul(b, a)  # [experts, out, in]; a shared factor broadcasts
        gpt_oss = hf.config.model_type == "gpt_oss"
        if gpt_oss:
            delta = delta.transpose(1, 2)
        key = f"{stem}.down_proj" if leaf == "w2" else f"{stem}.gate_up_proj"
        update = torch.zeros_like(state[key])
        if leaf == "w2":
            update = update + delta
        elif gpt_oss:
            columns = torch.arange(0 if leaf == "w1" else 1, update.shape[2], 2)
            update = update.index_add(2, columns, delta)
        else:
            half = update.shape[1] // 2
            rows = torch.arange(half) + (0 if leaf == "w1" else half)
            update = update.index_add(1, rows, delta)
        state[key] = state[key] + update
    return state


def merged_logprobs(hf: Any, state: dict[str, Tensor], datum: TrainingDatum) -> Tensor:
    """Logprobs of the datum's targets, ``[T]`` or ``[T, K]``."""
    tokens = torch.from_numpy(np.asarray(datum.tokens)).unsqueeze(0)
    # tie_weights=False: a LoRA on the unembedding changes the unembedding alone.
    logits = torch.func.functional_call(
        hf, state, (), {"input_ids": tokens, "use_cache": False}, tie_weights=False
    ).logits[0]
    targets = torch.from_numpy(np.asarray(datum.loss_inputs["target_tokens"]))
    everything = torch.log_softmax(logits, dim=-1)
    return everything.gather(1, targets.reshape(len(targets), -1)).reshape(targets.shape)


def loss(name: str, config: dict[str, float], logprobs: Tensor, datum: TrainingDatum) -> Tensor:
    """The loss of one datum, token by token in plain Python."""
    given = {k: torch.from_numpy(np.asarray(v)) for k, v in datum.loss_inputs.items()}
    if name == "cross_entropy":
        return -(given["weights"] * logprobs).sum()
    total = torch.zeros(())
    count, log_sum = 0, 0.0
    if name == "gspo":
        marks = given.get("sequence_ratio_mask", given["advantages"])
        for t in range(len(logprobs)):
            if marks[t] != 0:
                count += 1
                log_sum += float(logprobs[t].detach() - given["logprobs"][t])
    for t in range(len(logprobs)):
        p, q, advantage = logprobs[t], given["logprobs"][t], given["advantages"][t]
        default = (0.0, 4.0) if name == "cispo" else (0.8, 1.2)
        low = (
            float(given["clip_low_threshold"][t])
            if "clip_low_threshold" in given
            else config.get("clip_low_threshold", default[0])
        )
        high = (
            float(given["clip_high_threshold"][t])
            if "clip_high_threshold" in given
            else config.get("clip_high_threshold", default[1])
        )
        ratio = (p - q).exp()
        if name == "importance_sampling":
            value = ratio * advantage
        elif name == "cispo":
            value = min(max(float(ratio), low), high) * advantage * p
        elif name == "dro":
            value = advantage * p - config.get("beta", 0.05) / 2 * (p - q) ** 2
        else:
            if name == "gspo":
                mean = log_sum / count if count else 0.0
                ratio = math.exp(mean) * (p - p.detach()).exp()
            clipped = (
                float(ratio)
                if low <= float(ratio) <= high
                else (low if float(ratio) < low else high)
            )
            unclipped_wins = float(ratio) * float(advantage) <= clipped * float(advantage)
            value = ratio * advantage if unclipped_wins else torch.tensor(clipped) * advantage
        total = total - value * given.get("weights", torch.ones(len(logprobs)))[t]
    return total


def gradients(
    model: BaseModel,
    frozen: FrozenAdapter,
    data: list[TrainingDatum],
    name: str,
    config: dict[str, float] | None = None,
) -> tuple[float, Pairs]:
    """Sum of the losses, and its gradient with respect to A and B of each site."""
    hf = plain(model)
    pairs = leaves(frozen)
    state = merged_state(hf, pairs, frozen.alpha / frozen.rank)
    total = torch.zeros(())
    for datum in data:
        total = total + loss(name, config or {}, merged_logprobs(hf, state, datum), datum)
    total.backward()
    zero = {
        site: tuple(torch.zeros_like(f) if f.grad is None else f.grad for f in pair)
        for site, pair in pairs.items()
    }
    return float(total), {site: (pair[0], pair[1]) for site, pair in zero.items()}


def worst_relative_error(found: Pairs, expected: Pairs) -> float:
    """Largest ||found - expected|| / ||expected|| over all factors."""
    worst = 0.0
    assert found.keys() == expected.keys()
    for site, pair in expected.items():
        for f, e in zip(found[site], pair, strict=True):
            norm = float(e.norm())
            difference = float((f - e).norm())
            worst = max(worst, difference / norm if norm else difference)
    return worst


def sft_datum(rng: np.random.Generator, length: int, k: int = 0) -> TrainingDatum:
    """Random tokens; weights of both signs with zeros among them; ``k`` soft targets if given."""
    tokens = rng.integers(0, 250, length + 1)
    shape = (length, k) if k else (length,)
    targets = rng.integers(0, 250, shape) if k else tokens[1:]
    weights = rng.normal(size=shape).astype(np.float32) * (rng.random(shape) > 0.3)
    return TrainingDatum(
        tokens[:-1], {"target_tokens": targets, "weights": weights.astype(np.float32)}
    )


def rl_datum(
    rng: np.random.Generator, length: int, sampler_logprobs: np.ndarray | None = None
) -> TrainingDatum:
    """Random tokens and advantages, zero on the first third (the prompt)."""
    tokens = rng.integers(0, 250, length + 1)
    advantages = rng.normal(size=length).astype(np.float32)
    advantages[: length // 3] = 0
    logprobs = np.full(length, -5.0, np.float32) if sampler_logprobs is None else sampler_logprobs
    return TrainingDatum(
        tokens[:-1],
        {"target_tokens": tokens[1:], "logprobs": logprobs, "advantages": advantages},
    )


def near_policy(
    adapter: TrainableAdapter, data: list[TrainingDatum], rng: np.random.Generator, spread: float
) -> list[TrainingDatum]:
    """The same datums with sampler logprobs near the adapter's own, on both sides of every clip."""
    scored = [
        TrainingDatum(
            d.tokens,
            {
                "target_tokens": d.loss_inputs["target_tokens"],
                "weights": np.zeros(len(d.tokens), np.float32),
            },
        )
        for d in data
    ]
    result = adapter.forward_backward(scored, "cross_entropy", {}, forward_only=True)
    fresh = []
    for datum, output in zip(data, result.outputs, strict=True):
        noise = rng.normal(size=len(datum.tokens)) * spread
        inputs = dict(datum.loss_inputs)
        inputs["logprobs"] = (output["logprobs"] + noise).astype(np.float32)
        fresh.append(TrainingDatum(datum.tokens, inputs))
    return fresh
