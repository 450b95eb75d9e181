"""The benchmarks of the installed tinker-cookbook, and what each needs."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import inspect
import pkgutil
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinkerlab.errors import InputError

if TYPE_CHECKING:
    from tinker_cookbook.eval.benchmarks import BenchmarkBuilder

# Modules of the package that define no benchmark.
_HELPERS = {"_common", "_types", "_runner", "_ifeval_verify"}
INSTEAD_OF_SANDBOX = (
    "it runs code that a model wrote, in a sandbox of its own that is not set up here; for programs"
    " with unit tests use eval_offline.py --grader code_tests, which isolates them"
)


@dataclass(frozen=True)
class Entry:
    """One benchmark.

    Attributes:
        about: the first line of its own description, which has its size.
        needs: what must be there besides the service: a dataset from the Hub, a judge, a sandbox.
        experimental: the cookbook does not vouch for its agreement with published scores.
    """

    name: str
    about: str
    dataset: str
    needs: tuple[str, ...]
    experimental: bool
    multi_turn: bool


def entries() -> list[Entry]:
    """Every benchmark that the installed package registers, stable ones first."""
    return sorted(
        (_entry(builder) for builder in registry().values()),
        key=lambda entry: (entry.experimental, entry.name),
    )


def registry() -> dict[str, BenchmarkBuilder]:
    """Name -> builder, after all of the package's modules were imported."""
    from tinker_cookbook.eval import benchmarks

    for module in pkgutil.iter_modules(benchmarks.__path__):
        if module.name not in _HELPERS:
            # Some need packages that are not installed; they are no benchmark for us then.
            with contextlib.suppress(ImportError):
                importlib.import_module(f"{benchmarks.__name__}.{module.name}")
    return dict(benchmarks.REGISTRY)


def require(names: list[str], judge: bool) -> dict[str, BenchmarkBuilder]:
    """The builders of ``names``.

    Args:
        judge: whether a judge model was given.

    Raises:
        InputError: no such benchmark; it needs a sandbox, or a judge that is not given.
    """
    known = registry()
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
            raise InputError(f"no benchmark {name!r}; {hint}")
        if known[name].requires_sandbox:
            raise InputError(f"benchmark {name}: {INSTEAD_OF_SANDBOX}")
        if known[name].requires_judge and not judge:
            raise InputError(f"benchmark {name} is judged by a model: set judge_model")
    return {name: known[name] for name in names}


def _entry(builder: Any) -> Entry:
    needs = []
    if builder.requires_judge:
        needs.append("judge_model")
    if builder.requires_sandbox:
        needs.append("a sandbox (not here)")
    return Entry(
        name=builder.name,
        about=(inspect.getdoc(type(builder)) or "").split("\n")[0],
        dataset=dataset_of(builder),
        needs=tuple(needs),
        experimental=builder.experimental,
        multi_turn=builder.multi_turn,
    )


def dataset_of(builder: Any) -> str:
    """The Hub dataset that the benchmark's module names; empty where it names none."""
    source = inspect.getsource(inspect.getmodule(type(builder)))  # type: ignore[arg-type]
    found = re.findall(r'"([\w.-]+/[\w.-]+)"', source)
    return next((name for name in found if not name.startswith(("http", "/"))), "")
