"""Where LoRA sits, and that a forward pass adds exactly the adapters it was told to."""

from __future__ import annotations

import threading
from typing import Any

import engine_reference as reference
import numpy as np
import pytest
import torch

from tinkerlab.rehearsal.engine.adapter import FrozenAdapter, chosen_sites, parameter_count
from tinkerlab.rehearsal.engine.base import BaseModel
from tinkerlab.rehearsal.engine.lora import find_sites, use_adapter, use_adapters
from tinkerlab.rehearsal.engine.training import TrainableAdapter
from tinkerlab.rehearsal.engine.types import AdapterConfig
from tinkerlab.rehearsal.errors import UserError

each_architecture = reference.each_architecture


def _frozen(model: BaseModel, tmp_path, rank: int, seed: int, **choice: bool) -> FrozenAdapter:
    adapter = TrainableAdapter(model, AdapterConfig(rank=rank, seed=1, **choice))
    return reference.randomise(adapter, tmp_path / f"adapter-{seed}", seed)


def _logits(model: BaseModel, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.logits(model.hidden_states(tokens))


def _tokens(rows: int = 4, columns: int = 40) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).integers(0, 250, (rows, columns)))


@each_architecture
def test_without_an_adapter_the_model_is_untouched(architecture: str) -> None:
    model = reference.base(architecture)
    tokens = _tokens()
    with torch.no_grad():
        expected = reference.plain(model)(tokens).logits
    torch.testing.assert_close(_logits(model, tokens), expected, rtol=1e-5, atol=1e-5)
    with use_adapters([(4, None)]):
        torch.testing.assert_close(_logits(model, tokens), expected, rtol=1e-5, atol=1e-5)


@each_architecture
def test_an_adapter_is_the_merged_model(architecture: str, tmp_path) -> None:
    model = reference.base(architecture)
    frozen = _frozen(model, tmp_path, rank=4, seed=0)
    hf = reference.plain(model)
    tokens = _tokens()
    state = reference.merged_state(hf, dict(frozen.weights.pairs), frozen.weights.scale)
    with torch.no_grad():
        expected = torch.func.functional_call(
            hf, state, (), {"input_ids": tokens}, tie_weights=False
        ).logits
    with use_adapter(frozen.weights):
        got = _logits(model, tokens)
    assert (expected - _logits(model, tokens)).abs().max() > 0.5  # it does something
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@each_architecture
def test_rows_of_one_batch_use_their_own_adapters(architecture: str, tmp_path) -> None:
    model = reference.base(architecture)
    first = _frozen(model, tmp_path, rank=4, seed=1)
    second = _frozen(model, tmp_path, rank=3, seed=2)
    partial = _frozen(model, tmp_path, rank=5, seed=3, train_mlp=False)
    tokens = _tokens(rows=6)
    groups = [
        (1, first.weights),
        (2, second.weights),
        (1, None),
        (1, partial.weights),
        (1, first.weights),
    ]
    with use_adapters(groups):
        mixed = _logits(model, tokens)
    row = 0
    for count, weights in groups:
        with use_adapter(weights):
            alone = _logits(model, tokens[row : row + count])
        torch.testing.assert_close(mixed[row : row + count], alone, rtol=1e-4, atol=1e-4)
        row += count


def test_one_position_of_each_row_can_be_unembedded(tmp_path) -> None:
    model = reference.base("llama")
    adapters = [_frozen(model, tmp_path, rank=4, seed=seed).weights for seed in (1, 2)]
    hidden = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), use_adapters([(1, adapters[0]), (1, adapters[1])]):
        mixed = model.logits(hidden)
    for row in range(2):
        with torch.no_grad(), use_adapter(adapters[row]):
            torch.testing.assert_close(model.logits(hidden[row]), mixed[row])


def test_a_batch_of_another_size_is_an_error(tmp_path) -> None:
    model = reference.base("llama")
    weights = _frozen(model, tmp_path, rank=4, seed=1).weights
    with use_adapters([(2, weights), (1, None)]), pytest.raises(ValueError, match="3 rows"):
        _logits(model, _tokens(rows=1, columns=4))


def test_choices_nest_and_end(tmp_path) -> None:
    model = reference.base("qwen3")
    weights = _frozen(model, tmp_path, rank=4, seed=1).weights
    tokens = _tokens(rows=1)
    bare = _logits(model, tokens)
    with use_adapter(weights):
        adapted = _logits(model, tokens)
        with use_adapter(None):
            assert torch.equal(_logits(model, tokens), bare)
        assert torch.equal(_logits(model, tokens), adapted)
    assert torch.equal(_logits(model, tokens), bare)
    assert not torch.equal(adapted, bare)


