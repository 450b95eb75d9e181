"""Is a merged model the base plus ``scale * B A``? Every number of every tensor is compared.

Norms prove nothing: experts that were swapped have the right norms.

The bound on a right difference is the usual one for floating point (Higham, "Accuracy and
Stability of Numerical Algorithms", 2nd edition, section 3.1): storing a number costs half a unit
in the last place of the storage type, a dot product of length ``r`` in float32 costs at most
about ``r * 2**-24`` times the sum of the absolute products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tinkerlab.export.adapter import Adapter
from tinkerlab.export.checkpoint import HEAD, Checkpoint, layer_of
from tinkerlab.export.targets import Factors, Part, place

if TYPE_CHECKING:
    from torch import Tensor

# Unit roundoff of the types that weights are stored in: 2**-(bits of precision).
ROUNDOFF = {"F32": 2.0**-24, "F16": 2.0**-11, "BF16": 2.0**-8, "F64": 2.0**-53}


@dataclass(frozen=True)
class Difference:
    """A tensor that isn't what it should be.

    Attributes:
        reason: one clause for people.
        max_difference: largest absolute difference to the expected value; None where there
            is nothing to compare.
        share: of its numbers that differ, from 0 to 1.
        experts: which experts differ, where the tensor belongs to experts.
    """

    tensor: str
    layer: int | None
    reason: str
    max_difference: float | None = None
    share: float | None = None
    experts: tuple[int, ...] = ()


@dataclass
class WeightsReport:
    """What comparing every tensor found.

    Attributes:
        compared: tensors that were compared.
        changed: of these, how many the adapter changes.
        max_difference: largest absolute difference over the tensors that are right.
        largest_change: largest absolute value that the adapter adds anywhere.
        unchecked: tensors in a quantised format, whose values can't be predicted.
    """

    compared: int = 0
    changed: int = 0
    max_difference: float = 0.0
    largest_change: float = 0.0
    differences: list[Difference] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.differences and not self.unchecked and self.compared > 0

    @property
    def layers(self) -> list[int]:
        return sorted({d.layer for d in self.differences if d.layer is not None})


def check_merged(
    base: Checkpoint,
    merged: Checkpoint,
    adapter: Adapter,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> WeightsReport:
    """Compare each tensor of ``merged`` with ``base`` plus what the raw ``adapter`` adds.

    Tensors that the adapter doesn't touch must equal the base bit for bit. One tensor is held
    in memory at a time.
    """
    placement = place(adapter, base)
    report = WeightsReport()
    for module in placement.homeless:
        reason = "the base model has no tensor for this part of the adapter"
        report.differences.append(Difference(module, layer_of(module), reason))
    factors = Factors(adapter)
    sources = _expected_tensors(base, HEAD in placement.parts)
    for name in merged.shapes:
        # A tied model may be saved with its output matrix written out as well.
        if name not in sources and not (name == HEAD and base.tied):
            reason = "not in the base model"
            report.differences.append(Difference(name, layer_of(name), reason))
    for done, (name, source) in enumerate(sources.items(), 1):
        parts = placement.parts.get(name, [])
        problem = _compare(base, source, merged, name, parts, factors, report)
        if problem is not None:
            report.differences.append(problem)
        progress(done, len(sources))
    return report


def _expected_tensors(base: Checkpoint, own_head: bool) -> dict[str, str]:
    """Name in the merged model -> name of the base tensor that it starts from."""
    sources = {name: name for name in base.shapes}
    if own_head and HEAD not in sources:
        sources[HEAD] = base.embedding
    return sources


def _compare(
    base: Checkpoint,
    source: str,
    merged: Checkpoint,
    name: str,
    parts: list[Part],
    factors: Factors,
    report: WeightsReport,
) -> Difference | None:
    import torch

    layer = layer_of(name)
    if name not in merged.shapes:
        if name == HEAD and source != HEAD:
            reason = (
                "missing: the adapter changes the output layer only, so it can't be added to an "
                "embedding that the base model uses for input and output"
            )
        else:
            reason = "missing in the merged model"
        return Difference(name, layer, reason)
    if merged.shapes[name] != base.shapes[source]:
        reason = f"shape {list(merged.shapes[name])}, not {list(base.shapes[source])}"
        return Difference(name, layer, reason)
    if parts and not {base.dtypes[source], merged.dtypes[name]} <= ROUNDOFF.keys():
        report.unchecked.append(name)
        return None
    report.compared += 1
    before, after = base.tensor(source), merged.tensor(name)
    untouched = not parts and before.dtype == after.dtype
    if untouched and torch.equal(before, after):
        return None
    expected = before.to(torch.float32)
    allowed = torch.zeros_like(expected)
    for part in parts:
        delta, bound = factors.delta(part)
        expected[part.region] += delta
        allowed[part.region] += bound
        report.largest_change = max(report.largest_change, float(delta.abs().max()))
    report.changed += bool(parts)
    if not untouched:  # untouched numbers must be the base's, bit for bit
        # Twice the roundoff in float32: once for our own sum, once for the other side's.
        allowed += 2 * ROUNDOFF["F32"] * (before.to(torch.float32).abs() + expected.abs())
        allowed += ROUNDOFF.get(merged.dtypes[name], 0.0) * expected.abs()
    difference = (after.to(torch.float32) - expected).abs()
    wrong = ~(difference <= allowed)  # also catches NaN
    largest = float(difference.nan_to_num(nan=float("inf")).max()) if difference.numel() else 0.0
    if not bool(wrong.any()):
        report.max_difference = max(report.max_difference, largest)
        return None
    return Difference(
        name,
        layer,
        "not the base plus the adapter" if parts else "changed, though the adapter isn't there",
        largest,
        float(wrong.float().mean()),
        _experts(parts, wrong),
    )


def _experts(parts: list[Part], wrong: Tensor) -> tuple[int, ...]:
    return tuple(
        sorted({p.expert for p in parts if p.expert is not None and bool(wrong[p.region].any())})
    )


def summarise(report: WeightsReport, merged: Path) -> str:
    """Say in one line what is wrong with ``merged``, layers first."""
    if report.unchecked:
        names = ", ".join(report.unchecked[:3])
        if not report.differences:
            return f"{merged}: {len(report.unchecked)} quantised tensors can't be checked ({names})"
    first = report.differences[0]
    where = f"layers {', '.join(map(str, report.layers))}" if report.layers else first.tensor
    return (
        f"{merged}: {len(report.differences)} tensors are wrong, in {where}; first: "
        f"{first.tensor}: {first.reason}"
        + (f" (experts {', '.join(map(str, first.experts))})" if first.experts else "")
        + (f", by up to {first.max_difference:.2g}" if first.max_difference is not None else "")
    )
