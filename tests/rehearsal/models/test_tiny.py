"""Tiny models: loadable, trainable, the same each time, with sizes that don't coincide."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tinkerlab.errors import InputError
from tinkerlab.rehearsal.models import registry, tiny

ARCHITECTURES = list(tiny.ARCHITECTURES)


def load(folder: Path):
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        str(folder), dtype=torch.float32, attn_implementation="eager"
    )


def test_the_promised_architectures_exist() -> None:
    assert {"llama", "qwen3", "qwen3_moe", "gpt_oss", "deepseek_v3"} <= set(ARCHITECTURES)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_loss_falls(architecture: str) -> None:
    import torch

    source = registry.resolve(f"tiny:{architecture}")
    model = load(source.directory)
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in model.parameters())
    assert model.config.model_type == architecture
    assert model.config.vocab_size == 320
    ids = torch.tensor([list(b"the quick brown fox jumps over the lazy dog")])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(6):
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert 4.0 < losses[0] < 9.0  # near ln(320) = 5.8
    assert losses[-1] < losses[0] - 1.0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_same_weights_each_time_and_random_state_untouched(
    architecture: str, tmp_path: Path
) -> None:
    import torch

    folders = [tmp_path / "a", tmp_path / "b"]
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    for folder in folders:
        folder.mkdir()
        tiny.build(architecture, folder)
    assert torch.equal(before, torch.random.get_rng_state())
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name
    other = tmp_path / "c"
    other.mkdir()
    tiny.build(architecture, other, seed=1)
    weights = "model.safetensors"
    assert (folders[0] / weights).read_bytes() != (other / weights).read_bytes()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_layers_and_experts_differ_from_one_another(architecture: str) -> None:
    """Copies of one another would hide scrambled layers or experts from a test."""
    weights = load(registry.resolve(f"tiny:{architecture}").directory).state_dict()
    layers = [
        (weights[name], weights[name.replace("layers.0.", "layers.1.")])
        for name in weights
        if "layers.0.self_attn" in name and name.endswith("_proj.weight")
    ]
    assert layers
    assert all((a - b).abs().max() > 0.01 for a, b in layers)
    for name, weight in weights.items():
        if "experts" in name and weight.ndim == 3:
            assert weight.shape[0] == tiny.EXPERTS == 5
            assert (weight[0] - weight[1]).abs().max() > 0.01, name


def test_llama_is_tied_and_the_others_are_not() -> None:
    for architecture in ARCHITECTURES:
        directory = registry.resolve(f"tiny:{architecture}").directory
        config = json.loads((directory / "config.json").read_text())
        assert config["tie_word_embeddings"] is (architecture == "llama")


def test_tokenizer_is_bytes_and_chatml() -> None:
    from transformers import AutoTokenizer

    directory = registry.resolve("tiny:llama").directory
    tokenizer = AutoTokenizer.from_pretrained(str(directory))
    text = "Zürich 12 日本\n\t😀"
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("<|endoftext|><|im_start|><|im_end|>") == [256, 257, 258]
    assert tokenizer.eos_token_id == 258
    assert tokenizer.pad_token_id == 256
    assert tokenizer.bos_token is None
    assert len(tokenizer) == 259
    assert tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    ) == ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_unknown_architecture_lists_the_known() -> None:
    with pytest.raises(InputError, match=r"tiny:llamma.*tiny:llama, tiny:qwen3"):
        registry.resolve("tiny:llamma")
