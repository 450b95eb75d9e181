"""What a user asks a sweep for: a YAML file, or ``key=a,b,c`` words on the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinkerlab.errors import InputError

OURS = ("run_name", "log_path")
"""Settings that a sweep gives each of its runs."""

Settings = dict[str, str]


@dataclass
class Spec:
    """A sweep as it was asked for, nothing checked against the trainer yet.

    Attributes:
        settings: of every run, over the base config.
        grid: setting -> the values to try; every combination is a run.
        runs: settings of single runs; each is combined with every point of the grid.
    """

    trainer: str | None = None
    base_config: Path | None = None
    output: Path | None = None
    settings: Settings = field(default_factory=dict)
    grid: dict[str, list[str]] = field(default_factory=dict)
    runs: list[Settings] = field(default_factory=list)
    metric: str | None = None
    at_once: int | None = None
    max_runs: int | None = None


def read_file(file: Path) -> Spec:
    """The sweep that a YAML file describes.

    Raises:
        InputError: unreadable, an unknown key, or a value of another kind.
    """
    from tinkerlab.training.config import read_yaml

    document = read_yaml(file)
    known = tuple(Spec.__dataclass_fields__)
    unknown = sorted(str(key) for key in document if key not in known)
    if unknown:
        raise InputError(
            f"{file}: unknown key {unknown[0]!r}; known: {', '.join(known)}. A trainer's settings"
            " belong under settings, grid or runs"
        )
    spec = Spec()
    for name in ("trainer", "metric"):
        if document.get(name) is not None:
            setattr(spec, name, str(document[name]))
    for name in ("base_config", "output"):
        if document.get(name) is not None:
            setattr(spec, name, Path(str(document[name])))
    for name in ("at_once", "max_runs"):
        value = document.get(name)
        if value is not None and (type(value) is not int or value < 1):
            raise InputError(f"{file}: {name} must be a whole number of at least 1, got {value!r}")
        setattr(spec, name, value)
    spec.settings = _mapping(document.get("settings"), f"{file}: settings")
    for key, values in _raw_mapping(document.get("grid"), f"{file}: grid").items():
        spec.grid[key] = [text(v) for v in (values if isinstance(values, list) else [values])]
        if not spec.grid[key]:
            raise InputError(f"{file}: grid: {key} has no values")
    runs = document.get("runs") or []
    if not isinstance(runs, list):
        raise InputError(f"{file}: runs must be a list of settings, one mapping a run")
    spec.runs = [
        _mapping(run, f"{file}: runs, number {place}") for place, run in enumerate(runs, start=1)
    ]
    return spec


def add_words(spec: Spec, words: Sequence[str]) -> None:
    """Add ``key=value`` (of every run) and ``key=a,b,c`` (of the grid); they win over the file.

    Commas within brackets, braces and quotes are part of a value.

    Raises:
        InputError: a word of another form.
    """
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise InputError(f"{word!r}: write key=value, or key=a,b,c to try each")
        values = split_values(value)
        if not all(values) and len(values) > 1:
            raise InputError(f"{word!r}: a value is empty; write key=a,b,c without spaces")
        if len(values) == 1:
            spec.grid.pop(key, None)
            spec.settings[key] = value
        else:
            spec.settings.pop(key, None)
            spec.grid[key] = values


def split_values(value: str) -> list[str]:
    """``a,b`` is two values, ``[a,b]`` and ``"a,b"`` are one."""
    parts, depth, quote = [""], 0, ""
    for letter in value:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += letter
    return parts


def text(value: Any) -> str:
    """A YAML value as the command line of a trainer takes it."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _raw_mapping(value: Any, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError(f"{where} must be 'setting: value' lines")
    return {str(key): item for key, item in value.items()}


def _mapping(value: Any, where: str) -> Settings:
    return {key: text(item) for key, item in _raw_mapping(value, where).items()}
