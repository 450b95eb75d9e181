"""merge_check's answers where no merge is wrong, and its refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from merge_factory import (
    FAMILIES,
    IMAGE_TEXT,
    SCALE,
    Case,
    copied,
    edit,
    make,
    our_export,
    rewrite,
    settings,
    tensors_of,
    write_adapter,
)
from torch import Tensor

import merge_check
from tinkerlab.diagnosis.merges import matrices
from tinkerlab.errors import InputError

PREFIX = "base_model.model."


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Run the script on a case; its JSON document."""

    def run(case: Case, merged: Path | None = None) -> dict[str, Any]:
        capsys.readouterr()
        code = merge_check.main([*case.argv(merged), "--json"])
        document = json.loads(capsys.readouterr().out)
        assert code == (0 if document["ok"] else 1)
        return document

    return run


def causes(document: dict[str, Any]) -> list[str]:
    return [finding["cause"] for finding in document["findings"]]


# --- the truth behind "right": what base and adapter compute together


def loaded(folder: Path, family: str) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    kind = AutoModelForImageTextToText if family in IMAGE_TEXT else AutoModelForCausalLM
    return kind.from_pretrained(
        str(folder), dtype=torch.float32, attn_implementation="eager"
    ).eval()


def logits(model: Any) -> Tensor:
    ids = torch.arange(2, 26).reshape(2, 12)
    with torch.inference_mode():
        return model(input_ids=ids, use_cache=False).logits


def with_adapter(case: Case) -> Tensor:
    """Logits of the base with the factors applied beside each layer, never multiplied together.

    Ordinary layers by hooks, experts by the rehearsal's engine: neither shares anything with
    merge_check or tinker-cookbook's merge.
    """
    from tinkerlab.rehearsal.engine import lora

    model, factors = loaded(case.base, case.family), case.factors()
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    for key in [key for key in factors if key.endswith(".lora_A.weight")]:
        name = key.removeprefix(PREFIX).removesuffix(".lora_A.weight")
        pairs[name] = factors[key], factors[key.replace("lora_A", "lora_B")]
    if any(".experts." in name for name in pairs):
        lora.install(model)
    experts = {}
    for path, module in model.named_modules():
        name = path.replace("language_model.", "").replace(".self_attn.", ".attn.")
        short = name if name in pairs else path.replace("language_model.", "")
        if path.endswith(".experts") and f"{short}.w1" in pairs:
            experts |= {f"{path}.{leaf}": pairs[f"{short}.{leaf}"] for leaf in ("w1", "w2", "w3")}
        elif isinstance(module, torch.nn.Linear):
            for shift, (a, b) in applied(short, module, pairs):
                module.register_forward_hook(hook(a, b, shift))
    with lora.use_adapter(lora.LoraWeights(SCALE, experts) if experts else None):
        return logits(model)


def applied(
    name: str, module: torch.nn.Linear, pairs: dict[str, tuple[Tensor, Tensor]]
) -> list[tuple[int, tuple[Tensor, Tensor]]]:
    """Pairs that act on a layer, with the first output that each changes."""
    stem, _, leaf = name.rpartition(".")
    if leaf == "lm_head" or name == "lm_head":
        return [(0, pairs["model.unembed_tokens"])]
    members = {
        "in_proj_qkv": ("in_proj_q", "in_proj_k", "in_proj_v"),
        "in_proj": ("gate_proj", "x_proj"),
    }.get(leaf)
    if members is None:
        return [(0, pairs[name])] if name in pairs else []
    found, start = [], 0
    for member in members:
        found.append((start, pairs[f"{stem}.{member}"]))
        start += pairs[f"{stem}.{member}"][1].shape[0]
    return found


def hook(a: Tensor, b: Tensor, start: int) -> Callable[..., Tensor]:
    def add(module: Any, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        output = output.clone()
        output[..., start : start + b.shape[0]] += (inputs[0] @ a.T) @ b.T * SCALE
        return output

    return add


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_called_right_computes_what_base_and_adapter_compute(
    family: str, tmp_path: Path, check
) -> None:
    case = make(family, tmp_path)
    if family == "nemotron_h":  # the rehearsal doesn't know these experts
        case.copy_adapter(
            lambda tensors, _: {key: t for key, t in tensors.items() if ".experts." not in key}
        )
    merged = our_export(case) if family == "llama" else case.cookbook()
    assert causes(check(case, merged)) == []
    expected, found = with_adapter(case), logits(loaded(merged, family))
    assert not torch.allclose(expected, logits(loaded(case.base, family)), atol=1e-3)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)


