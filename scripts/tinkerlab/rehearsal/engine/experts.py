"""The forward pass of a mixture of experts with LoRA on each expert.

transformers 5 keeps all experts of a layer in two fused tensors (gate and up together, and
down), so there is no linear layer to patch; this module computes the whole block instead, for
the layouts that it knows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tinkerlab.rehearsal.errors import UserError

if TYPE_CHECKING:
    from tinkerlab.rehearsal.engine.lora import Active

# One adapter's part in a pass: (first token, last token + 1, A, B, scale).
_Part = tuple[int, int, Tensor, Tensor, float]


@dataclass(frozen=True)
class ExpertsLayout:
    """How an experts module stores its weights.

    Attributes:
        transposed: weights are ``[experts, in, out]``, not ``[experts, out, in]``.
        interleaved: gate and up alternate in the fused dimension, not one after the other.
    """

    name: str
    experts: int
    hidden: int
    intermediate: int
    transposed: bool
    interleaved: bool

    @classmethod
    def of(cls, name: str, module: nn.Module) -> ExpertsLayout:
        """Read the layout off ``module``.

        Raises:
            UserError: not one of transformers' standard gated layouts.
        """
        fused: Any = module.gate_up_proj
        down: Any = getattr(module, "down_proj", None)
        transposed = getattr(module, "is_transposed", None)
        if transposed is None and type(module).__name__ == "GptOssExperts":
            transposed = True
        known = transposed is not None and hasattr(module, "_apply_gate")
        if not known or down is None or fused.ndim != 3 or down.ndim != 3:
            raise UserError(
                f"the experts of {type(module).__name__} ({name}) have a layout that the"
                " rehearsal can't train; use a dense model, Qwen3-MoE, gpt-oss or DeepSeek-V3"
            )
        experts, *_ = fused.shape
        hidden, inner = (down.shape[2], down.shape[1]) if transposed else down.shape[1:]
        return cls(
            name=name,
            experts=experts,
            hidden=hidden,
            intermediate=inner,
            transposed=bool(transposed),
            interleaved=type(module).__name__ == "GptOssExperts",
        )

    def join(self, gate: Tensor, up: Tensor) -> Tensor:
        """Bring gate and up ``[n, intermediate]`` into the fused order ``[n, 2 * intermediate]``."""
        if self.interleaved:
            return torch.stack((gate, up), dim=-1).flatten(-2)
        return torch.cat((gate, up), dim=-1)


def experts_forward(
    module: Any,
    layout: ExpertsLayout,
    current: Callable[[], Active | None],
    hidden_states: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
) -> Tensor:
    """Compute the experts' weighted sum for each token, with the thread's adapters added.

    Args:
        current: gives the adapters chosen in this thread.
        hidden_states: ``[tokens, hidden]``.
        expert_ids: int64 ``[tokens, k]``, the experts chosen for each token.
        expert_weights: ``[tokens, k]``, their weights.

    Returns:
        ``[tokens, hidden]``.
    """
    tokens, k = expert_ids.shape
    active = current()
    gates: list[_Part] = []
    ups: list[_Part] = []
    downs: list[_Part] = []
    if active is not None:
        if active.loads is not None:
            active.loads.add(layout.name, expert_ids, layout.experts)
        gates = active.pairs(f"{layout.name}.w1", tokens)
        ups = active.pairs(f"{layout.name}.w3", tokens)
        downs = active.pairs(f"{layout.name}.w2", tokens)

    # Sort the (token, choice) pairs by expert; stable, so each expert's tokens are in order.
    flat_ids = expert_ids.reshape(-1)
    order = torch.argsort(flat_ids, stable=True)
    token_of = order // k
    x = hidden_states[token_of]
    counts = torch.bincount(flat_ids, minlength=layout.experts).tolist()

    # The factors on the residual stream's side are shared by all experts: one product each.
    gate_inner = _shared_inner(hidden_states, gates)
    up_inner = _shared_inner(hidden_states, ups)
    down_rank = downs[0][2].shape[1] if downs else 0

    outputs: list[Tensor] = []
    down_inner: list[Tensor] = []
    first = 0
    for expert, count in enumerate(counts):
        if count == 0:
            continue
        last = first + count
        ids = token_of[first:last]
        fused = _linear(module, "gate_up_proj", layout, expert, x[first:last])
        if gates or ups:
            shape = (count, layout.intermediate)
            fused = fused + layout.join(
                _expert_outer(gates, gate_inner, ids, expert, fused.new_zeros(shape)),
                _expert_outer(ups, up_inner, ids, expert, fused.new_zeros(shape)),
            )
        inner = module._apply_gate(fused)
        outputs.append(_linear(module, "down_proj", layout, expert, inner))
        if downs:
            down_inner.append(_expert_inner(downs, inner, ids, expert, down_rank))
        first = last

    weights = expert_weights.reshape(-1)[order].unsqueeze(-1)
    back = torch.empty_like(order)
    back[order] = torch.arange(order.numel(), device=order.device)
    result = (torch.cat(outputs) * weights)[back].view(tokens, k, -1).sum(dim=1)
    if downs:
        summed = (torch.cat(down_inner) * weights)[back].view(tokens, k, -1).sum(dim=1)
        for start, end, _, b, scale in downs:
            rank = b.shape[2]
            delta = functional.linear(summed[start:end, :rank], b[0]) * scale
            if (start, end) == (0, tokens):
                result = result + delta
            else:
                result[start:end] += delta
    return result.to(hidden_states.dtype)


def _linear(module: Any, name: str, layout: ExpertsLayout, expert: int, x: Tensor) -> Tensor:
    """One expert's frozen linear map, with its bias where there is one."""
    weight = getattr(module, name)[expert]
    bias = getattr(module, f"{name}_bias", None)
    return functional.linear(
        x, weight.t() if layout.transposed else weight, None if bias is None else bias[expert]
    )


