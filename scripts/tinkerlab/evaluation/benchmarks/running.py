"""Run the cookbook's benchmarks on every model at once and turn its files into ours.

OUTPUT/<benchmark>/                     the results, as ``suite_results`` writes them
OUTPUT/<benchmark>/raw/<model>/...      what the cookbook's runner keeps; an item that is in it
                                        is not asked again, unless its request failed
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab.cli import say
from tinkerlab.errors import CheckFailed
from tinkerlab.evaluation import results, suite_results
from tinkerlab.evaluation.benchmarks import catalogue, caveats, loading, settings, trajectories
from tinkerlab.evaluation.benchmarks.config import BenchmarksConfig
from tinkerlab.evaluation.benchmarks.loading import Loaded
from tinkerlab.evaluation.benchmarks.threads import one_at_a_time
from tinkerlab.evaluation.clients import open_clients, require_same_base
from tinkerlab.evaluation.offline_run import RunSettings
from tinkerlab.evaluation.suite_results import SuiteRun
from tinkerlab.folders import require_writable

if TYPE_CHECKING:
    from tinker_cookbook.eval.benchmarks import BenchmarkConfig, BenchmarkResult

PROGRESS_SECONDS = 5.0


@dataclass(frozen=True)
class Outcome:
    """One benchmark: its summary, or why there is none."""

    name: str
    summary: dict[str, Any] | None
    error: str | None = None


@dataclass(frozen=True)
class Models:
    """The models that are asked, and how.

    Attributes:
        clients: by ``base`` and ``trained``.
        base_model: what both are, or were trained on.
    """

    names: dict[str, str]
    clients: Mapping[str, Any]
    base_model: str
    renderer_name: str
    renderer: Any
    judge: Mapping[str, Any]


@dataclass(frozen=True)
class Job:
    """One benchmark, ready to run. ``how`` has the runner's settings for each model."""

    loaded: Loaded
    how: dict[str, BenchmarkConfig]

    def file(self, key: str) -> Path:
        return trajectories.file_of(Path(str(self.how[key].save_dir)), self.loaded.benchmark.name)


def run_all(config: BenchmarksConfig, run: RunSettings | None, overwrite: bool) -> list[Outcome]:
    """Run every benchmark on every model; one that can't be run does not stop the others.

    Raises:
        InputError: no such benchmark or model; a folder holds another evaluation.
    """
    catalogue.require(config.benchmarks, judge=bool(config.judge_model))
    names = settings.models_of(config, run)
    asked = settings.renderer_of(config, run)
    wanted = {
        name: settings.identity(config.of(name), name, names, asked) for name in config.benchmarks
    }
    output = Path(config.output)
    require_writable(output)
    if not overwrite:
        for name in config.benchmarks:
            settings.require_free(output / name, wanted[name])
    done: dict[str, Outcome] = {}
    for name in config.benchmarks:
        summary = settings.earlier(output / name, wanted[name])
        if summary is not None:
            say(f"{output / name} already holds this evaluation; nothing to do")
            done[name] = Outcome(name, summary)
    rest = [name for name in config.benchmarks if name not in done]
    if rest:
        models = _open(config, names, asked)
        for name in rest:
            settings.claim(output / name, wanted[name])
        jobs, failed = _prepare(config, rest, models, output)
        with _quiet():
            found = asyncio.run(_all(jobs, models))
        done |= {name: Outcome(name, None, why) for name, why in failed.items()}
        for name, job in jobs.items():
            done[name] = _outcome(job, found[name], wanted[name], models, config, run)
    return [done[name] for name in config.benchmarks]


def _open(config: BenchmarksConfig, names: dict[str, str], asked: str) -> Models:
    from tinkerlab.data import load_tokenizer, resolve_renderer

    judged = {"judge": config.judge_model} if config.judge_model else {}
    clients = open_clients({**names, **judged}, "run_benchmarks.py")
    judge = clients.pop("judge", None)
    if len(clients) == 2:
        require_same_base(clients["base"], clients["trained"], names["base"], names["trained"])
    model = next(iter(clients.values())).get_base_model()
    resolved = resolve_renderer(model, one_at_a_time(load_tokenizer(model)), asked)
    for warning in resolved.warnings:
        say(f"warning: {warning}")
    judging: dict[str, Any] = {}
    if judge is not None:
        name = judge.get_base_model()
        its = resolve_renderer(name, one_at_a_time(load_tokenizer(name)))
        judging = {"judge_sampling_client": judge, "judge_renderer": its.renderer}
    return Models(names, clients, model, resolved.name, resolved.renderer, judging)


