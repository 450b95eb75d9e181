"""Run every rule over every script and say what they found."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tinkerlab.diagnosis.findings import Diagnosis, Finding
from tinkerlab.diagnosis.lint.program import Function, Program, follow
from tinkerlab.diagnosis.lint.rules import (
    chat,
    checkpoints,
    cookbook,
    futures,
    robustness,
    waits,
    weights_in_use,
)
from tinkerlab.diagnosis.lint.rules.base import Hit, Rule, line
from tinkerlab.diagnosis.lint.sources import Source, read_sources
from tinkerlab.errors import InputError

# In the order in which findings of one file matter to its author.
RULES: tuple[Rule, ...] = (
    futures.coroutine_result,
    futures.coroutine_dropped,
    futures.loss_attribute,
    futures.tensor_in_loss_config,
    waits.forward_without_backward,
    weights_in_use.stale_sampler,
    waits.wait_before_submit,
    waits.sequential_samples,
    weights_in_use.off_policy_importance_sampling,
    weights_in_use.substeps,
    waits.blocking_in_async,
    waits.late_sampler_save,
    checkpoints.wrong_kind_of_path,
    checkpoints.sampler_download,
    checkpoints.weights_only_resume,
    checkpoints.ephemeral_name,
    checkpoints.short_ttl,
    checkpoints.no_permanent_save,
    chat.encode_for_chat_model,
    chat.hard_coded_renderer,
    chat.renderer_default,
    chat.parse_truth,
    robustness.own_timeout,
    robustness.own_retry,
    cookbook.missing_recipe_name,
    cookbook.ask_for_log_dir,
    futures.client_future,
    futures.deprecated_call,
    futures.deprecated_async,
)


def check(paths: Iterable[Path]) -> Diagnosis:
    """Read the scripts at ``paths`` (files or folders) and apply every rule.

    Raises:
        InputError: a path is missing, or a file is not a Python script that parses.
    """
    diagnosis = Diagnosis(
        "nothing here waits too early, samples from stale weights or loses work",
        checked={"files": 0, "functions": 0, "calls_of_the_SDK": 0},
    )
    spared: Counter[str] = Counter()
    for source in read_sources(paths):
        try:
            program = follow(source.path, source.tree, source.lines)
            found = hits(program)
        except RecursionError as error:
            raise InputError(f"{source.path}: expressions nested too deeply to follow") from error
        diagnosis.checked["files"] += 1
        diagnosis.checked["functions"] += functions(program)
        diagnosis.checked["calls_of_the_SDK"] += calls(program)
        for hit in found:
            last = getattr(hit.node, "end_lineno", None) or line(hit.node)
            last = min(last, line(hit.node) + 30)
            if source.silences(hit.cause, line(hit.node), last):
                spared["silenced"] += 1
            elif hit.advice and of_the_cookbook(source.path):
                spared[hit.cause] += 1
            else:
                diagnosis.findings.append(finding(source, program, hit))
    diagnosis.notes += notes(spared, diagnosis.checked["calls_of_the_SDK"])
    return diagnosis


def hits(program: Program) -> list[Hit]:
    """What the rules find, each place once."""
    found: dict[tuple[str, int], Hit] = {}
    for rule in RULES:
        for hit in rule(program):
            found.setdefault((hit.cause, line(hit.node)), hit)
    return list(found.values())


def finding(source: Source, program: Program, hit: Hit) -> Finding:
    shown = program.source(hit.node)
    return Finding(
        hit.cause,
        hit.what,
        where=source.where(line(hit.node)),
        evidence=(shown, *(fact for fact in hit.evidence if fact)),
        fix=hit.fix,
        severity=hit.severity,
    )


def functions(program: Program) -> int:
    return sum(isinstance(node, Function) for node in ast.walk(program.tree))


def calls(program: Program) -> int:
    """Places in the text, not times passed."""
    return len({event.node for event in program.events if event.what == "submit"})


def of_the_cookbook(path: Path) -> bool:
    """Whether a file belongs to an installed or cloned tinker_cookbook package."""
    parts = path.resolve().parts
    if "tinker_cookbook" not in parts[:-1]:
        return False
    index = len(parts) - 1 - parts[::-1].index("tinker_cookbook")
    return (Path(*parts[: index + 1]) / "__init__.py").is_file()


def notes(spared: Counter[str], seen: int) -> list[str]:
    said = []
    if spared["silenced"]:
        said.append(f"{spared.pop('silenced')} silenced by '# tinker: ignore' comments")
    advice = {cause: count for cause, count in spared.items() if count and cause != "silenced"}
    if advice:
        listed = ", ".join(f"{cause} {count}" for cause, count in sorted(advice.items()))
        said.append(f"in files of tinker_cookbook itself, not yours to change: {listed}")
    if not seen:
        said.append("no call of the Tinker SDK was recognised in these files")
    return said
