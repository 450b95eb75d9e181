"""The rules behind :mod:`tinkerlab.export.engines`: one function an engine, a source with each.

What is said of vLLM and SGLang was read in their public sources and threads (named with each
rule), not run: no GPU was at hand. PEFT is installed, and tests run it. Versions move; where a
thread left a question open the outcome is "uncertain", and measuring is the only answer.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tinkerlab.errors import InputError
from tinkerlab.export.adapter import Adapter, Pair

Outcome = Literal["applies all", "applies part", "refuses", "uncertain"]

_MERGE = "serve the merged model instead (export_model.py --what merged)"
_CONVERT = "convert it first (export_model.py --what adapter), then check that folder"
_EXPERT = re.compile(r"\.experts\.\d+\.")
_EMBEDDINGS = ("lm_head", "embed_tokens")
_SPLIT_LINEAR_ATTENTION = ("in_proj_q", "in_proj_k", "in_proj_v")

# vLLM's choices of --max-lora-rank and its default.
_VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_VLLM_DEFAULT_RANK = 16
# Model types whose vLLM class registers lm_head for LoRA, and since when.
_VLLM_HEAD = {
    "llama": "LlamaForCausalLM.embedding_modules",
    "qwen3": "vllm#29816, merged December 2025",
    "qwen3_moe": "vllm#29816, merged December 2025",
    "qwen3_5": "vllm#48850, merged July 2026, not in 0.24 and 0.26",
    "qwen3_5_text": "vllm#48850, merged July 2026, not in 0.24 and 0.26",
}
# Names that SGLang maps to a buffer of its own (srt/lora/utils.py); the rest it leaves out.
_SGLANG_KNOWN = frozenset(
    [
        "q_proj",
        "k_proj",
        "v_proj",
        "qkv_proj",
        "o_proj",
        "out_proj",
        "gate_proj",
        "up_proj",
        "gate_up_proj",
        "down_proj",
        "embed_tokens",
        "lm_head",
        "in_proj",
        "in_proj_qkv",
        "in_proj_q",
        "in_proj_k",
        "in_proj_v",
        "in_proj_z",
        "in_proj_qkvz",
        "q_a_proj",
        "kv_a_proj_with_mqa",
        "q_b_proj",
        "kv_b_proj",
    ]
)


@dataclass(frozen=True)
class Finding:
    """What one rule says of one part of the adapter.

    Attributes:
        tensors: how many LoRA pairs it concerns.
        source: where it can be looked up.
    """

    outcome: Outcome
    text: str
    source: str
    tensors: int = 0
    fix: str = _MERGE


def common(adapter: Adapter, engine: str) -> Iterator[Finding]:
    if adapter.is_raw:
        yield Finding(
            "refuses" if engine == "vllm" else "applies part",
            "it is as Tinker hands it out (unembed_tokens, experts in one tensor), names that no "
            "engine has",
            "tinker-cookbook#193",
            len(adapter.pairs),
            _CONVERT,
        )
    if adapter.strangers:
        yield Finding(
            "refuses",
            f"{len(adapter.strangers)} tensors are no LoRA factors ({adapter.strangers[0]})",
            "vllm#9280 (full weights in an adapter)",
        )
    for key in ("use_dora", "modules_to_save"):
        if adapter.config.get(key):
            outcome: Outcome = "refuses" if engine == "vllm" else "uncertain"
            yield Finding(outcome, f"adapter_config.json sets {key}", "vllm/lora/peft_helper.py")
    mistaken = [p for p in adapter.pairs.values() if p.leaf == "embed_tokens"]
    if mistaken:
        # A lookup has no A x: PEFT's embedding factors are called lora_embedding_A and _B.
        yield Finding(
            "applies part" if engine == "peft" else "uncertain",
            "the unembedding of a tied model was written as lora_A/lora_B of embed_tokens, which "
            "would change the model's input",
            "tinker-cookbook 0.5.8, weights/_merge_utils.py; PEFT looks for lora_embedding_A",
            len(mistaken),
            "export it with export_model.py, which puts it on lm_head",
        )


def vllm(adapter: Adapter, config: dict[str, Any] | None) -> Iterator[Finding]:
    kind = config["model_type"] if config else None
    rank = max(pair.rank for pair in adapter.pairs.values())
    allowed = next((r for r in _VLLM_RANKS if r >= rank), None)
    docs = "docs.vllm.ai, vllm.config.lora: MaxLoRARanks, default 16"
    if allowed is None:
        yield Finding("refuses", f"rank {rank} is over {_VLLM_RANKS[-1]}, vLLM's largest", docs)
    else:
        flag = f" --max-lora-rank {allowed}" if rank > _VLLM_DEFAULT_RANK else ""
        command = f"vllm serve BASE --enable-lora{flag} --lora-modules NAME={adapter.directory}"
        text = f"rank {rank} needs --max-lora-rank {allowed}" if flag else f"rank {rank} fits"
        yield Finding("applies all", text, docs, fix=command)
    for pair in _scaled_otherwise(adapter):
        yield Finding(
            "applies part",
            f"rank_pattern or alpha_pattern gives {pair.module} another scale, which vLLM doesn't "
            "read: it scales everything by lora_alpha / r",
            "vllm/lora/peft_helper.py has no such fields",
            1,
        )
        break
    head = _named(adapter, _EMBEDDINGS)
    if head:
        since = _VLLM_HEAD.get(kind or "")
        yield Finding(
            "applies all" if since else "uncertain",
            f"{', '.join(sorted({p.leaf for p in head}))}: "
            + (f"registered for {kind}, in new versions" if since else f"not known for {kind}")
            + "; where it isn't registered vLLM raises ValueError 'expected target modules'",
            since or "vllm/lora/lora_model.py, check_unexpected_modules; tinker-cookbook#193",
            len(head),
            "" if since else f"train with train_unembed=False, or {_MERGE}",
        )
    if head and _ties(config):
        yield Finding(
            "uncertain",
            "lm_head of a base that uses one matrix for input and output: nothing was found that "
            "shows vLLM adapting the output alone",
            "vllm#32599 and vllm#33234 speak of untied models",
            len(head),
            f"train with train_unembed=False, or {_MERGE}",
        )
    experts = [p for p in adapter.pairs.values() if _EXPERT.search(f"{p.module}.")]
    if experts:
        yield _vllm_experts(kind, len(experts))
    if kind in ("deepseek_v3", "deepseek_v2"):
        text = "tinker-cookbook says that neither vLLM nor SGLang serves LoRA for DeepSeek V3"
        yield Finding("refuses", text, "tinker_cookbook/weights/_adapter.py", len(adapter.pairs))
    yield from _linear_attention(
        adapter,
        "a test in tinker-cookbook#533 passed on 0.18; vllm#49354 (open): generations unchanged",
    )


def _vllm_experts(kind: str | None, count: int) -> Finding:
    if kind in ("qwen3_5_moe", "qwen3_5_moe_text"):
        return Finding(
            "refuses",
            "experts one by one: for Qwen3.5 MoE vLLM expects all experts in one pair "
            "(is_3d_moe_weight)",
            "vllm#40005, SkyRL#1852",
            count,
        )
    if kind == "gpt_oss":
        return Finding(
            "uncertain",
            "expert LoRA on gpt-oss in MXFP4 failed on 0.18, kernels for it came with vllm#28971",
            "tinker-cookbook#533, vllm#23610, vllm#28971",
            count,
        )
    if kind == "qwen3_moe":
        return Finding(
            "applies all",
            "experts one by one: FusedMoE takes LoRA since vllm#21229 (October 2025)",
            "vllm#21229; tinker-cookbook#533 served Qwen3-30B-A3B with 128 experts",
            count,
            "",
        )
    text = f"experts one by one: nothing was found that shows it for {kind or 'this model'}"
    return Finding("uncertain", text, "vllm#21229, vllm#40005", count)


def sglang(adapter: Adapter, config: dict[str, Any] | None) -> Iterator[Finding]:
    kind = config["model_type"] if config else None
    largest = max(pair.rank for pair in adapter.pairs.values())
    command = (
        f"python -m sglang.launch_server --model-path BASE --lora-paths NAME={adapter.directory}"
    )
    yield Finding(
        "applies all",
        f"rank {ranks(adapter)}: --max-lora-rank is taken from --lora-paths, and must be "
        f"{largest} or more where adapters are loaded later",
        "docs.sglang.io/advanced_features/lora",
        fix=command,
    )
    unknown = [p for p in adapter.pairs.values() if p.leaf not in _SGLANG_KNOWN]
    unknown = [p for p in unknown if p.leaf not in ("unembed_tokens", "w1", "w2", "w3")]
    if unknown:
        yield Finding(
            "applies part",
            f"{', '.join(sorted({p.leaf for p in unknown}))}: not among the modules that SGLang "
            "adapts, left out with no more than a warning",
            "sglang srt/lora/utils.py, _KNOWN_LORA_TARGET_MODULES; sglang#30499",
            len(unknown),
        )
    nested = [p for p in adapter.pairs.values() if p.module == "model.lm_head"]
    if nested:
        yield Finding(
            "applies part",
            "model.lm_head matches no parameter and is dropped; it must be called lm_head",
            "tinker-cookbook#928",
            len(nested),
        )
    head = _named(adapter, _EMBEDDINGS)
    if head:
        yield Finding(
            "uncertain" if _ties(config) else "applies all",
            f"{', '.join(sorted({p.leaf for p in head}))}: known to new versions; old ones raise "
            "'Not supported yet'"
            + (
                ", and nothing was found on bases that tie it to the input" if _ties(config) else ""
            ),
            "sglang srt/lora/utils.py, EMBEDDING_NAMES; sglang#8222",
            len(head),
            f"train with train_unembed=False, or {_MERGE}" if _ties(config) else "",
        )
    experts = [p for p in adapter.pairs.values() if _EXPERT.search(f"{p.module}.")]
    if experts:
        yield Finding(
            "uncertain",
            f"expert LoRA ({kind or 'unknown model'}): sglang#14105 brought it; tinker-cookbook "
            "0.5.8 still says that it isn't supported",
            "sglang#14105, sglang#9897, tinker_cookbook/weights/_adapter.py",
            len(experts),
        )
    if kind in ("deepseek_v3", "deepseek_v2"):
        text = "tinker-cookbook says that neither vLLM nor SGLang serves LoRA for DeepSeek V3"
        yield Finding("uncertain", text, "tinker_cookbook/weights/_adapter.py", len(adapter.pairs))
    yield from _linear_attention(
        adapter,
        "tinker-cookbook#928: SGLang joins the split weights only where target_modules names the "
        "fused module; sglang#30189: crash at start",
    )


def peft(adapter: Adapter, config: dict[str, Any] | None) -> Iterator[Finding]:
    experts = [p for p in adapter.pairs.values() if _EXPERT.search(f"{p.module}.")]
    source = "peft/utils/transformers_weight_conversion.py"
    if experts:
        kind = config["model_type"] if config else None
        if kind is None:
            text = "experts one by one: say with --base-model which model they are for"
            yield Finding("uncertain", text, source, len(experts), "pass --base-model FOLDER")
        elif _transformers_fuses_experts(kind):
            text = f"experts one by one: PEFT fuses them as transformers fuses {kind}"
            yield Finding("applies all", text, source, len(experts), "")
        else:
            yield Finding(
                "applies part",
                f"experts one by one: transformers keeps the experts of {kind} in one parameter "
                "and PEFT has no conversion for it, so they are left out",
                source,
                len(experts),
            )
    split = _named(adapter, _SPLIT_LINEAR_ATTENTION)
    if split:
        text = "in_proj_q/k/v: transformers has one in_proj_qkv, so these match no module"
        yield Finding("applies part", text, "transformers modeling_qwen3_5.py", len(split))
    if not experts and not split:
        text = "every module is an ordinary linear layer"
        yield Finding("applies all", text, "peft/tuners/lora/model.py", len(adapter.pairs), "")


def _transformers_fuses_experts(kind: str) -> bool:
    """Whether transformers turns this model's checkpoint experts into one parameter on loading."""
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    mapping = get_checkpoint_conversion_mapping(kind) or []
    return any("experts" in str(getattr(rule, "source_patterns", "")) for rule in mapping)


