"""``tiny:<architecture>``: small random models of real architectures, for tests.

The shapes are awkward on purpose: the head size isn't hidden / heads where the architecture
allows it, there are five experts (no rank, batch or head count is five), and the embedding
has more rows than the tokenizer has tokens, so that code which mixes two sizes up fails here.
The same seed gives the same weights on every machine with the same torch and transformers.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tinkerlab.errors import InputError
from tinkerlab.rehearsal.models.cache import cached_folder
from tinkerlab.rehearsal.models.tokenizers import (
    CHATML_TEMPLATE,
    END_OF_TEXT,
    IM_END,
    IM_START,
    byte_symbols,
    save_byte_bpe,
)

PREFIX = "tiny:"
HIDDEN = 64
LAYERS = 2
VOCABULARY = 320  # 256 bytes and 3 markers, padded
CONTEXT = 1024
EXPERTS = 5
SEED = 20260801

_RECIPE = 1  # raise it when a model below changes: old caches are then left alone


_END_OF_TEXT_ID, _IM_END_ID = 256, 258  # the markers come after the bytes

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": CONTEXT,
    # 1/sqrt(hidden) keeps activations and logits near unit scale, so that gradients are large
    # enough for a loss to fall within a few steps.
    "initializer_range": HIDDEN**-0.5,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "pad_token_id": _END_OF_TEXT_ID,
    "eos_token_id": _IM_END_ID,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
}

# transformers' model_type: what its config says beyond (or against) _COMMON.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 24},
    "qwen3_moe": {
        "head_dim": 24,
        "moe_intermediate_size": 48,
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
    },
    "gpt_oss": {
        "head_dim": 24,
        "intermediate_size": 48,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "sliding_window": 32,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 4.0,
            "original_max_position_embeddings": CONTEXT // 4,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
        },
    },
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "q_lora_rank": 28,
        "kv_lora_rank": 20,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 48,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
    },
}


def folder(name: str) -> Path:
    """Return the folder of ``tiny:<architecture>``, making it on the first call (about 1 s).

    Raises:
        InputError: an unknown architecture; the cache can't be written.
    """
    architecture = name.removeprefix(PREFIX)
    if architecture not in ARCHITECTURES:
        raise InputError(
            f"unknown tiny model {name!r}: choose one of "
            + ", ".join(PREFIX + known for known in ARCHITECTURES)
        )
    versions = "-".join(importlib.metadata.version(p) for p in ("torch", "transformers"))
    return cached_folder(
        f"tiny-{architecture}-r{_RECIPE}-{versions}",
        lambda directory: build(architecture, directory),
    )


def build(architecture: str, directory: Path, *, seed: int = SEED) -> None:
    """Write config, random float32 weights and the byte tokenizer into ``directory``."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(architecture, **_COMMON | ARCHITECTURES[architecture])
    with torch.random.fork_rng(devices=[]):  # the caller's random state is not ours to move
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with _no_progress_bar():
        model.save_pretrained(str(directory))
    save_byte_bpe(
        directory,
        vocabulary=[*byte_symbols(), END_OF_TEXT, IM_START, IM_END],  # a byte's id is its value
        merges=[],
        special_tokens=[END_OF_TEXT, IM_START, IM_END],
        split_digits=False,
        chat_template=CHATML_TEMPLATE,
        context_length=CONTEXT,
        bos_token=None,
        eos_token=IM_END,
        pad_token=END_OF_TEXT,
    )


@contextlib.contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Silence transformers' bar: a second's work doesn't deserve one on the user's stderr."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
