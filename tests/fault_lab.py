"""The fault lab: faults produced on purpose, and which script must name which cause.

A case is a test function that produces a fault for real and returns a ``Look``: what to hand to
the diagnostic script. ``@fault`` demands that the script names the cause, ``@healthy`` that it
names none. ``tests/lab/conftest.py`` prints the table of all cases at the end of the run.
"""

from __future__ import annotations

import functools
import importlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tinkerlab.errors import InputError

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@dataclass(frozen=True)
class Look:
    """How to run the diagnostic script on what was produced.

    Attributes:
        argv: its arguments; ``--json`` is added.
        stdin: text for its standard input.
        env: run it as a process of its own with this environment, as ``doctor.py`` needs.
    """

    argv: Sequence[str | Path]
    stdin: str | None = None
    env: dict[str, str] | None = None


@dataclass(frozen=True)
class Case:
    """One row of the lab's table. ``expects`` is None for a healthy control."""

    name: str
    script: str
    produced: str
    expects: str | None


@dataclass
class Lab:
    """What a case works with: a folder of its own, rehearsals, and the judge."""

    tmp_path: Path
    start_rehearsal: Callable[..., Any]
    monkeypatch: pytest.MonkeyPatch
    record: Callable[[str, Any], None]
    at_end: list[Callable[[], Any]] = field(default_factory=list)
    judged: bool = False

    def write(self, name: str, text: str) -> Path:
        """Write a file of the case's own folder."""
        path = self.tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def rehearse(
        self, code: str, *arguments: str, timeout: float = 300, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run ``code`` as train.py against a rehearsal of its own; the output as text.

        Args:
            options: as ``start_rehearsal`` takes: ``faults=[...]``, ``model=...``.
        """
        script = self.write("train.py", code)
        with self.start_rehearsal(**options) as server:
            return subprocess.run(
                [sys.executable, str(script), *arguments],
                env=server.env,
                cwd=self.tmp_path,
                capture_output=True,
                text=True,
                timeout=timeout,
            )

    def judge(self, case: Case, look: Look) -> None:
        """Run the script and hold what it says against what the case expects."""
        code, document = self._run(case.script, look)
        said = causes(document)
        self.judged = True
        self.record("lab", {**case.__dict__, "said": said, "code": code})
        if case.expects is None:
            assert not said, f"{case.script} accuses a healthy control: {document}"
            assert code == 0
        else:
            assert case.expects in said, f"{case.script} says {said}: {document}"

    def _run(self, script: str, look: Look) -> tuple[int, dict[str, Any]]:
        argv = [*map(str, look.argv), "--json"]
        if look.env is not None:
            done = subprocess.run(
                [sys.executable, str(SCRIPTS / script), *argv],
                input=look.stdin,
                env=look.env,
                capture_output=True,
                text=True,
                timeout=300,
            )
            assert done.returncode in (0, 1), done.stderr
            return done.returncode, json.loads(done.stdout)
        if look.stdin is not None:
            self.monkeypatch.setattr("sys.stdin", io.StringIO(look.stdin))
        out = io.StringIO()
        with redirect_stdout(out):
            try:
                code = importlib.import_module(script.removesuffix(".py")).main(argv)
            except InputError as error:
                raise AssertionError(f"{script} refuses its input: {error}") from error
        return code, json.loads(out.getvalue())


def causes(document: dict[str, Any]) -> list[str]:
    """The causes that a script's JSON names; check_data.py calls them kinds."""
    named = [finding["cause"] for finding in document.get("findings", [])]
    for group in ("problems", "warnings"):
        named += [row["kind"] for row in document.get(group, [])]
    return list(dict.fromkeys(named))


Produce = Callable[..., Look]


def _case(script: str, expects: str | None, produced: str) -> Callable[[Produce], Produce]:
    def decorate(produce: Produce) -> Produce:
        name = produce.__name__.removeprefix("test_")

        @functools.wraps(produce)
        def test(lab: Lab, *args: Any, **kwargs: Any) -> None:
            case = Case(name, script, produced, expects)
            try:
                lab.judge(case, produce(lab, *args, **kwargs))
            except Exception:
                # A case that broke down is counted too, as one that was not diagnosed; one that
                # was skipped is not.
                if not lab.judged:
                    lab.record("lab", {**case.__dict__, "said": ["(broke down)"], "code": None})
                raise

        return test  # type: ignore[return-value]

    return decorate


def fault(script: str, cause: str, *, produced: str) -> Callable[[Produce], Produce]:
    """A fault that ``script`` must call ``cause``; ``produced`` says in a phrase how it is made."""
    return _case(script, cause, produced)


def healthy(script: str, *, produced: str) -> Callable[[Produce], Produce]:
    """A healthy control: ``script`` may accuse it of nothing, not even with a warning."""
    return _case(script, None, produced)
