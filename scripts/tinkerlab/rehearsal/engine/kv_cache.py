"""Where the keys and values of prompts and of running rows stand.

A row's position ``p`` is column ``p`` of its buffer, whatever its neighbours' lengths: a row
joins, grows and leaves without moving the others. The three classes below answer to the calls
that transformers' models make of a cache (``update``, ``get_seq_length``, ``get_mask_sizes``).
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_FIRST_BYTES = 3 * 2**30  # address space of a group's first buffers


class CapturedPrompts:
    """Keeps what one pass over fresh, right-padded prompts computed, without copying it."""

    is_compileable = False

    def __init__(self) -> None:
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        self.layers[layer_idx] = (keys, values)
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0

    def row(self, index: int, length: int) -> PromptKV:
        """The keys and values of one prompt of ``length`` tokens: views, not copies."""
        return PromptKV(
            [
                (keys[index, :, :length], values[index, :, :length])
                for _, (keys, values) in sorted(self.layers.items())
            ]
        )


class PromptKV:
    """One prompt's keys and values: for each layer two ``[key heads, length, d]``."""

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        self.layers = layers
        self.length = int(layers[0][0].shape[1])

    @property
    def bytes_per_token(self) -> int:
        return sum(
            tensor.shape[0] * tensor.shape[2] * tensor.element_size()
            for pair in self.layers
            for tensor in pair
        )


class GrowingPrompt:
    """Takes one long prompt chunk after chunk; each chunk sees what came before."""

    is_compileable = False

    def __init__(self, length: int) -> None:
        self.done = 0
        self._length = length
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        if layer_idx not in self._layers:
            self._layers[layer_idx] = (
                keys.new_empty(1, keys.shape[1], self._length, keys.shape[3]),
                values.new_empty(1, values.shape[1], self._length, values.shape[3]),
            )
        end = self.done + keys.shape[2]
        kept_keys, kept_values = self._layers[layer_idx]
        kept_keys[:, :, self.done : end] = keys
        kept_values[:, :, self.done : end] = values
        return kept_keys[:, :, :end], kept_values[:, :, :end]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.done

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.done + query_length, 0

    def finish(self) -> PromptKV:
        return PromptKV([(k[0], v[0]) for _, (k, v) in sorted(self._layers.items())])


class RowBuffers:
    """The preallocated buffers of a group of running rows, ``[rows, key heads, width, d]``.

    A row that isn't written to costs no memory yet, nor do the columns that it doesn't use.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.capacity = 0
        self._columns = 0  # no row holds more than so many
        self._layers: list[tuple[Tensor, Tensor]] = []

    def reserve(self, rows: int, like: PromptKV) -> None:
        """Make room for ``rows`` rows; what is there stays."""
        if rows <= self.capacity:
            return
        # Address space is free, copying isn't: start with room for a full batch if that stays
        # within bounds.
        row_bytes = self.width * like.bytes_per_token
        capacity = max(rows, 2 * self.capacity, min(128, _FIRST_BYTES // row_bytes))
        if not self._layers:
            self._layers = [(k[None, :0, :0], v[None, :0, :0]) for k, v in like.layers]
        for index, (old, shape) in enumerate(zip(self._layers, like.layers, strict=True)):
            # Layer by layer, so that never more than one layer exists twice.
            self._layers[index] = (
                self._grown(old[0], shape[0], capacity),
                self._grown(old[1], shape[1], capacity),
            )
        self.capacity = capacity

    def _grown(self, old: Tensor, shape: Tensor, capacity: int) -> Tensor:
        new = _untouched_zeros((capacity, shape.shape[0], self.width, shape.shape[2]))
        if self.capacity:
            new[: self.capacity, :, : self._columns] = old[:, :, : self._columns]
        return new

    def write(self, row: int, prompt: PromptKV) -> None:
        """Copy a prompt into ``row``."""
        length = prompt.length
        self._columns = max(self._columns, length)
        for (keys, values), (new_keys, new_values) in zip(self._layers, prompt.layers, strict=True):
            keys[row, :, :length] = new_keys
            values[row, :, :length] = new_values

    def read(self, row: int, length: int) -> PromptKV:
        """The first ``length`` columns of ``row``: views."""
        return PromptKV([(k[row, :, :length], v[row, :, :length]) for k, v in self._layers])

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` columns of row ``source`` over row ``target``."""
        for keys, values in self._layers:
            keys[target, :, :length] = keys[source, :, :length]
            values[target, :, :length] = values[source, :, :length]

    def clear(self, row: int) -> None:
        """Overwrite ``row`` with zeros: NaN that a diverged adapter left must not stay behind."""
        for keys, values in self._layers:
            keys[row].zero_()
            values[row].zero_()

    def step(self, start: int, end: int, lengths: Tensor, columns: int) -> RowStep:
        """A cache for one decoding pass over the rows ``start`` to ``end``.

        Args:
            lengths: int64 ``[end - start]``, the column into which each row's new token goes.
            columns: columns to attend over, the longest length + 1.
        """
        self._columns = max(self._columns, columns)
        layers = [(k[start:end], v[start:end]) for k, v in self._layers]
        return RowStep(layers, lengths, columns)


class RowStep:
    """The cache of one decoding pass: takes one new token for each row."""

    is_compileable = False

    def __init__(self, layers: list[tuple[Tensor, Tensor]], lengths: Tensor, columns: int) -> None:
        self._layers = layers
        self._lengths = lengths
        self._rows = torch.arange(lengths.shape[0])
        self._columns = columns

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        kept_keys, kept_values = self._layers[layer_idx]
        kept_keys[self._rows, :, self._lengths] = keys[:, :, 0]
        kept_values[self._rows, :, self._lengths] = values[:, :, 0]
        return kept_keys[:, :, : self._columns], kept_values[:, :, : self._columns]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._columns - 1

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._columns, 0


def _untouched_zeros(shape: tuple[int, ...]) -> Tensor:
    """float32 zeros that take memory a page at a time, when they are first written.

    Zeros, because a masked column still takes part as 0 * value, and uninitialised memory may
    hold NaN. Straight from the operating system, because torch writes its zeros at once, and
    numpy asks for huge pages, of which a row that uses 5 % of its columns touches nearly all
    (measured: 1.5 GB where 0.2 GB hold numbers, and 20 times the time).
    """
    size = 4 * math.prod(shape)
    private = getattr(mmap, "MAP_PRIVATE", None)
    if private is None:  # Windows
        pages = mmap.mmap(-1, size)
    else:
        pages = mmap.mmap(-1, size, flags=private | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=torch.float32).view(shape)
