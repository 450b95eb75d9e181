"""Adapter files as the hosted service's archives hold them.

``adapter_model.safetensors`` names a factor ``base_model.model.<module>.lora_A.weight`` with
three differences from the module's path in transformers: the unembedding is
``model.unembed_tokens``, gpt-oss' attention is ``attn``, and an expert's projections are
``experts.w1`` (gate), ``w3`` (up) and ``w2`` (down), stacked over experts, where the factor
on the residual stream's side has one slice for all. That is what tinker-cookbook's
``weights.build_hf_model`` and ``build_lora_adapter`` read (``weights/_merge_utils.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tinkerlab.rehearsal.engine.base import BaseModel
from tinkerlab.rehearsal.engine.lora import Site
from tinkerlab.rehearsal.engine.types import AdapterConfig
from tinkerlab.rehearsal.errors import UserError

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"

_PREFIX = "base_model.model."
_FACTORS = ("lora_A", "lora_B")

Pairs = Mapping[str, tuple[Tensor, Tensor]]


def tensor_name(site: Site, model_type: str, factor: str) -> str:
    """Name of a site's ``lora_A`` or ``lora_B`` in the file."""
    name = "model.unembed_tokens" if site.kind == "unembed" else site.name
    if model_type == "gpt_oss":
        name = name.replace(".self_attn.", ".attn.")
    return f"{_PREFIX}{name}.{factor}.weight"


def write(base: BaseModel, directory: Path, config: AdapterConfig, pairs: Pairs) -> None:
    """Write weights and config into ``directory``, which is made if need be.

    Each file appears whole or not at all.
    """
    directory.mkdir(parents=True, exist_ok=True)
    sites = [site for site in base.sites if site.name in pairs]
    write_tensors(
        directory / WEIGHTS,
        {
            tensor_name(site, base.config.model_type, factor): tensor
            for site in sites
            for factor, tensor in zip(_FACTORS, pairs[site.name], strict=True)
        },
    )
    document = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.name,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": sorted({site.name.rsplit(".", 1)[-1] for site in sites}),
    }
    text = json.dumps(document, indent=2) + "\n"
    _replace(directory / CONFIG, text.encode())


def read(base: BaseModel, directory: Path) -> tuple[int, float, dict[str, tuple[Tensor, Tensor]]]:
    """Read the adapter in ``directory`` for ``base``: rank, alpha and float32 pairs by site.

    Raises:
        UserError: a file is missing or broken; a tensor has no place in ``base`` or another
            shape; a factor lacks its partner.
    """
    rank, alpha = _read_config(directory / CONFIG)
    tensors = read_tensors(directory / WEIGHTS)
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    for site in base.sites:
        names = [tensor_name(site, base.config.model_type, factor) for factor in _FACTORS]
        found = [tensors.pop(name, None) for name in names]
        if found[0] is None and found[1] is None:
            continue
        shapes = (site.a_shape(rank), site.b_shape(rank))
        for name, tensor, shape in zip(names, found, shapes, strict=True):
            if tensor is None:
                raise UserError(f"{directory / WEIGHTS}: {name} is missing")
            if tuple(tensor.shape) != shape:
                raise UserError(
                    f"{directory / WEIGHTS}: {name} is {list(tensor.shape)}, but {base.name!r}"
                    f" needs {list(shape)}: this adapter belongs to another model or rank"
                )
        a, b = (tensor.to(torch.float32) for tensor in found if tensor is not None)
        pairs[site.name] = (a, b)
    if tensors:
        raise UserError(
            f"{directory / WEIGHTS}: {base.name!r} has no place for {sorted(tensors)[0]}"
            f" ({len(tensors)} such tensors): this adapter belongs to another model"
        )
    if not pairs:
        raise UserError(f"{directory / WEIGHTS}: holds no LoRA weights")
    return rank, alpha, pairs


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file, whole or not at all."""
    from safetensors.numpy import save

    # Through numpy: views of one buffer are different tensors there, as they are here.
    _replace(path, save({name: tensor.detach().numpy() for name, tensor in tensors.items()}))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file into memory.

    Raises:
        UserError: missing or broken.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(str(path))
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file") from error
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: not a whole safetensors file ({error})") from error


def _read_config(path: Path) -> tuple[int, float]:
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
        rank, alpha = document["r"], document["lora_alpha"]
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not an adapter's config with r and lora_alpha") from error
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, (int, float)):
        raise UserError(f"{path}: r is {rank!r} and lora_alpha is {alpha!r}")
    return rank, float(alpha)


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".partial")
    temporary.write_bytes(content)
    temporary.replace(path)
