"""Every number of a merged model is compared: right merges pass, each fault is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tinkerlab.export.adapter import read_adapter
from tinkerlab.export.checkpoint import read_checkpoint
from tinkerlab.export.weights_check import WeightsReport, check_merged, summarise
from tinkerlab.rehearsal.models import tiny

ARCHITECTURES = list(tiny.ARCHITECTURES)


def check(trained, merged: Path) -> WeightsReport:
    return check_merged(
        read_checkpoint(trained.base_dir),
        read_checkpoint(merged),
        read_adapter(trained.adapter_dir),
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_right_merge_passes(architecture, make_trained, make_merged, tmp_path) -> None:
    report = check(make_trained(architecture), make_merged(architecture, tmp_path / "m"))
    assert report.good, summarise(report, tmp_path)
    assert report.changed >= 13
    assert report.largest_change > 0.1  # the adapter is no trifle
    assert report.max_difference < 1e-6


@pytest.mark.parametrize(
    ("architecture", "name", "layer"),
    [
        ("llama", "model.layers.1.self_attn.k_proj.weight", 1),
        ("qwen3", "model.layers.0.mlp.down_proj.weight", 0),
        ("qwen3_moe", "model.layers.1.mlp.experts.3.up_proj.weight", 1),
        ("gpt_oss", "model.layers.0.mlp.experts.gate_up_proj", 0),
        ("deepseek_v3", "model.layers.1.self_attn.kv_a_proj_with_mqa.weight", 1),
        ("llama", "lm_head.weight", None),
    ],
)
def test_one_wrong_number_is_found_and_its_layer_named(
    architecture, name, layer, make_trained, make_merged, edit, tmp_path
) -> None:
    merged = make_merged(architecture, tmp_path / "m")

    def damage(tensor):
        tensor.view(-1)[17] += 1e-4
        return tensor

    edit(merged, name, damage)
    report = check(make_trained(architecture), merged)
    assert [(d.tensor, d.layer) for d in report.differences] == [(name, layer)]
    assert report.differences[0].max_difference == pytest.approx(1e-4, rel=0.01)
    line = summarise(report, merged)
    assert name in line
    assert layer is None or f"layers {layer}" in line


def test_swapped_experts_have_the_right_norm_and_are_named(
    make_trained, make_merged, edit, tmp_path
) -> None:
    """The known fault of MoE merges: each expert gets another one's addend."""
    trained, merged = make_trained("gpt_oss"), make_merged("gpt_oss", tmp_path / "m")
    name = "model.layers.1.mlp.experts.down_proj"
    base = read_checkpoint(trained.base_dir).tensor(name)
    norms = []

    def swap(tensor):
        delta = tensor - base
        delta[[1, 3]] = delta[[3, 1]]
        norms.append(((base + delta).norm() / tensor.norm()).item())
        return base + delta

    edit(merged, name, swap)
    assert norms == [pytest.approx(1.0, abs=0.01)]
    report = check(trained, merged)
    assert [(d.tensor, d.experts) for d in report.differences] == [(name, (1, 3))]
    assert "experts 1, 3" in summarise(report, merged)


def test_gate_and_up_exchanged(make_trained, make_merged, edit, tmp_path) -> None:
    trained, merged = make_trained("gpt_oss"), make_merged("gpt_oss", tmp_path / "m")
    name = "model.layers.0.mlp.experts.gate_up_proj"
    base = read_checkpoint(trained.base_dir).tensor(name)

    def concatenated(tensor):
        delta = tensor - base
        return base + delta.view(5, 64, 48, 2).transpose(2, 3).reshape(5, 64, 96)

    edit(merged, name, concatenated)
    assert [d.tensor for d in check(trained, merged).differences] == [name]


def test_a_layer_left_out(make_trained, make_merged, edit, tmp_path) -> None:
    trained, merged = make_trained("qwen3"), make_merged("qwen3", tmp_path / "m")
    base = read_checkpoint(trained.base_dir)
    for name in base.shapes:
        if "layers.1." in name:
            edit(merged, name, lambda _, name=name: base.tensor(name))
    report = check(trained, merged)
    assert report.layers == [1]
    assert len(report.differences) == 7  # its seven linear layers, not its norms


def test_a_norm_that_nobody_trained_has_changed(make_trained, make_merged, edit, tmp_path) -> None:
    merged = make_merged("llama", tmp_path / "m")
    edit(merged, "model.norm.weight", lambda t: t * (1 + 2**-22))  # two units in the last place
    report = check(make_trained("llama"), merged)
    assert [d.tensor for d in report.differences] == ["model.norm.weight"]
    assert "though the adapter isn't there" in report.differences[0].reason


