"""Which numbers of the base model each LoRA factor changes.

Written from the layouts of the checkpoints themselves and kept apart from tinker-cookbook's own
mapping on purpose: a check that shared its code would share its mistakes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinkerlab.errors import InputError
from tinkerlab.export.adapter import UNEMBEDDING, Adapter, Pair
from tinkerlab.export.checkpoint import HEAD, Checkpoint

if TYPE_CHECKING:
    from torch import Tensor

# Tinker's names of an expert's projections, and transformers'.
_EXPERT_NAMES = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
# Fused experts that are stored [expert, in, out], to be multiplied as x @ W; the others are
# stored [expert, out, in], as torch.nn.Linear does.
_IN_OUT = {"gpt_oss", "qwen3_vl_moe", "qwen3_vl_moe_text"}
# Gate and up columns alternate (gate, up, gate, up, ...) instead of standing in two blocks.
_INTERLEAVED = {"gpt_oss"}
# Checkpoints in which several trained projections are one matrix, stacked by rows in this order.
_STACKED = {"in_proj_qkv": ("in_proj_q", "in_proj_k", "in_proj_v")}


@dataclass(frozen=True)
class Part:
    """Adds ``scale * B A`` of one pair (of one expert) to a region of one tensor.

    Attributes:
        module: the adapter's pair.
        expert: which expert's factors; None for an ordinary layer.
        region: index into the tensor; the addend has its shape.
        transposed: the region holds ``[in, out]``: add the transpose.
    """

    module: str
    expert: int | None
    region: tuple[int | slice, ...]
    transposed: bool = False


@dataclass(frozen=True)
class Placement:
    """Where an adapter goes in a base model: by tensor, and modules that fit nowhere."""

    parts: dict[str, list[Part]]
    homeless: tuple[str, ...]


def place(adapter: Adapter, base: Checkpoint) -> Placement:
    """Find the tensors of ``base`` that each pair of the raw ``adapter`` changes.

    The unembedding goes to ``lm_head.weight`` even where the base ties it to the embedding: the
    adapter changes the output only, so a right merge has an output matrix of its own.
    """
    parts: dict[str, list[Part]] = {}
    homeless = []
    for pair in adapter.pairs.values():
        if pair.empty:
            continue
        found = list(_parts_of(pair, adapter, base))
        if not found:
            homeless.append(pair.module)
        for tensor, part in found:
            parts.setdefault(tensor, []).append(part)
    return Placement(parts, tuple(homeless))


def _parts_of(pair: Pair, adapter: Adapter, base: Checkpoint) -> Iterator[tuple[str, Part]]:
    if pair.leaf in UNEMBEDDING:
        if base.tied or HEAD in base.shapes:
            yield HEAD, Part(pair.module, None, (slice(None),))
        return
    path = _path_in(base, pair.module)
    if ".experts." in path and pair.leaf in _EXPERT_NAMES:
        yield from _expert_parts(pair, path, base)
        return
    if f"{path}.weight" in base.shapes:
        yield f"{path}.weight", Part(pair.module, None, (slice(None),))
        return
    for fused, members in _STACKED.items():
        target = f"{path.rsplit('.', 1)[0]}.{fused}.weight"
        if pair.leaf in members and target in base.shapes:
            start = _rows_before(pair, adapter, members)
            rows = slice(start, start + pair.b_shape[0])
            yield target, Part(pair.module, None, (rows,))
            return


def _path_in(base: Checkpoint, module: str) -> str:
    """Translate a module path to the base's naming (vision wrappers, gpt-oss' ``attn``)."""
    if any(name.startswith("model.language_model.") for name in base.shapes):
        module = module.replace("model.", "model.language_model.", 1)
    if ".attn." in module and f"{module}.weight" not in base.shapes:
        module = module.replace(".attn.", ".self_attn.")
    return module


def _rows_before(pair: Pair, adapter: Adapter, members: tuple[str, ...]) -> int:
    stem = pair.module.rsplit(".", 1)[0]
    rows = 0
    for member in members[: members.index(pair.leaf)]:
        sibling = adapter.pairs.get(f"{stem}.{member}")
        if sibling is None:
            raise InputError(
                f"{adapter.directory}: {pair.module} can't be placed without {stem}.{member}"
            )
        rows += sibling.b_shape[0]
    return rows


def _expert_parts(pair: Pair, path: str, base: Checkpoint) -> Iterator[tuple[str, Part]]:
    experts = max(pair.a_shape[0], pair.b_shape[0])
    stem, name = path.rsplit(".", 1)[0], _EXPERT_NAMES[pair.leaf]
    if f"{stem}.0.{name}.weight" in base.shapes:
        for expert in range(experts):
            tensor = f"{stem}.{expert}.{name}.weight"
            if tensor in base.shapes:
                yield tensor, Part(pair.module, expert, (slice(None),))
        return
    fused = f"{stem}.{'down_proj' if name == 'down_proj' else 'gate_up_proj'}"
    if fused not in base.shapes:
        return
    in_out = base.model_type in _IN_OUT
    outputs: slice = slice(None)
    if name != "down_proj":
        second, width = name == "up_proj", pair.b_shape[1]
        if base.model_type in _INTERLEAVED:
            outputs = slice(int(second), None, 2)
        else:
            outputs = slice(width, 2 * width) if second else slice(0, width)
    for expert in range(experts):
        region = (expert, slice(None), outputs) if in_out else (expert, outputs, slice(None))
        yield fused, Part(pair.module, expert, region, transposed=in_out)


class Factors:
    """Factors of the pairs that are in use, read once each."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._held: tuple[str, Tensor, Tensor] | None = None

    def delta(self, part: Part) -> tuple[Tensor, Tensor]:
        """Return ``scale * B A`` for ``part``, and a bound on its rounding error, elementwise.

        The bound covers two computations of it in float32 (ours and the one that is checked).
        """
        if self._held is None or self._held[0] != part.module:
            self._held = (part.module, *self._adapter.factors(part.module))
        _, a, b = self._held
        if part.expert is not None:
            a, b = (x[part.expert if x.shape[0] > 1 else 0] for x in (a, b))
        delta = (b @ a) * self._adapter.scale
        rank = a.shape[0]
        bound = (b.abs() @ a.abs()) * (self._adapter.scale * 2 * (rank + 2) * 2.0**-24)
        return (delta.T, bound.T) if part.transposed else (delta, bound)
