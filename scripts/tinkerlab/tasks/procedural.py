"""Tasks from reasoning-gym's generators: as many as wanted, each with its own scorer.

``reasoning_gym:chain_sum`` or, with options of the generator's config,
``reasoning_gym:chain_sum:max_terms=3,max_digits=2``.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tinkerlab.errors import InputError
from tinkerlab.tasks.types import Task

CHUNK = 200
# The options that this module sets itself.
OURS = ("seed", "size")
MAX_CHUNKS = 50_000


def generate(name: str, options: Mapping[str, Any], seed: int) -> Iterator[Task]:
    """Endless tasks of one generator, the same for the same seed.

    Item ``i`` of a generator depends on its seed plus ``i`` only, so neighbouring seeds would
    give nearly the same tasks; this seed is hashed first.

    Raises:
        InputError: no reasoning-gym, no such generator or option, or an impossible value.
    """
    config = _config(name, options)
    start = int.from_bytes(hashlib.sha256(f"{name}:{seed}".encode()).digest()[:4], "big") >> 1
    return _items(name, config, start)


def _items(name: str, options: dict[str, Any], start: int) -> Iterator[Task]:
    for chunk in range(MAX_CHUNKS):
        first = chunk * CHUNK
        dataset = _create(name, options, start + first)
        for index in range(min(CHUNK, len(dataset))):
            try:
                item = dataset[index]
            except Exception as error:  # each generator has its own ways to fail
                raise InputError(
                    f"reasoning_gym:{name}: item {first + index} can't be made"
                    f" ({type(error).__name__}: {error}); change its options"
                ) from None
            yield _task(name, options, item, first + index)


def _task(name: str, options: dict[str, Any], item: dict[str, Any], index: int) -> Task:
    # As JSON now, so that a scorer sees the same whether or not the task was stored between.
    metadata = json.loads(json.dumps(item["metadata"], default=str))
    entry = {
        "name": name,
        "options": options,
        "question": item["question"],
        "metadata": metadata,
    }
    scalars = {
        key: value
        for key, value in metadata.items()
        if isinstance(value, str | int | float) and key not in ("source_dataset", "source_index")
    }
    return Task(
        [{"role": "user", "content": item["question"]}],
        item["answer"],
        {**scalars, "task": name, "reasoning_gym": entry},
        f"reasoning_gym:{name} item {index}",
    )


def _config(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    try:
        import reasoning_gym  # noqa: F401  (registers the generators)
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise InputError(
            "reasoning_gym tasks need the package reasoning-gym: pip install reasoning-gym"
        ) from None
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else f"it has {len(DATASETS)}"
        raise InputError(f"reasoning_gym has no generator {name!r}; {hint}")
    known = [field.name for field in dataclasses.fields(DATASETS[name][1])]
    for key in options:
        if key not in known or key in OURS:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]}?" if near and near[0] not in OURS else ""
            free = ", ".join(k for k in known if k not in OURS)
            raise InputError(f"reasoning_gym:{name} has no option {key!r}{hint} (it has {free})")
    made = dict(options)
    _create(name, made, 0)
    return made


def _create(name: str, options: dict[str, Any], seed: int) -> Any:
    import reasoning_gym

    try:
        return reasoning_gym.create_dataset(name, seed=seed, size=CHUNK, **options)
    except Exception as error:  # their configs assert, index and compare
        given = ", ".join(f"{key}={value}" for key, value in options.items()) or "no options"
        text = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"reasoning_gym:{name} with {given}: {text}") from None


def read_options(text: str) -> dict[str, Any]:
    """``max_terms=3,names=[a,b]`` as a dict; values are YAML scalars or lists.

    Raises:
        InputError: not of that form.
    """
    options: dict[str, Any] = {}
    for part in _parts(text):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise InputError(f"option {part!r}: write name=value")
        try:
            options[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise InputError(f"option {part!r}: its value is not readable") from None
    return options


def _parts(text: str) -> list[str]:
    """Split at commas that stand outside brackets."""
    parts, depth, current = [], 0, ""
    for char in text:
        depth += (char in "[{(") - (char in "]})")
        if char == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += char
    return [part for part in [*parts, current] if part.strip()]
