"""A grader's worker: started by ``process.Worker``, speaks frames, scores attempts one by one.

Run as ``python -I main.py SCRIPTS_FOLDER REQUESTS REPLIES LIFELINE`` (file descriptors). The
first frame says what to score with; the answer is ``{"ready": {...}}`` or ``{"refused": why}``.
Each later frame holds ``{"attempts": [...]}`` and gets one answer per attempt, in order:
``{"score", "correct", "extracted", "error"}``. Ends when the requests end.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

# What makes the scorer of each kind: module in this package, function in it.
MAKERS = {
    "function": ("functions", "make_function"),
    "math": ("verifiers", "make_math"),
    "regex": ("verifiers", "make_regex"),
    "json_schema": ("verifiers", "make_json_schema"),
    "reasoning_gym": ("verifiers", "make_reasoning_gym"),
    "code_tests": ("code_tests", "make_code_tests"),
}


def main(scripts: str, requests: int, replies: int, lifeline: int) -> None:
    sys.path.append(scripts)
    from tinkerlab.grading.worker import framing, limits
    from tinkerlab.grading.worker.refusal import Refused

    for descriptor in (requests, replies, lifeline):
        os.set_inheritable(descriptor, False)
    limits.die_with(lifeline)
    setup = framing.receive(requests)
    limits.limit_worker(setup["memory_mb"])
    try:
        score, facts = _make(setup, scripts)
    except Refused as error:
        framing.send(replies, {"refused": str(error)})
        return
    try:
        framing.send(replies, {"ready": facts})
        while True:
            for attempt in framing.receive(requests)["attempts"]:
                framing.send(replies, _graded(score, attempt))
    except framing.Closed:
        return  # the host is done


def _make(setup: dict[str, Any], scripts: str) -> tuple[Callable[[dict], Any], dict[str, Any]]:
    module_name, function_name = MAKERS[setup["kind"]]
    module = importlib.import_module(f"tinkerlab.grading.worker.{module_name}")
    # A user's imports must find the user's modules, never one of our scripts of that name.
    sys.path.remove(scripts)
    return getattr(module, function_name)(setup["options"])


def _graded(score: Callable[[dict], Any], attempt: dict[str, Any]) -> dict[str, Any]:
    """The scorer's verdict; whatever it raises becomes the attempt's error."""
    try:
        return score(attempt)
    except MemoryError:
        # What it holds by now would fail the next attempts, too: they get a fresh process.
        reason = "ran out of memory (raise the memory limit, or allocate less)"
        return {"error": reason, "restart": True}
    except BaseException as error:  # a scorer may exit or interrupt; the worker goes on
        text = " ".join(str(error).split())[:300]
        return {"error": f"raised {type(error).__name__}{f': {text}' if text else ''}"}


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
