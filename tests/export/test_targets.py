"""Layouts of models that are too large to make here: placed by name and shape alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinkerlab.errors import InputError
from tinkerlab.export.adapter import Adapter, Pair
from tinkerlab.export.checkpoint import Checkpoint
from tinkerlab.export.targets import Part, place


def base(shapes: dict[str, tuple[int, ...]], kind: str = "qwen3", **config) -> Checkpoint:
    config |= {"model_type": kind}
    return Checkpoint(Path(), config, {}, shapes, dict.fromkeys(shapes, "F32"))


def adapter(**shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> Adapter:
    pairs = {name: Pair(name, a, b, "F32") for name, (a, b) in shapes.items()}
    return Adapter(Path("adapter"), {"r": 2, "lora_alpha": 32}, pairs, ())


GDN = "model.layers.0.linear_attn"
QKV = {f"{GDN}.in_proj_{x}": ((2, 8), (rows, 2)) for x, rows in (("q", 4), ("k", 4), ("v", 6))}


def test_split_projections_stack_into_rows_of_the_fused_one() -> None:
    target = "model.language_model.layers.0.linear_attn.in_proj_qkv.weight"
    found = place(adapter(**QKV), base({target: (14, 8)}, "qwen3_5"))
    assert not found.homeless
    assert {p.module[-1]: p.region for p in found.parts[target]} == {
        "q": (slice(0, 4),),
        "k": (slice(4, 8),),
        "v": (slice(8, 14),),
    }


def test_a_missing_sibling_is_an_error_not_a_guess() -> None:
    pairs = {name: shapes for name, shapes in QKV.items() if not name.endswith("_k")}
    with pytest.raises(InputError, match="in_proj_k"):
        place(adapter(**pairs), base({f"{GDN}.in_proj_qkv.weight": (14, 8)}))


def experts() -> Adapter:
    stem = "model.layers.0.mlp.experts"
    return adapter(
        **{
            f"{stem}.w1": ((1, 2, 8), (3, 6, 2)),
            f"{stem}.w3": ((1, 2, 8), (3, 6, 2)),
            f"{stem}.w2": ((3, 2, 6), (1, 8, 2)),
        }
    )


@pytest.mark.parametrize(
    ("kind", "gate_up", "down", "up", "transposed"),
    [
        ("qwen3_5_moe", (3, 12, 8), (3, 8, 6), (1, slice(6, 12), slice(None)), False),
        ("qwen3_vl_moe", (3, 8, 12), (3, 6, 8), (1, slice(None), slice(6, 12)), True),
        ("gpt_oss", (3, 8, 12), (3, 6, 8), (1, slice(None), slice(1, None, 2)), True),
    ],
)
def test_fused_experts(kind, gate_up, down, up, transposed) -> None:
    stem = "model.layers.0.mlp.experts"
    found = place(
        experts(), base({f"{stem}.gate_up_proj": gate_up, f"{stem}.down_proj": down}, kind)
    )
    assert not found.homeless
    assert len(found.parts[f"{stem}.gate_up_proj"]) == 6  # gate and up of three experts
    assert len(found.parts[f"{stem}.down_proj"]) == 3
    wanted = Part(f"{stem}.w3", 1, up, transposed)
    assert wanted in found.parts[f"{stem}.gate_up_proj"]


def test_experts_one_by_one() -> None:
    stem = "model.layers.0.mlp.experts"
    names = {
        f"{stem}.{e}.{p}_proj.weight": (1, 1) for e in range(3) for p in ("gate", "up", "down")
    }
    found = place(experts(), base(names))
    assert found.parts.keys() == names.keys()
    assert found.parts[f"{stem}.2.down_proj.weight"] == [Part(f"{stem}.w2", 2, (slice(None),))]


def test_unembedding() -> None:
    pair = adapter(**{"model.unembed_tokens": ((2, 8), (9, 2))})
    embedding = {"model.embed_tokens.weight": (9, 8)}
    assert place(pair, base(embedding, tie_word_embeddings=True)).parts.keys() == {"lm_head.weight"}
    nested = base(embedding, text_config={"tie_word_embeddings": True})
    assert place(pair, nested).parts.keys() == {"lm_head.weight"}
    assert place(pair, base(embedding)).homeless == ("model.unembed_tokens",)


def test_empty_placeholders_need_no_place() -> None:
    pair = adapter(**{"model.layers.0.mlp.experts.w3": ((0, 2, 8), (0, 6, 2))})
    assert place(pair, base({})) == place(adapter(), base({}))
