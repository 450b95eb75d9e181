"""Evaluate every checkpoint of a run on the same items, and the base model once.

Each checkpoint gets a results folder of its own, as ``eval_offline.py`` would leave it, so that
an interrupted selection goes on where it stopped and each score can be looked into.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tinkerlab import cli
from tinkerlab.data.words import counted
from tinkerlab.diagnosis.run_analysis.run import Run
from tinkerlab.errors import InputError
from tinkerlab.evaluation import attempts, offline_run, sft
from tinkerlab.evaluation.offline import Plan, evaluate
from tinkerlab.evaluation.selection.checkpoints import Checkpoint

if TYPE_CHECKING:
    from tinkerlab.evaluation.attempts import Sampling
    from tinkerlab.tasks import Split

BASE_FOLDER = "base-model"
NLL_FOLDER = "nll"
SCORES_LOG = "scores.jsonl"
MAX_TOKENS = 512


@dataclass(frozen=True)
class Options:
    """What to evaluate on and how; None takes the run's own where it is an RL run."""

    model: str | None = None
    data: str | None = None
    split: Split | None = None
    limit: int | None = None
    seed: int | None = None
    grader: str | None = None
    judge_model: str | None = None
    correct_at: float | None = None
    max_tokens: int | None = None
    samples: int = 1
    temperature: float | None = None
    system_prompt: str | None = None


def measure(
    run: Run,
    checkpoints: Sequence[Checkpoint],
    options: Options,
    output: Path,
    overwrite: bool = False,
) -> list[Path]:
    """Evaluate what is not evaluated yet; the results folders, the base model's first.

    A supervised run without ``data`` is scored by the NLL of the rows that it held out;
    everything else by graded replies to tasks.

    Raises:
        InputError: no checkpoint to sample from; nothing to evaluate on; unusable input.
        CheckFailed: the service or the grader failed; what was done is kept.
    """
    sampled = [checkpoint for checkpoint in checkpoints if checkpoint.sampler_path]
    if not sampled:
        raise InputError(
            f"--evaluate: none of the checkpoints of {run.path} has a sampler_path; save them with"
            " save_weights_for_sampler as well"
        )
    if options.data is None and options.grader is None and not run.config.get("reward"):
        return _measure_nll(run, sampled, output, overwrite)
    plans = make_plans(run, sampled, options, output)
    for plan in plans:
        cli.say(f"evaluating {plan.output.name}")
        evaluate(replace(plan, overwrite=overwrite))
    return [plan.output for plan in plans]


def folder_name(name: str) -> str:
    """A checkpoint's name as that of a folder."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip(".-") or "checkpoint"


def _measure_nll(
    run: Run, checkpoints: Sequence[Checkpoint], output: Path, overwrite: bool
) -> list[Path]:
    from tinkerlab.evaluation.items import read_run

    trained = read_run(run.path)
    folders = []
    for checkpoint in _told(checkpoints):
        folder = output / NLL_FOLDER / folder_name(checkpoint.name)
        plan = sft.Plan(
            base_model=trained.base_model,
            checkpoint=str(checkpoint.sampler_path),
            data_file=trained.held_out_file,
            rendering=trained.rendering,
            output=folder,
            seed=trained.seed,
            num_examples=0,
            overwrite=overwrite,
            scores_log=output / NLL_FOLDER / SCORES_LOG,
        )
        sft.evaluate(plan)
        folders.append(folder)
    return folders


def make_plans(
    run: Run, checkpoints: Sequence[Checkpoint], options: Options, output: Path
) -> list[Plan]:
    """One evaluation of the base model and one of each checkpoint, alike in all else.

    Raises:
        InputError: no tasks, no grader, no base model, or values out of range.
    """
    from tinkerlab.evaluation import passk
    from tinkerlab.tasks import load_tasks

    own = offline_run.read(run.path) if "base_model" in run.config else None
    base_model = options.model or (own.base_model if own else run.model)
    data = options.data or (own.data if own else None)
    grader = options.grader or (own.grader if own else None)
    if data is None or grader is None:
        missing = "--data SOURCE" if data is None else "--grader SPEC"
        raise InputError(f"--evaluate: say on what and how replies are graded: give {missing}")
    if base_model is None:
        raise InputError(f"--evaluate: {run.path}/config.json names no base model; give --model")
    fair = own if own and not options.data else None  # of its own tasks, only those held out
    seed = options.seed if options.seed is not None else (own.seed if own else 0)
    sampling = _sampling(options, own, seed)
    split = options.split or (fair.split if fair else "all")
    limit = options.limit if options.limit is not None else (fair.limit if fair else None)
    renderer = (own and own.renderer) or run.config.get("renderer_name")
    first = Plan(
        base_model=base_model,
        checkpoint=None,
        tasks=load_tasks(data, split, limit, seed, say=cli.say),
        source=str(data),
        split=split,
        grader=grader,
        output=output / BASE_FOLDER,
        sampling=sampling,
        judge_model=options.judge_model,
        correct_at=options.correct_at,
        ks=tuple(passk.default_ks(sampling.samples)),
        renderer=renderer if isinstance(renderer, str) else "auto",
        system_prompt=options.system_prompt or (own.system_prompt if own else None),
    )
    return [first] + [
        replace(
            first,
            base_model=None,
            checkpoint=checkpoint.sampler_path,
            output=output / folder_name(checkpoint.name),
        )
        for checkpoint in checkpoints
    ]


def _sampling(options: Options, own: offline_run.RunSettings | None, seed: int) -> Sampling:
    """How replies are drawn: as the run's own evaluations, where nothing else is said."""
    temperature = options.temperature
    if temperature is None:
        of_run = own.temperature if own and own.temperature is not None else 0.0
        temperature = of_run if options.samples == 1 else (of_run or 1.0)
    most = options.max_tokens if options.max_tokens is not None else (own and own.max_tokens)
    most = MAX_TOKENS if most is None else most
    limit = 1 if options.limit is None else options.limit
    if min(most, options.samples, limit) < 1:
        raise InputError("--max-tokens, --samples and --limit must be at least 1")
    if not 0 <= temperature < float("inf") or seed < 0:
        raise InputError("--temperature and --seed must be numbers of at least 0")
    if options.samples > 1 and temperature == 0:
        raise InputError(
            f"--samples {options.samples} at --temperature 0 would be the same reply"
            f" {options.samples} times; give a higher temperature or one sample"
        )
    return attempts.Sampling(
        max_tokens=most,
        temperature=temperature,
        samples=options.samples,
        seed=seed,
        stop=own.stop if own else (),
    )


def _told(checkpoints: Sequence[Checkpoint]) -> Iterator[Checkpoint]:
    for number, checkpoint in enumerate(checkpoints, start=1):
        cli.say(f"{checkpoint.name}: {number} of {counted(len(checkpoints), 'checkpoint')}")
        yield checkpoint
