"""The factors of an adapter in any of the forms in which they are handed around.

- *linear*: ``A [r, in]`` and ``B [out, r]`` of one layer (PEFT, and Tinker's dense layers);
- *stacked*: ``A [experts or 1, r, in]``, ``B [experts or 1, out, r]`` (Tinker's experts);
- *flat*: ``A [experts * r, in]``, ``B [out, r * experts]`` (PEFT's ``target_parameters``): A lists
  the experts one after the other, B alternates them (peft 0.21.2, ``ParamWrapper``);
- *embedding*: PEFT's ``lora_embedding_A [r, vocabulary]`` and ``lora_embedding_B [dim, r]``.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tinkerlab.errors import InputError
from tinkerlab.export.adapter import WEIGHTS, Pair, read_adapter

if TYPE_CHECKING:
    from torch import Tensor

Form = Literal["linear", "stacked", "flat", "embedding"]
Misread = Literal["", "A", "B", "AB"]
_PREFIX = "base_model.model."
_EMBEDDING = re.compile(r"(?:base_model\.model\.)?(.*)\.lora_embedding_([AB])$")


@dataclass(frozen=True)
class Site:
    """One pair of factors and what it is multiplied with.

    Attributes:
        module: its path without PEFT's prefix.
        experts: how many the pair serves, 0 for an ordinary layer.
        rows, columns: of one expert's ``B A``.
        rank: as the tensors have it; ``told_rank`` and ``alpha`` as the config has it.
        scale: what ``B A`` is multiplied by.
    """

    module: str
    form: Form
    experts: int
    rows: int
    columns: int
    rank: int
    told_rank: int
    alpha: float
    scale: float

    @property
    def leaf(self) -> str:
        return self.module.rsplit(".", 1)[-1]


class LoraAdapter:
    """An adapter folder, open for reading.

    Attributes:
        sites: by module, in file order, without empty placeholders.
        empty: modules whose tensors hold nothing: projections that the model doesn't have.
        full: module or tensor path -> key of a whole tensor that replaces the base's
            (PEFT's ``modules_to_save``).
        strangers: keys that are neither.

    Raises:
        InputError: not an adapter, broken, or of a kind (DoRA) whose merge isn't base + B A.
    """

    def __init__(self, directory: Path) -> None:
        read = read_adapter(directory)
        self.directory = directory
        self.config: dict[str, Any] = read.config
        if self.config.get("use_dora"):
            raise InputError(
                f"{directory}: a DoRA adapter: its merge rescales the base, which this script "
                "doesn't compute; compare logprobs instead"
            )
        self.sites: dict[str, Site] = {}
        self.empty: list[str] = []
        for pair in read.pairs.values():
            if pair.empty:
                self.empty.append(pair.module)
            else:
                self.sites[pair.module] = self._site(pair)
        self.full: dict[str, str] = {}
        self.strangers: list[str] = []
        self._keys = set(self._open().keys())
        self._sort_strangers(read.strangers)
        self.factors = lru_cache(maxsize=16)(self._factors)

    @property
    def fan_in_fan_out(self) -> bool:
        return bool(self.config.get("fan_in_fan_out"))

    def _site(self, pair: Pair) -> Site:
        told, alpha, scale = self._scaling(pair.module)
        a, b = pair.a_shape, pair.b_shape
        if len(a) != len(b) or len(a) not in (2, 3):
            raise InputError(
                f"{self.directory / WEIGHTS}: {pair.module}: A {list(a)} and B {list(b)} are not "
                "the factors of one matrix or of one matrix for each expert"
            )
        if len(a) == 3:
            return Site(
                pair.module, "stacked", max(a[0], b[0]), b[1], a[2], a[1], told, alpha, scale
            )
        flat = re.search(r"\.experts(\.base_layer)*$", pair.module)
        if flat and a[0] % told == 0:
            experts = a[0] // told
            return Site(pair.module, "flat", experts, b[0], a[1], told, told, alpha, scale)
        return Site(pair.module, "linear", 0, b[0], a[1], a[0], told, alpha, scale)

    def _scaling(self, module: str) -> tuple[int, float, float]:
        """Rank, alpha and scale of ``module`` by the rules of PEFT (``get_pattern_key``)."""
        rank = self._pattern("rank_pattern", module, self.config["r"])
        alpha = self._pattern("alpha_pattern", module, self.config["lora_alpha"])
        divisor = math.sqrt(rank) if self.config.get("use_rslora") else rank
        return int(rank), float(alpha), alpha / divisor

    def _pattern(self, name: str, module: str, default: float) -> float:
        patterns = self.config.get(name) or {}
        if not isinstance(patterns, dict):
            raise InputError(f"{self.directory}: adapter_config.json: {name} is not an object")
        for pattern, value in patterns.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
                raise InputError(
                    f"{self.directory}: adapter_config.json: {name}: {pattern!r} is {value!r}, "
                    "not a positive number"
                )
            try:
                found = re.match(rf"(.*\.)?({pattern})$", module)
            except re.error as error:
                raise InputError(f"{self.directory}: {name}: {pattern!r}: {error}") from error
            if found:
                return value
        return default

    def _sort_strangers(self, names: tuple[str, ...]) -> None:
        embeddings: dict[str, dict[str, str]] = {}
        for name in names:
            found = _EMBEDDING.match(name)
            if found:
                embeddings.setdefault(found.group(1), {})[found.group(2)] = name
            elif "lora_" in name:
                self.strangers.append(name)
            else:
                module = name.removeprefix(_PREFIX).replace(".modules_to_save", "")
                self.full[module] = name
        with self._open() as file:
            for module, keys in embeddings.items():
                if keys.keys() != {"A", "B"}:
                    self.strangers += keys.values()
                    continue
                rank, rows = file.get_slice(keys["A"]).get_shape()
                columns = file.get_slice(keys["B"]).get_shape()[0]
                told, alpha, scale = self._scaling(module)
                self.sites[module] = Site(
                    module, "embedding", 0, rows, columns, rank, told, alpha, scale
                )

    def _open(self) -> Any:
        from safetensors import safe_open

        return safe_open(str(self.directory / WEIGHTS), framework="pt")

    def replacement(self, module: str) -> Tensor:
        """The whole tensor that the adapter brings for ``module``, as stored."""
        with self._open() as file:
            return file.get_tensor(self.full[module])

    def _factors(self, module: str, expert: int, misread: Misread = "") -> tuple[Tensor, Tensor]:
        """Return ``A [r, in]`` and ``B [out, r]`` of one expert, in float32.

        Args:
            expert: 0 for an ordinary layer.
            misread: take A or B (or both) for packed in the other order, as a wrong merge does.
        """
        site = self.sites[module]
        with self._open() as file:
            if site.form == "embedding":
                a, b = (self._part(file, module, f"lora_embedding_{x}") for x in "AB")
                return b[:].float().T.contiguous(), a[:].float().T.contiguous()
            a, b = (self._part(file, module, f"lora_{x}.weight") for x in "AB")
            if site.form == "linear":
                return a[:].float(), b[:].float()
            every = slice(None)
            if site.form == "stacked":
                return self._stacked(site, a, b, expert, misread)
            apart = slice(expert, None, site.experts)
            together = slice(expert * site.rank, (expert + 1) * site.rank)
            a = a[:][apart if "A" in misread else together]
            b = b[:][every, together if "B" in misread else apart]
            return a.float(), b.float()

    def _part(self, file: Any, module: str, end: str) -> Any:
        name = f"{_PREFIX}{module}.{end}"
        return file.get_slice(name if name in self._keys else f"{module}.{end}")

    @staticmethod
    def _stacked(
        site: Site, a: Any, b: Any, expert: int, misread: Misread
    ) -> tuple[Tensor, Tensor]:
        shared_a, shared_b = a.get_shape()[0] == 1, b.get_shape()[0] == 1
        apart = slice(expert, None, site.experts)
        if "A" in misread and not shared_a:
            whole = a[:].float()
            factor_a = whole.reshape(-1, whole.shape[-1])[apart]
        else:
            factor_a = a[0 if shared_a else expert].float()
        if "B" in misread and not shared_b:
            whole = b[:].float()
            factor_b = whole.permute(1, 0, 2).reshape(whole.shape[1], -1)[:, apart]
        else:
            factor_b = b[0 if shared_b else expert].float()
        return factor_a.reshape(-1, site.columns), factor_b.reshape(site.rows, -1)
