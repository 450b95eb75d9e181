"""From a model's name to a folder with its weights and tokenizer.

A name is the embedded default, ``tiny:<architecture>``, a local Hugging Face folder, or a
model on the Hugging Face hub. An alias lets a script that names a big model run on another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tinkerlab.errors import InputError
from tinkerlab.rehearsal.models import hub, smollm2, tiny
from tinkerlab.rehearsal.models.folders import check_folder

DEFAULT_MODEL = smollm2.NAME


@dataclass(frozen=True)
class ModelSource:
    """A base model on disk.

    Attributes:
        name: what the user calls it; the ``base_model`` of a request.
        directory: holds config.json, *.safetensors and the tokenizer's files.
        description: one line for people.
    """

    name: str
    directory: Path
    description: str


@dataclass(frozen=True)
class AvailableModel:
    """A row of ``rehearse.py models``: what a name gives, without making it."""

    name: str
    description: str


def resolve(name: str, aliases: Mapping[str, str] | None = None) -> ModelSource:
    """Find, convert, make or download the model ``name``.

    Args:
        aliases: ``{name as scripts say it: name or folder that is really used}``; one step,
            an alias does not refer to another alias.

    Raises:
        InputError: no such model, or its files can't be used; one line that says why.
    """
    if aliases and name in aliases:
        target = resolve(aliases[name])
        return ModelSource(name, target.directory, f"stands for {name}: {target.description}")
    if name == DEFAULT_MODEL:
        return ModelSource(name, smollm2.folder(), smollm2.DESCRIPTION)
    if name.startswith(tiny.PREFIX):
        return ModelSource(name, tiny.folder(name), _describe_tiny(name))
    local = Path(name).expanduser()
    if name and local.is_dir():
        return ModelSource(name, check_folder(local.resolve()), f"local folder {local.name}")
    if hub.looks_like_a_hub_name(name):
        directory = hub.download(name, offline_choices=[model.name for model in available()])
        return ModelSource(name, check_folder(directory), "from the Hugging Face hub")
    raise InputError(
        f"no model {name!r}: it is neither a folder nor a hub name (owner/model); "
        f"without a network there are {_listed()}"
    )


def available() -> list[AvailableModel]:
    """List the models that need neither a network nor a folder, the default first."""
    return [
        AvailableModel(DEFAULT_MODEL, smollm2.DESCRIPTION),
        *(
            AvailableModel(tiny.PREFIX + kind, _describe_tiny(tiny.PREFIX + kind))
            for kind in tiny.ARCHITECTURES
        ),
    ]


def parse_aliases(pairs: list[str]) -> dict[str, str]:
    """Turn ``["MODEL=DIR", ...]`` from a command line into a mapping.

    Raises:
        InputError: a pair without ``=`` or with an empty side; a model named twice.
    """
    aliases: dict[str, str] = {}
    for pair in pairs:
        name, _, target = (part.strip() for part in pair.partition("="))
        if not name or not target:
            raise InputError(f"--alias {pair!r}: write MODEL=FOLDER or MODEL=MODEL")
        if name in aliases:
            raise InputError(f"--alias names {name} twice: keep one")
        aliases[name] = target
    return aliases


def _describe_tiny(name: str) -> str:
    return f"random {name.removeprefix(tiny.PREFIX)} of {tiny.LAYERS} layers with a byte tokenizer"


def _listed() -> str:
    return ", ".join(model.name for model in available())
