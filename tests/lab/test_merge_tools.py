"""Right merges, by four different tools and by hand, and PEFT's own layouts gone wrong."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from fault_lab import Lab, Look, fault, healthy
from merge_factory import (
    RANK,
    Case,
    make,
    our_export,
    rewrite,
    save_in_shards,
    tensors_of,
)
from torch import Tensor

SCRIPT = "merge_check.py"
PREFIX = "base_model.model."


def look(case: Case, merged: Path) -> Look:
    return Look(case.argv(merged))


@pytest.mark.parametrize(
    "family",
    ["qwen3", "qwen3_moe", "gpt_oss", "deepseek_v3", "qwen3_5_moe", "qwen3_vl_moe", "nemotron_h"],
)
@healthy(SCRIPT, produced="tinker-cookbook's build_hf_model")
def test_cookbook_merge(lab: Lab, family: str) -> Look:
    case = make(family, lab.tmp_path)
    return look(case, case.cookbook())


@healthy(SCRIPT, produced="tinker-cookbook's build_hf_model, bfloat16 base in three shards")
def test_cookbook_merge_in_shards(lab: Lab) -> Look:
    case = make("qwen3_5", lab.tmp_path, torch.bfloat16)
    save_in_shards(case.base)
    return look(case, case.cookbook())


@pytest.mark.parametrize("family", ["qwen3", "qwen3_vl_moe"])
@healthy(SCRIPT, produced="tinker-cookbook's full strategy, float32 base saved as bfloat16")
def test_cookbook_full_merge(lab: Lab, family: str) -> Look:
    from tinker_cookbook import weights

    logging.getLogger("tinker_cookbook.weights").setLevel(logging.ERROR)
    case = make(family, lab.tmp_path)
    weights.build_hf_model(
        base_model=str(case.base),
        adapter_path=str(case.adapter),
        output_path=str(lab.tmp_path / "merged"),
        merge_strategy="full",
    )
    return look(case, lab.tmp_path / "merged")


@healthy(SCRIPT, produced="our export of a tied model with a trained unembedding")
def test_our_export_of_a_tied_model(lab: Lab) -> Look:
    case = make("llama", lab.tmp_path)
    return look(case, our_export(case))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@healthy(SCRIPT, produced="PEFT's merge_and_unload, rsLoRA with patterns")
def test_peft_merge(lab: Lab, dtype: torch.dtype) -> Look:
    return _peft_merge(lab, "qwen3", dtype, target_modules=["q_proj", "down_proj"])


@healthy(SCRIPT, produced="PEFT's merge_and_unload of experts as parameters")
def test_peft_merge_of_experts(lab: Lab) -> Look:
    names = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    return _peft_merge(lab, "qwen3_moe", torch.float32, ["q_proj"], target_parameters=names)


def _peft_merge(
    lab: Lab, family: str, dtype: torch.dtype, target_modules: list[str], **more
) -> Look:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    case = make(family, lab.tmp_path, dtype)
    model = AutoModelForCausalLM.from_pretrained(str(case.base), dtype=dtype)
    config = LoraConfig(
        r=RANK,
        lora_alpha=16,
        use_rslora=True,
        target_modules=target_modules,
        rank_pattern={"down_proj": 2} if "down_proj" in target_modules else {},
        alpha_pattern={"down_proj": 6} if "down_proj" in target_modules else {},
        init_lora_weights=False,
        **more,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        wrapped: Any = get_peft_model(model, config)
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                parameter.data.normal_(std=0.01)
    wrapped.save_pretrained(str(lab.tmp_path / "peft"))
    case.adapter = lab.tmp_path / "peft"
    wrapped.merge_and_unload().save_pretrained(str(lab.tmp_path / "merged"))
    return look(case, lab.tmp_path / "merged")


@healthy(
    SCRIPT, produced="the cookbook's own PEFT adapter against its own merge, mixture of experts"
)
def test_peft_form_of_a_tinker_adapter(lab: Lab) -> Look:
    from tinker_cookbook import weights

    case = make("qwen3_vl_moe", lab.tmp_path)
    merged = case.cookbook()
    logging.getLogger("tinker_cookbook").setLevel(logging.ERROR)
    weights.build_lora_adapter(
        base_model=str(case.base),
        adapter_path=str(case.adapter),
        output_path=str(lab.tmp_path / "peft"),
    )
    case.adapter = lab.tmp_path / "peft"
    return look(case, merged)


@healthy(SCRIPT, produced="an adapter with empty w3 tensors, for experts without a gate")
def test_empty_expert_factors(lab: Lab) -> Look:
    case = make("nemotron_h", lab.tmp_path, torch.bfloat16)
    assert case.factors()[
        "base_model.model.model.layers.1.mixer.experts.w3.lora_A.weight"
    ].shape == (0,)
    return look(case, case.cookbook())


def _peft_experts_by_hand(lab: Lab, how: str) -> Look:
    """PEFT's flat factors of experts, whose two sides are packed differently, merged by hand."""
    names = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    right = _peft_merge(lab, "qwen3_moe", torch.float32, ["q_proj"], target_parameters=names)
    factors, before = tensors_of(lab.tmp_path / "peft"), tensors_of(lab.tmp_path / "base")

    def change(tensors: dict[str, Tensor]) -> None:
        for key in [key for key in factors if ".experts." in key and "lora_A" in key]:
            a, b = factors[key], factors[key.replace("lora_A", "lora_B")]
            factor_a = a.reshape(5, RANK, -1)
            factor_b = b.reshape(b.shape[0], RANK, 5).permute(2, 0, 1)
            if how == "packed":  # both sides taken for one expert after the other
                factor_b = b.reshape(b.shape[0], 5, RANK).permute(1, 0, 2)
            delta = factor_b @ factor_a * 16 / RANK**0.5
            delta = delta.roll(1, dims=0) if how == "rolled" else delta
            parts = {"down_proj": delta}
            if b.shape[0] == 48:
                first, second = delta.chunk(2, dim=1)
                if how == "alternating":
                    first, second = delta[:, 0::2], delta[:, 1::2]
                elif how == "halves":
                    first, second = second, first
                parts = {"gate_proj": first, "up_proj": second}
            layer = key.split(".layers.")[1].split(".")[0]
            for projection, values in parts.items():
                for expert in range(5):
                    name = f"model.layers.{layer}.mlp.experts.{expert}.{projection}.weight"
                    tensors[name] = before[name] + values[expert]

    rewrite(lab.tmp_path / "merged", change)
    return right


@fault(SCRIPT, "experts-packed-wrong", produced="PEFT's flat B unpacked as its flat A is")
def test_peft_experts_unpacked_alike(lab: Lab) -> Look:
    return _peft_experts_by_hand(lab, "packed")


@fault(SCRIPT, "gate-up-swapped", produced="the halves of PEFT's joint gate and up exchanged")
def test_peft_gate_and_up_exchanged(lab: Lab) -> Look:
    return _peft_experts_by_hand(lab, "halves")


@fault(
    SCRIPT, "interleaved-for-concatenated", produced="PEFT's joint gate and up taken to alternate"
)
def test_peft_gate_and_up_taken_to_alternate(lab: Lab) -> Look:
    return _peft_experts_by_hand(lab, "alternating")


@fault(SCRIPT, "experts-permuted", produced="PEFT's experts one place further")
def test_peft_experts_permuted(lab: Lab) -> Look:
    return _peft_experts_by_hand(lab, "rolled")


@healthy(SCRIPT, produced="PEFT's flat expert factors merged by hand, as PEFT does")
def test_peft_experts_by_hand(lab: Lab) -> Look:
    return _peft_experts_by_hand(lab, "right")
