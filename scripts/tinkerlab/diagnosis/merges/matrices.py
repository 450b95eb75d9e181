"""One matrix of base and merged model, read in blocks of rows and compared with an expectation.

Reading: a file is opened for each matrix, and again for each block of a large one, so that the
pages which the operating system maps for it are given back: neither a shard nor a tensor need
fit into memory.

The bounds on a right difference are the usual ones for floating point (Higham, "Accuracy and
Stability of Numerical Algorithms", 2nd edition, section 3.1): storing a number costs half a unit
in the last place, a dot product of length r in float32 at most about ``r * 2**-24`` times the
sum of the absolute products.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinkerlab.diagnosis.merges.adapters import LoraAdapter
from tinkerlab.diagnosis.merges.layouts import Key, Part
from tinkerlab.export.checkpoint import Checkpoint
from tinkerlab.export.weights_check import ROUNDOFF

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 1 << 22  # numbers in a block: 16 MB in float32, and some ten such temporaries
LOW = 2.0**-8  # unit roundoff of bfloat16, the type in which merges are done too coarsely
_F32 = ROUNDOFF["F32"]
Weighted = Sequence[tuple[Part, float]]  # parts, each with a factor on its scale


@dataclass(frozen=True)
class Matrix:
    """A matrix of both models.

    Attributes:
        key: its tensor in the merged model (and the expert).
        source: its tensor in the base: another name for the output matrix of a tied base.
        shape: rows and columns.
    """

    key: Key
    source: str
    shape: tuple[int, int]
    base_dtype: str
    dtype: str

    @property
    def label(self) -> str:
        name, expert = self.key
        return name if expert is None else f"{name}[{expert}]"


class Reader:
    """Reads blocks of rows of both models.

    Attributes:
        turned: tensors that the merged model stores transposed.
    """

    def __init__(self, base: Checkpoint, merged: Checkpoint, turned: Collection[str] = ()) -> None:
        self.base, self.merged, self.turned = base, merged, turned

    def rows(self, model: Checkpoint, key: Key, lo: int, hi: int) -> Tensor:
        """Rows ``lo`` to ``hi`` of a matrix, as stored."""
        from safetensors import safe_open

        name, expert = key
        with safe_open(str(model.files[name]), framework="pt") as file:
            part = file.get_slice(name)
            if model is self.merged and name in self.turned:
                return (part[:, lo:hi] if expert is None else part[expert, :, lo:hi]).T
            return part[lo:hi] if expert is None else part[expert, lo:hi]

    def blocks(self, matrix: Matrix) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """Yield ``lo, hi, base, merged`` over the rows of ``matrix``."""
        rows, columns = matrix.shape
        step = max(1, BLOCK // max(1, columns))
        for lo in range(0, rows, step):
            hi = min(rows, lo + step)
            yield lo, hi, *self.pair(matrix, lo, hi)

    def pair(self, matrix: Matrix, lo: int, hi: int) -> tuple[Tensor, Tensor]:
        base = self.rows(self.base, (matrix.source, matrix.key[1]), lo, hi)
        return base, self.rows(self.merged, matrix.key, lo, hi)


@dataclass
class Fit:
    """How well an expectation explains a merged matrix.

    Attributes:
        worst: largest absolute difference to the expectation.
        over: largest excess over what rounding allows (0 or less: within rounding).
        over_loose: the same where factors, product and sum were rounded to bfloat16.
        expected_energy: sum of squares of the change that is expected, after rounding.
        seen: sum of the products of the change that is seen with that change.
        energy: sum of squares of the change that is seen.
        left: sum of squares of what is left of it.
        visible: how many numbers the expected change moves after rounding.
    """

    worst: float = 0.0
    over: float = 0.0
    over_loose: float = 0.0
    expected_energy: float = 0.0
    seen: float = 0.0
    energy: float = 0.0
    left: float = 0.0
    visible: int = 0
    finite: bool = True

    @property
    def agreement(self) -> float:
        """1 when the change seen is the one expected, 0 when it is unrelated or absent."""
        return self.seen / self.expected_energy if self.expected_energy else 1.0

    @property
    def within_rounding(self) -> bool:
        return self.finite and self.over <= 0 and self._agrees

    @property
    def within_low_precision(self) -> bool:
        return self.finite and self.over_loose <= 0 and self._agrees

    @property
    def explained(self) -> float:
        """The share of the change seen (as a sum of squares) that the expectation explains."""
        return 1 - self.left / self.energy if self.energy else 0.0

    @property
    def _agrees(self) -> bool:
        # Where rounding hides most of the change, bounds prove little: the numbers that do
        # move must be the right ones. A handful of them proves nothing either way.
        return self.visible < 32 or abs(self.agreement - 1) <= 0.05


class Comparer:
    """Compares matrices with the base plus some parts of an adapter."""

    def __init__(self, reader: Reader, adapter: LoraAdapter) -> None:
        self.reader, self.adapter = reader, adapter

    def delta(self, part: Part, lo: int, hi: int, bound: bool = False) -> Added | None:
        """What ``part`` adds to rows ``lo`` to ``hi``; None where nothing."""
        site = self.adapter.sites[part.module]
        a, b = self.adapter.factors(part.module, part.expert, part.misread)
        if part.of_rows is not None:
            b = b[part.of_rows.start : part.of_rows.stop : part.of_rows.step]
        if part.transposed:
            columns = slice(part.outputs.start, part.outputs.stop, part.outputs.step)
            if part.reshaped:
                value = ((b @ a) * site.scale).reshape(a.shape[1], b.shape[0])[lo:hi]
                return Added(slice(None), columns, value, value.abs() if bound else None)
            a = a[:, lo:hi]
            value = (b @ a).T * site.scale
            size = (b.abs() @ a.abs()).T * abs(site.scale) if bound else None
            return Added(slice(None), columns, value, size)
        step = part.outputs.step
        first = max(0, -(-(lo - part.outputs.start) // step))
        last = min(len(part.outputs), -(-(hi - part.outputs.start) // step))
        if first >= last:
            return None
        start = part.outputs[first] - lo
        rows = slice(start, start + (last - first - 1) * step + 1, step)
        if part.reshaped:
            value = ((b @ a).T * site.scale).reshape(b.shape[0], a.shape[1])[first:last]
            return Added(rows, slice(None), value, value.abs() if bound else None)
        b = b[first:last]
        size = (b.abs() @ a.abs()) * abs(site.scale) if bound else None
        return Added(rows, slice(None), (b @ a) * site.scale, size)

    def expected(self, parts: Weighted, base: Tensor, lo: int, hi: int) -> tuple[Tensor, Tensor]:
        """Return the sum that is added to a block and the sum of its absolute products."""
        import torch

        change, size = (torch.zeros(base.shape, dtype=torch.float32) for _ in range(2))
        for part, factor in parts:
            added = self.delta(part, lo, hi, bound=True)
            if added is not None and factor:
                change[added.rows, added.columns] += factor * added.value
                assert added.size is not None
                size[added.rows, added.columns] += abs(factor) * added.size
        return change, size

    def exactly(self, matrix: Matrix, parts: list[Part]) -> bool:
        """Whether the matrix is, to the last bit, the float32 sum rounded once. The fast way.

        Float32 storage is compared within two units in the last place of the sum.
        """
        for lo, hi, base, merged in self.reader.blocks(matrix):
            total = base.float()
            for part in parts:
                added = self.delta(part, lo, hi)
                if added is not None:
                    total[added.rows, added.columns] += added.value
            if merged.dtype == total.dtype:
                if not bool(((merged - total).abs_() <= total.abs_().mul_(4 * _F32)).all()):
                    return False
            elif not _same(total.to(merged.dtype), merged):
                return False
        return True

    def fit(self, matrix: Matrix, parts: Weighted) -> Fit:
        """Compare the matrix with the base plus ``parts``, number by number."""
        fit = Fit(over=-1.0, over_loose=-1.0)
        for lo, hi, base, merged in self.reader.blocks(matrix):
            self._add(fit, matrix, parts, base, merged, lo, hi)
        return fit

    def sample(self, matrix: Matrix, parts: Weighted, rows: int) -> Fit:
        """Compare some rows only, from the first third on."""
        lo = max(0, min(matrix.shape[0] // 3, matrix.shape[0] - rows))
        hi = min(matrix.shape[0], lo + rows)
        fit = Fit(over=-1.0, over_loose=-1.0)
        self._add(fit, matrix, parts, *self.reader.pair(matrix, lo, hi), lo, hi)
        return fit

    def _add(
        self,
        fit: Fit,
        matrix: Matrix,
        parts: Weighted,
        base: Tensor,
        merged: Tensor,
        lo: int,
        hi: int,
    ) -> None:
        import torch

        before = base.float()
        change, size = self.expected(parts, before, lo, hi)
        total = before + change
        after = merged.float()
        if not bool(torch.isfinite(after).all()):
            fit.finite = False
            return
        difference = (after - total).abs()
        unit = max(ROUNDOFF.get(dtype, LOW) for dtype in (matrix.dtype, matrix.base_dtype))
        # Rounding to storage once, the product before it once, and float32 on both sides.
        allowed = unit * (total.abs() + change.abs()) + 4 * _F32 * (before.abs() + total.abs())
        rank = max((self.adapter.sites[part.module].rank for part, _ in parts), default=0)
        allowed += size * (2 * (rank + 2) * _F32)
        if ROUNDOFF.get(matrix.dtype, 0) > ROUNDOFF.get(matrix.base_dtype, 0):
            allowed += unit * before.abs()  # a coarser type: the base may have been rounded first
        # Factors rounded, product rounded, sum rounded, perhaps twice (applied in two steps).
        loose = allowed + 2 * LOW * total.abs() + size * (3 * LOW)
        fit.worst = max(fit.worst, float(difference.max()) if difference.numel() else 0.0)
        fit.over = max(fit.over, float((difference - allowed).max()))
        fit.over_loose = max(fit.over_loose, float((difference - loose).max()))
        rounded = before.to(merged.dtype).float()
        ideal = total.to(merged.dtype).float()
        wanted, seen = (ideal - rounded).double(), (after - rounded).double()
        fit.visible += int((wanted != 0).sum())
        fit.expected_energy += float((wanted * wanted).sum())
        fit.seen += float((wanted * seen).sum())
        fit.energy += float((seen * seen).sum())
        fit.left += float(((seen - wanted) ** 2).sum())


@dataclass(frozen=True)
class Added:
    """An addend and where in a block it goes; ``size`` bounds its rounding error's scale."""

    rows: slice
    columns: slice
    value: Tensor
    size: Tensor | None


def _same(first: Tensor, second: Tensor) -> bool:
    """Equal bit for bit (zero's sign aside), without a float comparison of large tensors."""
    import torch

    return first.dtype == second.dtype and torch.equal(first, second)
