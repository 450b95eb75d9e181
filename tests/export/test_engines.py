"""Each rule about an engine fires on an adapter that has what the rule is about."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tinkerlab.errors import InputError
from tinkerlab.export.adapter import read_adapter
from tinkerlab.export.build import build_peft
from tinkerlab.export.checkpoint import read_checkpoint
from tinkerlab.export.engines import check_engine

ENGINES = ("vllm", "sglang", "peft")
PLAIN = ("model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj")


@pytest.fixture
def make(tmp_path: Path):
    """Write an adapter with these modules, and its base's config.json."""

    def write(modules=PLAIN, *, rank=8, kind="qwen3", tied=False, extra=(), **config) -> Path:
        import numpy as np
        from safetensors.numpy import save_file

        tensors = {}
        for module in modules:
            a = (5, rank, 6) if module.endswith((".w1", ".w2", ".w3")) else (rank, 6)
            b = (*a[:-2], 4, rank)
            tensors[f"base_model.model.{module}.lora_A.weight"] = np.zeros(a, np.float32)
            tensors[f"base_model.model.{module}.lora_B.weight"] = np.zeros(b, np.float32)
        for name in extra:
            tensors[name] = np.zeros(3, np.float32)
        base = tmp_path / "base"
        base.mkdir(exist_ok=True)
        described = {"model_type": kind, "tie_word_embeddings": tied}
        (base / "config.json").write_text(json.dumps(described))
        adapter = tmp_path / "adapter"
        adapter.mkdir(exist_ok=True)
        save_file(tensors, str(adapter / "adapter_model.safetensors"))
        document = {"r": rank, "lora_alpha": 32, "base_model_name_or_path": str(base)} | config
        (adapter / "adapter_config.json").write_text(json.dumps(document))
        return adapter

    return write


@pytest.mark.parametrize("engine", ENGINES)
def test_a_plain_adapter_is_applied(engine, make) -> None:
    fit = check_engine(make(), engine)
    assert fit.verdict == "applies all"
    assert fit.good
    assert "2 LoRA pairs of rank 8" in fit.evidence[0]


