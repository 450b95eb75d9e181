"""Base models, adapters and merges for the tests of merge_check: small, and really on disk.

Shapes are awkward on purpose: five experts (no rank is five), gate wider than neither head nor
hidden size, so that code which mixes two sizes up fails.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

RANK, ALPHA = 4, 32
SCALE = ALPHA / RANK
_HIDDEN, _VOCABULARY = 32, 96
_COMMON: dict[str, Any] = {
    "vocab_size": _VOCABULARY,
    "hidden_size": _HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "intermediate_size": 40,
    "max_position_embeddings": 128,
    "initializer_range": _HIDDEN**-0.5,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
_MOE = {"moe_intermediate_size": 24, "num_experts_per_tok": 2}
_LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 7,
}
_VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": _HIDDEN,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [],
    "patch_size": 4,
}
_ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2]}


def _text(**more: Any) -> dict[str, Any]:
    text = {**_COMMON, "rope_parameters": _ROPE, **more}
    return {"text_config": text, "vision_config": _VISION, "tie_word_embeddings": False}


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**_COMMON, "tie_word_embeddings": True},
    "qwen3": _COMMON,
    "qwen3_moe": {**_COMMON, **_MOE, "num_experts": 5, "norm_topk_prob": True},
    "gpt_oss": {
        **_COMMON,
        "intermediate_size": _HIDDEN,  # square experts, as gpt-oss has them
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
    "deepseek_v3": {
        **_COMMON,
        "num_key_value_heads": 4,
        "q_lora_rank": 14,
        "kv_lora_rank": 10,
        "qk_nope_head_dim": 6,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "head_dim": 4,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 24,
        "n_routed_experts": 5,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
    },
    "qwen3_5": _text(**_LINEAR),
    "qwen3_5_moe": _text(**_LINEAR, **_MOE, num_experts=5, shared_expert_intermediate_size=24),
    "qwen3_vl_moe": _text(**_MOE, num_experts=5),
    "nemotron_h": {
        **_COMMON,
        "layers_block_type": ["mamba", "moe"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "ssm_state_size": 4,
        "n_groups": 2,
        "n_routed_experts": 5,
        "n_shared_experts": 1,
        "moe_intermediate_size": 24,
        "moe_shared_expert_intermediate_size": 24,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
    },
}
IMAGE_TEXT = ("qwen3_5", "qwen3_5_moe", "qwen3_vl_moe")


@dataclass
class Case:
    """A base, an adapter as Tinker hands it out, and where merges of them go."""

    family: str
    base: Path
    adapter: Path
    folder: Path

    def argv(self, merged: Path | None) -> list[str]:
        argv = ["--base", str(self.base), "--adapter", str(self.adapter)]
        return argv if merged is None else [*argv, "--merged", str(merged)]

    def cookbook(self, name: str = "merged") -> Path:
        """Merge with tinker-cookbook."""
        from tinker_cookbook import weights

        logging.getLogger("tinker_cookbook.weights").setLevel(logging.ERROR)
        merged = self.folder / name
        weights.build_hf_model(
            base_model=str(self.base), adapter_path=str(self.adapter), output_path=str(merged)
        )
        return merged

    def factors(self) -> dict[str, Tensor]:
        return load_file(str(self.adapter / "adapter_model.safetensors"))

    def copy_adapter(self, change: Callable[[dict[str, Tensor], dict[str, Any]], Any]) -> None:
        """Give the case an adapter of its own, changed by ``change(tensors, config)``."""
        tensors = self.factors()
        config = json.loads((self.adapter / "adapter_config.json").read_text())
        tensors = change(tensors, config) or tensors
        self.adapter = write_adapter(self.folder / "changed_adapter", tensors, config)

    def merge(self, wrong: Callable[[dict[str, Tensor]], Any], name: str = "wrong") -> Path:
        """A merge whose adapter was changed in memory by ``wrong`` before cookbook merged it."""
        tensors = self.factors()
        wrong(tensors)
        config = json.loads((self.adapter / "adapter_config.json").read_text())
        twisted = Case(
            self.family,
            self.base,
            write_adapter(self.folder / f"{name}_adapter", tensors, config),
            self.folder,
        )
        return twisted.cookbook(name)


@cache
def _model(family: str, dtype: torch.dtype) -> tuple[dict[str, Tensor], str]:
    """A random model's tensors as transformers saves them, and its config.json."""
    import tempfile

    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.utils import logging as hf_logging

    config = AutoConfig.for_model(family, **FAMILIES[family])
    kind = AutoModelForImageTextToText if family in IMAGE_TEXT else AutoModelForCausalLM
    hf_logging.disable_progress_bar()
    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(11)
        model = kind.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():  # some families start their experts at zero
            if not parameter.any():
                torch.nn.init.normal_(parameter, std=_HIDDEN**-0.5)
        model.to(dtype).save_pretrained(folder)
        tensors = load_file(f"{folder}/model.safetensors")
        if family == "qwen3_vl_moe":  # published checkpoints hold experts as [expert, in, out];
            # transformers saves a model that it did not load the way it holds it in memory
            tensors |= {
                name: tensor.transpose(1, 2).contiguous()
                for name, tensor in tensors.items()
                if ".experts." in name
            }
        return tensors, Path(folder, "config.json").read_text()


