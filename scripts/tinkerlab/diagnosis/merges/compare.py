"""Walks over every tensor of a merged model, shard by shard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tinkerlab.diagnosis.merges import outcomes as o
from tinkerlab.diagnosis.merges.adapters import LoraAdapter
from tinkerlab.diagnosis.merges.detective import Detective, lost, rank_share
from tinkerlab.diagnosis.merges.layouts import Key, Part, Plan
from tinkerlab.diagnosis.merges.matrices import Comparer, Matrix, Reader
from tinkerlab.diagnosis.merges.outcomes import Outcome
from tinkerlab.diagnosis.merges.structure import Structure
from tinkerlab.export.checkpoint import Checkpoint, layer_of
from tinkerlab.export.weights_check import ROUNDOFF

_PUZZLES = 8
_LOW_RANK = 0.9  # rounding to bfloat16 adds a little of full rank
Progress = Callable[[int, int, str], None]


@dataclass
class Comparison:
    """Everything that comparing values found.

    Attributes:
        outcomes: one for each part of the adapter in each matrix, and for each matrix that
            differs from the base though nothing targets it.
        tensors: compared; ``untouched`` of these are targeted by nothing.
        unchecked: in a quantised format, whose merged values can't be predicted.
        kept: share of the adapter's change that rounding to storage leaves; None if exact.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    tensors: int = 0
    untouched: int = 0
    untouched_matrices: int = 0
    numbers: int = 0
    unchecked: list[str] = field(default_factory=list)
    kept: float | None = None


