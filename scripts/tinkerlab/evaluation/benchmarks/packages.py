"""Packages that a benchmark imports only when it grades, read from its source.

The cookbook's own check (``requires_sandbox``, ``requires_judge``) does not know of these: the
first reply is paid for before an import fails, and the runner then counts every item as wrong.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

COOKBOOK = "tinker_cookbook"
# What these import is the runner's business, or a sandbox's.
_SHARED = {"_common", "_types", "_runner"}


def missing(module: ModuleType) -> dict[str, bool]:
    """Packages that are imported but not installed -> whether grading fails without them.

    An import in a function that catches the failure leaves grading to go on in another way, which
    changes scores; every other one ends in an error.
    """
    found: dict[str, bool] = {}
    for source in _sources(module):
        for name, caught in _imports(source):
            if name != COOKBOOK and name not in sys.stdlib_module_names and not _is_here(name):
                found[name] = found.get(name, False) or not caught
    return found


def _is_here(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _sources(module: ModuleType) -> Iterator[str]:
    """The module's source, and that of the cookbook's modules which it imports to grade."""
    source = _read(module.__name__)
    yield source
    package = module.__name__.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            name = node.module
            helper = name.startswith(f"{package}._") and name.rpartition(".")[2] not in _SHARED
            if helper or name.startswith(f"{COOKBOOK}.recipes."):
                yield _read(name)


def _read(name: str) -> str:
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""


def _imports(source: str) -> Iterator[tuple[str, bool]]:
    """Top-level packages that ``source`` imports, and whether a function copes without them."""

    def walk(node: ast.AST, in_function: bool, caught: bool) -> Iterator[tuple[str, bool]]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], caught) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0], caught
        in_function = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        tried = isinstance(node, ast.Try) and in_function
        for child in ast.iter_child_nodes(node):
            yield from walk(child, in_function, caught or tried)

    yield from walk(ast.parse(source), in_function=False, caught=False)