def _shared_inner(hidden: Tensor, parts: list[_Part]) -> list[Tensor]:
    """``scale * A x`` of each adapter for its own tokens, where A is one for all experts."""
    return [functional.linear(hidden[s:e], a[0]) * scale for s, e, a, _, scale in parts]


def _expert_outer(
    parts: list[_Part], inner: list[Tensor], ids: Tensor, expert: int, zeros: Tensor
) -> Tensor:
    """``B_expert (scale * A x)`` for the tokens ``ids`` (ascending) of one expert."""
    pieces: list[Tensor] = []
    done = 0
    for (start, end, _, b, _), part in zip(parts, inner, strict=True):
        low, high = _within(ids, start, end)
        if high > low:
            pieces += [zeros[done:low], functional.linear(part[ids[low:high] - start], b[expert])]
            done = high
    return torch.cat([*pieces, zeros[done:]]) if pieces else zeros


def _expert_inner(parts: list[_Part], x: Tensor, ids: Tensor, expert: int, rank: int) -> Tensor:
    """``A_expert x`` for the tokens ``ids`` (ascending) of one expert, padded to one rank."""
    rank = max([rank, *(a.shape[1] for _, _, a, _, _ in parts)])
    pieces: list[Tensor] = []
    done = 0
    for start, end, a, _, _ in parts:
        low, high = _within(ids, start, end)
        if high > low:
            part = functional.linear(x[low:high], a[expert])
            if part.shape[1] < rank:
                part = functional.pad(part, (0, rank - part.shape[1]))
            pieces += [x.new_zeros(low - done, rank), part]
            done = high
    return torch.cat([*pieces, x.new_zeros(x.shape[0] - done, rank)])


def _within(ids: Tensor, start: int, end: int) -> tuple[int, int]:
    """The slice of the ascending ``ids`` that lies in ``[start, end)``."""
    bounds = torch.searchsorted(ids, torch.tensor([start, end], device=ids.device))
    low, high = bounds.tolist()
    return low, high