def test_nemotron_experts_against_a_sum_by_hand(tmp_path: Path, check) -> None:
    case = make("nemotron_h", tmp_path)
    merged = case.cookbook()
    factors, before, after = case.factors(), tensors_of(case.base), tensors_of(merged)
    stem = "layers.1.mixer.experts"
    a, b = (factors[f"{PREFIX}model.{stem}.w1.lora_{x}.weight"] for x in "AB")
    expected = before[f"backbone.{stem}.3.up_proj.weight"] + b[3] @ a[0] * SCALE
    torch.testing.assert_close(after[f"backbone.{stem}.3.up_proj.weight"], expected)
    document = check(case, merged)
    assert document["ok"]
    assert document["adapter"]["empty"] == 1


def test_kimi_names(tmp_path: Path, check) -> None:
    """Kimi K2.5 has no class in transformers: its naming on tensors of another family."""
    case = make("deepseek_v3", tmp_path)
    rewrite(
        case.base,
        lambda tensors: [
            tensors.__setitem__(f"language_model.{name}", tensors.pop(name))
            for name in list(tensors)
        ],
    )
    settings(case.base, model_type="kimi_k25")
    document = check(case)
    assert causes(document) == []
    assert document["adapter"]["tensors_targeted"] == 32
    merged = copied(case.base, "merged")
    assert causes(check(case, merged)) == ["language-model-prefix-missing"]


# --- without a merged model


def test_only_names_without_a_merged_model(tmp_path: Path, check) -> None:
    document = check(make("qwen3_5_moe", tmp_path))
    assert document["ok"]
    assert document["checked"] == {"adapter_modules": 21}
    assert any("no values were compared" in note for note in document["notes"])


def test_another_shape_and_another_name_show_without_a_merged_model(tmp_path: Path, check) -> None:
    case = make("qwen3", tmp_path)

    def spoil(tensors: dict[str, Tensor], _: dict) -> dict[str, Tensor]:
        spoiled = {}
        for key, tensor in tensors.items():
            if "layers.0.mlp.up_proj" in key:
                key = key.replace("up_proj", "w_up")
            spoiled[key] = tensor[:-1] if "layers.1.mlp.up_proj.lora_B" in key else tensor
        return spoiled

    case.copy_adapter(spoil)
    document = check(case)
    assert causes(document) == ["adapter-of-another-base", "adapter-keys-unmatched"]
    assert "39 x 32" in document["findings"][0]["evidence"][0]


def test_a_rank_that_the_config_denies(tmp_path: Path, check) -> None:
    case = make("qwen3", tmp_path)
    case.copy_adapter(lambda tensors, config: config.update(r=16))
    assert causes(check(case)) == ["adapter-rank-mismatch"]


def test_an_untrained_adapter(tmp_path: Path, check) -> None:
    case = make("qwen3", tmp_path)
    case.copy_adapter(
        lambda tensors, _: {k: t * 0 if "lora_B" in k else t for k, t in tensors.items()}
    )
    document = check(case, copied(case.base, "merged"))
    assert document["ok"]
    assert causes(document) == ["adapter-is-zero"]


