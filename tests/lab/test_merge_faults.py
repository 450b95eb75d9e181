"""Merges gone wrong, each made for real."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from fault_lab import Lab, Look, fault
from merge_factory import (
    RANK,
    SCALE,
    Case,
    copied,
    edit,
    make,
    our_export,
    rewrite,
    save_in_shards,
    settings,
    tensors_of,
)
from torch import Tensor

SCRIPT = "merge_check.py"
PREFIX = "base_model.model."


def look(case: Case, merged: Path) -> Look:
    return Look(case.argv(merged))


def naive_merge(case: Case, how: Callable[[dict[str, Tensor], str, Tensor], None]) -> Path:
    """The merge loop that people write: for each pair, find a tensor and add to it."""
    merged = copied(case.base, "merged")
    factors = case.factors()

    def change(tensors: dict[str, Tensor]) -> None:
        for name in [key for key in factors if key.endswith(".lora_A.weight")]:
            a, b = factors[name], factors[name.replace("lora_A", "lora_B")]
            if a.numel():
                module = name.removeprefix(PREFIX).removesuffix(".lora_A.weight")
                how(tensors, module, (b @ a) * SCALE)

    rewrite(merged, change)
    return merged


def expert_names(case: Case) -> list[str]:
    """Modules of the adapter that serve experts, as tensor names without the factor."""
    return sorted({key.split(".lora_")[0] for key in case.factors() if ".experts." in key})


@fault(SCRIPT, "gate-up-swapped", produced="w1 merged into up_proj and w3 into gate_proj")
def test_w1_and_w3_exchanged(lab: Lab) -> Look:
    case = make("qwen3_moe", lab.tmp_path)

    def exchange(tensors: dict[str, Tensor]) -> None:
        for key in [key for key in tensors if ".w1." in key]:
            other = key.replace(".w1.", ".w3.")
            tensors[key], tensors[other] = tensors[other], tensors[key]

    return look(case, case.merge(exchange))


@fault(SCRIPT, "gate-up-swapped", produced="fused halves exchanged, in bfloat16")
def test_halves_of_fused_experts_exchanged(lab: Lab) -> Look:
    case = make("qwen3_5_moe", lab.tmp_path, torch.bfloat16)

    def exchange(tensors: dict[str, Tensor]) -> None:
        for key in [key for key in tensors if ".w1." in key]:
            other = key.replace(".w1.", ".w3.")
            tensors[key], tensors[other] = tensors[other], tensors[key]

    return look(case, case.merge(exchange))


@fault(SCRIPT, "concatenated-for-interleaved", produced="gpt-oss' gate added to the first half")
def test_concatenated_taken_for_interleaved(lab: Lab) -> Look:
    return look(*_packed_the_other_way(lab, "gpt_oss"))


@fault(SCRIPT, "interleaved-for-concatenated", produced="Qwen3-VL's gate added to even columns")
def test_interleaved_taken_for_concatenated(lab: Lab) -> Look:
    return look(*_packed_the_other_way(lab, "qwen3_vl_moe"))


def _packed_the_other_way(lab: Lab, family: str) -> tuple[Case, Path]:
    """Merge rightly, then move gate's and up's changes (not the base) to the other packing."""
    case = make(family, lab.tmp_path)
    merged, before = case.cookbook(), tensors_of(case.base)
    for name in [name for name in before if name.endswith("gate_up_proj")]:
        width = before[name].shape[-1] // 2

        def repack(right: Tensor, base: Tensor = before[name], width: int = width) -> Tensor:
            change, moved = right - base, torch.empty_like(base)
            if family == "gpt_oss":
                moved[..., :width], moved[..., width:] = change[..., 0::2], change[..., 1::2]
            else:
                moved[..., 0::2], moved[..., 1::2] = change[..., :width], change[..., width:]
            return base + moved

        edit(merged, name, repack)
    return case, merged


@fault(
    SCRIPT,
    "concatenated-for-interleaved",
    produced="gpt-oss' experts split into gate and up and joined with cat",
)
def test_fused_experts_repacked_with_their_base(lab: Lab) -> Look:
    case = make("gpt_oss", lab.tmp_path, torch.bfloat16)
    merged = case.cookbook()
    for name in [name for name in tensors_of(merged) if name.endswith("gate_up_proj")]:
        edit(merged, name, lambda x: torch.cat([x[..., 0::2], x[..., 1::2]], dim=-1))
    return look(case, merged)


@fault(
    SCRIPT,
    "language-model-prefix-missing",
    produced="a loop that skips names it doesn't find, on a vision model",
)
def test_language_model_prefix_missing(lab: Lab) -> Look:
    case = make("qwen3_5", lab.tmp_path)

    def add(tensors: dict[str, Tensor], module: str, delta: Tensor) -> None:
        if f"{module}.weight" in tensors:
            tensors[f"{module}.weight"] += delta

    return look(case, naive_merge(case, add))


@fault(SCRIPT, "adapter-names-not-translated", produced="gpt-oss' attn not read as self_attn")
def test_attention_names_not_translated(lab: Lab) -> Look:
    case = make("gpt_oss", lab.tmp_path)
    merged, before = case.cookbook(), tensors_of(case.base)
    for name in [name for name in before if "self_attn" in name or name == "lm_head.weight"]:
        edit(merged, name, lambda _, base=before[name]: base)
    return look(case, merged)


@fault(SCRIPT, "split-rows-misplaced", produced="Q, K and V of in_proj_qkv stacked as V, K, Q")
def test_split_rows_misplaced(lab: Lab) -> Look:
    case = make("qwen3_5", lab.tmp_path)
    merged, before = case.cookbook(), tensors_of(case.base)
    name = next(name for name in before if name.endswith("in_proj_qkv.weight"))

    def reorder(right: Tensor) -> Tensor:
        q, k, v = (right - before[name]).split([12, 12, 28])
        return before[name] + torch.cat([v, k, q])

    edit(merged, name, reorder)
    return look(case, merged)


@fault(SCRIPT, "wrong-scaling", produced="alpha not divided by the rank")
def test_scale_without_the_rank(lab: Lab) -> Look:
    case = make("qwen3", lab.tmp_path)
    return look(case, case.merge(_times(RANK)))


@fault(SCRIPT, "adapter-applied-twice", produced="merged, and the result merged again")
def test_applied_twice(lab: Lab) -> Look:
    case = make("qwen3", lab.tmp_path, torch.bfloat16)
    once = case.cookbook("once")
    again = Case(case.family, once, case.adapter, case.folder)
    return look(case, again.cookbook("twice"))


@fault(SCRIPT, "adapter-subtracted", produced="B A subtracted, as unmerging a base does")
def test_subtracted(lab: Lab) -> Look:
    case = make("deepseek_v3", lab.tmp_path)
    return look(case, case.merge(_times(-1)))


def _times(factor: float) -> Callable[[dict[str, Tensor]], None]:
    def change(tensors: dict[str, Tensor]) -> None:
        for key in tensors:
            if ".lora_B." in key:
                tensors[key] = tensors[key] * factor

    return change


@fault(SCRIPT, "adapter-not-applied", produced="the base saved under the merged model's name")
def test_not_applied(lab: Lab) -> Look:
    case = make("qwen3", lab.tmp_path, torch.bfloat16)
    return look(case, copied(case.base, "merged"))


@fault(SCRIPT, "experts-transposed", produced="square experts of gpt-oss added as [out, in]")
def test_experts_transposed(lab: Lab) -> Look:
    case = make("gpt_oss", lab.tmp_path)
    merged, before = case.cookbook(), tensors_of(case.base)
    for name in [name for name in before if name.endswith("experts.down_proj")]:
        edit(merged, name, lambda x, base=before[name]: base + (x - base).transpose(1, 2))
    return look(case, merged)


@fault(SCRIPT, "delta-transposed", produced="B A computed as A^T B^T and reshaped until it fits")
def test_factors_transposed(lab: Lab) -> Look:
    case = make("qwen3", lab.tmp_path)

    def add(tensors: dict[str, Tensor], module: str, delta: Tensor) -> None:
        name = f"{module.replace('model.unembed_tokens', 'lm_head')}.weight"
        tensors[name] += delta.T.reshape(tensors[name].shape)

    return look(case, naive_merge(case, add))


@fault(SCRIPT, "experts-packed-wrong", produced="factors flattened, unpacked rank-major")
def test_experts_unpacked_in_the_wrong_order(lab: Lab) -> Look:
    case = make("qwen3_moe", lab.tmp_path)

    def unpack(tensors: dict[str, Tensor]) -> None:
        for key, tensor in tensors.items():
            if ".w2.lora_A" in key:  # [experts, rank, in] taken for [rank, experts, in]
                experts, rank, inner = tensor.shape
                tensors[key] = tensor.reshape(rank, experts, inner).transpose(0, 1)
            if ".w1.lora_B" in key or ".w3.lora_B" in key:
                experts, out, rank = tensor.shape
                flat = tensor.permute(1, 0, 2).reshape(out, experts * rank)
                tensors[key] = flat.reshape(out, rank, experts).permute(2, 0, 1)

    return look(case, case.merge(unpack))


@fault(SCRIPT, "experts-permuted", produced="changes of the experts one place further")
def test_experts_permuted(lab: Lab) -> Look:
    case = make("qwen3_moe", lab.tmp_path)

    def roll(tensors: dict[str, Tensor]) -> None:
        for key in [key for key in tensors if ".experts." in key and tensors[key].shape[0] > 1]:
            tensors[key] = tensors[key].roll(1, dims=0)

    return look(case, case.merge(roll))


@fault(SCRIPT, "experts-permuted", produced="whole fused experts written in reverse order")
def test_whole_experts_permuted(lab: Lab) -> Look:
    case = make("qwen3_5_moe", lab.tmp_path)
    merged = case.cookbook()
    for name in [name for name in tensors_of(merged) if ".experts." in name]:
        edit(merged, name, lambda x: x.flip(0))
    return look(case, merged)


@fault(SCRIPT, "layers-permuted", produced="layer 0's change added to layer 1 and the reverse")
def test_layers_permuted(lab: Lab) -> Look:
    case = make("qwen3", lab.tmp_path)

    def exchange(tensors: dict[str, Tensor]) -> None:
        for key in [key for key in tensors if ".layers.0." in key]:
            other = key.replace(".layers.0.", ".layers.1.")
            tensors[key], tensors[other] = tensors[other], tensors[key]

    return look(case, case.merge(exchange))


@fault(SCRIPT, "projections-swapped", produced="k_proj's change in v_proj and the reverse")
def test_keys_and_values_exchanged(lab: Lab) -> Look:
    case = make("qwen3", lab.tmp_path)

    def exchange(tensors: dict[str, Tensor]) -> None:
        for key in [key for key in tensors if ".k_proj." in key]:
            other = key.replace(".k_proj.", ".v_proj.")
            tensors[key], tensors[other] = tensors[other], tensors[key]

    return look(case, case.merge(exchange))


@fault(SCRIPT, "only-some-experts-merged", produced="only the first two of five experts")
def test_only_some_experts(lab: Lab) -> Look:
    case = make("qwen3_vl_moe", lab.tmp_path)
    merged, before = case.cookbook(), tensors_of(case.base)
    for name in [name for name in before if ".experts." in name]:
        edit(merged, name, lambda x, base=before[name]: torch.cat([x[:2], base[2:]]))
    return look(case, merged)


@fault(SCRIPT, "only-some-layers-merged", produced="a merge that stopped after the first layer")
def test_only_some_layers(lab: Lab) -> Look:
    case = make("qwen3", lab.tmp_path)
    merged, before = case.cookbook(), tensors_of(case.base)
    for name in [name for name in before if ".layers.1." in name]:
        edit(merged, name, lambda _, base=before[name]: base)
    return look(case, merged)


@fault(SCRIPT, "merged-in-low-precision", produced="factors cast to bfloat16 before B A")
def test_merged_in_bfloat16(lab: Lab) -> Look:
    case = make("qwen3", lab.tmp_path, torch.bfloat16)

    def round_off(tensors: dict[str, Tensor]) -> None:
        for key in tensors:
            tensors[key] = tensors[key].bfloat16().float()

    return look(case, case.merge(round_off))


@fault(
    SCRIPT,
    "unembedding-merged-into-embedding",
    produced="tinker-cookbook 0.5.8's own merge of a tied model with a trained unembedding",
)
def test_unembedding_in_a_tied_embedding(lab: Lab) -> Look:
    case = make("llama", lab.tmp_path)
    return look(case, case.cookbook())


@fault(SCRIPT, "config-ties-output", produced="an output matrix of its own, config still tied")
def test_config_still_tied(lab: Lab) -> Look:
    case = make("llama", lab.tmp_path)
    merged = our_export(case)
    settings(merged, tie_word_embeddings=True)
    return look(case, merged)


@fault(SCRIPT, "untargeted-tensors-changed", produced="a norm overwritten with ones")
def test_a_tensor_that_nothing_targets(lab: Lab) -> Look:
    case = make("qwen3", lab.tmp_path)
    merged = case.cookbook()
    edit(merged, "model.norm.weight", lambda x: torch.full_like(x, 0.5))
    return look(case, merged)


@fault(SCRIPT, "merged-from-another-base", produced="merged into a base that was int8 once")
def test_another_base(lab: Lab) -> Look:
    case = make("qwen3", lab.tmp_path)
    other = Case(case.family, copied(case.base, "other"), case.adapter, case.folder)

    def quantise(tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            step = tensor.abs().max() / 127
            tensors[name] = (tensor / step).round() * step if tensor.ndim > 1 else tensor

    rewrite(other.base, quantise)
    return look(case, other.cookbook())


@fault(SCRIPT, "adapter-of-another-base", produced="a smaller model's adapter")
def test_adapter_of_another_base(lab: Lab) -> Look:
    case = make("qwen3", lab.tmp_path)
    merged = case.cookbook()
    case.copy_adapter(
        lambda tensors, _: {
            key: tensor[:, :-8] if "lora_A" in key else tensor for key, tensor in tensors.items()
        }
    )
    return look(case, merged)


@fault(SCRIPT, "adapter-keys-unmatched", produced="an adapter of GPT-2's names, left out silently")
def test_keys_that_match_nothing(lab: Lab) -> Look:
    case = make("qwen3", lab.tmp_path)
    merged, before = case.cookbook(), tensors_of(case.base)
    for name in [name for name in before if ".q_proj." in name]:
        edit(merged, name, lambda _, base=before[name]: base)

    def rename(tensors: dict[str, Tensor], _: dict) -> dict[str, Tensor]:
        return {key.replace(".self_attn.q_proj", ".attn.c_q"): t for key, t in tensors.items()}

    case.copy_adapter(rename)
    return look(case, merged)


@fault(SCRIPT, "extra-tensors", produced="the change stored under names without the prefix")
def test_written_beside_the_model(lab: Lab) -> Look:
    case = make("qwen3_vl_moe", lab.tmp_path)

    def add(tensors: dict[str, Tensor], module: str, delta: Tensor) -> None:
        if delta.ndim == 2:
            name = f"model.layers.9{module.removeprefix('model.layers.')}.weight"
            tensors[name] = tensors.get(name, torch.zeros_like(delta)) + delta

    return look(case, naive_merge(case, add))


@fault(SCRIPT, "missing-tensors", produced="a shard's tensors left out")
def test_tensors_missing(lab: Lab) -> Look:
    case = make("qwen3", lab.tmp_path)
    merged = case.cookbook()
    rewrite(merged, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    return look(case, merged)


@fault(SCRIPT, "stale-index", produced="model.safetensors written beside an older save's shards")
def test_stale_index(lab: Lab) -> Look:
    case = make("qwen3", lab.tmp_path)
    merged = case.cookbook()
    save_in_shards(merged)
    (merged / "model.safetensors").write_bytes((case.base / "model.safetensors").read_bytes())
    return look(case, merged)


@fault(SCRIPT, "dtype-changed", produced="some tensors stored as float16")
def test_some_tensors_in_another_type(lab: Lab) -> Look:
    case = make("qwen3", lab.tmp_path, torch.bfloat16)
    merged = case.cookbook()
    edit(merged, "model.layers.0.mlp.up_proj.weight", lambda x: x.half())
    return look(case, merged)


@fault(SCRIPT, "adapter-lost-in-rounding", produced="a tiny change merged in bfloat16")
def test_change_smaller_than_rounding(lab: Lab) -> Look:
    case = make("qwen3", lab.tmp_path, torch.bfloat16)

    def shrink(tensors: dict[str, Tensor], _: dict) -> dict[str, Tensor]:
        return {key: t * 1e-3 if "lora_B" in key else t for key, t in tensors.items()}

    case.copy_adapter(shrink)
    return look(case, case.cookbook())
