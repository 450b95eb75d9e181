"""What the sampler must give, computed by plain transformers one sequence at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import engine_reference
import numpy as np
import torch
from torch import Tensor

from tinkerlab.rehearsal.engine.adapter import FrozenAdapter
from tinkerlab.rehearsal.engine.base import BaseModel
from tinkerlab.rehearsal.engine.training import TrainableAdapter
from tinkerlab.rehearsal.engine.types import AdapterConfig, SamplingRequest

NO_STOP: frozenset[int] = frozenset()
TOLERANCE = 1e-4  # of a float32 logprob, absolute


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random bytes."""
    return np.random.default_rng([length, seed]).integers(0, 256, length).tolist()


def request(tokens: list[int], max_tokens: int | None = 8, **options: Any) -> SamplingRequest:
    """A request that doesn't stop before ``max_tokens`` unless told to."""
    options.setdefault("stop_tokens", NO_STOP)
    return SamplingRequest(tokens, max_tokens=max_tokens, **options)


def trained(base: BaseModel, directory: Path, seed: int, rank: int = 3) -> FrozenAdapter:
    """An adapter on every site whose factors are all random and not small."""
    adapter = TrainableAdapter(base, AdapterConfig(rank=rank, seed=seed))
    return engine_reference.randomise(adapter, directory, seed)


class Plain:
    """A fresh transformers model, with an adapter merged into its weights if one is given."""

    def __init__(self, base: BaseModel, adapter: FrozenAdapter | None = None) -> None:
        self._hf = engine_reference.plain(base)
        self._state: dict[str, Tensor] = dict(self._hf.state_dict())
        if adapter is not None:
            scale = adapter.alpha / adapter.rank
            pairs = dict(adapter.weights.pairs)
            self._state = engine_reference.merged_state(self._hf, pairs, scale)

    @torch.no_grad()
    def logits(self, tokens: list[int]) -> Tensor:
        """float32 ``[len(tokens), vocabulary]``."""
        arguments = {"input_ids": torch.tensor([tokens]), "use_cache": False}
        return torch.func.functional_call(
            self._hf, self._state, (), arguments, tie_weights=False
        ).logits[0]

    def logprobs(self, tokens: list[int]) -> np.ndarray:
        """Of ``tokens[1:]``, each given those before it."""
        table = self.logits(tokens)[:-1].log_softmax(dim=-1)
        return table.gather(-1, torch.tensor(tokens[1:]).unsqueeze(-1)).squeeze(-1).numpy()

    def generate(self, tokens: list[int], count: int) -> list[int]:
        """``model.generate`` without sampling (the bare model only)."""
        inputs = torch.tensor([tokens])
        out = self._hf.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            do_sample=False,
            max_new_tokens=count,
            eos_token_id=320,  # never drawn
            pad_token_id=0,
        )
        return out[0, len(tokens) :].tolist()