class Walk:
    """Compares the tensors that ``structure`` matched."""

    def __init__(
        self,
        base: Checkpoint,
        merged: Checkpoint,
        adapter: LoraAdapter,
        plan: Plan,
        structure: Structure,
        interleaved: bool,
    ) -> None:
        self.base, self.merged, self.adapter = base, merged, adapter
        self.plan, self.structure = plan, structure
        self.reader = Reader(base, merged, structure.turned)
        self.comparer = Comparer(self.reader, adapter)
        self.detective = Detective(self.comparer, plan, interleaved)
        self.found = Comparison()
        self._kept = [0.0, 0.0]
        self._puzzles: list[tuple[Matrix, list[Part]]] = []
        self._targets = {key[0] for key in plan.parts}

    def run(self, progress: Progress) -> Comparison:
        """Compare everything, the merged model's files one after the other.

        Args:
            progress: called with the files done, the files in all, and the next one's name.
        """
        names = sorted(self.structure.sources, key=lambda name: (self.merged.files[name], name))
        files = sorted({self.merged.files[name] for name in names})
        place = {file: number for number, file in enumerate(files)}
        before = None
        for name in names:
            file = self.merged.files[name]
            if file != before:
                progress(place[file], len(files), file.name)
                before = file
            self._tensor(name, self.structure.sources[name])
        self._absent_head()
        self._another_adapter()
        if self._kept[1]:
            self.found.kept = self._kept[0] / self._kept[1]
        return self.found

    def _tensor(self, name: str, source: str) -> None:
        self.found.tensors += 1
        shape = self.merged.shapes[name]
        count = 1
        for size in shape:
            count *= size
        self.found.numbers += count
        # Parts are known by the base's names; a merged model may have renamed the tensor.
        wanted = name if name in self._targets else source
        if source in self.plan.replaced:
            self._replaced(name, source)
            return
        targeted = wanted in self._targets and not (
            self.plan.own_head and name != wanted and wanted == "lm_head.weight"
        )
        if not targeted:
            self.found.untouched += 1
            self.found.untouched_matrices += len(shape) > 1
            self._untouched(name, source)
            return
        if not {self.base.dtypes[source], self.merged.dtypes[name]} <= ROUNDOFF.keys():
            self.found.unchecked.append(name)
            return
        experts: list[int | None] = [None] if len(shape) < 3 else list(range(shape[0]))
        for expert in experts:
            matrix = self._matrix((name, expert), source)
            parts = self.plan.parts.get((wanted, expert), [])
            if parts:
                outcomes = list(self.detective.targeted(matrix, parts))
                self.found.outcomes += outcomes
                if len(self._puzzles) < _PUZZLES and outcomes[0].cause == o.UNEXPLAINED:
                    self._puzzles.append((matrix, parts))
                if self.merged.dtypes[name] in ("BF16", "F16"):
                    for i, share in enumerate(lost(self.comparer, matrix, parts)):
                        self._kept[i] += share
            elif not self._equal(matrix):
                self.found.outcomes.append(self.detective.untargeted(matrix))

    def _matrix(self, key: Key, source: str) -> Matrix:
        shape = self.base.shapes[source]
        rows, columns = shape[-2:] if len(shape) > 1 else (shape[0] if shape else 1, 1)
        return Matrix(
            key, source, (rows, columns), self.base.dtypes[source], self.merged.dtypes[key[0]]
        )

    def _untouched(self, name: str, source: str) -> None:
        shape = self.base.shapes[source]
        if all(size == 0 for size in shape) and shape:
            return
        if len(shape) == 2:
            matrices = [self._matrix((name, None), source)]
        elif len(shape) == 3 and min(shape[1:]) > 1:
            matrices = [self._matrix((name, expert), source) for expert in range(shape[0])]
        else:
            self._whole(name, source)
            return
        for matrix in matrices:
            if self._equal(matrix):
                continue
            if matrix.dtype in ROUNDOFF and matrix.base_dtype in ROUNDOFF:
                self.found.outcomes.append(self.detective.untargeted(matrix))
            else:
                self.found.unchecked.append(name)
                return

    def _equal(self, matrix: Matrix) -> bool:
        import torch

        return all(
            torch.equal(base.to(merged.dtype), merged)
            for _, _, base, merged in self.reader.blocks(matrix)
        )

    def _whole(self, name: str, source: str) -> None:
        """Compare a vector, a scalar or a tensor of another kind (convolutions)."""
        import torch

        before, after = self.base.tensor(source), self.merged.tensor(name)
        if torch.equal(before.to(after.dtype), after):
            return
        if not after.is_floating_point() or not before.is_floating_point():
            self.found.unchecked.append(name)
            return
        first, second = before.float(), after.float()
        change = (second - first).square().mean().sqrt()
        size = first.square().mean().sqrt()
        finite = bool(torch.isfinite(second).all())
        rounded = after.dtype == torch.float32 and any(
            torch.equal(first.to(dtype).float(), second)
            for dtype in (torch.bfloat16, torch.float16)
        )
        cause = o.ROUNDED if rounded else o.CHANGED
        self.found.outcomes.append(
            Outcome(
                cause if finite else o.NOT_FINITE,
                name,
                layer=layer_of(name),
                projection=name.removesuffix(".weight").rsplit(".", 1)[-1],
                worst=float((second - first).abs().max()) if finite else float("inf"),
                matrix=after.ndim > 1,
                relative=float(change / size) if finite and float(size) else 0.0,
            )
        )

    def _replaced(self, name: str, source: str) -> None:
        """Compare a tensor that the adapter brings whole (PEFT's modules_to_save)."""
        import torch

        module = self.plan.replaced[source]
        wanted, after = self.adapter.replacement(module), self.merged.tensor(name)
        if wanted.shape == after.shape and torch.equal(wanted.to(after.dtype), after):
            self.found.outcomes.append(Outcome(o.RIGHT, name, module, layer_of(name)))
            return
        kept = torch.equal(self.base.tensor(source).to(after.dtype), after)
        says = "the base's tensor was kept" if kept else "neither the base's nor the adapter's"
        worst = (
            float((wanted.float() - after.float()).abs().max())
            if wanted.shape == after.shape
            else float("inf")
        )
        self.found.outcomes.append(
            Outcome(o.NOT_REPLACED, name, module, layer_of(name), says=says, worst=worst)
        )

    def _another_adapter(self) -> None:
        """Where nothing but the targets changed, and by matrices of low rank: another adapter."""
        outcomes = [out for out in self.found.outcomes if out.module]
        if not self._puzzles or len(outcomes) < len(self.found.outcomes):
            return
        if any(out.cause != o.UNEXPLAINED for out in outcomes):
            return
        matrix, parts = max(self._puzzles, key=lambda puzzle: min(puzzle[0].shape))
        rank = sum(self.adapter.sites[part.module].rank for part in parts)
        share = rank_share(self.comparer, matrix, rank)
        if share < _LOW_RANK:
            return
        says = f"{share:.1%} of the change in {matrix.label} has rank {rank} or less, as LoRA has"
        self.found.outcomes = [
            replace(out, cause=o.ANOTHER_ADAPTER, says=f"{says}; {out.says}") for out in outcomes
        ]

    def _absent_head(self) -> None:
        """A tied base whose output the adapter changes, merged without an output matrix."""
        head = "lm_head.weight"
        if not self.plan.own_head or head in self.merged.shapes:
            return
        for part in self.plan.parts.get((head, None), []):
            into = any(out.cause == o.INTO_EMBEDDING for out in self.found.outcomes)
            if not into:
                self.found.outcomes.append(
                    Outcome(
                        o.NOT_APPLIED,
                        head,
                        part.module,
                        projection=part.module.rsplit(".", 1)[-1],
                        says="the merged model has no output matrix of its own",
                        factor=0.0,
                    )
                )