def test_a_choice_holds_in_its_own_thread_only(tmp_path) -> None:
    model = reference.base("qwen3_moe")
    adapters = [_frozen(model, tmp_path, rank=4, seed=seed).weights for seed in (1, 2)] + [None]
    tokens = _tokens(rows=2)
    alone = []
    for weights in adapters:
        with use_adapter(weights):
            alone.append(_logits(model, tokens))
    barrier = threading.Barrier(len(adapters))
    together: dict[int, list[torch.Tensor]] = {}

    def work(index: int) -> None:
        with use_adapter(adapters[index]):
            barrier.wait()
            together[index] = [_logits(model, tokens) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(adapters))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, expected in enumerate(alone):
        for got in together[index]:
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


_QWEN = {"vocab_size": 151936, "head_dim": 128, "num_attention_heads": 32}
_LLAMA = {"vocab_size": 128256, "head_dim": 64, "num_attention_heads": 32}
# Shapes of hosted models, as config.json on the hub states them.
HOSTED: dict[str, dict[str, Any]] = {
    "meta-llama/Llama-3.2-1B": _LLAMA
    | {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192}
    | {"num_hidden_layers": 16, "num_key_value_heads": 8, "tie_word_embeddings": True},
    "Qwen/Qwen3-8B": _QWEN
    | {"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288}
    | {"num_hidden_layers": 36, "num_key_value_heads": 8},
    "Qwen/Qwen3-30B-A3B": _QWEN
    | {"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144}
    | {"num_hidden_layers": 48, "num_key_value_heads": 4}
    | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
    "openai/gpt-oss-20b": {"model_type": "gpt_oss", "vocab_size": 201088, "head_dim": 64}
    | {"hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24}
    | {"num_attention_heads": 64, "num_key_value_heads": 8}
    | {"num_local_experts": 32, "num_experts_per_tok": 4},
    "deepseek-ai/DeepSeek-V3.1": {"model_type": "deepseek_v3", "vocab_size": 129280}
    | {"hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61}
    | {"num_attention_heads": 128, "num_key_value_heads": 128}
    | {"q_lora_rank": 1536, "kv_lora_rank": 512, "v_head_dim": 128}
    | {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "first_k_dense_replace": 3}
    | {"n_routed_experts": 256, "n_shared_experts": 1, "moe_intermediate_size": 2048},
}


@pytest.mark.parametrize("name", HOSTED)
def test_as_many_weights_as_the_hosted_service_trains(name: str) -> None:
    """Which layers get LoRA and what experts share: the cookbook's counts, part by part."""
    from tinker_cookbook.hyperparam_utils import get_lora_param_count
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        hf = AutoModelForCausalLM.from_config(AutoConfig.for_model(**HOSTED[name]))
    sites = find_sites(hf)
    for kind in ("attn", "mlp", "unembed"):
        only = {f"train_{other}": other == kind for other in ("attn", "mlp", "unembed")}
        expected = get_lora_param_count(name, lora_rank=8, **only)
        assert parameter_count([s for s in sites if s.kind == kind], 8) == expected, kind


def test_nothing_to_train_is_refused() -> None:
    model = reference.base("llama")
    with pytest.raises(UserError, match="nothing to train"):
        chosen_sites(
            model, AdapterConfig(rank=4, train_attn=False, train_mlp=False, train_unembed=False)
        )
    with pytest.raises(UserError, match="rank must be at least 1, got 0"):
        chosen_sites(model, AdapterConfig(rank=0))


UNKNOWN: dict[str, tuple[dict[str, Any], str]] = {
    "gpt2": (
        {"vocab_size": 320, "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64},
        "GPT2LMHeadModel: no linear layer",
    ),
    "llama4_text": (
        {"vocab_size": 320, "hidden_size": 32, "intermediate_size": 16, "pad_token_id": 0}
        | {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
        | {"head_dim": 16, "num_local_experts": 2, "intermediate_size_mlp": 32},
        "layout that the rehearsal can't train",
    ),
}


@pytest.mark.parametrize("model_type", UNKNOWN)
def test_unknown_architectures_are_refused(model_type: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    shapes, words = UNKNOWN[model_type]
    with torch.device("meta"):
        hf = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **shapes))
    with pytest.raises(UserError, match=words):
        find_sites(hf)
