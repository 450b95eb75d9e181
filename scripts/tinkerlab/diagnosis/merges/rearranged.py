"""A merged matrix that is far from its base: is it the right numbers in the wrong order?

A merge that takes fused tensors apart and packs them again moves the base's own numbers, not
only what the adapter adds. Norms, sums and shapes all stay right then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import permutations
from typing import TYPE_CHECKING

from tinkerlab.diagnosis.merges import guesses as g
from tinkerlab.diagnosis.merges.layouts import Key, Part, Plan
from tinkerlab.diagnosis.merges.matrices import Comparer, Matrix
from tinkerlab.diagnosis.merges.search import relation
from tinkerlab.export.checkpoint import layer_of

if TYPE_CHECKING:
    from torch import Tensor

WHOLE = 1 << 26  # the largest matrix (numbers) that is taken into memory whole: 256 MB
_CLOSE = 0.02  # residual energy under which an order is taken for the one that was used
_ROWS = 64  # rows on which other matrices are compared first
_SOURCES = 600


class Rearranged:
    """Finds the order, or the other matrix, that a merged matrix holds."""

    def __init__(self, comparer: Comparer, plan: Plan, interleaved: bool) -> None:
        self.comparer, self.plan, self.interleaved = comparer, plan, interleaved

    def explain(self, matrix: Matrix, parts: list[Part]) -> tuple[str, str] | None:
        """Name the cause and say what is stored in ``matrix``, or None."""
        rows, columns = matrix.shape
        if rows * columns > WHOLE or min(rows, columns) < 2:
            return None
        _, after = self.comparer.reader.pair(matrix, 0, rows)
        stored, right = after.float(), self._right(matrix, parts, 0, rows)
        for cause, says, candidate in self._orders(matrix, parts, right):
            if _distance(stored, candidate) < _CLOSE:
                return cause, says
        return self._other_matrix(matrix, stored)

    def _right(self, matrix: Matrix, parts: list[Part], lo: int, hi: int) -> Tensor:
        source = (matrix.source, matrix.key[1])
        before = self.comparer.reader.rows(self.comparer.reader.base, source, lo, hi).float()
        change, _ = self.comparer.expected([(part, 1.0) for part in parts], before, lo, hi)
        return before + change

    def _orders(
        self, matrix: Matrix, parts: list[Part], right: Tensor
    ) -> Iterator[tuple[str, str, Tensor]]:
        import torch

        name, expert = matrix.key
        if name.removesuffix(".weight").endswith("gate_up_proj"):
            for axis in (0, 1):
                width = right.shape[axis] // 2
                numbers = torch.arange(right.shape[axis])
                apart = torch.cat([numbers[0::2], numbers[1::2]])
                together = numbers.reshape(2, width).T.reshape(-1)
                swapped = together if self.interleaved else None
                exchanged = (
                    numbers.reshape(width, 2).flip(1).reshape(-1)
                    if swapped is not None
                    else torch.cat([numbers[width:], numbers[:width]])
                )
                yield (
                    g.SWAPPED,
                    "gate and up stored in each other's place",
                    _take(right, axis, exchanged),
                )
                if self.interleaved:
                    says = "gate and up stored one after the other; this model alternates them"
                    yield g.FOR_INTERLEAVED, says, _take(right, axis, apart)
                else:
                    says = (
                        "gate and up stored alternating; this model keeps them one after the other"
                    )
                    yield g.FOR_CONCATENATED, says, _take(right, axis, together)
        elif len(parts) > 1:
            yield from self._blocks(parts, right)
        cause = g.TRANSPOSED if expert is None and ".experts." not in name else g.EXPERTS_TRANSPOSED
        if right.shape[0] == right.shape[1]:
            yield cause, "the matrix is stored transposed", right.T
        else:
            says = "the matrix was transposed by reshape or view, which scrambles it"
            yield cause, says, right.T.reshape(right.shape)

    def _blocks(self, parts: list[Part], right: Tensor) -> Iterator[tuple[str, str, Tensor]]:
        import torch

        ordered = sorted(parts, key=lambda part: part.outputs.start)
        rows = [torch.arange(p.outputs.start, p.outputs.stop) for p in ordered]
        if ordered[0].outputs.step != 1 or sum(map(len, rows)) != right.shape[0]:
            return
        names = [g.leaf(part) for part in ordered]
        for order in permutations(range(len(rows))):
            if list(order) != sorted(order):
                said = ", ".join(names[i] for i in order)
                index = torch.cat([rows[i] for i in order])
                yield g.MISPLACED, f"rows stored in the order {said}", right[index]

    def _other_matrix(self, matrix: Matrix, stored: Tensor) -> tuple[str, str] | None:
        lo = min(matrix.shape[0] // 3, max(0, matrix.shape[0] - _ROWS))
        hi = min(matrix.shape[0], lo + _ROWS)
        for key in self._sources(matrix):
            other = Matrix(key, key[0], matrix.shape, matrix.base_dtype, matrix.dtype)
            parts = self.plan.parts.get(key, [])
            if _distance(stored[lo:hi], self._right(other, parts, lo, hi)) < _CLOSE:
                if key[0] == matrix.key[0]:
                    says = f"expert {key[1]} stored in the place of expert {matrix.key[1]}"
                    return g.PERMUTED, says
                return relation(*(name.removesuffix(".weight") for name in (matrix.key[0], key[0])))
        return None

    def _sources(self, matrix: Matrix) -> Iterator[Key]:
        """Other matrices of the same shape: experts first, then the layer, then other layers."""
        base = self.comparer.reader.base
        name, expert = matrix.key
        if expert is not None:
            yield from ((name, e) for e in range(base.shapes[name][0]) if e != expert)
            return
        layer = layer_of(name)
        kin = re.sub(r"\.\d+\.", ".*.", name)
        found = [
            other
            for other, shape in base.shapes.items()
            if shape == matrix.shape
            and other != name
            and (layer_of(other) == layer or re.sub(r"\.\d+\.", ".*.", other) == kin)
        ]
        found.sort(key=lambda other: layer_of(other) != layer)
        yield from ((other, None) for other in found[:_SOURCES])


def _take(matrix: Tensor, axis: int, index: Tensor) -> Tensor:
    return matrix.index_select(axis, index)


def _distance(stored: Tensor, candidate: Tensor) -> float:
    """Energy of the difference over that of what is stored."""
    if stored.shape != candidate.shape:
        return 1.0
    energy = float((stored * stored).sum())
    return float(((stored - candidate) ** 2).sum()) / energy if energy else 1.0
