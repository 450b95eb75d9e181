"""Run a completion's Python code against the row's tests, each attempt in a process of its own.

A row brings its tests as ``tests`` (code, or a list of asserts), as MBPP's ``test_list`` with
``test_setup_code``, or as HumanEval's ``test`` and ``entry_point``. The code is the last fenced
block of the completion, or all of it. Correct means that every test ran to its end: ending the
process early, with whatever exit code, is not.

What can't be prevented: the tests share a process with the code that they test, so code may
return objects that equal everything, or search the interpreter for the secret that ends the
protocol. Look at what a model that suddenly scores high writes.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import random
import secrets
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from tinkerlab.grading import texts
from tinkerlab.grading.worker import framing
from tinkerlab.grading.worker.isolation import Isolation, enter_attempt

MAX_REPORT = 4_096
MAX_SHOWN = 2_000
MAX_DESCRIPTOR = 4_096
# What tests commonly use; loaded once here, so that each attempt has them for nothing.
PRELOADED = (
    "bisect", "collections", "copy", "datetime", "functools", "heapq", "itertools", "json",
    "math", "operator", "random", "re", "statistics", "string", "typing",
)  # fmt: skip


def make_code_tests(options: dict[str, Any]) -> tuple[Callable[[dict], Any], dict[str, Any]]:
    """The scorer; ``options``: timeout (seconds), memory_mb, user_home, use_namespaces."""
    for name in PRELOADED:
        __import__(name)
    isolation = Isolation(options["user_home"], use_namespaces=options["use_namespaces"])
    timeout, memory_mb = options["timeout"], options["memory_mb"]

    def score(attempt: dict[str, Any]) -> dict[str, Any]:
        code = code_of(attempt["completion"], attempt["row"], attempt["prompt"])
        reason = _attempt(isolation, code, tests_of(attempt["row"]), timeout, memory_mb)
        return {
            "score": float(reason is None),
            "correct": reason is None,
            "extracted": code[:MAX_SHOWN],
            "detail": reason,
        }

    facts = {
        "needs_answer": False,
        "network": isolation.network,
        "pid_namespace": isolation.pid_namespace,
    }
    return score, facts


def code_of(completion: str, row: dict[str, Any], prompt: list[dict[str, Any]]) -> str:
    """The code that a completion offers.

    Where it lacks the row's ``entry_point``, it goes on from the row's ``code_prompt``, or from
    a prompt that is code itself and begins that function, as HumanEval's.
    """
    blocks = texts.fenced_blocks(texts.tail(completion))
    python = [content for language, content in blocks if language in ("python", "py", "python3")]
    code = (python or [content for _, content in blocks] or [texts.tail(completion)])[-1]
    entry = row.get("entry_point")
    if not entry or f"def {entry}" in code:
        return code
    prefix = row.get("code_prompt")
    if prefix is None and prompt and f"def {entry}(" in str(prompt[-1].get("content")):
        prefix = prompt[-1]["content"]
    return f"{prefix or ''}{code}"


def tests_of(row: dict[str, Any]) -> str:
    """The row's tests as one piece of code.

    Raises:
        ValueError: it has none; ``refuses`` says so before anything is sampled.
    """
    tests = row.get("tests", row.get("test_list", row.get("test")))
    if isinstance(tests, list):
        tests = "\n".join(map(str, tests))
    if not isinstance(tests, str) or not tests.strip():
        raise ValueError("the row has no tests")
    setup = row.get("test_setup_code") or ""
    call = ""
    if "test" in row and row.get("entry_point") and "def check(" in tests:
        call = f"\ncheck({row['entry_point']})\n"
    return f"{setup}\n{tests}\n{call}"


def _attempt(
    isolation: Isolation, code: str, tests: str, timeout: float, memory_mb: int
) -> str | None:
    """Run code and tests in a fresh process; None if all passed, else why not."""
    secret = secrets.token_hex(16)
    reports, report = os.pipe()
    pid = isolation.fork()
    if pid == 0:
        _run(code, tests, secret, report, math.ceil(timeout) + 1, memory_mb)
    os.close(report)
    try:
        said = _read_report(reports, timeout)
    finally:
        os.close(reports)
        isolation.end(pid)
    if said is None:
        return f"no end within {timeout:g} s"
    with contextlib.suppress(ValueError):
        answer = json.loads(said)
        if isinstance(answer, dict) and answer.get("secret") == secret:
            return answer.get("failed")
    return "ended the process before the tests were through"


def _read_report(descriptor: int, timeout: float) -> bytes | None:
    """What the attempt reports, until it closes its end; None when the time is up."""
    deadline = time.monotonic() + timeout
    said = b""
    while len(said) < MAX_REPORT:
        left = deadline - time.monotonic()
        if left <= 0 or not framing.readable(descriptor, left):
            return None
        part = os.read(descriptor, MAX_REPORT)
        if not part:
            break
        said += part
        if said.endswith(b"\n"):
            break  # whole; a process that it left behind may keep the pipe open
    return said


def _run(
    code: str, tests: str, secret: str, report: int, cpu_seconds: int, memory_mb: int
) -> NoReturn:
    """The attempt's process: never returns, so that no code of the worker runs in it."""
    failed: str | None = "did not start"
    try:
        enter_attempt(cpu_seconds, memory_mb)
        _leave_only(report)
        sys.stdin, sys.stdout, sys.stderr = io.StringIO(), _Nowhere(), _Nowhere()
        sys.setrecursionlimit(1000)
        random.seed(0)
        failed = _execute(code, tests)
    except BaseException as error:
        failed = _brief(error)
    finally:
        with contextlib.suppress(BaseException):
            os.write(report, json.dumps({"secret": secret, "failed": failed}).encode() + b"\n")
        os._exit(0)


def _execute(code: str, tests: str) -> str | None:
    namespace: dict[str, Any] = {"__name__": "solution", "__builtins__": __builtins__}
    for name, text in (("solution", code), ("tests", tests)):
        try:
            exec(compile(text, f"<{name}>", "exec"), namespace)  # noqa: S102
        except BaseException as error:
            return f"{name}: {_brief(error)}"
    return None


def _brief(error: BaseException) -> str:
    with contextlib.suppress(BaseException):
        return traceback.format_exception_only(error)[-1].strip()[:300]
    return "an exception that can't be shown"


def _leave_only(report: int) -> None:
    """Close every descriptor but the report's, and give the standard ones to nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    os.closerange(3, report)
    os.closerange(report + 1, MAX_DESCRIPTOR)


class _Nowhere(io.TextIOBase):
    """A stream that takes any amount of text and keeps none."""

    def write(self, text: str) -> int:
        return len(text)

    def writable(self) -> bool:
        return True
