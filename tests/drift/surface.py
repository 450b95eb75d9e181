"""What this project relies on of the installed tinker and tinker-cookbook, as one JSON document.

Run with the interpreter of the environment to be looked at:

    python tests/drift/surface.py > surface.json

A flat mapping: a name such as ``tinker.TrainingClient.forward_backward`` -> what is true of it
(a signature, a value, the fields of a config). ``compare.py`` tells two of them apart. Uses
nothing but the standard library and the two packages, so that it runs in any environment.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("tinker", "tinker_cookbook")
VERSIONS = ("tinker", "tinker-cookbook", "transformers", "pydantic", "torch")


def surface() -> dict[str, str]:
    """Everything, by name."""
    found: dict[str, str] = {}
    for name in VERSIONS:
        found[f"version of {name}"] = metadata.version(name)
    for module in modules_in_use():
        found |= dict(_module(module))
    found |= dict(_models())
    found |= dict(_command_line())
    return found


def modules_in_use() -> list[str]:
    """The modules of the two packages that the scripts, the tests or the pages name."""
    names = {"tinker", "tinker.types", "tinker.cli.__main__"}
    for path in [*ROOT.glob("scripts/**/*.py"), *ROOT.glob("tests/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module)
    for folder in ("skills", "templates"):
        for path in (ROOT / folder).glob("**/*.md"):
            names |= set(re.findall(r"\btinker(?:_cookbook)?(?:\.[a-z_]\w*)+", path.read_text()))
    return sorted(name for name in names if name.split(".")[0] in PACKAGES)


def _module(name: str) -> Iterator[tuple[str, str]]:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        # A page may name a function where this looks for a module: its module is told instead.
        if error.name == name and "." in name:
            parent = name.rpartition(".")[0]
            with_parent = getattr(_import(parent), name.rpartition(".")[2], None)
            yield name, "is there" if with_parent is not None else "missing"
        else:
            yield name, f"not importable: {error}"
        return
    except Exception as error:  # whatever a module raises at import is what we want to know
        yield name, f"not importable: {type(error).__name__}: {error}"
        return
    for key in sorted(_public(module)):
        yield from _thing(f"{name}.{key}", getattr(module, key))


def _import(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def _public(module: ModuleType) -> Iterator[str]:
    """What a module offers: not what it imported from elsewhere."""
    declared = getattr(module, "__all__", None)
    if declared is not None:
        yield from (key for key in declared if hasattr(module, key))
        return
    for key, value in vars(module).items():
        own = f"{getattr(value, '__module__', None) or module.__name__}."
        constant = isinstance(value, str | int | float | tuple | frozenset)
        if not key.startswith("_") and (constant or own.startswith(f"{module.__name__}.")):
            yield key


def _thing(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if inspect.isclass(value):
        yield from _class(name, value)
    elif callable(value):
        yield name, _signature(value)
    elif not inspect.ismodule(value):
        yield name, _plain(value)


_DESCRIBED: dict[type, str] = {}


def _class(name: str, cls: type) -> Iterator[tuple[str, str]]:
    first = _DESCRIBED.setdefault(cls, name)
    if first != name:  # offered by several modules: its members are told once
        yield name, f"is {first}"
        return
    yield name, f"class of {', '.join(base.__name__ for base in cls.__bases__)}"
    if issubclass(cls, enum.Enum):
        for member in cls:
            yield f"{name}.{member.name}", _plain(member.value)
        return
    for field, shown in _fields(cls).items():
        yield f"{name}.{field}", shown
    for key, member in vars(cls).items():
        if not key.startswith("_") and inspect.isfunction(inspect.unwrap(_function(member))):
            yield f"{name}.{key}", _signature(_function(member))


def _function(member: Any) -> Any:
    return member.__func__ if isinstance(member, staticmethod | classmethod) else member


def _fields(cls: type) -> dict[str, str]:
    """The fields of a pydantic model, a dataclass or a chz config, with their defaults."""
    if hasattr(cls, "model_fields"):
        fields = cls.model_fields.items()  # pyright: ignore[reportAttributeAccessIssue]
        return {key: f"{_plain(f.annotation)} = {_plain(f.default)}" for key, f in fields}
    if dataclasses.is_dataclass(cls):
        return {f.name: f"{_plain(f.type)} = {_plain(f.default)}" for f in dataclasses.fields(cls)}
    if hasattr(cls, "__chz_fields__"):
        fields = cls.__chz_fields__.items()  # pyright: ignore[reportAttributeAccessIssue]
        return {key: f"{_plain(f._raw_type)} = {_plain(f._default)}" for key, f in fields}
    return {}


def _signature(function: Any) -> str:
    try:
        text = _plain(str(inspect.signature(function)))
    except (TypeError, ValueError):
        text = "(...)"
    return text + (" deprecated" if hasattr(function, "__deprecated__") else "")


def _plain(value: Any) -> str:
    """A value as text without addresses, which differ from run to run."""
    text = value if isinstance(value, str) else repr(value)
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    if isinstance(value, frozenset | set):
        text = repr(sorted(value, key=repr))
    return text if len(text) <= 400 else f"{text[:400]}..."


def _models() -> Iterator[tuple[str, str]]:
    """The lineup: attributes and learning rate of every model that the cookbook knows."""
    from tinker_cookbook import hyperparam_utils, model_info

    for maker in sorted(name for name in vars(model_info) if re.fullmatch(r"get_\w+_info", name)):
        for model, attributes in getattr(model_info, maker)().items():
            name = f"{attributes.organization}/{model}"
            yield f"model {name}", _plain(attributes)
            try:
                rate = f"{hyperparam_utils.get_lr(name):.3e}"
            except Exception as error:  # no formula, or it wants the model's files
                rate = type(error).__name__
            yield f"get_lr of {name}", rate


def _command_line() -> Iterator[tuple[str, str]]:
    """Every command of ``tinker`` with its options."""
    import click
    from tinker.cli.__main__ import main_cli

    def walk(path: str, command: click.Command) -> Iterator[tuple[str, str]]:
        words = [
            "/".join(p.opts) if isinstance(p, click.Option) else f"<{p.name}>"
            for p in command.params
        ]
        yield f"command {path}", " ".join(words)
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                yield from walk(f"{path} {name}", inner)

    yield from walk("tinker", main_cli)


if __name__ == "__main__":
    json.dump(surface(), sys.stdout, indent=0, sort_keys=True)
