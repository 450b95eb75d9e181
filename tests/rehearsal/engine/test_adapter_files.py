"""Adapter files: the hosted service's names, and that tinker-cookbook makes the same model of them."""

from __future__ import annotations

import json
from pathlib import Path

import engine_reference as reference
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tinkerlab.rehearsal.engine import adapter_files
from tinkerlab.rehearsal.engine.adapter import FrozenAdapter
from tinkerlab.rehearsal.engine.base import BaseModel
from tinkerlab.rehearsal.engine.training import TrainableAdapter
from tinkerlab.rehearsal.engine.types import AdapterConfig
from tinkerlab.rehearsal.errors import UserError

each_architecture = reference.each_architecture


@pytest.fixture
def saved(request, tmp_path: Path) -> tuple[BaseModel, FrozenAdapter, Path]:
    """A random adapter of the parametrised architecture, in memory and on disk."""
    chosen = "architecture" in request.fixturenames
    architecture = request.getfixturevalue("architecture") if chosen else "llama"
    adapter = TrainableAdapter(reference.base(architecture), AdapterConfig(rank=4, seed=1))
    frozen = reference.randomise(adapter, tmp_path / "random")
    adapter.save(tmp_path / "adapter", with_optimizer=False)
    return adapter.base, frozen, tmp_path / "adapter"


def _logprobs(model, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return torch.log_softmax(model(tokens).logits, dim=-1)


def _own_logprobs(base: BaseModel, frozen: FrozenAdapter, tokens: torch.Tensor) -> torch.Tensor:
    from tinkerlab.rehearsal.engine.lora import use_adapter

    with torch.no_grad(), use_adapter(frozen.weights):
        return torch.log_softmax(base.logits(base.hidden_states(tokens)), dim=-1)


def _tokens() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(2).integers(0, 250, (3, 50)))


NAMES = {
    "llama": {
        "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight": [4, 64],
        "base_model.model.model.layers.0.mlp.down_proj.lora_B.weight": [64, 4],
        "base_model.model.model.unembed_tokens.lora_B.weight": [320, 4],
    },
    "qwen3": {"base_model.model.model.layers.0.self_attn.k_proj.lora_B.weight": [48, 4]},
    "qwen3_moe": {
        "base_model.model.model.layers.0.mlp.experts.w1.lora_A.weight": [1, 4, 64],
        "base_model.model.model.layers.0.mlp.experts.w3.lora_B.weight": [5, 48, 4],
        "base_model.model.model.layers.0.mlp.experts.w2.lora_A.weight": [5, 4, 48],
        "base_model.model.model.layers.0.mlp.experts.w2.lora_B.weight": [1, 64, 4],
    },
    "gpt_oss": {
        "base_model.model.model.layers.0.attn.o_proj.lora_B.weight": [64, 4],
        "base_model.model.model.layers.1.mlp.experts.w3.lora_A.weight": [1, 4, 64],
    },
    "deepseek_v3": {
        "base_model.model.model.layers.0.self_attn.q_a_proj.lora_B.weight": [28, 4],
        "base_model.model.model.layers.0.self_attn.kv_a_proj_with_mqa.lora_B.weight": [28, 4],
        "base_model.model.model.layers.1.mlp.shared_experts.up_proj.lora_A.weight": [4, 64],
        "base_model.model.model.layers.1.mlp.experts.w1.lora_B.weight": [5, 48, 4],
    },
}


@each_architecture
def test_names_and_shapes(architecture: str, saved) -> None:
    _, frozen, folder = saved
    tensors = load_file(str(folder / adapter_files.WEIGHTS))
    assert len(tensors) == 2 * len(frozen.sites)
    for name, shape in NAMES[architecture].items():
        assert list(tensors[name].shape) == shape
        assert tensors[name].dtype == torch.float32
    routers = [name for name in tensors if ".gate." in name or ".router." in name]
    assert not routers and not any("q_b_proj" in name or "kv_b_proj" in name for name in tensors)
    config = json.loads((folder / adapter_files.CONFIG).read_text())
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (4, 32.0, "LORA")
    assert {path.name for path in folder.iterdir()} == {
        adapter_files.WEIGHTS,
        adapter_files.CONFIG,
    }


@each_architecture
def test_loading_gives_the_same_bits(architecture: str, saved) -> None:
    base, frozen, folder = saved
    loaded = FrozenAdapter.load(base, folder)
    assert loaded.sites == frozen.sites
    assert (loaded.rank, loaded.alpha) == (frozen.rank, frozen.alpha)
    for site, pair in frozen.weights.pairs.items():
        assert all(torch.equal(x, y) for x, y in zip(pair, loaded.weights.pairs[site], strict=True))


@each_architecture
def test_the_cookbook_merges_it_into_the_same_model(
    architecture: str, saved, tmp_path: Path
) -> None:
    from tinker_cookbook.weights import build_hf_model
    from transformers import AutoModelForCausalLM

    base, frozen, folder = saved
    source = base.directory
    if base.hf.config.tie_word_embeddings:
        # The cookbook adds the unembedding's LoRA to a tied matrix, so to the input embedding
        # as well; a base with an output matrix of its own is merged rightly.
        untied = reference.plain(base)
        untied.config.tie_word_embeddings = False
        untied.lm_head.weight = torch.nn.Parameter(untied.lm_head.weight.clone())
        source = tmp_path / "untied"
        untied.save_pretrained(str(source))
        base.tokenizer.save_pretrained(str(source))
    merged = tmp_path / "merged"
    build_hf_model(
        base_model=str(source), adapter_path=str(folder), output_path=str(merged), dtype="float32"
    )
    model = AutoModelForCausalLM.from_pretrained(str(merged), dtype=torch.float32).eval()
    tokens = _tokens()
    expected = _own_logprobs(base, frozen, tokens)
    torch.testing.assert_close(_logprobs(model, tokens), expected, rtol=1e-4, atol=1e-4)
    bare = _logprobs(reference.plain(base), tokens)
    assert (bare - expected).abs().max() > 0.5  # so that equality says something


