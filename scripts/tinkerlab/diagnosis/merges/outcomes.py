"""What was found out about one part of one matrix."""

from __future__ import annotations

from dataclasses import dataclass

RIGHT = "right"
LOW_PRECISION = "merged-in-low-precision"
NOT_APPLIED = "not-applied"  # refined in the verdict, once all matrices are known
TWICE = "adapter-applied-twice"
SUBTRACTED = "adapter-subtracted"
SCALING = "wrong-scaling"
UNEXPLAINED = "merge-differs-unexplained"
NOT_FINITE = "merged-not-finite"
CHANGED = "untargeted-tensors-changed"
ROUNDED = "base-rounded-to-lower-precision"
INTO_EMBEDDING = "unembedding-merged-into-embedding"
WRONG_TENSOR = "added-to-wrong-tensor"
ANOTHER_ADAPTER = "merged-from-another-adapter"
NOT_REPLACED = "full-weights-not-copied"


@dataclass(frozen=True)
class Outcome:
    """The decision on one part, or on one matrix that the adapter doesn't touch.

    Attributes:
        place: the tensor, and the expert in it.
        projection: last word of the adapter's module, or of the tensor.
        expert: its number, None outside mixtures of experts.
        factor: on the right scale; 1 unless the scaling is what is wrong.
        worst: largest absolute difference to the right merge.
        left: what remains of it when the cause is taken into account; None when that wasn't
            computed.
        explained: share of the change (sum of squares) that the cause explains.
        matrix: whether the tensor has more than one dimension.
        relative: size of the change against the base's (root mean square), where untargeted.
    """

    cause: str
    place: str
    module: str = ""
    layer: int | None = None
    projection: str = ""
    expert: int | None = None
    says: str = ""
    factor: float = 1.0
    worst: float = 0.0
    left: float | None = None
    explained: float = 1.0
    relative: float = 0.0
    matrix: bool = True
