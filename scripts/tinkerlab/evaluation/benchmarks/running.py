"""Run the cookbook's benchmarks on every model at once and turn its files into ours.

Its runner keeps a trajectory per item under ``raw/<model>/<benchmark>/`` and skips those on the
next start. It counts an item whose request failed as answered wrongly, and never asks again; here
such items are asked again on the next start, and until then left out and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab.cli import say
from tinkerlab.errors import CheckFailed, InputError
from tinkerlab.evaluation import results, suite_results
from tinkerlab.evaluation.benchmarks import catalogue
from tinkerlab.evaluation.benchmarks.config import BenchmarksConfig
from tinkerlab.evaluation.benchmarks.threads import one_at_a_time
from tinkerlab.evaluation.clients import open_clients, require_same_base
from tinkerlab.evaluation.offline_run import RunSettings
from tinkerlab.evaluation.sft import check_checkpoint_path
from tinkerlab.evaluation.suite_results import SuiteItem, SuiteRun
from tinkerlab.folders import require_writable
from tinkerlab.runs import jsonl, provenance

if TYPE_CHECKING:
    from tinker_cookbook.eval.benchmarks import BenchmarkConfig

MAX_TOKENS = 4096
RAW = "raw"
SETTINGS_FILE = "settings.json"
PROGRESS_SECONDS = 5.0


@dataclass(frozen=True)
class Outcome:
    """One benchmark: its summary, or why there is none.

    Attributes:
        cookbook_scores: by model, as the cookbook reckons them: failed items count as wrong.
    """

    name: str
    summary: dict[str, Any] | None
    cookbook_scores: dict[str, float]
    error: str | None = None


def models_of(config: BenchmarksConfig, run: RunSettings | None) -> dict[str, str]:
    """``base`` and ``trained``, whichever are measured.

    Raises:
        InputError: the checkpoint is no sampler checkpoint.
    """
    base = config.base_model or (run.base_model if run else None)
    trained = config.checkpoint or (run.sampler_path if run else None)
    if trained:
        check_checkpoint_path(trained)
    return {key: name for key, name in (("base", base), ("trained", trained)) if name}


def run_all(config: BenchmarksConfig, run: RunSettings | None, overwrite: bool) -> list[Outcome]:
    """Run every benchmark on every model; one that can't be run does not stop the others.

    Raises:
        InputError: no such benchmark or model; the output holds another evaluation.
        CheckFailed: the service failed.
    """
    from tinkerlab.data import load_tokenizer, resolve_renderer

    catalogue.require(config.benchmarks, judge=bool(config.judge_model))
    models = models_of(config, run)
    output = Path(config.output)
    require_writable(output)
    settings = _settings(config, models)
    _claim(output, settings, overwrite)
    names = {**models, **({"judge": config.judge_model} if config.judge_model else {})}
    clients = open_clients(names, "run_benchmarks.py")
    judge = clients.pop("judge", None)
    if len(clients) == 2:
        require_same_base(clients["base"], clients["trained"], models["base"], models["trained"])
    model = next(iter(clients.values())).get_base_model()
    tokenizer = one_at_a_time(load_tokenizer(model))
    wanted = config.renderer or (run and run.renderer) or "auto"
    resolved = resolve_renderer(model, tokenizer, wanted)
    for warning in resolved.warnings:
        say(f"warning: {warning}")
    judge_renderer = None
    if judge is not None:
        judge_name = judge.get_base_model()
        judge_renderer = resolve_renderer(
            judge_name, one_at_a_time(load_tokenizer(judge_name))
        ).renderer
    settings_of = {
        key: _cookbook_config(config, model, output / RAW / key, judge, judge_renderer)
        for key in clients
    }
    with _quiet():
        found = asyncio.run(_all(config.benchmarks, clients, resolved.renderer, settings_of))
    how = SuiteRun(
        suite="",
        models=models,
        base_model=model,
        renderer=resolved.name,
        source="",
        settings=settings,
        seed=config.seed,
        log_path=str(run.folder) if run else None,
    )
    any_of_them = next(iter(settings_of.values()))  # they differ in their folder alone
    return [
        _outcome(name, found[name], how, output, resolved.renderer, any_of_them, run)
        for name in config.benchmarks
    ]


async def _all(
    names: list[str],
    clients: Mapping[str, Any],
    renderer: Any,
    settings: Mapping[str, BenchmarkConfig],
) -> dict[str, dict[str, Any]]:
    """Benchmark -> model -> its result, or the exception that it ended with."""
    from tinker_cookbook.eval.benchmarks import run_benchmark

    for key in clients:
        for name in names:
            forget_failures(Path(str(settings[key].save_dir)), name)
    pairs = [(name, key) for name in names for key in clients]
    runs = [run_benchmark(name, clients[key], renderer, settings[key]) for name, key in pairs]
    teller = asyncio.create_task(_tell(pairs, settings))
    try:
        done = await asyncio.gather(*runs, return_exceptions=True)
    finally:
        teller.cancel()
    for outcome in done:
        if isinstance(outcome, BaseException) and not isinstance(outcome, Exception):
            raise outcome
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    for (name, key), outcome in zip(pairs, done, strict=True):
        found[name][key] = outcome
    return found


async def _tell(pairs: list[tuple[str, str]], settings: Mapping[str, BenchmarkConfig]) -> None:
    """Say how many items are answered, every few seconds."""
    started = time.monotonic()
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        parts = []
        for name, key in pairs:
            file = Path(str(settings[key].save_dir)) / name / "trajectories.jsonl"
            count = file.read_bytes().count(b"\n") if file.is_file() else 0
            parts.append(f"{name} {key} {count}")
        say(f"{time.monotonic() - started:.0f} s: items answered: {', '.join(parts)}")


def forget_failures(folder: Path, benchmark: str) -> None:
    """Drop items that ended in an error from the runner's file, so that they are asked again."""
    file = folder / benchmark / "trajectories.jsonl"
    if not file.is_file():
        return
    jsonl.repair_tail(file)
    rows = jsonl.read(file)
    good = [row for row in rows if row.get("error") is None]
    if len(good) != len(rows):
        jsonl.rewrite(file, good)


