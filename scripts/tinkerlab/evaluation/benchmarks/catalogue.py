"""The benchmarks of the installed tinker-cookbook, and what each needs."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import re
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tinkerlab.cli import say
from tinkerlab.errors import InputError
from tinkerlab.evaluation.benchmarks import caveats, packages

if TYPE_CHECKING:
    from tinker_cookbook.eval.benchmarks import BenchmarkBuilder

# Modules of the package that define no benchmark.
_HELPERS = {"_common", "_types", "_runner", "_ifeval_verify"}
# Items, where the benchmark's own description does not count them or counts another split: the
# datasets' cards on the Hub (AIME and HMMT: 30 problems a contest).
_SIZES = {
    "aime": 30,
    "aime_2025": 30,
    "aime_2026": 30,
    "bfcl": 400,
    "ceval": 1346,
    "hmmt_feb_2025": 30,
    "hmmt_nov_2025": 30,
    "ifeval": 541,
    "longbench": 503,
    "mbpp": 257,
    "mmlu_pro": 12032,
    "mmlu_redux": 3000,  # at most: those that are annotated as faulty are dropped
}
INSTEAD_OF_SANDBOX = (
    "it runs code that a model wrote, in a sandbox of its own that is not set up here; for programs"
    " with unit tests use eval_offline.py --grader code_tests, which isolates them"
)
INSTEAD_OF_TURNS = (
    "it takes several turns, and only single replies are compared here; run it with run_benchmark"
    " of tinker_cookbook.eval.benchmarks in a script of your own"
)


@dataclass(frozen=True)
class Entry:
    """One benchmark.

    Attributes:
        about: the first line of its own description.
        items: how many there are, where that is known.
        dataset: where its items come from; empty where its module names no dataset of the Hub.
        needs: what must be there besides service and dataset: a judge, a sandbox, a package.
        runnable: whether it can be run from here when its needs are met.
        experimental: the cookbook does not vouch for its agreement with published scores.
        system_prompt: whether it makes use of one.
        caveats: what must be known before its score is believed.
    """

    name: str
    about: str
    items: int | None
    dataset: str
    needs: tuple[str, ...]
    runnable: bool
    experimental: bool
    system_prompt: bool
    caveats: tuple[str, ...]


def entries() -> list[Entry]:
    """Every benchmark that the installed package registers, stable ones first."""
    return sorted(map(entry, registry()), key=lambda found: (found.experimental, found.name))


@cache
def registry() -> dict[str, BenchmarkBuilder]:
    """Name -> builder, after all of the package's modules were imported."""
    from tinker_cookbook.eval import benchmarks

    for module in pkgutil.iter_modules(benchmarks.__path__):
        if module.name not in _HELPERS:
            try:
                importlib.import_module(f"{benchmarks.__name__}.{module.name}")
            except ImportError as error:
                say(f"warning: no benchmarks from {module.name.lstrip('_')}: {error}")
    return dict(benchmarks.REGISTRY)


def require(names: list[str], judge: bool) -> dict[str, BenchmarkBuilder]:
    """The builders of ``names``.

    Args:
        judge: whether a judge model was given.

    Raises:
        InputError: no such benchmark; or it needs a sandbox, several turns, a package that is not
            installed, or a judge that is not given.
    """
    known = registry()
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
            raise InputError(f"no benchmark {name!r}; {hint}")
        builder = known[name]
        if builder.requires_sandbox:
            raise InputError(f"benchmark {name}: {INSTEAD_OF_SANDBOX}")
        if builder.multi_turn:
            raise InputError(f"benchmark {name}: {INSTEAD_OF_TURNS}")
        lacking = _lacking(_module(builder))
        if lacking:
            raise InputError(
                f"benchmark {name} can't grade a reply without the package that provides"
                f" {', '.join(lacking)}; install it (its module in tinker_cookbook says from where)"
            )
        if builder.requires_judge and not judge:
            raise InputError(f"benchmark {name} is judged by a model: set judge_model")
    return {name: known[name] for name in names}


@cache
def entry(name: str) -> Entry:
    """What is known of one benchmark."""
    builder = registry()[name]
    module = _module(builder)
    needs = [f"package {package}" for package in _lacking(module)]
    if builder.requires_judge:
        needs.append("judge_model")
    if builder.requires_sandbox:
        needs.append("a sandbox (not here)")
    if builder.multi_turn:
        needs.append("several turns (not here)")
    about = _about(builder, module)
    return Entry(
        name=name,
        about=about,
        items=_SIZES.get(name) or _counted(about),
        dataset=dataset_of(builder),
        needs=tuple(needs),
        runnable=not (builder.requires_sandbox or builder.multi_turn),
        experimental=builder.experimental,
        # MessageEnvs and Envs alike are given it by name where they are given it at all.
        system_prompt="config.system_prompt" in inspect.getsource(module),
        caveats=tuple(caveats.of_benchmark(name, module, packages.missing(module))),
    )


def dataset_of(builder: Any) -> str:
    """The Hub dataset that the benchmark's module names; empty where it names none.

    A module with several benchmarks names several: the one that has this one's own setting (a
    year, a contest) in its name is meant.
    """
    found = re.findall(r'"([\w.-]+/[\w.-]+)"', inspect.getsource(_module(builder)))
    names = [name for name in found if not name.startswith(("http", "/"))]
    own = [value for value in vars(builder).values() if isinstance(value, str)]
    fitting = [name for name in names if any(value in name for value in own)]
    return next(iter(fitting or names), "")


def _module(builder: Any) -> ModuleType:
    return importlib.import_module(type(builder).__module__)


def _lacking(module: ModuleType) -> list[str]:
    return [name for name, fails in packages.missing(module).items() if fails]


def _about(builder: Any, module: ModuleType) -> str:
    """The first line of its description; of its module's, where the class serves several."""
    text = inspect.getdoc(type(builder)) or ""
    if vars(builder):  # made with settings of its own: the class describes none in particular
        text = inspect.getdoc(module) or text
    return text.split("\n")[0]


def _counted(about: str) -> int | None:
    """Items of a benchmark, as its own description counts them."""
    found = re.search(r"([\d,]*\d)(K?)\+? (?:[\w-]+ )*(?:questions|examples|problems)", about)
    if not found:
        return None
    return int(found.group(1).replace(",", "")) * (1000 if found.group(2) else 1)
