"""A dotted name in backticks, such as `tinker.TrainingClient.forward_backward`, must import.

Names that start with a package, with a class of the SDK or with a module of tinker-cookbook are
held to this; file names and metric keys are something else.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from markdown_pages import inline_code, markdown_pages, read_page

PACKAGES = {"tinker", "tinker_cookbook", "tinkerlab", "transformers", "torch", "peft", "chz"}
_NAME = re.compile(r"^([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\(.*\))?$")
_FILE = re.compile(
    r"\.(py|md|json|jsonl|yaml|yml|txt|html|svg|png|toml|safetensors|log|csv|gguf|sh|j2)$"
)


@cache
def roots() -> dict[str, str]:
    """First word of a name -> the module that it stands in."""
    import tinker
    import tinker_cookbook

    found = dict.fromkeys(PACKAGES, "")
    for name, value in list(vars(tinker).items()):
        if inspect.isclass(value):
            found[name] = "tinker"
    for module in pkgutil.iter_modules(tinker_cookbook.__path__):
        found.setdefault(module.name, "tinker_cookbook")
    return found


def resolve(name: str) -> Any:
    """The object that ``name`` stands for.

    Raises:
        LookupError: there is none.
    """
    first = name.split(".")[0]
    parts = [*roots()[first].split("."), *name.split(".")] if roots()[first] else name.split(".")
    thing: Any = importlib.import_module(parts[0])
    path = parts[0]
    for part in parts[1:]:
        path = f"{path}.{part}"
        if not hasattr(thing, part):
            fields = {**getattr(thing, "model_fields", {}), **getattr(thing, "__annotations__", {})}
            fields |= getattr(thing, "__chz_fields__", {})
            if part in fields:
                return fields[part]
            if f"self.{part}" in source_of(thing):
                return None  # an attribute that its constructor sets
            try:
                thing = importlib.import_module(path)
                continue
            except ImportError:
                raise LookupError(f"{path} does not exist") from None
        thing = getattr(thing, part)
    return thing


def source_of(thing: Any) -> str:
    """The source of a class's constructor; nothing for what has none in Python."""
    try:
        return inspect.getsource(thing.__init__) if inspect.isclass(thing) else ""
    except (OSError, TypeError):
        return ""


def dotted_names(page: Path) -> set[str]:
    spans = (match for span in inline_code(read_page(page)) if (match := _NAME.match(span)))
    names = {match.group(1) for match in spans}
    return {n for n in names if n.split(".")[0] in roots() and not _FILE.search(n)}


@pytest.mark.parametrize("page", markdown_pages(), ids=str)
def test_dotted_names_import(page: Path) -> None:
    missing = []
    for name in sorted(dotted_names(page)):
        try:
            resolve(name)
        except LookupError as error:
            missing.append(f"`{name}`: {error}")
    assert missing == []


def test_names_are_found_and_wrong_ones_told() -> None:
    pages = [page for page in markdown_pages() if dotted_names(page)]
    assert len(pages) >= 3
    for right in (
        "tinker.TrainingClient.forward_backward",
        "SamplingParams.max_tokens",
        "hyperparam_utils.get_lr",
        "tinker_cookbook.supervised.train.Config.recipe_name",
    ):
        resolve(right)
    for wrong in ("tinker.TrainingClient.go", "weights.no_such", "SamplingParams.max_token"):
        with pytest.raises(LookupError, match="does not exist"):
            resolve(wrong)
