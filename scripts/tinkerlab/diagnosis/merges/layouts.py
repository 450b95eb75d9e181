"""Where each part of an adapter belongs in the tensors of a base model.

Written from the checkpoints' own layouts, apart from tinker-cookbook's code on purpose: a check
that shared its code would share its mistakes. Names are matched after both sides have lost the
prefixes that model classes wrap around the layers, so that the base's own naming (vision
wrappers, Kimi's outer prefix, Nemotron's ``backbone``) needs no table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tinkerlab.diagnosis.merges.adapters import LoraAdapter, Misread, Site
from tinkerlab.export.adapter import UNEMBEDDING
from tinkerlab.export.checkpoint import HEAD, Checkpoint

_WRAPPERS = ("base_model.model.", "model.", "language_model.", "backbone.", "transformer.")
_EXPERT = re.compile(
    r"^(?P<stem>.*\.experts)(?:\.(?P<index>\d+))?\.(?P<leaf>w[123]|(?:gate|up|down)_proj)$"
)
_ROLES = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
# Fused experts stored [expert, in, out], to be multiplied as x @ W (transformers 5.5.4:
# modeling_gpt_oss.py, modeling_llama4.py; qwen3_vl_moe on disk, conversion_mapping.py). Only
# asked where the shape doesn't tell.
_IN_OUT = {"gpt_oss", "qwen3_vl_moe", "qwen3_vl_moe_text", "llama4", "llama4_text"}
INTERLEAVED = {"gpt_oss"}  # gate and up alternate: gate, up, gate, up, ...
# Matrices that hold several projections, stacked by rows in this order.
STACKED = {
    "in_proj_qkv": ("in_proj_q", "in_proj_k", "in_proj_v"),
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "in_proj": ("gate_proj", "x_proj"),  # Nemotron's Mamba mixer
}


@dataclass(frozen=True)
class Part:
    """``scale * B A`` of one pair (of one expert), added to some outputs of one matrix.

    Attributes:
        expert: whose factors, 0 for an ordinary layer.
        outputs: the matrix's rows (columns where ``transposed``) that receive it.
        of_rows: the rows of ``B A`` that are meant, None for all.
        transposed: the matrix is stored ``[in, out]``.
        misread, reshaped: how a wrong merge read it; never set in a right layout.
    """

    module: str
    expert: int
    outputs: range
    of_rows: range | None = None
    transposed: bool = False
    misread: Misread = ""
    reshaped: bool = False


Key = tuple[str, int | None]  # a tensor, and the expert in it where it holds all of them


@dataclass
class Plan:
    """Where an adapter goes.

    Attributes:
        parts: by matrix.
        homeless: modules for which the base has no tensor, with the reason.
        misfits: modules whose shape isn't the tensor's, with both shapes.
        renamed: module -> the name that a right merge has to translate it to.
        replaced: tensor -> module whose whole tensor replaces it.
        by_value: modules without a tensor of their name whose change was found in this one.
        quantised: module -> the packed tensor that it belongs to, whose values aren't computed.
        own_head: the base ties its output to its input, and the adapter changes the output.
    """

    parts: dict[Key, list[Part]] = field(default_factory=dict)
    homeless: dict[str, str] = field(default_factory=dict)
    misfits: dict[str, str] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    replaced: dict[str, str] = field(default_factory=dict)
    quantised: dict[str, str] = field(default_factory=dict)
    own_head: bool = False
    by_value: dict[str, str] = field(default_factory=dict)


def canonical(name: str) -> str:
    """Strip the wrappers around a name and settle the words that differ between sides."""
    stripped = True
    while stripped:
        stripped = False
        for wrapper in _WRAPPERS:
            if name.startswith(wrapper):
                name, stripped = name[len(wrapper) :], True
    return name.replace(".attn.", ".self_attn.")


class Placer:
    """Finds the tensors of ``base`` that ``adapter`` changes."""

    def __init__(self, adapter: LoraAdapter, base: Checkpoint) -> None:
        self.adapter, self.base = adapter, base
        self.plan = Plan()
        self._names: dict[str, str] = {}
        for name in base.shapes:
            known = canonical(name)
            # Of two that look alike, the one with fewer wrappers is the language model's own.
            if known not in self._names or len(name) < len(self._names[known]):
                self._names[known] = name

    def place(self) -> Plan:
        for site in self.adapter.sites.values():
            found = list(self._of(site))
            if not found and (packed := self._quantised(site)):
                self.plan.quantised[site.module] = packed
            elif not found:
                self.plan.homeless.setdefault(site.module, "the base has no tensor for it")
            for key, part in found:
                self.plan.parts.setdefault(key, []).append(part)
        for module, key in self.adapter.full.items():
            tensor = self.find(module)
            if tensor is None:
                self.plan.homeless[key] = "the base has no tensor of this name"
            else:
                self.plan.replaced[tensor] = module
        return self.plan

    def _quantised(self, site: Site) -> str | None:
        """The packed form of a module's tensor: MXFP4 (gpt-oss) or INT4 (Kimi)."""
        expert = _EXPERT.match(site.module)
        if expert is None:
            return self._first(f"{site.module}.weight_packed")
        role = self._role(expert["stem"], expert["leaf"])
        fused = "down_proj" if role == "down_proj" else "gate_up_proj"
        number = expert["index"] or 0
        return self._first(
            f"{expert['stem']}.{fused}_blocks", f"{expert['stem']}.{number}.{role}.weight_packed"
        )

    def find(self, name: str) -> str | None:
        """The base's name of a tensor."""
        return name if name in self.base.shapes else self._names.get(canonical(name))

    def _of(self, site: Site) -> Iterator[tuple[Key, Part]]:
        if site.leaf in UNEMBEDDING:
            yield from self._head(site)
            return
        expert = _EXPERT.match(site.module)
        if expert and (found := list(self._experts(site, expert))):
            yield from found
        elif site.form == "flat":
            yield from self._parameters(site)
        elif site.form != "stacked":
            target = self.find(f"{site.module}.weight")
            if target is not None:
                yield from self._fit(site, (target, None), None)
            else:
                yield from self._stacked(site)

    def _head(self, site: Site) -> Iterator[tuple[Key, Part]]:
        head = self.find(HEAD)
        if head is None:
            # Tied. The adapter changes the output only: a right merge has an output matrix of its own.
            self.plan.own_head = True
            _ = self.base.embedding  # refuses a base without one
            self.plan.renamed[site.module] = "lm_head"
            yield (HEAD, None), Part(site.module, 0, range(site.rows))
        else:
            self.plan.renamed[site.module] = head.removesuffix(".weight")
            yield from self._fit(site, (head, None), None)

    def _fit(
        self, site: Site, key: Key, outputs: range | None, expert: int = 0, of: range | None = None
    ) -> Iterator[tuple[Key, Part]]:
        """Put one matrix of ``site`` where it belongs, or record that it doesn't fit there."""
        shape = self.base.shapes[key[0]][-2:]
        rows, columns = len(of) if of is not None else site.rows, site.columns
        wanted = outputs if outputs is not None else range(rows)
        target = key[0].removesuffix(".weight")
        wrapped = target.split("layers.")[0] != site.module.split("layers.")[0]
        if wrapped or (target != site.module and canonical(target) == canonical(site.module)):
            self.plan.renamed[site.module] = target
        for transposed in self._orientations(key):
            width, length = shape if not transposed else shape[::-1]
            whole = outputs is None and width != rows
            if length == columns and not whole and wanted[-1] < width and len(wanted) == rows:
                yield key, Part(site.module, expert, wanted, of, transposed)
                return
        self.plan.misfits[site.module] = (
            f"B A is {rows} x {columns}, {key[0]} is {' x '.join(map(str, shape))}"
        )
        yield from ()

    def _orientations(self, key: Key) -> tuple[bool, ...]:
        if key[1] is None:
            return (self.adapter.fan_in_fan_out,)
        first = self.base.model_type in _IN_OUT
        return (first, not first)

    def _experts(self, site: Site, match: re.Match[str]) -> Iterator[tuple[Key, Part]]:
        stem, leaf = match["stem"], match["leaf"]
        role = self._role(stem, leaf)
        experts = [int(match["index"])] if match["index"] else range(site.experts or 1)
        for index in experts:
            mine = index if site.form == "stacked" else 0
            alone = self._first(f"{stem}.{index}.{role}.weight", f"{stem}.{index}.{leaf}.weight")
            if alone is not None:
                yield from self._fit(site, (alone, None), None, mine)
                continue
            fused = self.find(f"{stem}.{'down_proj' if role == 'down_proj' else 'gate_up_proj'}")
            if fused is None or index >= self.base.shapes[fused][0]:
                continue
            outputs = None if role == "down_proj" else self.half(role, site.rows)
            yield from self._fit(site, (fused, index), outputs, mine)

    def _first(self, *names: str) -> str | None:
        return next((found for name in names if (found := self.find(name))), None)

    def _role(self, stem: str, leaf: str) -> str:
        """Which projection Tinker's w1, w2 or w3 is: experts without a gate have w1 = up."""
        if leaf == "w1" and not (
            self._first(
                f"{stem}.gate_up_proj",
                f"{stem}.gate_up_proj_blocks",
                f"{stem}.0.gate_proj.weight",
                f"{stem}.0.gate_proj.weight_packed",
                f"{stem}.0.w1.weight",
            )
        ):
            return "up_proj"
        return _ROLES.get(leaf, leaf)

    def half(self, role: str, width: int) -> range:
        """Which outputs of a fused gate_up matrix belong to the gate, or to up."""
        second = role == "up_proj"
        if self.base.model_type in INTERLEAVED:
            return range(int(second), 2 * width, 2)
        return range(width, 2 * width) if second else range(width)

    def _parameters(self, site: Site) -> Iterator[tuple[Key, Part]]:
        """PEFT's factors of a whole fused parameter: gate and up together, or down."""
        stem = re.sub(r"(\.base_layer)+$", "", site.module)
        for name, roles in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ())):
            fused = self.find(f"{stem}.{name}")
            if fused is not None:
                shape = self.base.shapes[fused]
                if shape[0] == site.experts and sorted(shape[1:]) == sorted(
                    (site.rows, site.columns)
                ):
                    for index in range(site.experts):
                        yield from self._fit(site, (fused, index), None, index)
                    return
                continue
            members = roles or (name,)
            alone = self.find(f"{stem}.0.{members[0]}.weight")
            if alone is None:
                continue
            rows, columns = self.base.shapes[alone]
            if (rows * len(members), columns) != (site.rows, site.columns):
                continue
            for index in range(site.experts):
                for number, member in enumerate(members):
                    target = self.find(f"{stem}.{index}.{member}.weight")
                    if target is not None:
                        of = range(number * rows, (number + 1) * rows)
                        yield from self._fit(site, (target, None), None, index, of)
            return

    def _stacked(self, site: Site) -> Iterator[tuple[Key, Part]]:
        """A projection that the base keeps as some rows of a larger matrix."""
        stem = site.module.rsplit(".", 1)[0]
        for fused, members in STACKED.items():
            target = self.find(f"{stem}.{fused}.weight")
            if target is None or site.leaf not in members:
                continue
            place = members.index(site.leaf)
            sizes = [self._rows(f"{stem}.{member}") for member in members]
            before, after = sizes[:place], sizes[place + 1 :]
            if None not in before:
                start = sum(size for size in before if size is not None)
            elif None not in after and fused != "in_proj":
                total = self.base.shapes[target][0]
                start = total - site.rows - sum(size for size in after if size is not None)
            else:
                self.plan.homeless[site.module] = (
                    f"its rows in {target} can't be known without {', '.join(members)} beside it"
                )
                return
            self.plan.renamed[site.module] = target.removesuffix(".weight")
            yield from self._fit(site, (target, None), range(start, start + site.rows))
            return

    def _rows(self, module: str) -> int | None:
        site = self.adapter.sites.get(module)
        return site.rows if site is not None else None
