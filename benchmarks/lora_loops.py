"""What the training benchmarks compare: the engine, and a bare transformers + peft loop.

Both train LoRA of the same rank on the same layers (attention, MLP, unembedding) of the same
float32 model, on the same batch, with AdamW; both give the loss as a sum over tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np

RATE = 1e-4
_LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]


class Loop(Protocol):
    def step(self) -> float:
        """forward_backward and optim_step on the batch; returns the loss."""
        ...


def lengths(rows: int, columns: int, *, mixed: bool) -> list[int]:
    """Datum lengths: all ``columns``, or spread from half of it up, as real batches are."""
    if not mixed or rows == 1:
        return [columns] * rows
    return [columns - row * (columns // 2) // (rows - 1) for row in range(rows)]


class EngineLoop:
    """``adapters`` runs on one base; a step goes through all of them."""

    def __init__(self, model: str, batch: list[int], rank: int, adapters: int = 1) -> None:
        from tinkerlab.rehearsal.engine.base import BaseModel
        from tinkerlab.rehearsal.engine.training import TrainableAdapter
        from tinkerlab.rehearsal.engine.types import AdapterConfig, TrainingDatum
        from tinkerlab.rehearsal.models import registry

        base = BaseModel.load(registry.resolve(model))
        self.adapters = [
            TrainableAdapter(base, AdapterConfig(rank=rank, seed=seed)) for seed in range(adapters)
        ]
        self._data = [
            TrainingDatum(
                tokens[:-1],
                {"target_tokens": tokens[1:], "weights": np.ones(len(tokens) - 1, np.float32)},
            )
            for tokens in _sequences(batch, base.vocab_size)
        ]

    @property
    def state_bytes(self) -> int:
        """Weights, gradient and two moments of one adapter, float32."""
        return 4 * 4 * self.adapters[0].parameter_count

    def step(self) -> float:
        from tinkerlab.rehearsal.engine.types import AdamSettings

        loss = 0.0
        for adapter in self.adapters:
            loss = adapter.forward_backward(self._data, "cross_entropy").metrics["loss:sum"]
            adapter.optim_step(AdamSettings(learning_rate=RATE))
        return loss


class BareLoop:
    """The loop that a user would write with transformers and peft."""

    def __init__(self, model: str, batch: list[int], rank: int) -> None:
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        from tinkerlab.rehearsal.models import registry

        directory: Path = registry.resolve(model).directory
        hf: Any = AutoModelForCausalLM.from_pretrained(str(directory), dtype=torch.float32)
        config = LoraConfig(r=rank, lora_alpha=32, target_modules=_LAYERS, task_type="CAUSAL_LM")
        self._model = get_peft_model(hf, config).eval()  # eval: no dropout, as in the engine
        weights = [p for p in self._model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            weights, lr=RATE, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.0
        )
        sequences = _sequences(batch, hf.config.vocab_size)
        width = max(batch)
        self._tokens = torch.zeros(len(batch), width, dtype=torch.int64)
        self._targets = torch.full((len(batch), width), -100)
        self._mask = torch.zeros_like(self._tokens)
        for row, tokens in enumerate(sequences):
            self._tokens[row, : len(tokens) - 1] = torch.from_numpy(tokens[:-1])
            self._targets[row, : len(tokens) - 1] = torch.from_numpy(tokens[1:])
            self._mask[row, : len(tokens) - 1] = 1

    def step(self) -> float:
        import torch

        logits = self._model(
            input_ids=self._tokens, attention_mask=self._mask, use_cache=False
        ).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), self._targets.flatten(), ignore_index=-100, reduction="sum"
        )
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return float(loss.detach())


def _sequences(batch: list[int], vocab_size: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, vocab_size, length + 1) for length in batch]
