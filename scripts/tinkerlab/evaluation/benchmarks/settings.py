"""What an evaluation is made with: the cookbook's settings, and whose folder a folder is."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab.errors import InputError
from tinkerlab.evaluation import results, suite_results
from tinkerlab.evaluation.benchmarks.config import BenchmarksConfig
from tinkerlab.evaluation.offline_run import RunSettings
from tinkerlab.evaluation.sft import check_checkpoint_path
from tinkerlab.runs import provenance

if TYPE_CHECKING:
    from tinker_cookbook.eval.benchmarks import BenchmarkBuilder, BenchmarkConfig

MAX_TOKENS = 4096  # for models that the cookbook has no setting for; its own 32,768 is many a
# model's whole context
RAW = "raw"
SETTINGS_FILE = "settings.json"


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


def renderer_of(config: BenchmarksConfig, run: RunSettings | None) -> str:
    """The renderer that is asked for: by the config, else the run's, else the one that fits."""
    return config.renderer or (run and run.renderer) or "auto"


def for_cookbook(
    config: BenchmarksConfig, model: str, builder: BenchmarkBuilder, **extra: Any
) -> BenchmarkConfig:
    """One benchmark's settings as the cookbook's runner takes them.

    What the config leaves open is the cookbook's own value for the model. It has those for a fixed
    table of models; another model gets ``MAX_TOKENS`` and the time that the benchmark recommends.

    Args:
        config: with the benchmark's own settings applied (``BenchmarksConfig.of``).
        extra: further fields of BenchmarkConfig.
    """
    from tinker_cookbook.eval.benchmarks import BenchmarkConfig

    try:
        known = BenchmarkConfig.for_model(model)
    except ValueError:
        time = max(BenchmarkConfig().timeout_seconds, builder.recommended_timeout)
        known = BenchmarkConfig(max_tokens=MAX_TOKENS, timeout_seconds=time)
    return BenchmarkConfig(
        max_examples=config.max_examples,
        concurrency=config.concurrency,
        timeout_seconds=config.timeout_seconds or known.timeout_seconds,
        max_tokens=config.max_tokens or known.max_tokens,
        temperature=config.temperature,
        context_window=config.context_window or known.context_window,
        system_prompt=config.system_prompt,
        **extra,
    )


def identity(
    config: BenchmarksConfig, benchmark: str, models: Mapping[str, str], renderer: str
) -> dict[str, Any]:
    """What decides the replies; another value of one of these is another evaluation.

    Args:
        config: with the benchmark's own settings applied.
    """
    names = ("max_examples", "max_tokens", "context_window", "temperature", "system_prompt")
    return {
        "models": dict(models),
        "benchmark": benchmark,
        "sampling": {name: getattr(config, name) for name in names},
        "renderer": renderer,
        "judge_model": config.judge_model,
        "tinker_cookbook": provenance.versions().get("tinker-cookbook"),
    }


def require_free(folder: Path, wanted: Mapping[str, Any]) -> None:
    """Refuse a folder with results that were made otherwise.

    Raises:
        InputError: names what is different.
    """
    other = _difference(folder, wanted)
    if other:
        raise InputError(
            f"{folder} holds another evaluation (other {', '.join(other)}); choose another output,"
            " or replace it with --overwrite"
        )


def earlier(folder: Path, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    """The summary of this very evaluation, if it is there and no item is left out."""
    both = len(wanted["models"]) == 2
    file = folder / (results.SUMMARY_FILE if both else suite_results.SCORES_FILE)
    if not file.is_file() or _difference(folder, wanted):
        return None
    summary = results.read_json(file)
    return summary if summary.get("left_out", {}).get("items") == 0 else None


def claim(folder: Path, wanted: Mapping[str, Any]) -> None:
    """Take a benchmark's folder; what was made otherwise in it is removed."""
    if _difference(folder, wanted):
        suite_results.forget(folder)
        for name in (RAW, results.LOGS_FOLDER):
            shutil.rmtree(folder / name, ignore_errors=True)
    results.write_json(folder / SETTINGS_FILE, dict(wanted))


def _difference(folder: Path, wanted: Mapping[str, Any]) -> list[str]:
    """Names of the settings that the folder's results were made otherwise with."""
    file = folder / SETTINGS_FILE
    if file.is_file():
        there = results.read_json(file)
        return [name for name in wanted if there.get(name) != wanted[name]]
    there = (results.SUMMARY_FILE, suite_results.SCORES_FILE)
    return ["origin"] if any((folder / name).exists() for name in there) else []