def make(family: str, folder: Path, dtype: torch.dtype = torch.float32) -> Case:
    """Write base and adapter of ``family`` under ``folder``."""
    from tinkerlab.rehearsal.models.tokenizers import CHATML_TEMPLATE, byte_symbols, save_byte_bpe

    tensors, config = _model(family, dtype)
    base = folder / "base"
    base.mkdir(parents=True)
    save_file(dict(tensors), str(base / "model.safetensors"), metadata={"format": "pt"})
    (base / "config.json").write_text(config)
    save_byte_bpe(
        base,
        vocabulary=[*byte_symbols(), "<e>"],
        merges=[],
        special_tokens=["<e>"],
        split_digits=False,
        chat_template=CHATML_TEMPLATE,
        context_length=128,
        bos_token=None,
        eos_token="<e>",
        pad_token="<e>",
    )
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA}
    adapter = write_adapter(folder / "adapter", adapter_tensors(family, tensors), settings)
    return Case(family, base, adapter, folder)


def write_adapter(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        str(folder / "adapter_model.safetensors"),
    )
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def adapter_tensors(family: str, base: dict[str, Tensor]) -> dict[str, Tensor]:
    """Random factors in Tinker's naming, written down by hand for each family."""
    generator = torch.Generator().manual_seed(5)
    made: dict[str, Tensor] = {}

    def add(module: str, out: int, inner: int, experts: int = 0, shared: str = "") -> None:
        a: tuple[int, ...] = (RANK, inner)
        b: tuple[int, ...] = (out, RANK)
        if experts:
            a = (1 if shared == "A" else experts, *a)
            b = (1 if shared == "B" else experts, *b)
        name = f"base_model.model.{module}"
        made[f"{name}.lora_A.weight"] = torch.randn(a, generator=generator) * inner**-0.5
        made[f"{name}.lora_B.weight"] = torch.randn(b, generator=generator) * 0.01

    for name, tensor in base.items():
        if "visual" in name or tensor.ndim != 2 or ".experts." in name:
            continue
        module = name.removesuffix(".weight").replace("language_model.", "")
        module = module.replace("backbone.", "model.")
        if family == "gpt_oss":
            module = module.replace(".self_attn.", ".attn.")
        leaf = module.rsplit(".", 1)[-1]
        out, inner = tensor.shape
        if leaf == "in_proj_qkv":
            stem = module.rsplit(".", 1)[0]
            for part, rows in (("q", 12), ("k", 12), ("v", 28)):
                add(f"{stem}.in_proj_{part}", rows, inner)
        elif leaf == "in_proj":  # Nemotron's Mamba mixer: gate and x of 4 heads of 8
            stem = module.rsplit(".", 1)[0]
            add(f"{stem}.gate_proj", 32, inner)
            add(f"{stem}.x_proj", 32, inner)
        elif leaf.endswith("_proj") or leaf in ("kv_a_proj_with_mqa", "out_proj"):
            add(module, out, inner)
    add("model.unembed_tokens", _VOCABULARY, _HIDDEN)
    width = _HIDDEN if family == "gpt_oss" else 24
    for stem in sorted({name.split(".experts.")[0] for name in base if ".experts." in name}):
        stem = stem.replace("language_model.", "").replace("backbone.", "model.") + ".experts"
        add(f"{stem}.w1", width, _HIDDEN, 5, "A")
        add(f"{stem}.w2", _HIDDEN, width, 5, "B")
        if family == "nemotron_h":  # no gate: Tinker leaves an empty w3
            for factor in "AB":
                made[f"base_model.model.{stem}.w3.lora_{factor}.weight"] = torch.empty(0)
        else:
            add(f"{stem}.w3", width, _HIDDEN, 5, "A")
    return made


def edit(folder: Path, name: str, how: Callable[[Tensor], Tensor]) -> None:
    """Change one tensor of a model folder in place."""
    rewrite(folder, lambda tensors: tensors.__setitem__(name, how(tensors[name].clone())), name)


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], Any], holding: str = "") -> None:
    """Change the tensors of a model folder (of the file that holds ``holding``) in place."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(str(file), framework="pt") as opened:
            if holding and holding not in opened.keys():  # noqa: SIM118 (not a mapping)
                continue
        tensors = load_file(str(file))
        change(tensors)
        whole = {key: tensor.clone().contiguous() for key, tensor in tensors.items()}
        save_file(whole, str(file), metadata={"format": "pt"})
        return
    raise KeyError(holding)


def tensors_of(folder: Path) -> dict[str, Tensor]:
    return {k: v for file in folder.glob("*.safetensors") for k, v in load_file(str(file)).items()}


def settings(folder: Path, **changes: Any) -> None:
    """Change values of a folder's config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def copied(folder: Path, name: str) -> Path:
    return Path(shutil.copytree(folder, folder.parent / name))


def save_in_shards(folder: Path) -> None:
    """Split a model into three files with an index, as large models come."""
    tensors, weight_map = tensors_of(folder), {}
    for file in folder.glob("*.safetensors"):
        file.unlink()
    names = sorted(tensors)
    for number in range(3):
        file = f"model-{number + 1:05d}-of-00003.safetensors"
        part = {name: tensors[name] for name in names[number::3]}
        weight_map |= dict.fromkeys(part, file)
        save_file(part, str(folder / file), metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def our_export(case: Case) -> Path:
    """The folder of the merged model as ``export_model.py`` builds it."""
    from tinkerlab.export.adapter import read_adapter
    from tinkerlab.export.build import build_merged
    from tinkerlab.export.checkpoint import read_checkpoint

    merged = case.folder / "merged"
    build_merged(read_adapter(case.adapter), read_checkpoint(case.base), merged)
    return merged