@pytest.mark.parametrize(
    ("options", "engine", "verdict", "words"),
    [
        ({"modules": ("model.unembed_tokens",)}, "vllm", "refuses", "Tinker hands it out"),
        ({"modules": ("model.unembed_tokens",)}, "sglang", "applies part", "Tinker hands it out"),
        ({"modules": ("model.layers.0.mlp.experts.w1",)}, "peft", "applies part", "hands it out"),
        ({"rank": 1024}, "vllm", "refuses", "over 512"),
        ({"modules": (*PLAIN, "lm_head"), "kind": "mystery"}, "vllm", "uncertain", "not known"),
        ({"modules": (*PLAIN, "lm_head"), "kind": "qwen3"}, "vllm", "applies all", "LoRA pairs"),
        ({"modules": (*PLAIN, "lm_head"), "tied": True}, "vllm", "uncertain", "one matrix"),
        ({"modules": (*PLAIN, "lm_head"), "tied": True}, "sglang", "uncertain", "tie it"),
        ({"modules": (*PLAIN, "model.lm_head")}, "sglang", "applies part", "model.lm_head"),
        ({"modules": ("model.embed_tokens",)}, "peft", "applies part", "the model's input"),
        (
            {"modules": ("model.layers.0.mlp.experts.0.up_proj",), "kind": "qwen3_moe"},
            "vllm",
            "applies all",
            "LoRA pairs",
        ),
        (
            {"modules": ("model.layers.0.mlp.experts.0.up_proj",), "kind": "qwen3_5_moe"},
            "vllm",
            "refuses",
            "one by one",
        ),
        (
            {"modules": ("model.layers.0.mlp.experts.0.up_proj",), "kind": "gpt_oss"},
            "vllm",
            "uncertain",
            "MXFP4",
        ),
        (
            {"modules": ("model.layers.0.mlp.experts.0.up_proj",), "kind": "mystery_moe"},
            "vllm",
            "uncertain",
            "nothing was found",
        ),
        (
            {"modules": ("model.layers.0.mlp.experts.0.up_proj",), "kind": "qwen3_moe"},
            "sglang",
            "uncertain",
            "expert LoRA",
        ),
        (
            {"modules": ("model.layers.0.mlp.experts.0.up_proj",), "kind": "gpt_oss"},
            "peft",
            "applies part",
            "left out",
        ),
        ({"modules": ("model.layers.0.linear_attn.in_proj_q",)}, "vllm", "uncertain", "fused"),
        ({"modules": ("model.layers.0.linear_attn.in_proj_q",)}, "sglang", "uncertain", "fused"),
        ({"modules": ("model.layers.0.linear_attn.in_proj_q",)}, "peft", "applies part", "no mod"),
        ({"modules": ("model.layers.0.linear_attn.in_proj_b",)}, "sglang", "applies part", "in_pr"),
        ({"kind": "deepseek_v3"}, "vllm", "refuses", "DeepSeek"),
        ({"use_dora": True}, "vllm", "refuses", "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "vllm", "refuses", "modules_to_save"),
        ({"extra": ("base_model.model.lm_head.weight",)}, "vllm", "refuses", "no LoRA factors"),
        ({"alpha_pattern": {"q_proj": 64}}, "vllm", "applies part", "another scale"),
        ({"alpha_pattern": {"q_proj": 64}, "rank_pattern": {"q_proj": 16}}, "vllm", None, "16"),
    ],
)
def test_each_rule(options, engine, verdict, words, make) -> None:
    fit = check_engine(make(**options), engine)
    assert verdict is None or fit.verdict == verdict, fit
    assert words in fit.summary + fit.evidence[1] + "".join(fit.evidence), fit
    if not fit.good:
        assert fit.fix


def test_the_command_names_the_rank_that_vllm_must_allow(make) -> None:
    fit = check_engine(make(rank=32), "vllm")
    assert fit.good
    assert "--max-lora-rank 32" in fit.fix
    assert "--max-lora-rank 64" in check_engine(make(rank=33), "vllm").fix
    assert "--max-lora-rank" not in check_engine(make(rank=16), "vllm").fix


def test_without_the_base_nothing_is_guessed(make) -> None:
    adapter = make(("model.layers.0.mlp.experts.0.up_proj",), base_model_name_or_path="Org/Gone")
    for engine in ENGINES:
        assert check_engine(adapter, engine).verdict == "uncertain"


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "qwen3_moe", "gpt_oss"])
def test_what_is_said_of_peft_is_what_peft_does(architecture, make_trained, tmp_path) -> None:
    """The rules for PEFT can be run, so they are."""
    from peft import PeftModel

    from tinkerlab.export.behaviour import distance, load_model, local_logprobs

    trained = make_trained(architecture)
    base = read_checkpoint(trained.base_dir)
    build_peft(read_adapter(trained.adapter_dir), base, trained.base_name, tmp_path / "peft")
    sequences = [list(b"Which planet is the largest? Jupiter.")]
    wrapped = PeftModel.from_pretrained(load_model(str(trained.base_dir)), str(tmp_path / "peft"))
    gap = distance(local_logprobs(wrapped, sequences), trained.trained_logprobs("", sequences))
    fit = check_engine(tmp_path / "peft", "peft", trained.base_dir)
    assert fit.good == (gap.largest < 1e-4), (fit, gap)


def test_bad_folders_are_one_line(make, tmp_path) -> None:
    adapter = make()
    with pytest.raises(InputError, match="choose one of vllm"):
        check_engine(adapter, "tgi")
    with pytest.raises(InputError, match="no adapter_config"):
        check_engine(tmp_path, "vllm")
    with pytest.raises(InputError, match=r"no config\.json"):
        check_engine(adapter, "vllm", tmp_path)
    make(rank_pattern=[1])
    with pytest.raises(InputError, match="rank_pattern"):
        check_engine(adapter, "vllm")
