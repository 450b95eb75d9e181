"""Do two models give the same per-token logprobs? How much may they differ?

Two right implementations of one model never agree to the last bit, so a fixed tolerance is
either too strict or hides faults. The noise is measured, in the same run and without an adapter:

- *engine noise*: the base model at the service against the base model in transformers;
- *storage noise*: the base in transformers against itself with every weight moved at random by
  as much as rounding to the merged model's storage type can move it (bfloat16: one part in 256).

The tolerance is twice their sum, and never under what float32 arithmetic itself can cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tinkerlab.export.weights_check import ROUNDOFF

if TYPE_CHECKING:
    from tinker import SamplingClient

# Logits have magnitudes of 10 to 100, so that one float32 rounding moves one by up to 4e-6, and
# a model rounds in every layer. On SmolLM2-135M (30 layers, 351 tokens) the noise was 1.5e-5 at
# most, yet a right merge, whose logits had grown in training, was 4.1e-5 away: more than twice
# the noise of that run. Five times that is the least that is asked for.
FLOAT32_MAX = 2e-4
FLOAT32_MEAN = 2e-5

Logprobs = list[np.ndarray]


@dataclass(frozen=True)
class Distance:
    """Differences of two sets of per-token logprobs, in nats.

    Attributes:
        sequence, position: where the largest difference is; ``position`` counts tokens.
    """

    largest: float
    mean: float
    tokens: int
    sequence: int = 0
    position: int = 0


@dataclass(frozen=True)
class Tolerance:
    """Most that may lie between a right export and the service, in nats."""

    largest: float
    mean: float

    def admits(self, distance: Distance) -> bool:
        """Compare the largest and the mean difference; NaN is never admitted."""
        return distance.largest <= self.largest and distance.mean <= self.mean


def distance(first: Logprobs, second: Logprobs) -> Distance:
    """Compare logprobs of the same token sequences.

    Raises:
        ValueError: other numbers of sequences or tokens.
    """
    if [len(x) for x in first] != [len(x) for x in second]:
        raise ValueError("logprobs of other sequences")
    gaps = [np.abs(a.astype(np.float64) - b) for a, b in zip(first, second, strict=True)]
    flat = np.concatenate(gaps)
    # An infinity on either side gives NaN or infinity here, which no tolerance admits.
    worst = int(np.argmax(np.where(np.isnan(flat), np.inf, flat)))
    sequence = int(np.searchsorted(np.cumsum([len(g) for g in gaps]), worst, side="right"))
    before = sum(len(g) for g in gaps[:sequence])
    return Distance(float(flat[worst]), float(flat.mean()), len(flat), sequence, worst - before + 1)


def tolerance(*noises: Distance) -> Tolerance:
    """Twice the sum of the measured noises, at least what float32 arithmetic causes."""
    return Tolerance(
        max(FLOAT32_MAX, 2 * sum(n.largest for n in noises)),
        max(FLOAT32_MEAN, 2 * sum(n.mean for n in noises)),
    )


def service_logprobs(client: SamplingClient, sequences: Sequence[Sequence[int]]) -> Logprobs:
    """Ask the service for the logprob of every token but the first, all sequences at once."""
    from tinker import ModelInput

    futures = [client.compute_logprobs(ModelInput.from_ints(list(s))) for s in sequences]
    return [
        np.array([np.nan if x is None else x for x in future.result()[1:]], np.float64)
        for future in futures
    ]


def local_logprobs(model: Any, sequences: Sequence[Sequence[int]]) -> Logprobs:
    """Compute the same in transformers: one sequence at a time, no padding, no cache."""
    import torch

    found = []
    with torch.inference_mode():
        for tokens in sequences:
            ids = torch.tensor([list(tokens)])
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
            picked = logits.gather(1, ids[0, 1:, None])[:, 0]
            found.append((picked - logits.logsumexp(-1)).double().numpy())
    return found


def load_model(directory: str) -> Any:
    """Load a model folder on the CPU in float32.

    Eager attention, because it is the one that every architecture has.
    """
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    ).eval()


def shake(model: Any, dtype: str, seed: int = 0) -> None:
    """Move every weight matrix of ``model``, in place, by a random storage rounding of ``dtype``.

    The move is uniform in plus or minus the unit roundoff times the weight: the largest error
    that rounding to nearest can make, whatever the number.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim >= 2:
                noise = torch.rand(weight.shape, generator=generator).mul_(2).sub_(1)
                weight.mul_(noise.mul_(ROUNDOFF[dtype]).add_(1))
