"""What a rule reports, and what many rules ask of a trace."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tinkerlab.diagnosis.findings import Severity
from tinkerlab.diagnosis.lint.program import Program
from tinkerlab.diagnosis.lint.values import Event, Place


@dataclass(frozen=True)
class Hit:
    """One place where a rule applies.

    Attributes:
        cause: the stable id, as in ``Finding``.
        node: where.
        what: one line that says what is wrong.
        fix: the rewrite, in the script's own names.
        evidence: further lines of the script, as facts.
        severity: as in ``Finding``.
        advice: about how a thing is written rather than what it does: code inside an
            installed tinker_cookbook, which its user can't mend, is not accused of it.
    """

    cause: str
    node: ast.AST
    what: str
    fix: str
    evidence: tuple[str, ...] = ()
    severity: Severity = "problem"
    advice: bool = False


Rule = Callable[[Program], Iterator[Hit]]


def submits(trace: list[Event], *methods: str) -> Iterator[Event]:
    for event in trace:
        if event.what == "submit" and (not methods or event.method in methods):
            yield event


def text(node: ast.AST, limit: int = 90) -> str:
    """A node as the script would write it, without the deprecated suffix, on one line."""
    written = " ".join(ast.unparse(node).split()).replace("_async(", "(")
    return written if len(written) <= limit else f"{written[: limit - 4]}...)"


def receiver_text(node: ast.AST) -> str:
    """What stands before the dot of a call."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return ast.unparse(node.func.value)
    return ""


def line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def seen(program: Program, node: ast.AST, what: str) -> str:
    return f"line {line(node)}, {what}: {program.source(node)}"


def innermost_loop(event: Event) -> ast.AST | None:
    loops = event.loops
    return loops[-1] if loops else None


def is_async(event: Event) -> bool:
    """Whether the event happens inside an ``async def``."""
    for node in reversed(event.stack):
        if isinstance(node, ast.AsyncFunctionDef):
            return True
        if isinstance(node, ast.FunctionDef):
            return False
    return False


def decides(trace: list[Event], made: Place, start: int, end: int) -> bool:
    """Whether, between two events, the script chose its way by the result made at ``made``."""
    for event in trace[start:end]:
        if event.what != "branch" or made not in event.value.origins:
            continue
        if event.how == "jumps" or (end < len(trace) and event.node in trace[end].stack):
            return True
    return False


def depends(event: Event, made: Place) -> bool:
    """Whether an argument of a call was computed from the result of the call at ``made``."""
    return any(made in value.origins for value in event.args.values())


def decorated(node: ast.AST, pattern: re.Pattern[str]) -> ast.AST | None:
    """The decorator of a function that matches, such as ``@retry(...)``."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if pattern.search(ast.unparse(called)):
                return decorator
    return None
