"""A LoRA adapter folder, read from its headers; values only when asked for.

Two kinds are understood: what the Tinker service hands out (``unembed_tokens``, experts as one
3-D tensor ``experts.w1``), and what PEFT, vLLM and SGLang read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
UNEMBEDDING = ("unembed_tokens", "lm_head")  # Tinker's name of the output layer, and PEFT's
_PREFIX = "base_model.model."
_A, _B = ".lora_A.weight", ".lora_B.weight"


@dataclass(frozen=True)
class Pair:
    """One pair of LoRA factors.

    Attributes:
        module: the module's path without PEFT's prefix, as in
            ``model.layers.0.self_attn.q_proj``.
        a_shape, b_shape: ``(rank, in)`` and ``(out, rank)``; experts have a leading dimension,
            1 where all experts share the factor.
        dtype: of A, as safetensors writes it (``F32``, ``BF16``).
        layer: its number, None outside the layers.
    """

    module: str
    a_shape: tuple[int, ...]
    b_shape: tuple[int, ...]
    dtype: str

    @property
    def rank(self) -> int:
        return self.a_shape[-2] if len(self.a_shape) >= 2 else 0

    @property
    def leaf(self) -> str:
        return self.module.rsplit(".", 1)[-1]

    @property
    def empty(self) -> bool:
        """A placeholder for a projection that the model doesn't have (no elements)."""
        return 0 in self.a_shape or 0 in self.b_shape


@dataclass(frozen=True)
class Adapter:
    """An adapter folder.

    Attributes:
        config: adapter_config.json.
        pairs: by module path, in file order.
        strangers: tensors that are no LoRA factor (full weights, biases, embeddings' factors).
    """

    directory: Path
    config: dict[str, Any]
    pairs: dict[str, Pair]
    strangers: tuple[str, ...]

    @property
    def rank(self) -> int:
        return self.config["r"]

    @property
    def scale(self) -> float:
        """What B A is multiplied by: ``lora_alpha / r``."""
        return self.config["lora_alpha"] / self.config["r"]

    @property
    def is_raw(self) -> bool:
        """Whether this is what the Tinker service hands out, not yet in PEFT's form."""
        return any(
            pair.leaf == "unembed_tokens" or len(pair.a_shape) == 3 for pair in self.pairs.values()
        )

    def factors(self, module: str) -> tuple[Tensor, Tensor]:
        """Return A and B of ``module`` in float32."""
        from safetensors import safe_open

        with safe_open(str(self.directory / WEIGHTS), framework="pt") as file:
            keys = set(file.keys())
            prefix = _PREFIX if f"{_PREFIX}{module}{_A}" in keys else ""
            a, b = (file.get_tensor(f"{prefix}{module}{end}") for end in (_A, _B))
            return a.float(), b.float()


def read_adapter(directory: Path) -> Adapter:
    """Read config and tensor headers of the adapter in ``directory``.

    Raises:
        InputError: a file is missing or broken, a factor has no partner, ranks disagree.
    """
    config = _read_config(directory)
    shapes, dtypes = _read_header(directory)
    pairs: dict[str, Pair] = {}
    strangers = []
    for name, shape in shapes.items():
        if name.endswith(_A):
            partner = name.removesuffix(_A) + _B
            if partner not in shapes:
                raise InputError(f"{directory / WEIGHTS}: {name} has no lora_B beside it")
            module = name.removesuffix(_A).removeprefix(_PREFIX)
            pairs[module] = Pair(module, shape, shapes[partner], dtypes[name])
            if not pairs[module].empty and shape[-2] != shapes[partner][-1]:
                raise InputError(
                    f"{directory / WEIGHTS}: {module}: A {list(shape)} and B "
                    f"{list(shapes[partner])} have different ranks"
                )
        elif name.endswith(_B):
            if name.removesuffix(_B) + _A not in shapes:
                raise InputError(f"{directory / WEIGHTS}: {name} has no lora_A beside it")
        else:
            strangers.append(name)
    if not pairs:
        raise InputError(f"{directory / WEIGHTS}: no LoRA factors (no tensor named *{_A})")
    return Adapter(directory, config, pairs, tuple(strangers))


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / CONFIG
    if not path.is_file():
        raise InputError(f"{directory}: no {CONFIG}: give the folder of a LoRA adapter")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON ({error}): fetch the adapter again") from error
    if not isinstance(config, dict):
        raise InputError(f"{path}: not a JSON object: fetch the adapter again")
    for key in ("r", "lora_alpha"):
        value = config.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            raise InputError(f"{path}: {key} is {value!r}, not a positive number")
    return config


def _read_header(directory: Path) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    path = directory / WEIGHTS
    if not path.is_file():
        pickled = (directory / "adapter_model.bin").is_file()
        raise InputError(
            f"{directory}: no {WEIGHTS}"
            + (": adapter_model.bin is a pickle, save it as safetensors" if pickled else "")
        )
    try:
        with safe_open(str(path), framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return (
                {name: tuple(part.get_shape()) for name, part in slices.items()},
                {name: part.get_dtype() for name, part in slices.items()},
            )
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: broken ({error}): fetch the adapter again") from error
