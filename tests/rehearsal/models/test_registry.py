"""Names to folders, and one clear line for each way in which a folder can be unusable."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tinkerlab.errors import InputError
from tinkerlab.rehearsal.models import registry, tiny

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a private copy of tiny:llama's folder, to be damaged."""
    return Path(shutil.copytree(tiny.folder("tiny:llama"), tmp_path / "model"))


def refusal(name: str | Path) -> str:
    with pytest.raises(InputError) as caught:
        registry.resolve(str(name))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_local_folder(model: Path) -> None:
    source = registry.resolve(str(model))
    assert source.directory == model
    assert source.name == str(model)


def test_relative_folder_becomes_absolute(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    assert registry.resolve("model").directory == model


def test_alias_to_folder_and_to_name(model: Path) -> None:
    aliases = registry.parse_aliases([f"Qwen/Qwen3-8B={model}", "meta-llama/L = tiny:llama"])
    source = registry.resolve("Qwen/Qwen3-8B", aliases)
    assert source.name == "Qwen/Qwen3-8B"
    assert source.directory == model
    other = registry.resolve("meta-llama/L", aliases)
    assert other.directory == registry.resolve("tiny:llama").directory
    assert registry.resolve("tiny:llama", aliases).name == "tiny:llama"


def test_an_alias_may_shadow_what_it_points_to(model: Path) -> None:
    aliases = {registry.DEFAULT_MODEL: "tiny:llama", "tiny:llama": registry.DEFAULT_MODEL}
    assert registry.resolve(registry.DEFAULT_MODEL, aliases).directory == tiny.folder("tiny:llama")


@pytest.mark.parametrize("pair", ["", "=x", "x=", "x", " = "])
def test_bad_alias(pair: str) -> None:
    with pytest.raises(InputError, match="MODEL=FOLDER"):
        registry.parse_aliases([pair])


def test_alias_twice() -> None:
    with pytest.raises(InputError, match="a/b twice"):
        registry.parse_aliases(["a/b=c", "a/b=d"])


def test_no_config(model: Path) -> None:
    (model / "config.json").unlink()
    assert "no config.json" in refusal(model)
    (model / "adapter_config.json").write_text("{}")
    assert "it is an adapter" in refusal(model)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"model_type": 3}'])
def test_bad_config(model: Path, text: str) -> None:
    (model / "config.json").write_text(text)
    assert "config.json" in refusal(model)


def test_no_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()
    assert "no *.safetensors" in refusal(model)
    (model / "pytorch_model.bin").write_bytes(b"\x80")
    assert "pickled weights (pytorch_model.bin)" in refusal(model)


def test_cut_off_weights(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "model.safetensors: broken" in refusal(model)


def test_missing_shard(model: Path) -> None:
    (model / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "x.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    message = refusal(model)
    assert "2 of 2" in message
    assert "model-00001-of-00002.safetensors" in message
    for wrong in (
        "[]",
        "{",
        '{"weight_map": {"a": 1}}',
        '{"weight_map": {"a": ["b"]}}',
        '{"weight_map": 3}',
    ):
        (model / "model.safetensors.index.json").write_text(wrong)
        assert "not a safetensors index" in refusal(model)


def test_no_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    assert "no tokenizer" in refusal(model)


@pytest.mark.parametrize("name", ["", "nonsense", "./missing/folder", "/no/such/folder", "a/b/c"])
def test_neither_folder_nor_hub_name(name: str) -> None:
    message = refusal(name)
    assert "neither a folder nor a hub name" in message
    assert registry.DEFAULT_MODEL in message


def test_hub_out_of_reach_names_what_is_left(tmp_path: Path) -> None:
    """In a process of its own: the hub's client reads HF_HUB_OFFLINE when it is imported."""
    code = (
        "from tinkerlab.rehearsal.models import registry\n"
        "try:\n    registry.resolve('Qwen/Qwen3-8B')\n"
        "except Exception as e:\n    print(type(e).__name__, e)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(SCRIPTS), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.startswith("InputError can't download Qwen/Qwen3-8B: the hub can't be")
    assert "tiny:qwen3" in result.stdout
    assert len(result.stdout.splitlines()) == 1


def test_a_model_in_the_hub_cache_is_served_without_a_network(model: Path, tmp_path: Path) -> None:
    commit = "0" * 40
    repository = tmp_path / "hub" / "models--Qwen--Qwen3-8B"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    shutil.copytree(model, repository / "snapshots" / commit)
    code = (
        "from tinkerlab.rehearsal.models import registry\n"
        "print(registry.resolve('Qwen/Qwen3-8B').directory)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(SCRIPTS), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == str(repository / "snapshots" / commit)


def test_available_starts_with_the_default_and_needs_nothing_heavy() -> None:
    code = (
        "import sys\nfrom tinkerlab.rehearsal.models import registry\n"
        "print([m.name for m in registry.available()])\n"
        "print([m for m in ('torch', 'transformers', 'gguf', 'numpy') if m in sys.modules])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(SCRIPTS)},
        capture_output=True,
        text=True,
        check=True,
    )
    names, heavy = result.stdout.splitlines()
    assert names.startswith("['HuggingFaceTB/SmolLM2-135M-Instruct', 'tiny:llama'")
    assert heavy == "[]"
