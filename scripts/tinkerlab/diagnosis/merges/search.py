"""Which other expert, layer or projection was added (or stored) in a matrix's place?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tinkerlab.diagnosis.merges import guesses as g
from tinkerlab.diagnosis.merges.adapters import LoraAdapter
from tinkerlab.diagnosis.merges.guesses import Guess, leaf
from tinkerlab.diagnosis.merges.layouts import Part
from tinkerlab.diagnosis.merges.matrices import BLOCK, Comparer, Matrix
from tinkerlab.export.checkpoint import layer_of

if TYPE_CHECKING:
    from torch import Tensor

WINDOW = 128  # outputs that candidates are compared on before the whole matrix is
CANDIDATES = 1024
_GOOD = 0.5  # the least share of the change that a candidate must explain on the window


def best(comparer: Comparer, matrix: Matrix, part: Part) -> Guess | None:
    """The part of the adapter that explains the change in ``part``'s region best, if any does."""
    seen = _window(comparer, matrix, part)
    energy = float((seen * seen).sum())
    if not energy:
        return None
    rows = len(part.outputs)
    score, chosen = _GOOD, None
    for candidate in _candidates(comparer.adapter, part):
        a, b = comparer.adapter.factors(candidate.module, candidate.expert)
        if part.of_rows is not None:
            b = b[part.of_rows.start : part.of_rows.stop]
        value = b[_outputs(rows)] @ a
        norm = float((value * value).sum())
        product = float((seen * value).sum())
        share = product * product / (energy * norm) if norm else 0.0
        if share > score:
            score, chosen = share, candidate
    if chosen is None:
        return None
    cause, says = _relation(part, chosen)
    return Guess(cause, says, (chosen,))


def _outputs(rows: int) -> slice:
    start = max(0, min(rows // 3, rows - WINDOW))
    return slice(start, min(rows, start + WINDOW))


def _window(comparer: Comparer, matrix: Matrix, part: Part) -> Tensor:
    """The change seen in some outputs of ``part``'s region, ``[outputs, in]``."""
    import torch

    outputs = part.outputs[_outputs(len(part.outputs))]
    if part.transposed:
        pieces = []
        step = max(1, BLOCK // matrix.shape[1])
        for lo in range(0, matrix.shape[0], step):
            hi = min(matrix.shape[0], lo + step)
            pieces.append(_change(comparer, matrix, lo, hi))
        columns = slice(outputs.start, outputs.stop, outputs.step)
        return torch.cat([piece[:, columns] for piece in pieces]).T
    change = _change(comparer, matrix, outputs[0], outputs[-1] + 1)
    return change[:: outputs.step]


def _change(comparer: Comparer, matrix: Matrix, lo: int, hi: int) -> Tensor:
    base, merged = comparer.reader.pair(matrix, lo, hi)
    return merged.float() - base.to(merged.dtype).float()


def _candidates(adapter: LoraAdapter, part: Part) -> Iterator[Part]:
    site = adapter.sites[part.module]
    count = 0
    near = [other for other in adapter.sites.values() if other.module == part.module]
    far = [other for other in adapter.sites.values() if other.module != part.module]
    for other in near + far:
        if (other.rows, other.columns) != (site.rows, site.columns):
            continue
        for expert in range(other.experts or 1):
            if (other.module, expert) == (part.module, part.expert):
                continue
            count += 1
            if count > CANDIDATES:
                return
            yield replace(part, module=other.module, expert=expert)


def _relation(right: Part, found: Part) -> tuple[str, str]:
    """Name what it means that ``found`` was added where ``right`` belongs."""
    if right.module == found.module:
        return g.PERMUTED, f"expert {found.expert}'s change added to expert {right.expert}"
    return relation(right.module, found.module)


def relation(right: str, found: str) -> tuple[str, str]:
    """Name what it means that module ``found`` is where ``right`` belongs."""
    says = f"{found} in the place of {right}"
    mine, other = (re.search(r"\.experts\.(\d+)\.", name) for name in (right, found))
    names = {name.rsplit(".", 1)[-1] for name in (right, found)}
    if layer_of(right) == layer_of(found) and len(names) == 1 and mine and other:
        return g.PERMUTED, f"expert {other.group(1)} in the place of expert {mine.group(1)}"
    if layer_of(right) != layer_of(found) and len(names) == 1:
        return g.LAYERS, f"layer {layer_of(found)} in the place of layer {layer_of(right)}"
    if names <= {"w1", "w3"} or names <= {"gate_proj", "up_proj"}:
        return g.SWAPPED, says
    return g.PROJECTIONS, says


def wrong_target(
    comparer: Comparer, matrix: Matrix, modules: Iterable[str]
) -> tuple[str, Part] | None:
    """The part of the adapter that was added to a matrix in which nothing belongs."""
    for module in modules:
        site = comparer.adapter.sites[module]
        for transposed in (False, True):
            shape = matrix.shape[::-1] if transposed else matrix.shape
            if (site.rows, site.columns) == shape:
                part = Part(module, 0, range(site.rows), transposed=transposed)
                seen = _window(comparer, matrix, part)
                a, b = comparer.adapter.factors(module, 0)
                value = b[_outputs(site.rows)] @ a
                energy = float((seen * seen).sum()) * float((value * value).sum())
                if energy and float((seen * value).sum()) ** 2 > _GOOD * energy:
                    return leaf(part), part
    return None
