"""What names, shapes, types, index and config tell, before any value is read."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tinkerlab.diagnosis.findings import Finding
from tinkerlab.diagnosis.merges.layouts import Plan, canonical
from tinkerlab.export.checkpoint import HEAD, Checkpoint
from tinkerlab.export.weights_check import ROUNDOFF
from tinkerlab.rehearsal.models.folders import INDEX

LISTED = 5
# Extra prediction layers and tables that model classes of transformers don't keep when they
# save: without them the model answers the same, only speculative decoding loses its draft.
_DROPPED = re.compile(r"(^|\.)mtp\.|rotary_emb\.inv_freq$|position_ids$|\.masked_bias$")
# How MXFP4, INT4 and FP8 checkpoints store what others keep in one tensor.
_PACKED = re.compile(
    r"(_blocks|_scales|_scale_inv|\.weight_(packed|scale|shape|zero_point|scale_inv))$"
)
# Fused experts that transformers 5.5.4 turns round while loading if need be, and saves as it
# holds them (conversion_mapping.py, Transpose with check_dims).
_EITHER_WAY = {"qwen3_vl_moe"}
_SIZES = (
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "moe_intermediate_size",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "num_experts_per_tok",
    "norm_topk_prob",
    "rms_norm_eps",
    "rope_theta",
    "vocab_size",
)


@dataclass
class Structure:
    """Which tensors can be compared, and what is wrong with the rest.

    Attributes:
        sources: merged tensor -> the base tensor that it starts from.
        turned: those of them whose last two dimensions are exchanged.
    """

    sources: dict[str, str] = field(default_factory=dict)
    turned: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def listed(names: list[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def check(base: Checkpoint, merged: Checkpoint, plan: Plan) -> Structure:
    """Match the tensors of ``merged`` with those of ``base``."""
    found = Structure()
    found.findings += check_index(merged.directory, merged)
    sources = _names(base, merged, plan, found)
    for name, source in sources.items():
        shape, wanted = merged.shapes[name], base.shapes[source]
        if shape == wanted:
            found.sources[name] = source
        elif shape == (*wanted[:-2], wanted[-1], wanted[-2]) and len(shape) > 1:
            found.sources[name] = source
            found.turned.append(name)
    _turned(base, merged, found)
    _shapes(base, merged, sources, found)
    _dtypes(base, merged, found)
    _config(base, merged, plan, found)
    return found


def _names(base: Checkpoint, merged: Checkpoint, plan: Plan, found: Structure) -> dict[str, str]:
    sources = {name: name for name in merged.shapes if name in base.shapes}
    if plan.own_head and HEAD in merged.shapes:
        sources[HEAD] = base.embedding
    missing = [name for name in base.shapes if name not in merged.shapes]
    extra = [name for name in merged.shapes if name not in sources]
    by_core = {canonical(name): name for name in missing}
    renamed = {name: by_core[canonical(name)] for name in extra if canonical(name) in by_core}
    if renamed:
        sources |= renamed
        missing = [name for name in missing if name not in renamed.values()]
        extra = [name for name in extra if name not in renamed]
        _renamed(base, merged, renamed, found)
    head_copies = [name for name in extra if name == HEAD and base.tied]
    sources |= dict.fromkeys(head_copies, base.embedding if head_copies else "")
    extra = [name for name in extra if name not in head_copies]
    if merged.tied and HEAD in missing:
        missing.remove(HEAD)
        if not base.tied:
            found.findings.append(
                Finding(
                    "output-matrix-dropped",
                    "the base has an output matrix of its own, the merged model uses its embedding",
                    where=HEAD,
                    fix="save lm_head.weight and set tie_word_embeddings to false",
                )
            )
    if plan.own_head and HEAD not in merged.shapes:
        missing = [name for name in missing if name != HEAD]
    dropped = [name for name in missing if _DROPPED.search(name) or _past_layers(base, name)]
    missing = [name for name in missing if name not in dropped]
    if dropped:
        found.notes.append(
            f"{len(dropped)} tensors of the base that decoding doesn't use are not in the merged "
            f"model ({listed(dropped)}): fine without speculative decoding"
        )
    packed = [name for name in missing if _PACKED.search(name)]
    if packed:
        cores = {_PACKED.sub("", name).removesuffix(".weight") for name in packed}
        extra = [name for name in extra if name.removesuffix(".weight") not in cores]
        missing = [name for name in missing if name not in packed]
        found.notes.append(
            f"{len(packed)} packed values or scales of a quantised base are not in the merged "
            f"model ({listed(packed)}): it was dequantised, which is not compared"
        )
    _missing_extra(missing, extra, merged, found)
    return sources


def _past_layers(base: Checkpoint, name: str) -> bool:
    """Whether a tensor belongs to a layer past the last one (DeepSeek's prediction layers)."""
    text = base.config.get("text_config")
    config = text if isinstance(text, dict) else base.config
    count, layer = config.get("num_hidden_layers"), re.search(r"\.layers\.(\d+)\.", name)
    return bool(layer) and isinstance(count, int) and int(layer.group(1)) >= count


def _renamed(
    base: Checkpoint, merged: Checkpoint, renamed: dict[str, str], found: Structure
) -> None:
    example, was = next(iter(renamed.items()))
    if merged.model_type != base.model_type:
        found.notes.append(
            f"{len(renamed)} tensors are named as {merged.model_type} names them ({example})"
        )
        return
    wrapped = [name for name in renamed if name.startswith("base_model.model.")]
    found.findings.append(
        Finding(
            "tensors-renamed",
            f"{len(renamed)} tensors have other names than in the base, so that a loader finds "
            "none of them and starts from random numbers",
            where=example,
            evidence=(f"the base calls it {was}", f"both configs say {base.model_type}"),
            fix="save the model that merge_and_unload() returns, not PEFT's wrapper"
            if wrapped
            else "give the tensors the base's names",
        )
    )


def _missing_extra(
    missing: list[str], extra: list[str], merged: Checkpoint, found: Structure
) -> None:
    if missing:
        found.findings.append(
            Finding(
                "missing-tensors",
                f"{len(missing)} tensors of the base are not in the merged model",
                where=missing[0],
                evidence=(f"missing: {listed(missing)}",),
                fix="merge again and write every shard; a loader fills these with random numbers",
            )
        )
    if not extra:
        return
    leftovers = [name for name in extra if "lora_" in name or ".base_layer." in name]
    if leftovers:
        cause, what = "lora-tensors-left", "LoRA factors or PEFT's wrapper are still in the model"
        fix = "save the model that merge_and_unload() returns"
        extra = leftovers
    else:
        cause, what = "extra-tensors", f"{len(extra)} tensors are not in the base"
        fix = "write the change into the base's own tensors: a loader ignores unknown names"
    evidence = [f"extra: {listed(extra)}"]
    without = [name for name in extra if name.startswith("model.layers.")]
    if without and any(".language_model." in name for name in merged.shapes):
        evidence.append(
            "the model's layers are under language_model: these were written without that prefix"
        )
    found.findings.append(Finding(cause, what, extra[0], tuple(evidence), fix))


def _turned(base: Checkpoint, merged: Checkpoint, found: Structure) -> None:
    if not found.turned:
        return
    name = found.turned[0]
    shapes = f"{list(merged.shapes[name])}, in the base {list(base.shapes[found.sources[name]])}"
    experts = [name for name in found.turned if ".experts." in name]
    if len(experts) == len(found.turned) and base.model_type in _EITHER_WAY:
        found.notes.append(
            f"{len(experts)} expert tensors are stored transposed ({name}: {shapes}), as "
            "transformers 5 saves this family: it reads both, other engines may not"
        )
        return
    found.findings.append(
        Finding(
            "experts-transposed" if experts else "tensors-transposed",
            f"{len(found.turned)} tensors have their last two dimensions exchanged",
            where=name,
            evidence=(shapes,),
            fix="store each tensor in the orientation that it has in the base",
        )
    )


def _shapes(
    base: Checkpoint, merged: Checkpoint, sources: dict[str, str], found: Structure
) -> None:
    other = [name for name in sources if name not in found.sources]
    if other:
        name = other[0]
        vocabulary = merged.shapes[name][1:] == base.shapes[sources[name]][1:] and (
            "embed" in name or name == HEAD
        )
        found.findings.append(
            Finding(
                "shape-changed",
                f"{len(other)} tensors have another shape than in the base",
                where=name,
                evidence=tuple(
                    f"{one}: {list(merged.shapes[one])}, in the base "
                    f"{list(base.shapes[sources[one]])}"
                    for one in other[:LISTED]
                ),
                fix="the vocabulary was resized: merge without resize_token_embeddings, or give "
                "the base that was resized in the same way"
                if vocabulary
                else "merge into the base that is given here",
            )
        )


def _dtypes(base: Checkpoint, merged: Checkpoint, found: Structure) -> None:
    changes = Counter(
        (base.dtypes[source], merged.dtypes[name])
        for name, source in found.sources.items()
        if base.dtypes[source] != merged.dtypes[name]
    )
    for (was, now), count in changes.items():
        told = str(merged.config.get("dtype") or merged.config.get("torch_dtype") or "")
        names = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
        kept = [
            name
            for name, source in found.sources.items()
            if base.dtypes[source] == was == merged.dtypes[name]
        ]
        coarser = ROUNDOFF.get(now, 1.0) > ROUNDOFF.get(was, 1.0)
        if told == names.get(now) and not (kept and coarser):
            found.notes.append(f"{count} tensors are {now}, {was} in the base, as the config says")
            continue
        example = next(
            name
            for name, source in found.sources.items()
            if (base.dtypes[source], merged.dtypes[name]) == (was, now)
        )
        found.findings.append(
            Finding(
                "dtype-changed",
                f"{count} tensors are stored as {now}, in the base as {was}",
                where=example,
                evidence=(
                    f"the merged model's config says {told or 'nothing about it'}",
                    f"{len(kept)} tensors kept {was}",
                ),
                fix="store each tensor in the type that it has in the base",
                severity="warning",
            )
        )


def _config(base: Checkpoint, merged: Checkpoint, plan: Plan, found: Structure) -> None:
    def flat(config: dict) -> dict:
        text = config.get("text_config")
        inner = text if isinstance(text, dict) else {}
        return {**inner, **{key: value for key, value in config.items() if key != "text_config"}}

    first, second = flat(base.config), flat(merged.config)
    differing = [
        f"{key}: {second[key]}, in the base {first[key]}"
        for key in _SIZES
        if key in first and key in second and first[key] != second[key]
    ]
    if differing:
        found.findings.append(
            Finding(
                "config-changed",
                "config.json describes another model than the base",
                where=str(merged.directory / "config.json"),
                evidence=tuple(differing[:LISTED]),
                fix="copy the base's config.json",
            )
        )
    if plan.own_head and HEAD in merged.shapes and merged.tied:
        found.findings.append(
            Finding(
                "config-ties-output",
                "the merged model has an output matrix of its own, but its config ties the "
                "output to the embedding",
                where=str(merged.directory / "config.json"),
                evidence=(
                    "tie_word_embeddings is true (or left at a default of true)",
                    "transformers 5 notices; engines that believe the config ignore lm_head.weight",
                ),
                fix="set tie_word_embeddings to false, in text_config too where there is one",
            )
        )


def check_index(directory: Path, model: Checkpoint) -> list[Finding]:
    """Does the index say where each tensor is? ``model`` was read through it."""
    path = directory / INDEX
    if not path.is_file():
        return []
    where = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
    evidence = []
    single = directory / "model.safetensors"
    if single.is_file() and single.name not in where.values():
        evidence.append(
            "model.safetensors lies beside the index, which doesn't name it: transformers reads "
            "model.safetensors, engines may read the shards, and they need not agree"
        )
    wrong = [name for name, file in where.items() if model.files.get(name) != directory / file]
    if wrong:
        evidence.append(f"{len(wrong)} tensors are not in the file it names: {listed(wrong)}")
    unlisted = [name for name in model.files if name not in where]
    if unlisted:
        evidence.append(f"{len(unlisted)} tensors are not in the index: {listed(unlisted)}")
    shards = {directory / file for file in where.values()} | {single}
    stray = sorted(f.name for f in directory.glob("model-*.safetensors") if f not in shards)
    if stray:
        evidence.append(f"{len(stray)} shards are not in the index: {listed(stray)}")
    if not evidence:
        return []
    return [
        Finding(
            "stale-index",
            "the index doesn't belong to the weight files beside it",
            where=str(path),
            evidence=tuple(evidence),
            fix="merge into an empty folder; or delete the files and the index of the older save",
        )
    ]
