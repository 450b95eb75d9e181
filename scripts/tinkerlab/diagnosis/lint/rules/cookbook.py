"""Fields that the cookbook's configs demand, and one that stops an unattended run."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tinkerlab.diagnosis.findings import Severity
from tinkerlab.diagnosis.lint.program import Program
from tinkerlab.diagnosis.lint.rules.base import Hit
from tinkerlab.diagnosis.lint.values import NOTHING, Event

# Configs with a `recipe_name` that has no default: checked against the installed cookbook.
NAMED_CONFIGS = {
    "tinker_cookbook.supervised.train.Config",
    "tinker_cookbook.rl.train.Config",
    "tinker_cookbook.preference.train_dpo.Config",
    "tinker_cookbook.distillation.train_on_policy.Config",
    "tinker_cookbook.distillation.train_off_policy.Config",
    "tinker_cookbook.distillation.sdft.Config",
}
LOG_DIR = ("behavior_if_log_dir_exists", "behavior_if_exists")


def missing_recipe_name(program: Program) -> Iterator[Hit]:
    """A cookbook Config without ``recipe_name``."""
    for event in program.events:
        if event.what != "call":
            continue
        args = event.args
        if event.method in NAMED_CONFIGS:
            if "recipe_name" not in args and "**" not in args:
                yield nameless(event.node, event.method)
        elif event.method.rsplit(".", 1)[-1] == "apply":
            config = blueprint_of(event)
            fields = args.get(0, NOTHING)
            whole = isinstance(fields.items, dict) and fields.data != "spread"
            nameless_dict = config and whole and "recipe_name" not in fields.items
            if nameless_dict and not other_applies(program):
                yield nameless(event.node, config)


def nameless(node: ast.AST, config: str) -> Hit:
    module = config.removeprefix("tinker_cookbook.").removesuffix(".Config")
    return Hit(
        "missing-recipe-name",
        node,
        f"{module}.Config needs recipe_name, which has no default",
        'add recipe_name="my_run", a short name of your own for this kind of run',
    )


def blueprint_of(event: Event) -> str:
    """The Config of ``chz.Blueprint(Config).apply({...})``."""
    receiver = event.receiver
    return receiver.data if receiver.kind == "blueprint" and receiver.data in NAMED_CONFIGS else ""


def other_applies(program: Program) -> bool:
    count = sum(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "apply"
        for node in ast.walk(program.tree)
    )
    return count > 1 or any("recipe_name" in text for _, text in program.strings())


def ask_for_log_dir(program: Program) -> Iterator[Hit]:
    """``ask``: waits at a prompt that nobody answers in an unattended run."""
    for event in program.events:
        if event.what != "call":
            continue
        last = event.method.rsplit(".", 1)[-1]
        values = [event.args[name] for name in LOG_DIR if name in event.args]
        if last == "check_log_dir" and 1 in event.args:
            values.append(event.args[1])
        for value in [*event.args.values(), *values]:
            if isinstance(value.items, dict):
                values += [value.items[name] for name in LOG_DIR if name in value.items]
        if any(value.kind in ("const", "default") and value.data == "ask" for value in values):
            yield asks(event.node, "problem")
    for node in ast.walk(program.tree):
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and node.target.id in LOG_DIR
            and isinstance(node.value, ast.Constant)
            and node.value.value == "ask"
        ):
            yield asks(node, "warning")


def asks(node: ast.AST, severity: Severity) -> Hit:
    return Hit(
        "ask-log-dir",
        node,
        'with "ask" a run whose folder exists stops at input() until a person answers',
        '"resume" to go on from the last checkpoint, or "raise"',
        severity=severity,
        advice=True,
    )
