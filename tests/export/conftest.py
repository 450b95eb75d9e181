"""Adapters of tiny models with factors that are far from zero, and a stand-in for the service."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tinkerlab.export.behaviour import Logprobs, local_logprobs
from tinkerlab.rehearsal.models import tiny

RANK = 4


@dataclass
class Trained:
    """A base model, an adapter as the service hands it out, and what the two compute.

    ``base_logprobs`` and ``trained_logprobs`` make it a ``verify.Reference``: the answers come
    from the rehearsal's engine, which applies the factors beside the base, unmerged.
    """

    base_dir: Path
    adapter_dir: Path
    base_name: str
    _engine: list = field(default_factory=list)

    def _load(self):
        if not self._engine:
            from safetensors.torch import load_file

            from tinkerlab.rehearsal.engine import lora
            from tinkerlab.rehearsal.engine.base import BaseModel
            from tinkerlab.rehearsal.models.registry import ModelSource

            base = BaseModel.load(ModelSource(self.base_name, self.base_dir, ""))
            stored = load_file(str(self.adapter_dir / "adapter_model.safetensors"))
            pairs = {}
            for site in base.sites:
                a, b = (stored[f"{adapter_name(site)}.lora_{x}.weight"] for x in "AB")
                pairs[site.name] = (a, b)
            self._engine = [base, lora.LoraWeights(32 / RANK, pairs)]
        return self._engine

    def base_logprobs(self, model: str, sequences: list[list[int]]) -> Logprobs:
        return local_logprobs(self._load()[0].hf, sequences)

    def trained_logprobs(self, checkpoint: str, sequences: list[list[int]]) -> Logprobs:
        from tinkerlab.rehearsal.engine import lora

        base, weights = self._load()
        with lora.use_adapter(weights):
            return local_logprobs(base.hf, sequences)


def adapter_name(site) -> str:
    """The service's name of a LoRA site."""
    name = "model.unembed_tokens" if site.kind == "unembed" else site.name
    return f"base_model.model.{name}"


@pytest.fixture(scope="session")
def make_trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """Make the trained model of a tiny architecture; the same one for the whole session."""
    made: dict[str, Trained] = {}

    def make(architecture: str) -> Trained:
        if architecture not in made:
            made[architecture] = _make(architecture, tmp_path_factory.mktemp(architecture))
        return made[architecture]

    return make


def _make(architecture: str, folder: Path) -> Trained:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    from tinkerlab.rehearsal.engine.lora import find_sites

    base_dir = tiny.folder(f"tiny:{architecture}")
    generator = torch.Generator().manual_seed(7)
    tensors = {}
    for site in find_sites(AutoModelForCausalLM.from_pretrained(str(base_dir))):
        name = adapter_name(site)
        a = torch.randn(site.a_shape(RANK), generator=generator) * site.d_in**-0.5
        b = torch.randn(site.b_shape(RANK), generator=generator) * 0.02
        tensors |= {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    config = {"r": RANK, "lora_alpha": 32, "peft_type": "LORA"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return Trained(base_dir, folder, f"tiny:{architecture}")


@pytest.fixture(scope="session")
def make_merged(
    make_trained: Callable[[str], Trained], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, Path], Path]:
    """Copy the right merged model of an architecture to a folder, to be damaged there."""
    made: dict[str, Path] = {}

    def copy(architecture: str, destination: Path) -> Path:
        if architecture not in made:
            from tinkerlab.export.adapter import read_adapter
            from tinkerlab.export.build import build_merged
            from tinkerlab.export.checkpoint import read_checkpoint

            trained = make_trained(architecture)
            made[architecture] = tmp_path_factory.mktemp("merged") / architecture
            build_merged(
                read_adapter(trained.adapter_dir),
                read_checkpoint(trained.base_dir),
                made[architecture],
            )
        return Path(shutil.copytree(made[architecture], destination))

    return copy


@pytest.fixture
def edit() -> Callable[[Path, str, Callable], None]:
    """Change one tensor of a model folder: ``edit(folder, name, lambda tensor: ...)``."""

    def change(folder: Path, name: str, how: Callable) -> None:
        from safetensors import safe_open
        from safetensors.torch import load_file, save_file

        for file in folder.glob("*.safetensors"):
            with safe_open(str(file), framework="pt") as opened:
                if name not in opened.keys():  # noqa: SIM118
                    continue
            tensors = load_file(str(file))
            tensors[name] = how(tensors[name]).contiguous()
            save_file(tensors, str(file), metadata={"format": "pt"})
            return
        raise KeyError(name)

    return change
