"""The end of a training pass: unembedding, logprobs, loss and the gradient they start."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from tinkerlab.rehearsal.engine.base import BaseModel
from tinkerlab.rehearsal.engine.logprobs import rows_per_chunk, target_logprobs
from tinkerlab.rehearsal.engine.losses import Loss
from tinkerlab.rehearsal.engine.passes import Batch


class Head:
    """Unembedding, logprobs and loss of one batch, some positions at a time.

    The loss of a token depends on its own logprob only (what a loss needs of the whole
    sequence is a constant computed before), so each chunk's backward pass runs right after its
    forward pass and ``[positions, vocabulary]`` never exists as a whole.
    """

    def __init__(
        self,
        base: BaseModel,
        loss: Loss,
        config: Mapping[str, float],
        batch: Batch,
        inputs: dict[str, Tensor],
        flat: Tensor,
    ) -> None:
        self._base, self._loss, self._config = base, loss, config
        self._batch, self._inputs, self._flat = batch, inputs, flat
        self._logprobs = torch.empty(batch.targets.shape, dtype=torch.float32)
        self._elementwise = torch.empty(batch.targets.shape, dtype=torch.float32)

    def forward(self, chosen: Tensor) -> None:
        """Compute the tokens ``chosen`` (bool ``[N]``) without a gradient."""
        with torch.no_grad():
            for chunk in self._chunks(chosen):
                self._compute(chunk, self._flat[self._batch.positions[chunk]])

    def forward_backward(self, chosen: Tensor) -> Tensor:
        """Compute the tokens ``chosen``, add the head's own gradient, return the hidden states'."""
        gradient = torch.zeros_like(self._flat)
        with torch.enable_grad():
            for chunk in self._chunks(chosen):
                positions = self._batch.positions[chunk]
                hidden = self._flat[positions].requires_grad_(True)
                self._compute(chunk, hidden).sum().backward()
                assert hidden.grad is not None
                gradient[positions] = hidden.grad
        return gradient

    def collect(self, outputs: list[dict[str, np.ndarray]]) -> None:
        """Hand each datum its part."""
        lengths = self._batch.lengths
        pieces = zip(
            self._batch.indices,
            self._logprobs.split(lengths),
            self._elementwise.split(lengths),
            strict=True,
        )
        for index, logprobs, elementwise in pieces:
            outputs[index]["logprobs"] = logprobs.numpy().copy()
            outputs[index]["elementwise_loss"] = elementwise.numpy().copy()

    def _chunks(self, chosen: Tensor) -> list[Tensor]:
        tokens = chosen.nonzero().squeeze(1)
        return [
            chunk for chunk in tokens.split(rows_per_chunk(self._base.vocab_size)) if len(chunk)
        ]

    def _compute(self, chunk: Tensor, hidden: Tensor) -> Tensor:
        logprobs = target_logprobs(self._base.logits(hidden), self._batch.targets[chunk])
        inputs = {name: value[chunk] for name, value in self._inputs.items()}
        elementwise = self._loss.elementwise(logprobs, inputs, self._config)
        self._logprobs[chunk] = logprobs.detach()
        self._elementwise[chunk] = elementwise.detach()
        return elementwise
