"""The runs of a sweep: their names, folders and commands, checked before any of them starts."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinkerlab.errors import InputError
from tinkerlab.runs import provenance
from tinkerlab.sweeps.spec import OURS, Settings, Spec
from tinkerlab.sweeps.trainers import Trainer, trainer_named

MAX_RUNS = 32
LONGEST_NAME = 100  # what training/config_checks.run_name permits


@dataclass(frozen=True)
class Member:
    """One run of a sweep.

    Attributes:
        settings: what sets it apart, as the user wrote it.
        overrides: the ``key=value`` words of its command.
        config: every setting, as the trainer reads them.
        inputs: SHA-256 of each file that a setting names, such as ``train_file``.
    """

    name: str
    folder: Path
    settings: Settings
    overrides: tuple[str, ...]
    config: Mapping[str, Any]
    inputs: Mapping[str, str]


@dataclass(frozen=True)
class Plan:
    """A sweep that may begin.

    Attributes:
        swept: the settings in which its runs differ, in the order in which they were named.
    """

    trainer: Trainer
    base_config: Path | None
    output: Path
    members: tuple[Member, ...]
    swept: tuple[str, ...]

    def command(self, member: Member) -> list[str]:
        """The trainer's arguments after ``python``."""
        base = ["--config", str(self.base_config)] if self.base_config else []
        return [str(self.trainer.path), *base, *member.overrides]


def make_plan(spec: Spec, max_runs: int = MAX_RUNS) -> Plan:
    """Every run of the sweep, each checked as its trainer would.

    Raises:
        InputError: nothing to vary, too many runs, settings that the trainer refuses, two runs
            with equal settings or one folder.
    """
    if spec.trainer is None:
        raise InputError("which trainer? --trainer sl_trainer.py, or trainer: in the --config file")
    trainer = trainer_named(spec.trainer)
    _refuse_ours(spec)
    points = combinations(spec)
    if len(points) > max_runs:
        raise InputError(
            f"{len(points)} runs are more than {max_runs}; try fewer values, or allow it with"
            f" --max-runs {len(points)}"
        )
    swept = _swept(points, spec)
    output = (spec.output or Path("runs") / _default_name(trainer, swept)).expanduser()
    members = []
    for point in points:
        name = run_name({key: point[key] for key in swept if key in point})
        folder = output / name
        settings = {**spec.settings, **point, "run_name": name, "log_path": str(folder)}
        overrides = tuple(f"{key}={value}" for key, value in settings.items())
        try:
            config = trainer.load(spec.base_config, overrides)
        except InputError as error:
            raise InputError(f"run {name}: {error}") from None
        members.append(Member(name, folder, point, overrides, config, _inputs(config)))
    _refuse_equal(members)
    return Plan(trainer, spec.base_config, output, tuple(members), swept)


def combinations(spec: Spec) -> list[Settings]:
    """Each listed run with each point of the grid; the last setting changes fastest."""
    if not spec.grid and not spec.runs:
        raise InputError("nothing to vary: write key=a,b,c, or grid: or runs: in the file")
    axes = [[(key, value) for value in values] for key, values in spec.grid.items()]
    grid = [dict(point) for point in itertools.product(*axes)]
    both = sorted({key for run in spec.runs for key in run if key in spec.grid})
    if both:
        raise InputError(f"{both[0]} is in grid and in runs; keep it in one of them")
    return [{**run, **point} for run in (spec.runs or [{}]) for point in grid]


def _refuse_ours(spec: Spec) -> None:
    named = {*spec.settings, *spec.grid, *(key for run in spec.runs for key in run)}
    taken = sorted(named.intersection(OURS))
    if taken:
        raise InputError(
            f"{taken[0]}: a sweep names its runs and their folders itself, under --output"
        )


def _swept(points: Sequence[Settings], spec: Spec) -> tuple[str, ...]:
    """Settings that differ between runs; those of a sweep of one run are all that it names."""
    order = list(dict.fromkeys([*(key for run in spec.runs for key in run), *spec.grid]))
    varied = [key for key in order if len({point.get(key) for point in points}) > 1]
    return tuple(varied or order)


def run_name(settings: Settings) -> str:
    """``learning_rate-1e-4_lora_rank-16``: a folder's name that tells the run's settings.

    What a name may not hold becomes ``-``; a name that is too long ends in a hash.
    """
    parts = [f"{key}-{value}" for key, value in settings.items()]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", "_".join(parts))
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256("_".join(parts).encode()).hexdigest()[:8]
    return f"{name[: LONGEST_NAME - 9]}-{digest}"


def _default_name(trainer: Trainer, swept: Sequence[str]) -> str:
    kind = trainer.script.removesuffix("_trainer.py")
    return f"sweep-{kind}-" + "-".join(swept)


def _inputs(config: Mapping[str, Any]) -> dict[str, str]:
    named = {
        key: Path(value).expanduser()
        for key, value in config.items()
        if isinstance(value, str) and key not in OURS and len(value) < 4096
    }
    return {
        key: provenance.file_sha256(path) for key, path in sorted(named.items()) if path.is_file()
    }


def _refuse_equal(members: Sequence[Member]) -> None:
    """No two runs with one folder, none with the same settings under two names.

    Raises:
        InputError: there are such runs.
    """
    folders: dict[Path, Member] = {}
    configs: dict[str, Member] = {}
    for member in members:
        twin = folders.setdefault(member.folder, member)
        if twin is not member:
            raise InputError(
                f"two runs have the folder {member.folder}: {_told(twin)} and {_told(member)};"
                " leave one out, or write values whose names differ in more than punctuation"
            )
        settings = {key: value for key, value in member.config.items() if key not in OURS}
        twin = configs.setdefault(json.dumps(settings, sort_keys=True, default=str), member)
        if twin is not member:
            raise InputError(f"runs {twin.name} and {member.name} are the same; leave one out")


def _told(member: Member) -> str:
    return " ".join(f"{key}={value}" for key, value in member.settings.items())