def _outcome(
    name: str,
    found: Mapping[str, Any],
    how: SuiteRun,
    output: Path,
    renderer: Any,
    settings_of: BenchmarkConfig,
    logs: RunSettings | None,
) -> Outcome:
    errors = [value for value in found.values() if isinstance(value, Exception)]
    if errors:
        return Outcome(name, None, {}, _why(name, errors[0]))
    scores = {key: float(result.score) for key, result in found.items()}
    answers = answers_of(name, renderer, settings_of)
    items = {
        key: read_items(output / RAW / key / name / "trajectories.jsonl", answers) for key in found
    }
    run = replace(how, suite=f"cookbook:{name}", source=_source(name))
    try:
        summary = suite_results.write(output / name, run, items)
        if logs is not None:
            results.copy_logs(logs.folder, output / name, logs.name)
    except CheckFailed as error:
        return Outcome(name, None, scores, str(error))
    return Outcome(name, summary, scores)


def _source(name: str) -> str:
    return catalogue.dataset_of(catalogue.registry()[name])


def _why(name: str, error: Exception) -> str:
    line = " ".join(str(error).split())[:300]
    source = _source(name)
    if type(error).__module__.startswith(("datasets", "huggingface_hub")) or isinstance(
        error, (ConnectionError, FileNotFoundError, PermissionError)
    ):
        return (
            f"{name}: the dataset {source} can't be had ({type(error).__name__}: {line}); it is"
            " read from the Hugging Face Hub, or from HF_HOME where an earlier download lies"
        )
    return f"{name}: {type(error).__name__}: {line}"