def _prepare(
    config: BenchmarksConfig, names: list[str], models: Models, output: Path
) -> tuple[dict[str, Job], dict[str, str]]:
    """Load every benchmark's items before a reply is paid for.

    Returns:
        The benchmarks that can be run; why the others can't.
    """
    jobs: dict[str, Job] = {}
    failed: dict[str, str] = {}
    for name in names:
        builder = catalogue.registry()[name]
        how = {
            key: settings.for_cookbook(
                config.of(name),
                models.base_model,
                builder,
                save_dir=str(output / name / settings.RAW / key),
                **models.judge,
            )
            for key in models.clients
        }
        try:
            loaded = loading.load(name, models.renderer, next(iter(how.values())))
        except loading.NoItemsError as error:
            failed[name] = str(error)
            say(f"error: {error}")
            continue
        jobs[name] = Job(loaded, how)
        limits = next(iter(how.values()))
        say(
            f"{name}: {len(loaded.answers)} items, replies of at most {limits.max_tokens} tokens,"
            f" {limits.timeout_seconds:.0f} s each"
        )
        for key in how:
            trajectories.forget_failures(jobs[name].file(key))
    return jobs, failed


async def _all(jobs: Mapping[str, Job], models: Models) -> dict[str, dict[str, Any]]:
    """Benchmark -> model -> its result, or the exception that it ended with."""
    from tinker_cookbook.eval.benchmarks import run_benchmark

    pairs = [(name, key) for name in jobs for key in models.clients]
    runs = [
        run_benchmark(
            jobs[name].loaded.benchmark,  # type: ignore[arg-type] - has all that a builder has
            models.clients[key],
            models.renderer,
            jobs[name].how[key],
        )
        for name, key in pairs
    ]
    teller = asyncio.create_task(_tell(jobs))
    try:
        done = await asyncio.gather(*runs, return_exceptions=True)
    finally:
        teller.cancel()
    found: dict[str, dict[str, Any]] = {name: {} for name in jobs}
    for (name, key), outcome in zip(pairs, done, strict=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, Exception):
            raise outcome
        found[name][key] = outcome
    return found


async def _tell(jobs: Mapping[str, Job]) -> None:
    """Say how many items are answered, every few seconds."""
    started = time.monotonic()
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        parts = [
            f"{name} {key} {trajectories.count(job.file(key))}/{len(job.loaded.answers)}"
            for name, job in jobs.items()
            for key in job.how
        ]
        say(f"{time.monotonic() - started:.0f} s: {', '.join(parts)}")


def _outcome(
    job: Job,
    found: Mapping[str, BenchmarkResult | Exception],
    wanted: Mapping[str, Any],
    models: Models,
    config: BenchmarksConfig,
    run: RunSettings | None,
) -> Outcome:
    name = job.loaded.benchmark.name
    theirs: dict[str, Any] = {}
    for key, result in found.items():
        if isinstance(result, Exception):
            line = " ".join(str(result).split())[:300]
            return Outcome(name, None, f"{name}: {key}: {type(result).__name__}: {line}")
        theirs[key] = _reckoned(result)
    items = {
        key: trajectories.read_items(job.file(key), job.loaded, how) for key, how in job.how.items()
    }
    entry = catalogue.entry(name)
    told = [*entry.caveats, *caveats.of_answers(list(job.loaded.answers.values()))]
    if entry.experimental:
        told.append("experimental in tinker-cookbook: its scores may differ from published ones")
    if config.of(name).system_prompt and not entry.system_prompt:
        told.append("it makes no use of system_prompt")
    if not job.loaded.tells_cut:
        told.append("replies that were cut are graded as they stand")
    suite = SuiteRun(
        suite=f"cookbook:{name}",
        models=models.names,
        base_model=models.base_model,
        renderer=models.renderer_name,
        source=entry.dataset,
        settings=wanted,
        seed=config.seed,
        log_path=str(run.folder) if run else None,
        extra={"cookbook": theirs, "cautions": told},
    )
    folder = Path(config.output) / name
    try:
        summary = suite_results.write(folder, suite, items)
    except CheckFailed as error:
        return Outcome(name, None, str(error))
    if run is not None:
        results.copy_logs(run.folder, folder, run.name)
    return Outcome(name, summary)


def _reckoned(result: BenchmarkResult) -> dict[str, Any]:
    """The cookbook's own figures: failed items count as wrong in its score."""
    return {
        "score": float(result.score),
        "score_completed": float(result.score_completed),
        "num_examples": result.num_examples,
        "num_correct": result.num_correct,
        "num_errors": result.num_errors,
        "num_truncated": result.num_truncated,
        "metrics": {key: value for key, value in result.metrics.items() if value == value},
    }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the cookbook's progress lines off stderr; ours say the same in one."""
    logger = logging.getLogger(loading.LOGGER)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # It samples by a name that the SDK is about to drop; nobody here can change that.
            warnings.filterwarnings("ignore", "DEPRECATED: SamplingClient.sample_async")
            yield
    finally:
        logger.setLevel(before)
