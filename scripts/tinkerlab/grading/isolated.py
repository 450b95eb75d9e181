"""Graders that live in a worker process: user code, unit tests, math, regex, JSON schema.

One long-lived worker per grader, started before the first attempt so that a broken function is
refused before anything is sampled. A batch travels in one frame; each attempt has a time limit
of its own. A worker that crashes or hangs is replaced, and the batch goes on after the attempt
that it died of.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

from tinkerlab.grading.process import Crashed, Worker
from tinkerlab.grading.types import Attempt, Grade
from tinkerlab.grading.worker.framing import TimedOut

# Where a row may have its unit tests: ours, MBPP's, HumanEval's.
TEST_FIELDS = ("tests", "test_list", "test")


class IsolatedGrader:
    """Scores in a worker process; a grader that fails gives ``failure_score`` and the reason.

    Args:
        name: as the user wrote it.
        kind: a key of ``worker.main.MAKERS``.
        options: what that kind needs; JSON data.
        timeout: seconds of wall time for one attempt.
        memory_mb: address space of the worker, and of each process that it starts.

    Raises:
        InputError: the worker refuses: no such function, a package is missing, ...
    """

    def __init__(
        self,
        name: str,
        kind: str,
        options: dict[str, Any],
        *,
        timeout: float,
        memory_mb: int,
        failure_score: float,
    ) -> None:
        self._name = name
        self._setup = {"name": name, "kind": kind, "options": options, "memory_mb": memory_mb}
        self._timeout = timeout
        self._failure_score = failure_score
        self._lock = threading.Lock()
        self._worker: Worker | None = Worker(self._setup)
        self._facts = self._worker.facts
        self._closed = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def needs_answer(self) -> bool:
        return bool(self._facts.get("needs_answer"))

    @property
    def facts(self) -> dict[str, Any]:
        """What the worker said of itself when it was ready."""
        return self._facts

    def refuses(self, answer: Any, row: Any) -> str | None:
        """Why no completion of this row could be graded; None if it can."""
        if self._setup["kind"] == "code_tests" and not any(row.get(name) for name in TEST_FIELDS):
            return f"no tests (in {', '.join(TEST_FIELDS)})"
        missing = [name for name in self._facts.get("fields", ()) if name not in row]
        return f"no field {', '.join(map(repr, missing))}" if missing else None

    def grade(self, attempts: Sequence[Attempt]) -> list[Grade]:
        with self._lock:
            grades: list[Grade] = []
            while len(grades) < len(attempts):
                if self._closed:
                    raise RuntimeError(f"grader {self._name} is closed")
                self._some(attempts[len(grades) :], grades)
            if self._closed:
                raise RuntimeError(f"grader {self._name} is closed")
            return grades

    def _some(self, attempts: Sequence[Attempt], grades: list[Grade]) -> None:
        """Append the grades of ``attempts``, up to and with the first that ends the worker."""
        worker = self._worker = self._worker or Worker(self._setup)
        try:
            worker.submit([_as_json(attempt) for attempt in attempts])
            for _ in attempts:
                reply = worker.next_reply(self._timeout)
                grades.append(self._read(reply))
                if reply.get("restart"):
                    break
            else:
                return
        except TimedOut:
            grades.append(self._failed(f"no result within {self._timeout:g} s"))
        except Crashed as error:
            grades.append(self._failed(f"its process crashed ({error})"))
        except BaseException:
            # Interrupted between two replies: a worker that still holds answers to these
            # attempts would give them as answers to the next ones.
            self._drop()
            raise
        self._drop()

    def _drop(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _read(self, reply: dict[str, Any]) -> Grade:
        error = reply.get("error")
        if error is not None:
            return self._failed(str(error))
        score = reply.get("score")
        if not isinstance(score, int | float) or not math.isfinite(score):
            return self._failed(f"gave {score!r}, not a finite number")
        return Grade(
            float(score), reply.get("correct"), reply.get("extracted"), detail=reply.get("detail")
        )

    def _failed(self, reason: str) -> Grade:
        return Grade(self._failure_score, error=f"{self._name} {reason}")

    def close(self) -> None:
        """Stop at once, also while another thread grades; that one gets a RuntimeError."""
        self._closed = True
        worker = self._worker
        if worker is not None:
            worker.kill()
        with self._lock:
            self._drop()


def _as_json(attempt: Attempt) -> dict[str, Any]:
    return {
        "completion": attempt.completion,
        "prompt": [dict(message) for message in attempt.prompt],
        "answer": attempt.answer,
        "row": dict(attempt.row),
    }