def test_not_a_number(make_trained, make_merged, edit, tmp_path) -> None:
    merged = make_merged("llama", tmp_path / "m")

    def poison(tensor):
        tensor[3, 3] = float("nan")
        return tensor

    edit(merged, "model.layers.0.mlp.up_proj.weight", poison)
    report = check(make_trained("llama"), merged)
    assert [d.max_difference for d in report.differences] == [float("inf")]


def test_missing_surplus_and_misshapen_tensors(make_trained, make_merged, tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    merged = make_merged("qwen3", tmp_path / "m")
    file = next(merged.glob("*.safetensors"))
    tensors = load_file(str(file))
    del tensors["model.layers.0.self_attn.q_norm.weight"]
    tensors["model.layers.9.extra.weight"] = tensors["model.norm.weight"].clone()
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1].clone()
    save_file(tensors, str(file), metadata={"format": "pt"})
    for index in merged.glob("*.index.json"):
        index.unlink()
    found = {d.tensor: d.reason for d in check(make_trained("qwen3"), merged).differences}
    assert found == {
        "model.layers.9.extra.weight": "not in the base model",
        "model.layers.0.self_attn.q_norm.weight": "missing in the merged model",
        "model.norm.weight": "shape [63], not [64]",
    }


def test_the_cookbooks_own_merge_of_a_tied_model_is_refused(make_trained, tmp_path) -> None:
    """It adds the unembedding to the matrix that the model also reads its input with.

    When this fails, tinker-cookbook has mended it, and export/untie.py can go.
    """
    from tinker_cookbook import weights

    trained = make_trained("llama")
    merged = tmp_path / "m"
    weights.build_hf_model(
        base_model=str(trained.base_dir),
        adapter_path=str(trained.adapter_dir),
        output_path=str(merged),
    )
    report = check(trained, merged)
    assert {d.tensor for d in report.differences} == {"model.embed_tokens.weight", "lm_head.weight"}


def test_a_part_of_the_adapter_without_a_place(make_trained, make_merged, tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    trained, merged = make_trained("qwen3"), make_merged("qwen3", tmp_path / "m")
    adapter = Path(shutil.copytree(trained.adapter_dir, tmp_path / "adapter"))
    file = adapter / "adapter_model.safetensors"
    tensors = load_file(str(file))
    for x in "AB":
        old = f"base_model.model.model.layers.1.mlp.gate_proj.lora_{x}.weight"
        tensors[old.replace("gate_proj", "wi_0")] = tensors.pop(old)
    save_file(tensors, str(file))
    report = check_merged(
        read_checkpoint(trained.base_dir), read_checkpoint(merged), read_adapter(adapter)
    )
    assert "model.layers.1.mlp.wi_0" in {d.tensor for d in report.differences}


@pytest.mark.parametrize("architecture", ["llama", "gpt_oss"])
def test_a_bfloat16_base(architecture, make_trained, edit, tmp_path) -> None:
    """Rounding to the stored type is no fault; a fault of its size in one layer still is."""
    import torch
    from safetensors.torch import load_file, save_file

    from tinkerlab.export.build import build_merged

    trained = make_trained(architecture)
    base_dir = Path(shutil.copytree(trained.base_dir, tmp_path / "base"))
    file = base_dir / "model.safetensors"
    rounded = {k: v.bfloat16() for k, v in load_file(str(file)).items()}
    save_file(rounded, str(file), metadata={"format": "pt"})
    config = json.loads((base_dir / "config.json").read_text()) | {"dtype": "bfloat16"}
    (base_dir / "config.json").write_text(json.dumps(config))

    base, adapter = read_checkpoint(base_dir), read_adapter(trained.adapter_dir)
    build_merged(adapter, base, tmp_path / "m")
    merged = read_checkpoint(tmp_path / "m")
    assert set(merged.dtypes.values()) == {"BF16"}
    report = check_merged(base, merged, adapter)
    assert report.good, summarise(report, tmp_path)
    assert report.max_difference > 1e-4  # it was rounded

    name = "model.layers.1.self_attn.v_proj.weight"

    def two_steps(tensor):
        tensor[0, 0] = (tensor[0, 0].float() * (1 + 2**-6)).to(torch.bfloat16)
        return tensor

    edit(tmp_path / "m", name, two_steps)
    report = check_merged(base, read_checkpoint(tmp_path / "m"), adapter)
    assert [d.tensor for d in report.differences] == [name]


def test_quantised_tensors_are_said_to_be_unchecked(
    make_trained, make_merged, edit, tmp_path
) -> None:
    import torch

    trained, merged = make_trained("qwen3"), make_merged("qwen3", tmp_path / "m")
    name = "model.layers.0.mlp.up_proj.weight"
    edit(merged, name, lambda tensor: tensor.to(torch.int8))
    report = check(trained, merged)
    assert report.unchecked == [name]
    assert not report.good
    assert "can't be checked" in summarise(report, merged)
