"""Cuts a request's datums into passes through the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tinkerlab.rehearsal.engine.types import TrainingDatum

# Padded tokens in one pass through the model: enough to keep matrix products efficient, few
# enough that activations of a large batch never exist at once. A longer datum goes alone.
_TOKENS_PER_PASS = 1024


@dataclass(frozen=True)
class Batch:
    """Datums that go through the model together.

    Attributes:
        indices: their places in the request.
        tokens: int64 ``[rows, columns]``, padded on the right.
        mask: bool ``[rows * columns]``, False for padding.
        lengths: of each row.
        positions: int64 ``[N]``, where each real token is in the flattened ``tokens``.
        targets: int64 ``[N]`` or ``[N, K]``.
        inputs: the other loss inputs, float32 of that shape.
    """

    indices: list[int]
    tokens: Tensor
    mask: Tensor
    lengths: list[int]
    positions: Tensor
    targets: Tensor
    inputs: dict[str, Tensor]


def batches(data: list[TrainingDatum]) -> Iterator[Batch]:
    """Group datums of similar length and equal target shape into passes."""

    def kind(index: int) -> tuple:
        given = data[index].loss_inputs
        return (given["target_tokens"].shape[1:], tuple(sorted(given)))

    order = sorted(range(len(data)), key=lambda i: (kind(i), len(data[i].tokens), i))
    group: list[int] = []
    for index in order:
        columns = len(data[index].tokens)
        if group and (
            kind(index) != kind(group[0]) or (len(group) + 1) * columns > _TOKENS_PER_PASS
        ):
            yield _collate(group, data)
            group = []
        group.append(index)
    yield _collate(group, data)


def _collate(indices: list[int], data: list[TrainingDatum]) -> Batch:
    lengths = [len(data[i].tokens) for i in indices]
    columns = max(lengths)
    tokens = np.zeros((len(indices), columns), dtype=np.int64)
    mask = np.zeros((len(indices), columns), dtype=bool)
    for row, i in enumerate(indices):
        tokens[row, : lengths[row]] = data[i].tokens
        mask[row, : lengths[row]] = True

    def joined(name: str, dtype: type) -> Tensor:
        parts = [np.asarray(data[i].loss_inputs[name], dtype=dtype) for i in indices]
        return torch.from_numpy(np.concatenate(parts))

    flat_mask = torch.from_numpy(mask).flatten()
    return Batch(
        indices=indices,
        tokens=torch.from_numpy(tokens),
        mask=flat_mask,
        lengths=lengths,
        positions=flat_mask.nonzero().squeeze(1),
        targets=joined("target_tokens", np.int64),
        inputs={
            name: joined(name, np.float32)
            for name in data[indices[0]].loss_inputs
            if name != "target_tokens"
        },
    )
