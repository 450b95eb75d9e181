"""Logprobs of chosen tokens from logits, with little memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Logits held at a time, in numbers (128 MB of float32).
_LOGITS = 1 << 25


def rows_per_chunk(vocab_size: int) -> int:
    """How many positions to unembed at a time, so that ``[positions, vocabulary]`` stays small."""
    return min(4096, max(16, _LOGITS // vocab_size))


def target_logprobs(logits: Tensor, targets: Tensor) -> Tensor:
    """Log-softmax of ``logits`` ``[N, V]`` at ``targets`` (int64 ``[N]`` or ``[N, K]``).

    The backward pass overwrites ``logits``, so they must be good for nothing else.
    """
    if targets.ndim == 1:
        return _TargetLogprobs.apply(logits, targets.unsqueeze(1)).squeeze(1)  # type: ignore[union-attr]
    return _TargetLogprobs.apply(logits, targets)  # type: ignore[return-value]


class _TargetLogprobs(torch.autograd.Function):
    """One buffer of the logits' size in all, where log_softmax, gather and their backward take four."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        normalizer = torch.logsumexp(logits, dim=-1, keepdim=True)
        ctx.save_for_backward(logits, targets, normalizer)
        return logits.gather(-1, targets) - normalizer

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        logits, targets, normalizer = ctx.saved_tensors
        # d logprob_k / d logit_v = [v is target k] - softmax_v
        probabilities = logits.sub_(normalizer).exp_()
        probabilities.mul_(-gradient.sum(dim=-1, keepdim=True))
        return probabilities.scatter_add_(-1, targets, gradient), None
