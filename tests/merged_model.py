"""A model with an adapter, computed another way than the rehearsal does: merged, one text a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

ALPHA = 32.0  # of the service's adapters: W + ALPHA / rank * B A


class MergedModel:
    """A model in plain transformers, its weights replaced by W + scale * B A."""

    def __init__(self, folder: Path, rank: int) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(str(folder))
        self.scale = ALPHA / rank

    def merged(self, factors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        state = self.base()
        for name, down in factors.items():
            if not name.endswith(".lora_A.weight"):
                continue
            site = name.removesuffix(".lora_A.weight")
            weight = site.removeprefix("base_model.model.") + ".weight"
            up = factors[f"{site}.lora_B.weight"]
            state[weight] = state[weight] + self.scale * up @ down
        return state

    def base(self) -> dict[str, torch.Tensor]:
        """Its own weights; a tied output layer is there once."""
        return dict[str, torch.Tensor](self.model.named_parameters())

    def token_logprobs(self, state: dict[str, torch.Tensor], tokens: Sequence[int]) -> torch.Tensor:
        """``[T - 1]``: log-probability of each token but the first, given those before it."""
        ids = torch.tensor([list(tokens)])
        logits = torch.func.functional_call(self.model, state, (ids,)).logits[0, :-1]
        return torch.log_softmax(logits, -1)[torch.arange(ids.shape[1] - 1), ids[0, 1:]]