@pytest.mark.parametrize("architecture", ["qwen3"])
def test_peft_loads_what_the_cookbook_makes_of_it(architecture: str, saved, tmp_path: Path) -> None:
    from peft import PeftModel
    from tinker_cookbook.weights import build_lora_adapter

    base, frozen, folder = saved
    build_lora_adapter(
        base_model=str(base.directory),
        adapter_path=str(folder),
        output_path=str(tmp_path / "peft"),
    )
    model = PeftModel.from_pretrained(reference.plain(base), str(tmp_path / "peft")).eval()
    tokens = _tokens()
    torch.testing.assert_close(
        _logprobs(model, tokens), _own_logprobs(base, frozen, tokens), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("architecture", ["qwen3_moe", "gpt_oss"])
def test_the_cookbook_makes_an_expert_adapter_of_it(
    architecture: str, saved, tmp_path: Path
) -> None:
    from tinker_cookbook.weights import build_lora_adapter

    base, frozen, folder = saved
    build_lora_adapter(
        base_model=str(base.directory),
        adapter_path=str(folder),
        output_path=str(tmp_path / "peft"),
    )
    tensors = load_file(str(tmp_path / "peft" / "adapter_model.safetensors"))
    a, b = frozen.weights.pairs["model.layers.1.mlp.experts.w1"]
    prefix = "base_model.model.model.layers.1.mlp.experts.3.gate_proj"
    assert torch.equal(tensors[f"{prefix}.lora_A.weight"], a[0])
    assert torch.equal(tensors[f"{prefix}.lora_B.weight"], b[3])


def test_half_precision_files_are_read(saved) -> None:
    base, frozen, folder = saved
    from safetensors.torch import save_file

    tensors = load_file(str(folder / adapter_files.WEIGHTS))
    save_file({k: v.bfloat16() for k, v in tensors.items()}, str(folder / adapter_files.WEIGHTS))
    loaded = FrozenAdapter.load(base, folder)
    for site, (a, _) in frozen.weights.pairs.items():
        assert torch.equal(loaded.weights.pairs[site][0], a.bfloat16().float())


def _edit_config(**changes):
    def edit(folder: Path) -> None:
        path = folder / adapter_files.CONFIG
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return edit


def _edit_tensors(change):
    def edit(folder: Path) -> None:
        path = folder / adapter_files.WEIGHTS
        tensors = load_file(str(path))
        change(tensors)
        adapter_files.write_tensors(path, tensors)

    return edit


_Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
BROKEN = {
    "no config": (lambda f: (f / adapter_files.CONFIG).unlink(), "no such file"),
    "no weights": (lambda f: (f / adapter_files.WEIGHTS).unlink(), "no such file"),
    "config is no JSON": (
        lambda f: (f / adapter_files.CONFIG).write_text("{"),
        "not an adapter's config",
    ),
    "config is a list": (
        lambda f: (f / adapter_files.CONFIG).write_text("[]"),
        "not an adapter's config",
    ),
    "no rank": (_edit_config(r=None), "r is None"),
    "rank zero": (_edit_config(r=0), "r is 0"),
    "another rank": (_edit_config(r=5), "belongs to another model or rank"),
    "cut short": (
        lambda f: (f / adapter_files.WEIGHTS).write_bytes(
            (f / adapter_files.WEIGHTS).read_bytes()[:-1]
        ),
        "not a whole safetensors file",
    ),
    "garbage": (
        lambda f: (f / adapter_files.WEIGHTS).write_bytes(b"garbage"),
        "not a whole safetensors file",
    ),
    "half a pair": (_edit_tensors(lambda t: t.pop(_Q)), "is missing"),
    "a tensor too many": (
        _edit_tensors(lambda t: t.update({"base_model.model.x.lora_A.weight": torch.ones(1)})),
        "has no place for base_model.model.x",
    ),
    "a wrong shape": (
        _edit_tensors(lambda t: t.update({_Q: torch.ones(4, 65)})),
        r"is \[4, 65\], but",
    ),
    "nothing in it": (_edit_tensors(lambda t: t.clear()), "holds no LoRA weights"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_refused(case: str, saved) -> None:
    base, _, folder = saved
    edit, words = BROKEN[case]
    edit(folder)
    with pytest.raises(UserError, match=words) as caught:
        FrozenAdapter.load(base, folder)
    assert str(folder) in caught.value.message


def test_a_failed_write_leaves_the_old_file(saved, monkeypatch) -> None:
    base, frozen, folder = saved
    monkeypatch.setattr(Path, "write_bytes", lambda self, content: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        adapter_files.write(
            base,
            folder,
            AdapterConfig(rank=4),
            {s: (a * 0, b) for s, (a, b) in frozen.weights.pairs.items()},
        )
    monkeypatch.undo()
    loaded = FrozenAdapter.load(base, folder)
    for site, (a, _) in frozen.weights.pairs.items():
        assert torch.equal(loaded.weights.pairs[site][0], a)
