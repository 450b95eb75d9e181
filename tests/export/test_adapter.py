"""Reading an adapter folder: one clear line for each way in which it can be broken."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tinkerlab.errors import InputError
from tinkerlab.export.adapter import read_adapter

A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
B = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"


def write(folder: Path, tensors: dict[str, tuple[int, ...]], config: object = None) -> Path:
    values = {name: np.ones(shape, np.float32) for name, shape in tensors.items()}
    save_file(values, str(folder / "adapter_model.safetensors"))
    document = {"r": 4, "lora_alpha": 32} if config is None else config
    (folder / "adapter_config.json").write_text(
        document if isinstance(document, str) else json.dumps(document)
    )
    return folder


def test_a_pair(tmp_path: Path) -> None:
    adapter = read_adapter(write(tmp_path, {A: (4, 6), B: (8, 4)}))
    pair = adapter.pairs["model.layers.0.self_attn.q_proj"]
    assert (pair.rank, pair.leaf, pair.dtype) == (4, "q_proj", "F32")
    assert adapter.scale == 8.0
    assert not adapter.is_raw
    a, b = adapter.factors(pair.module)
    assert (tuple(a.shape), tuple(b.shape)) == ((4, 6), (8, 4))


def test_names_without_pefts_prefix(tmp_path: Path) -> None:
    bare = {name.removeprefix("base_model.model."): s for name, s in {A: (4, 6), B: (8, 4)}.items()}
    adapter = read_adapter(write(tmp_path, bare))
    assert adapter.factors("model.layers.0.self_attn.q_proj")[0].shape == (4, 6)


@pytest.mark.parametrize(
    ("tensors", "config", "words"),
    [
        ({A: (4, 6)}, None, "no lora_B"),
        ({B: (4, 6)}, None, "no lora_A"),
        ({A: (4, 6), B: (8, 3)}, None, "different ranks"),
        ({"something": (3,)}, None, "no LoRA factors"),
        ({A: (4, 6), B: (8, 4)}, "{", "not valid JSON"),
        ({A: (4, 6), B: (8, 4)}, [], "not a JSON object"),
        ({A: (4, 6), B: (8, 4)}, {"r": 4}, "lora_alpha is None"),
        ({A: (4, 6), B: (8, 4)}, {"r": 0, "lora_alpha": 1}, "r is 0"),
        ({A: (4, 6), B: (8, 4)}, {"r": True, "lora_alpha": 1}, "r is True"),
        ({A: (4, 6), B: (8, 4)}, {"r": "4", "lora_alpha": 1}, "r is '4'"),
    ],
)
def test_broken_folders(tensors, config, words, tmp_path: Path) -> None:
    write(tmp_path, tensors, config)
    with pytest.raises(InputError, match=words) as caught:
        read_adapter(tmp_path)
    assert "\n" not in str(caught.value)


def test_missing_and_cut_off_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no adapter_config\.json"):
        read_adapter(tmp_path)
    write(tmp_path, {A: (4, 6), B: (8, 4)})
    weights = tmp_path / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(InputError, match="broken"):
        read_adapter(tmp_path)
    weights.unlink()
    (tmp_path / "adapter_model.bin").touch()
    with pytest.raises(InputError, match="is a pickle"):
        read_adapter(tmp_path)
