"""The weights of one adapter: a trainable one in flat buffers, and frozen copies to sample from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tinkerlab.rehearsal.engine import adapter_files
from tinkerlab.rehearsal.engine.base import BaseModel
from tinkerlab.rehearsal.engine.lora import LoraWeights, Site
from tinkerlab.rehearsal.engine.types import AdapterConfig
from tinkerlab.rehearsal.errors import UserError


def chosen_sites(base: BaseModel, config: AdapterConfig) -> list[Site]:
    """The sites that ``config`` trains.

    Raises:
        UserError: none is left, or the rank is not positive.
    """
    if config.rank < 1:
        raise UserError(f"LoRA rank must be at least 1, got {config.rank}")
    wanted = {
        kind
        for kind, on in (
            ("attn", config.train_attn),
            ("mlp", config.train_mlp),
            ("unembed", config.train_unembed),
        )
        if on
    }
    sites = [site for site in base.sites if site.kind in wanted]
    if not sites:
        raise UserError("train_attn, train_mlp and train_unembed are all false: nothing to train")
    return sites


@dataclass(frozen=True)
class FrozenAdapter:
    """An adapter's weights at one moment; nothing changes them any more.

    Attributes:
        weights: what ``lora.use_adapters`` takes.
        sites: where they sit.
    """

    weights: LoraWeights
    sites: tuple[Site, ...]
    rank: int
    alpha: float

    @classmethod
    def load(cls, base: BaseModel, directory: Path) -> FrozenAdapter:
        """Read the adapter files in ``directory`` for sampling on ``base``.

        Raises:
            UserError: missing or broken files, or an adapter of another model.
        """
        rank, alpha, tensors = adapter_files.read(base, directory)
        sites = tuple(site for site in base.sites if site.name in tensors)
        return cls(LoraWeights(alpha / rank, tensors), sites, rank, alpha)


class AdapterBuffers:
    """The weights of an adapter in training: one flat buffer, seen through a view per factor.

    Flat buffers make the optimizer, the gradient norm and a snapshot single operations over
    contiguous memory, however many sites there are.

    Attributes:
        flat: float32 ``[parameters]``, all weights.
        weights: the views that forward passes use; autograd leaves.
    """

    def __init__(self, sites: list[Site], config: AdapterConfig) -> None:
        self.sites = tuple(sites)
        self.rank = config.rank
        self.alpha = config.alpha
        self.flat = torch.zeros(parameter_count(sites, config.rank), dtype=torch.float32)
        self.weights = self._views(self.flat)
        self._gradient: Tensor | None = None
        self._initialise(config.seed)
        for pair in self.weights.pairs.values():
            for factor in pair:
                factor.requires_grad_(True)

    @property
    def gradient(self) -> Tensor:
        """float32 ``[parameters]``: what backward passes add to; made on the first use."""
        if self._gradient is None:
            self._gradient = torch.zeros_like(self.flat)
            gradients = self._views(self._gradient).pairs
            for name, factors in self.weights.pairs.items():
                for factor, gradient in zip(factors, gradients[name], strict=True):
                    factor.grad = gradient
        return self._gradient

    def clear_gradient(self) -> None:
        """Set the gradient to zero (costs nothing where there never was one)."""
        if self._gradient is not None:
            self._gradient.zero_()

    def snapshot(self) -> FrozenAdapter:
        """Copy the weights as they are now."""
        with torch.no_grad():
            weights = self._views(self.flat.clone())
        return FrozenAdapter(weights, self.sites, self.rank, self.alpha)

    def views(self, flat: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Show any ``[parameters]`` buffer (a moment of the optimizer, say) as pairs by site."""
        return dict(self._views(flat).pairs)

    def _views(self, flat: Tensor) -> LoraWeights:
        pairs: dict[str, tuple[Tensor, Tensor]] = {}
        offset = 0
        for site in self.sites:
            factors = []
            for shape in (site.a_shape(self.rank), site.b_shape(self.rank)):
                end = offset + math.prod(shape)
                factors.append(flat[offset:end].view(shape))
                offset = end
            pairs[site.name] = (factors[0], factors[1])
        return LoraWeights(self.alpha / self.rank, pairs)

    @torch.no_grad()
    def _initialise(self, seed: int | None) -> None:
        """A uniform in +-1/sqrt(d_in), B zero: what PEFT does by default.

        (kaiming_uniform_ with a = sqrt(5), peft/tuners/lora/layer.py.) The generator is our
        own: the same seed gives the same weights and nobody else's random numbers change.
        """
        generator = torch.Generator()
        if seed is None:
            generator.seed()
        else:
            generator.manual_seed(seed)
        for site in self.sites:
            a, _ = self.weights.pairs[site.name]
            bound = 1 / math.sqrt(site.d_in)
            a.uniform_(-bound, bound, generator=generator)


def parameter_count(sites: list[Site], rank: int) -> int:
    """Number of weights of an adapter of this rank on these sites."""
    return sum(math.prod(site.a_shape(rank)) + math.prod(site.b_shape(rank)) for site in sites)
