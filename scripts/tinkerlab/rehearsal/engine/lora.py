"""LoRA inside a shared, frozen base model: where it sits and how a forward pass picks it.

The base model's modules are patched once (:func:`install`). Which adapter they add is a choice
of the running thread (:func:`use_adapters`), never a state of the model: training and sampling
run in different threads on one model, and one sampling batch mixes adapters by rows.

Where the hosted service puts LoRA, and which factor experts share, is read from the parameter
counts that tinker-cookbook publishes (``hyperparam_utils.get_lora_param_count``); a test
computes the same counts from :func:`find_sites`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from tinkerlab.rehearsal.engine.experts import ExpertsLayout, experts_forward
from tinkerlab.rehearsal.errors import UserError

SiteKind = Literal["attn", "mlp", "unembed"]

# Multi-head latent attention: the service adapts the projections that touch the residual
# stream, not those out of the latent spaces (the counts above fit only so).
_UNTRAINED_ATTENTION = ("q_b_proj", "kv_b_proj")
_ROUTERS = ("gate", "router", "shared_expert_gate")


@dataclass(frozen=True)
class Site:
    """One place for a pair of LoRA factors; a linear map from ``d_in`` to ``d_out``.

    Attributes:
        name: the module's path in the model; experts end in ``.w1`` (gate), ``.w3`` (up) or
            ``.w2`` (down).
        experts: the number of experts, 0 for an ordinary linear layer.
        a_shared, b_shared: one factor for all experts: the one on the residual stream's side.
    """

    name: str
    kind: SiteKind
    d_in: int
    d_out: int
    experts: int = 0
    a_shared: bool = False
    b_shared: bool = False

    def a_shape(self, rank: int) -> tuple[int, ...]:
        """Shape of A: ``[rank, d_in]``, for experts ``[experts or 1, rank, d_in]``."""
        if not self.experts:
            return (rank, self.d_in)
        return (1 if self.a_shared else self.experts, rank, self.d_in)

    def b_shape(self, rank: int) -> tuple[int, ...]:
        """Shape of B: ``[d_out, rank]``, for experts ``[experts or 1, d_out, rank]``."""
        if not self.experts:
            return (self.d_out, rank)
        return (1 if self.b_shared else self.experts, self.d_out, rank)


@dataclass(frozen=True)
class LoraWeights:
    """The factors of one adapter: at each site, ``x -> scale * B (A x)`` is added.

    ``pairs`` maps a site's name to (A, B) with the shapes of :class:`Site`.
    """

    scale: float
    pairs: Mapping[str, tuple[Tensor, Tensor]]


# What use_adapters takes: (number of batch rows, their adapter or None).
RowGroup = tuple[int, LoraWeights | None]


@dataclass
class ExpertLoads:
    """Counts the tokens that each expert gets during a forward pass.

    Attributes:
        token_mask: bool ``[rows * columns]``, False for padding.
        counts: for each experts module, int64 ``[experts]``, summed over passes.
    """

    token_mask: Tensor
    counts: dict[str, Tensor] = field(default_factory=dict)

    def add(self, module: str, expert_ids: Tensor, experts: int) -> None:
        """Count ``expert_ids`` ``[tokens, k]``, the experts chosen for each token."""
        chosen = torch.bincount(expert_ids[self.token_mask].flatten(), minlength=experts)
        earlier = self.counts.get(module)
        self.counts[module] = chosen if earlier is None else earlier + chosen


@dataclass(frozen=True)
class Active:
    """The choice that holds in this thread: ``groups`` of (start row, end row, adapter)."""

    rows: int
    groups: tuple[tuple[int, int, LoraWeights], ...]
    whole: LoraWeights | None = None
    loads: ExpertLoads | None = None

    def pairs(self, site: str, tokens: int) -> list[tuple[int, int, Tensor, Tensor, float]]:
        """(first token, last token + 1, A, B, scale) of each adapter that has this site."""
        if self.whole is not None:
            pair = self.whole.pairs.get(site)
            return [] if pair is None else [(0, tokens, *pair, self.whole.scale)]
        if self.rows == 0:
            return []
        columns, rest = divmod(tokens, self.rows)
        if rest:
            raise ValueError(f"{site}: {tokens} tokens can't be {self.rows} rows of one length")
        return [
            (start * columns, end * columns, *pair, weights.scale)
            for start, end, weights in self.groups
            if (pair := weights.pairs.get(site)) is not None
        ]


class _ThreadState(threading.local):
    active: Active | None = None


_thread = _ThreadState()


@contextmanager
def use_adapters(groups: Sequence[RowGroup]) -> Iterator[None]:
    """Give consecutive rows of the batches that this thread runs their adapters.

    ``[(2, first), (1, None), (3, second)]``: rows 0-1 get ``first``, row 2 the bare model, rows
    3-5 ``second``. Inside, every forward pass must have that number of rows in its first
    dimension, all of one length. Choices nest: the inner one replaces the outer one.
    """
    merged: list[tuple[int, int, LoraWeights]] = []
    row = 0
    for count, weights in groups:
        if count < 0:
            raise ValueError(f"a group of {count} rows")
        if weights is not None and count:
            if merged and merged[-1][2] is weights and merged[-1][1] == row:
                merged[-1] = (merged[-1][0], row + count, weights)
            else:
                merged.append((row, row + count, weights))
        row += count
    whole = merged[0][2] if len(merged) == 1 and merged[0][:2] == (0, row) else None
    with _activate(Active(rows=row, groups=tuple(merged), whole=whole)):
        yield


@contextmanager
def use_adapter(weights: LoraWeights | None, loads: ExpertLoads | None = None) -> Iterator[None]:
    """Give every row of every batch that this thread runs the same adapter (or none)."""
    with _activate(Active(rows=0, groups=(), whole=weights, loads=loads)):
        yield


@contextmanager
def without_counting() -> Iterator[None]:
    """Keep this thread's adapters, but count no expert's tokens."""
    active = _thread.active or Active(rows=0, groups=())
    with _activate(replace(active, loads=None)):
        yield


@contextmanager
def _activate(active: Active) -> Iterator[None]:
    outer = _thread.active
    _thread.active = active
    try:
        yield
    finally:
        _thread.active = outer


def find_sites(model: nn.Module) -> list[Site]:
    """List every LoRA site of a transformers causal language model, in module order.

    Raises:
        UserError: a mixture-of-experts whose layout is unknown; a model without any site.
    """
    sites: list[Site] = []
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    for name, module in model.named_modules():
        if module is head:
            sites.append(Site(name, "unembed", head.in_features, head.out_features))
        elif isinstance(module, nn.Linear):
            kind = _linear_kind(name)
            if kind is not None:
                sites.append(Site(name, kind, module.in_features, module.out_features))
        elif isinstance(getattr(module, "gate_up_proj", None), nn.Parameter):
            sites.extend(_expert_sites(name, ExpertsLayout.of(name, module)))
        elif name.endswith(".experts") and list(module.parameters(recurse=False)):
            raise UserError(f"{type(model).__name__}: its experts ({name}) are laid out unknown")
    if not any(site.kind != "unembed" for site in sites):
        raise UserError(f"{type(model).__name__}: no linear layer that LoRA could adapt was found")
    return sites


def install(model: nn.Module) -> list[Site]:
    """Patch every site of ``model`` so that it adds the thread's adapter; return the sites.

    Call it once for a model. With no adapter chosen, the model computes what it did before.
    """
    sites = find_sites(model)
    for name in dict.fromkeys(_module_name(site) for site in sites):
        module: Any = model.get_submodule(name)
        if not hasattr(module, "gate_up_proj"):
            module.forward = partial(_linear_forward, module, name)
        else:
            layout = ExpertsLayout.of(name, module)
            module.forward = partial(experts_forward, module, layout, _current)
    return sites


def _current() -> Active | None:
    return _thread.active


def _linear_forward(module: nn.Linear, site: str, x: Tensor) -> Tensor:
    """``x`` ``[..., d_in]`` -> ``[..., d_out]``: the layer's own output plus the adapters'."""
    flat = x.reshape(-1, x.shape[-1])
    y = functional.linear(flat, module.weight, module.bias)
    active = _thread.active
    if active is not None:
        for start, end, a, b, scale in active.pairs(site, flat.shape[0]):
            everything = (start, end) == (0, flat.shape[0])
            inner = functional.linear(flat if everything else flat[start:end], a) * scale
            # In place: nothing else needs the plain output, and a second [tokens, d_out]
            # tensor for each site is what makes a generic LoRA layer slow and large.
            (y if everything else y[start:end]).addmm_(inner, b.t())
    return y.view(*x.shape[:-1], -1)


def _linear_kind(name: str) -> SiteKind | None:
    """Attention or MLP, by the names that transformers uses; None for what isn't adapted."""
    *path, leaf = name.split(".")
    if any(part.startswith(("visual", "vision", "audio")) for part in path):
        return None  # the towers of multimodal models stay frozen
    if leaf in _ROUTERS or leaf in _UNTRAINED_ATTENTION:
        return None
    if any("attn" in part or "attention" in part for part in path):
        return "attn"
    if any(part in ("mlp", "feed_forward", "block_sparse_moe") for part in path):
        return "mlp"
    return None


def _expert_sites(name: str, layout: ExpertsLayout) -> list[Site]:
    hidden, inner, experts = layout.hidden, layout.intermediate, layout.experts
    return [
        Site(f"{name}.w1", "mlp", hidden, inner, experts, a_shared=True),
        Site(f"{name}.w3", "mlp", hidden, inner, experts, a_shared=True),
        Site(f"{name}.w2", "mlp", inner, hidden, experts, b_shared=True),
    ]


def _module_name(site: Site) -> str:
    return site.name.rsplit(".", 1)[0] if site.experts else site.name
