"""How an agent's work ended: what it says of itself, and whether what it left holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tinkerlab.agents.events import Transcript, one_line
from tinkerlab.agents.process import Ended, How

# Imported before the agent starts: one that changed these files would judge itself.
from tinkerlab.evaluation.checking import check_results

RESULTS = "results"


@dataclass(frozen=True)
class Outcome:
    """The end of one agent's work.

    Attributes:
        problem: why the agent is not done; "" where it is.
        turns, cost_usd, last_words: as the agent tells them.
        plugin_loaded: whether it had this plugin; None where it does not say.
        unread_lines: of its output, that were no JSON.
        cut_bytes: of its longest lines, that were not kept.
        results_valid: whether ``results/`` obeys its contract.
        findings: what is wrong with it.
    """

    agent: str
    workdir: str
    logs: str
    how: How
    problem: str
    exit_code: int
    seconds: float
    turns: int | None = None
    cost_usd: float | None = None
    plugin_loaded: bool | None = None
    last_words: str = ""
    unread_lines: int = 0
    cut_bytes: int = 0
    results_valid: bool = False
    results_verdict: str = ""
    findings: Sequence[str] = field(default_factory=tuple)

    @property
    def ok(self) -> bool:
        return not self.problem and self.results_valid

    def document(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


def outcome_of(
    agent: str, workdir: Path, logs: Path, transcript: Transcript, ended: Ended, limit: float
) -> Outcome:
    """The outcome of an agent that ran here; ``limit`` is its time limit in seconds."""
    found = Outcome(
        agent=agent,
        workdir=str(workdir),
        logs=str(logs),
        how=ended.how,
        problem=_problem(transcript, ended, limit),
        exit_code=ended.code,
        seconds=round(ended.seconds, 1),
        turns=transcript.turns,
        cost_usd=transcript.cost_usd,
        plugin_loaded=None if transcript.plugins is None else "tinker" in transcript.plugins,
        last_words=one_line(transcript.final),
        unread_lines=transcript.unread,
        cut_bytes=ended.cut_bytes,
    )
    return with_results(found, workdir)


def with_results(outcome: Outcome, workdir: Path) -> Outcome:
    """The outcome with what ``results/`` in ``workdir`` shows now."""
    folder = workdir / RESULTS
    if not folder.is_dir():
        return replace(outcome, results_valid=False, findings=("there is no results/ folder",))
    verdict = check_results(folder)
    found = tuple(one_line(f"[{f.rule}] {f.where}: {f.what}") for f in verdict.findings)
    told = one_line(str(verdict.summary["scores"]["verdict"])) if verdict.ok else ""
    return replace(outcome, results_valid=verdict.ok, results_verdict=told, findings=found)


def _problem(transcript: Transcript, ended: Ended, limit: float) -> str:
    if ended.how == "interrupted":
        return "interrupted"
    if ended.how == "time limit":
        return f"stopped at the time limit of {limit:g} s"
    if ended.code != 0:
        how = f"signal {-ended.code}" if ended.code < 0 else f"exit code {ended.code}"
        problem = f"the agent ended with {how}"
    elif transcript.error:
        problem = "the agent says that it failed"
    elif not transcript.finished:
        return "the agent ended without saying that it is done"
    else:
        return ""
    said = one_line(transcript.error)
    return f"{problem}: {said}" if said else problem