def _linear_attention(adapter: Adapter, source: str) -> Iterator[Finding]:
    split = _named(adapter, _SPLIT_LINEAR_ATTENTION)
    if split:
        text = "in_proj_q/k/v are trained apart and fused in the engine: reports disagree"
        yield Finding("uncertain", text, source, len(split))


def _ties(config: dict[str, Any] | None) -> bool:
    return bool(config and config.get("tie_word_embeddings"))


def _named(adapter: Adapter, leaves: Iterable[str]) -> list[Pair]:
    return [pair for pair in adapter.pairs.values() if pair.leaf in leaves]


def ranks(adapter: Adapter) -> str:
    found = sorted({pair.rank for pair in adapter.pairs.values()})
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _scaled_otherwise(adapter: Adapter) -> Iterator[Pair]:
    """Yield pairs that PEFT scales by something else than ``lora_alpha / r``.

    A pattern matches the whole module path or its end after a dot, as in PEFT.
    """
    by_rank = adapter.config.get("rank_pattern") or {}
    alphas = adapter.config.get("alpha_pattern") or {}
    if not isinstance(by_rank, dict) or not isinstance(alphas, dict):
        raise InputError(
            f"{adapter.directory}: rank_pattern or alpha_pattern is {json.dumps(by_rank or alphas)}, "
            "not an object: fetch the adapter again"
        )
    for pair in adapter.pairs.values():
        rank = _matching(by_rank, pair.module, adapter.config["r"])
        alpha = _matching(alphas, pair.module, adapter.config["lora_alpha"])
        if not math.isclose(alpha / rank, adapter.scale):
            yield pair


def _matching(pattern: dict[str, Any], module: str, default: float) -> float:
    for key, value in pattern.items():
        if re.match(rf"(.*\.)?({key})$", module):
            return value
    return default
