"""From a spec, as a user writes it in a config or on a command line, to a grader.

exact                  the answer itself
numeric, numeric:TOL   the number that the completion gives as its answer (TOL: relative)
contains               the answer stands in the completion
math                   mathematical equality (math-verify)
regex:PATTERN          the pattern is found; its group, if it has one, is the answer
json_schema:FILE.json  the completion is JSON that obeys the schema
code_tests             the row's unit tests pass on the completion's Python code
reasoning_gym          the scorer that a reasoning-gym task brings
FILE.py:FUNCTION       a function of yours
"""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path
from typing import Any

from tinkerlab.errors import InputError
from tinkerlab.grading import rules
from tinkerlab.grading.isolated import IsolatedGrader
from tinkerlab.grading.types import Grader

KINDS = (
    "exact",
    "numeric",
    "contains",
    "math",
    "regex:PATTERN",
    "json_schema:FILE.json",
    "code_tests",
    "reasoning_gym",
    "FILE.py:FUNCTION",
)
TIMEOUT = 10.0
MEMORY_MB = 4096
CODE_MEMORY_MB = 1024
# The worker itself ends an attempt of code in time; this much later it is taken for stuck.
CODE_GRACE = 10.0


def load_grader(
    spec: str,
    *,
    failure_score: float = 0.0,
    timeout: float = TIMEOUT,
    memory_mb: int | None = None,
    isolate_code: bool = True,
) -> Grader:
    """Make the grader that ``spec`` names, and make sure that it can score.

    Args:
        failure_score: what an attempt scores when the grader fails on it.
        timeout: seconds for one attempt, where it is scored in a worker process.
        memory_mb: address space of the worker process (default: 4096, for code_tests 1024).
        isolate_code: use kernel namespaces for ``code_tests`` where they can be had.

    Raises:
        InputError: no such grader, file or function; a signature that takes no completion;
            a file that can't be imported; a missing package.
    """
    if not timeout > 0:
        raise InputError(f"the time limit of a grader must be over 0 s, not {timeout:g}")
    kind, _, argument = spec.partition(":")
    if kind == "exact" and not argument:
        return rules.Exact(spec)
    if kind == "contains" and not argument:
        return rules.Contains(spec)
    if kind == "numeric":
        return rules.Numeric(spec, _tolerance(spec, argument))

    memory_mb = memory_mb or (CODE_MEMORY_MB if kind == "code_tests" else MEMORY_MB)
    worker_kind, options = _worker_options(spec, kind, argument)
    if worker_kind == "code_tests":
        options = {
            "timeout": timeout,
            "memory_mb": memory_mb,
            "user_home": str(Path.home()),
            "use_namespaces": isolate_code,
        }
        timeout += CODE_GRACE
    if sys.platform == "win32":
        raise InputError(f"grader {spec}: needs processes with limits, as Linux and macOS have")
    return IsolatedGrader(
        spec,
        worker_kind,
        options,
        timeout=timeout,
        memory_mb=memory_mb,
        failure_score=failure_score,
    )


def _worker_options(spec: str, kind: str, argument: str) -> tuple[str, dict[str, Any]]:
    if kind in ("math", "code_tests", "reasoning_gym") and not argument:
        return kind, {}
    if kind == "regex" and argument:
        return kind, {"pattern": argument}
    if kind == "json_schema" and argument:
        return kind, {"file": argument, "schema": _schema(Path(argument))}
    file, _, function = spec.rpartition(":")
    if file.endswith(".py"):
        return "function", {"file": str(_existing(spec, Path(file))), "function": function}
    if spec.endswith(".py"):
        raise InputError(f"grader {spec}: name the function, as in {spec}:score")
    raise InputError(_unknown(spec, kind, argument))


def _existing(spec: str, file: Path) -> Path:
    file = file.expanduser()
    if file.is_dir():
        raise InputError(f"grader {spec}: {file} is a folder, not a Python file")
    if not file.is_file():
        raise InputError(f"grader {spec}: no file {file} (looked in {Path.cwd()})")
    return file.resolve()


def _schema(file: Path) -> Any:
    try:
        return json.loads(file.expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"json schema {file}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"json schema {file}: not JSON ({error})") from None


def _tolerance(spec: str, argument: str) -> float:
    if not argument:
        return rules.RELATIVE_TOLERANCE
    try:
        tolerance = float(argument)
    except ValueError:
        tolerance = -1.0
    if not 0 <= tolerance < 1:
        raise InputError(f"grader {spec}: the tolerance must be a number in [0, 1)")
    return tolerance


def _unknown(spec: str, kind: str, argument: str) -> str:
    names = [name.partition(":")[0] for name in KINDS[:-1]]
    if kind in names:
        form = next(name for name in KINDS if name.startswith(kind))
        what = "takes no argument" if argument else "needs an argument"
        return f"grader {spec}: {kind} {what}; write {form}"
    if kind == "judge":
        return f"grader {spec}: a judge needs a model; it is for eval_offline.py --judge-model"
    near = difflib.get_close_matches(kind, names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"no grader {spec!r}{hint} (known: {', '.join(KINDS)})"