def test_experts_that_are_quantised_are_not_called_missing(tmp_path: Path, check) -> None:
    case = make("gpt_oss", tmp_path)

    def pack(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
            tensors[f"{name}_blocks"] = torch.zeros(5, 4, 2, 16, dtype=torch.uint8)
            tensors[f"{name}_scales"] = torch.zeros(5, 4, 2, dtype=torch.uint8)
            del tensors[name]

    rewrite(case.base, pack)
    assert causes(check(case)) == []
    merged = copied(case.base, "merged")
    factors = case.factors()

    def add(tensors: dict[str, Tensor]) -> None:
        for key in [k for k in factors if k.endswith("A.weight") and ".experts." not in k]:
            delta = factors[key.replace("lora_A", "lora_B")] @ factors[key] * SCALE
            name = key.removeprefix(PREFIX).replace(".lora_A", "").replace(".attn.", ".self_attn.")
            tensors[name.replace("model.unembed_tokens", "lm_head")] += delta

    rewrite(merged, add)
    document = check(case, merged)
    assert document["ok"]
    assert causes(document) == ["quantised-tensors-not-checked"]


# --- blocks, names, forms


@pytest.mark.parametrize("family", ["qwen3_5_moe", "gpt_oss"])
def test_small_blocks_change_nothing(
    family: str, tmp_path: Path, check, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make(family, tmp_path)
    merged, before = case.cookbook(), tensors_of(case.base)
    monkeypatch.setattr(matrices, "BLOCK", 100)
    assert causes(check(case, merged)) == []
    name = next(name for name in before if name.endswith("gate_up_proj"))
    width = before[name].shape[1 if family == "qwen3_5_moe" else 2] // 2

    def exchange(after: Tensor) -> Tensor:
        change = after - before[name]
        if family == "gpt_oss":
            return before[name] + change.reshape(5, -1, width, 2).flip(-1).reshape(change.shape)
        return before[name] + torch.cat([change[:, width:], change[:, :width]], dim=1)

    edit(merged, name, exchange)
    assert causes(check(case, merged)) == ["gate-up-swapped"]


def test_a_text_model_taken_out_of_a_vision_model(tmp_path: Path, check) -> None:
    """Other names under another model_type are a choice; under the same one nothing loads."""
    case = make("qwen3_5", tmp_path)
    merged = case.cookbook()
    rewrite(
        merged,
        lambda tensors: [
            tensors.__setitem__(name.replace("language_model.", ""), tensors.pop(name))
            for name in list(tensors)
            if "language_model." in name
        ],
    )
    assert causes(check(case, merged)) == ["tensors-renamed"]


def test_a_name_that_says_nothing_is_found_by_its_values(tmp_path: Path, check) -> None:
    case = make("qwen3", tmp_path)
    merged = case.cookbook()
    case.copy_adapter(
        lambda tensors, _: {
            key.replace("self_attn.q_proj", "attention.wq"): t for key, t in tensors.items()
        }
    )
    document = check(case, merged)
    assert causes(document) == []
    assert any("by its values" in note for note in document["notes"])


def test_whole_tensors_of_an_adapter(tmp_path: Path, check) -> None:
    case = make("qwen3", tmp_path)
    merged = case.cookbook()
    table = torch.full((96, 32), 0.25)

    def bring(tensors: dict[str, Tensor], _: dict) -> dict[str, Tensor]:
        return tensors | {f"{PREFIX}model.embed_tokens.weight": table}

    case.copy_adapter(bring)
    assert causes(check(case, merged)) == ["full-weights-not-copied"]
    edit(merged, "model.embed_tokens.weight", lambda _: table)
    assert causes(check(case, merged)) == []


def test_another_adapter_of_the_same_shape(tmp_path: Path, check) -> None:
    case = make("qwen3", tmp_path)
    other = case.merge(
        lambda tensors: [
            tensors.__setitem__(k, torch.randn_like(t) * 0.02) for k, t in tensors.items()
        ]
    )
    assert causes(check(case, other)) == ["merged-from-another-adapter"]


def test_a_change_that_nothing_explains_names_the_experts(tmp_path: Path, check) -> None:
    case = make("qwen3_moe", tmp_path)
    merged = case.cookbook()
    name = "model.layers.0.mlp.experts.3.up_proj.weight"
    edit(merged, name, lambda x: x + torch.randn_like(x) * 0.01)
    [finding] = check(case, merged)["findings"]
    assert finding["cause"] == "merge-differs-unexplained"
    assert finding["where"] == name
    assert "experts: 3" in finding["evidence"]


def test_two_faults_are_both_named(tmp_path: Path, check) -> None:
    case = make("qwen3_moe", tmp_path)

    def spoil(tensors: dict[str, Tensor]) -> None:
        for key in tensors:
            if ".q_proj.lora_B" in key:
                tensors[key] = tensors[key] * 2
            if ".w1.lora_B" in key:
                tensors[key] = tensors[key].roll(1, dims=0)

    assert set(causes(check(case, case.merge(spoil)))) == {
        "adapter-applied-twice",
        "experts-permuted",
    }


def test_nan_in_the_merged_model(tmp_path: Path, check) -> None:
    case = make("qwen3", tmp_path)
    merged = case.cookbook()
    edit(merged, "model.layers.0.mlp.up_proj.weight", lambda x: x * float("nan"))
    edit(merged, "model.norm.weight", lambda x: x * float("nan"))
    assert causes(check(case, merged)) == ["merged-not-finite"]


def test_peft_wrapper_saved_without_unloading(tmp_path: Path, check) -> None:
    case = make("qwen3", tmp_path)
    merged = copied(case.base, "merged")

    def wrap(tensors: dict[str, Tensor]) -> None:
        name = "model.layers.0.mlp.up_proj"
        tensors[f"{name}.base_layer.weight"] = tensors.pop(f"{name}.weight")
        tensors[f"{name}.lora_A.default.weight"] = torch.zeros(4, 32)

    rewrite(merged, wrap)
    assert "lora-tensors-left" in causes(check(case, merged))


def test_config_of_another_model(tmp_path: Path, check) -> None:
    case = make("qwen3", tmp_path)
    merged = case.cookbook()
    settings(merged, num_attention_heads=8)
    assert causes(check(case, merged)) == ["config-changed"]


def test_a_dequantised_merge_is_not_called_incomplete(tmp_path: Path, check) -> None:
    case = make("gpt_oss", tmp_path)
    merged = case.cookbook()

    def pack(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
            tensors[f"{name}_blocks"] = torch.zeros(5, 4, 2, 16, dtype=torch.uint8)
            tensors[f"{name}_scales"] = torch.zeros(5, 4, 2, dtype=torch.uint8)
            del tensors[name]

    rewrite(case.base, pack)
    document = check(case, merged)
    assert causes(document) == ["quantised-tensors-not-checked"]
    assert any("dequantised" in note for note in document["notes"])


def test_the_usual_mistake_hides_no_other(tmp_path: Path, check) -> None:
    """Matrices that were merged rightly, or damaged, amid many with one and the same mistake."""
    case = make("qwen3_moe", tmp_path)
    right = tensors_of(case.cookbook("right"))

    def exchange(tensors: dict[str, Tensor]) -> None:
        for key in [key for key in tensors if ".w1." in key]:
            other = key.replace(".w1.", ".w3.")
            tensors[key], tensors[other] = tensors[other], tensors[key]

    merged = case.merge(exchange)
    names = [f"model.layers.1.mlp.experts.{e}.gate_proj.weight" for e in (2, 3)]
    edit(merged, names[0], lambda _: right[names[0]])
    edit(merged, names[1], lambda x: x + torch.randn_like(x) * 0.05)
    document = check(case, merged)
    assert set(causes(document)) == {"gate-up-swapped", "merge-differs-unexplained"}
    counts = {row["cause"]: row["matrices"] for row in document["outcomes"]}
    assert counts["gate-up-swapped"] == 18
    assert counts["merge-differs-unexplained"] == 1
    assert counts["right"] == 39 - 19


# --- refusals: one line, exit 2


def refused(case: Case, merged: Path | None = None) -> str:
    with pytest.raises(InputError) as caught:
        merge_check.main(case.argv(merged))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_folders_that_are_no_models(tmp_path: Path) -> None:
    case = make("qwen3", tmp_path)
    merged = copied(case.base, "merged")
    assert "same folder" in refused(case, case.base)
    assert "no such folder" in refused(case, tmp_path / "nowhere")
    assert "a file, not a folder" in refused(case, case.base / "config.json")
    assert "it is an adapter" in refused(case, case.adapter)
    (merged / "config.json").unlink()
    assert "no config.json" in refused(case, merged)
    (merged / "config.json").write_text("{")
    assert "not valid JSON" in refused(case, merged)


def test_broken_weights(tmp_path: Path) -> None:
    case = make("qwen3", tmp_path)
    merged = copied(case.base, "merged")
    file = merged / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert "broken" in refused(case, merged)
    file.write_bytes(b"")
    assert "broken" in refused(case, merged)
    file.rename(merged / "pytorch_model.bin")
    assert "pickled" in refused(case, merged)
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (merged / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "missing" in refused(case, merged)


def test_folders_that_are_no_adapters(tmp_path: Path) -> None:
    case = make("qwen3", tmp_path)
    right = case.adapter
    case.adapter = case.base
    assert "no adapter_config.json" in refused(case)
    case.adapter = write_adapter(
        tmp_path / "dora", case_factors(right), {"r": 4, "lora_alpha": 8, "use_dora": True}
    )
    assert "DoRA" in refused(case)
    odd = {"r": 4, "lora_alpha": 8, "rank_pattern": {"q_proj": 0}}
    case.adapter = write_adapter(tmp_path / "odd", case_factors(right), odd)
    assert "not a positive number" in refused(case)
    (case.adapter / "adapter_model.safetensors").rename(case.adapter / "adapter_model.bin")
    assert "pickle" in refused(case)


def case_factors(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(str(folder / "adapter_model.safetensors"))
