"""A benchmark's items, loaded by its own code, before anything is asked of a model.

Several of the cookbook's benchmarks log that a dataset, or one of its parts, could not be had and
go on with none, or without that part: the score is then 0, or another benchmark's.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinkerlab.evaluation.benchmarks import catalogue

if TYPE_CHECKING:
    from tinker_cookbook.eval.benchmarks import BenchmarkConfig
    from tinker_cookbook.renderers import Renderer
    from tinker_cookbook.rl.types import Env

LOGGER = "tinker_cookbook.eval.benchmarks"


class Benchmark:
    """A builder of the cookbook's, each of whose items has an id of its own.

    Ids are hashes of the question, so that questions which occur twice share one. The runner
    would take the second for done as soon as the first is, on a resumed run, and only then.
    """

    def __init__(self, builder: Any) -> None:
        self._builder = builder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)

    def make_envs(self, renderer: Renderer, config: BenchmarkConfig) -> Sequence[Env]:
        envs: list[Any] = list(self._builder.make_envs(renderer, config))
        seen: Counter[str] = Counter()
        for index, env in enumerate(envs):
            name = str(getattr(env, "example_id", None) or index)
            seen[name] += 1
            env.example_id = name if seen[name] == 1 else f"{name}#{seen[name]}"
        return envs


@dataclass(frozen=True)
class Loaded:
    """A benchmark that is ready to run.

    Attributes:
        answers: id -> reference answer, in the benchmark's own order.
        tells_cut: whether a reply that was cut is marked so, and counted as wrong without being
            graded. The other kind grades it as it stands, and says nothing.
    """

    benchmark: Benchmark
    answers: dict[str, str]
    tells_cut: bool


class NoItemsError(Exception):
    """The benchmark's items can't be had; the text says why, and what to do."""


def load(name: str, renderer: Renderer, config: BenchmarkConfig) -> Loaded:
    """Load all items of a benchmark.

    Raises:
        NoItemsError: the dataset can't be had, or not all of it.
    """
    benchmark = Benchmark(catalogue.registry()[name])
    with _complaints() as heard:
        try:
            envs = benchmark.make_envs(renderer, config)
        # Whatever a download, a cache or a changed column raises is about this benchmark alone.
        except Exception as error:
            raise NoItemsError(_why(name, f"{type(error).__name__}: {error}")) from error
    failed = [line for line in heard if line.startswith("Could not load")]
    if not envs:
        raise NoItemsError(_why(name, heard[0] if heard else "it has no rows that can be used"))
    if failed:
        first = " ".join(failed[0].split())[:200]
        raise NoItemsError(_why(name, f"{len(failed)} of its parts are missing: {first}"))
    return Loaded(
        benchmark,
        answers={str(getattr(env, "example_id", "")): _answer(env) for env in envs},
        tells_cut=all(hasattr(env, "message_env") for env in envs),
    )


def _why(name: str, line: str) -> str:
    source = catalogue.entry(name).dataset
    what = f"its dataset {source}" if source else "its items"
    return (
        f"{name}: {what} can't be had ({' '.join(line.split())[:300]}); it is read from the Hugging"
        f" Face Hub, from HF_HOME where an earlier download lies, or from a folder {source} in the"
        " current one"
    )


@contextlib.contextmanager
def _complaints() -> Iterator[list[str]]:
    """What the benchmarks log meanwhile about data that they could not load."""
    heard: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            message = record.getMessage()
            if message.startswith(("Could not load", "Failed to load")):
                heard.append(message)

    logger, listener = logging.getLogger(LOGGER), Listener()
    before = logger.level, logger.propagate
    logger.addHandler(listener)
    logger.setLevel(logging.DEBUG)  # C-Eval mentions a lost subject at this level only
    logger.propagate = False
    try:
        yield heard
    finally:
        logger.removeHandler(listener)
        logger.setLevel(before[0])
        logger.propagate = before[1]


def _answer(env: Any) -> str:
    """An item's reference answer, whatever became of a reply to it.

    The runner logs one only where it graded the reply, which it does not do where the reply was
    cut; what an item is must not depend on how a model answered it.
    """
    inner = getattr(env, "message_env", env)
    expected = getattr(inner, "expected", None)
    if expected is None and hasattr(inner, "instruction_ids"):
        expected = [
            {"id": kind, **{key: value for key, value in settings.items() if value is not None}}
            for kind, settings in zip(inner.instruction_ids, inner.kwargs_list, strict=False)
        ]
    return as_text(expected)


def as_text(value: Any) -> str:
    """Text as it is, everything else as JSON; nothing for None."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