def answers_of(name: str, renderer: Any, settings: BenchmarkConfig) -> dict[str, str]:
    """Item -> its reference answer, from the benchmark's own environments.

    The runner logs an answer only where it graded the reply, which it does not do where the
    reply was cut; what an item is must not depend on how a model answered it.
    """
    found = {}
    for env in catalogue.registry()[name].make_envs(renderer, settings):
        inner = getattr(env, "message_env", env)
        value = getattr(inner, "expected", None) or getattr(inner, "instruction_ids", None)
        found[str(getattr(env, "example_id", ""))] = _text(value)
    return found


def read_items(file: Path, answers: Mapping[str, str]) -> list[SuiteItem]:
    """The runner's trajectories as items.

    The question is the first turn as the model got it, special tokens included: it is what
    makes two items the same. The last of several lines of an item counts.

    Args:
        answers: by item, see ``answers_of``.
    """
    found: dict[str, SuiteItem] = {}
    for row in jsonl.read(file) if file.is_file() else []:
        turns = row.get("turns") or []
        logs, metrics = row.get("logs") or {}, row.get("metrics") or {}
        replies = [turn["content"] for turn in turns if turn["role"] == "assistant"]
        key = str(row.get("example_id") or row["idx"])
        truncated = metrics.get("max_tokens_reached") or metrics.get("context_overflow")
        found[key] = SuiteItem(
            id=key,
            question=str(turns[0]["content"]) if turns else "",
            ground_truth=answers.get(key, ""),
            completion=replies[-1] if replies else "",
            # The cookbook's own count of right items, in every benchmark it has.
            correct=float(row.get("reward") or 0.0) > 0,
            extracted=_text(logs.get("extracted")) or None,
            error=row.get("error"),
            truncated=bool(truncated),
        )
    return list(found.values())


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _cookbook_config(
    config: BenchmarksConfig, model: str, save_dir: Path, judge: Any, judge_renderer: Any
) -> BenchmarkConfig:
    from tinker_cookbook.eval.benchmarks import BenchmarkConfig

    try:
        known = BenchmarkConfig.for_model(model)
    except ValueError:  # the cookbook has a fixed table of models
        known = BenchmarkConfig(max_tokens=MAX_TOKENS)
    return BenchmarkConfig(
        max_examples=config.max_examples,
        concurrency=config.concurrency,
        timeout_seconds=config.timeout_seconds,
        max_tokens=config.max_tokens or known.max_tokens,
        temperature=config.temperature,
        context_window=config.context_window or known.context_window,
        save_dir=str(save_dir),
        judge_sampling_client=judge,
        judge_renderer=judge_renderer,
        system_prompt=config.system_prompt,
    )


def _settings(config: BenchmarksConfig, models: Mapping[str, str]) -> dict[str, Any]:
    """What decides the replies; another value of one of these is another evaluation."""
    names = ("max_examples", "max_tokens", "context_window", "temperature", "system_prompt")
    return {
        "models": dict(models),
        "sampling": {name: getattr(config, name) for name in names},
        "renderer": config.renderer,
        "judge_model": config.judge_model,
        "tinker_cookbook": provenance.versions().get("tinker-cookbook"),
    }


def _claim(output: Path, settings: dict[str, Any], overwrite: bool) -> None:
    """Take the folder for this evaluation.

    Raises:
        InputError: it holds replies that were made otherwise.
    """
    import shutil

    file = output / SETTINGS_FILE
    if file.is_file():
        there = results.read_json(file)
        other = [name for name in settings if there.get(name) != settings[name]]
        if other and not overwrite:
            raise InputError(
                f"{output} holds benchmarks of another evaluation (other {', '.join(other)}); choose"
                " another output, or replace them with --overwrite"
            )
        if other:
            shutil.rmtree(output / RAW, ignore_errors=True)
    results.write_json(file, settings)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the cookbook's progress lines off stderr; ours say the same in one."""
    logger = logging.getLogger("tinker_cookbook.eval.benchmarks")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
