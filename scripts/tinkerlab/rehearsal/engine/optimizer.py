"""AdamW over one flat buffer, with settings that may change at every step."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tinkerlab.rehearsal.engine.types import AdamSettings

# Elements handled at a time: keeps temporaries in cache and off the memory's peak.
_SLICE = 1 << 18


class AdamW:
    """Adam with decoupled weight decay (Loshchilov & Hutter, 2019), as ``torch.optim.AdamW``.

    Attributes:
        steps: steps taken.
        moments: exponential averages of gradient and squared gradient, float32
            ``[parameters]``; None before the first step.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.moments: tuple[Tensor, Tensor] | None = None

    @torch.no_grad()
    def step(self, weights: Tensor, gradient: Tensor, settings: AdamSettings) -> float:
        """Update ``weights`` in place and return the gradient's norm before clipping.

        Args:
            weights: float32 ``[parameters]``.
            gradient: of the same shape; clipping scales it in place.
            settings: of this step. ``grad_clip_norm`` of 0 or less doesn't clip.
        """
        if self.moments is None:
            self.moments = (torch.zeros_like(weights), torch.zeros_like(weights))
        norm = torch.linalg.vector_norm(gradient)
        if settings.grad_clip_norm > 0:
            # The small term is torch.nn.utils.clip_grad_norm_'s.
            gradient.mul_((settings.grad_clip_norm / (norm + 1e-6)).clamp(max=1.0))
        self.steps += 1
        first, second = self.moments
        pieces = zip(*(t.split(_SLICE) for t in (weights, gradient, first, second)), strict=True)
        for w, g, m, v in pieces:
            self._update(w, g, m, v, settings)
        return float(norm)

    def _update(self, w: Tensor, g: Tensor, m: Tensor, v: Tensor, settings: AdamSettings) -> None:
        """The operations of ``torch.optim.AdamW`` in its order, so that rounding agrees."""
        beta1, beta2, rate = settings.beta1, settings.beta2, settings.learning_rate
        w.mul_(1 - rate * settings.weight_decay)
        m.lerp_(g, 1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        root = v.sqrt().div_(math.sqrt(1 - beta2**self.steps)).add_(settings.eps)
        w.addcdiv_(m, root, value=-(rate / (1 - beta1**self.steps)))
