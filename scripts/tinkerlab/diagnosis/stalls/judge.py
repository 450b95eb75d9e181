"""Reads a timeline and says what was wrong, in the order of the seconds that it cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tinkerlab.diagnosis.findings import Diagnosis, Finding
from tinkerlab.diagnosis.stalls import service, submissions
from tinkerlab.diagnosis.stalls.timeline import Spent, Timeline, build
from tinkerlab.diagnosis.stalls.trace import Outcome, Trace

# A cause is named when it cost a second and a tenth of the run, or half a second and a third of
# it: below that, mending it wins little, and a run's first step may take as long.
LIMITS = ((1.0, 0.1), (0.5, 0.3))
# tinker 0.38, InternalClientHolder._session_heartbeat: one every 10 s, a warning after 120 s.
HEARTBEAT = 10.0
HEARTBEAT_WARNING = 120.0
# A run that was stopped from outside while it stood still for this long stood still for good.
STUCK = 1.5
STACK_LINES = 3


def judge(traces: list[Trace], outcome: Outcome, folder: Path) -> Diagnosis:
    """The diagnosis of one run; ``traces`` as ``read_folder`` sorts them."""
    trace = traces[0]
    timeline = build(trace, outcome)
    findings = [
        *_stalls(timeline, trace, outcome),
        *submissions.findings(trace),
        *service.findings(trace, timeline, outcome),
    ]
    return Diagnosis(
        healthy=_healthy(trace, timeline),
        checked={
            "samples": len(trace.samples),
            "requests": len(trace.requests),
            "processes": len(traces),
        },
        findings=findings,
        notes=list(_notes(traces, timeline, outcome, folder, findings)),
        details=_details(trace, timeline, outcome, folder),
    )


def _healthy(trace: Trace, timeline: Timeline) -> str:
    if trace.sdk_seen is None:
        return (
            f"the script ran for {trace.end - trace.start:.1f} s and never imported tinker: "
            "there are no requests to judge"
        )
    if not trace.work:
        return (
            f"the script ran for {trace.end - trace.start:.1f} s without training, sampling or "
            "saving: there is no time between requests to judge"
        )
    return f"{timeline.seconds:.1f} s from first to last request: {timeline.words()}"


def _costs(spent: Spent, timeline: Timeline) -> bool:
    return timeline.seconds > 0 and any(
        spent.seconds >= seconds and spent.seconds >= share * timeline.seconds
        for seconds, share in LIMITS
    )


def _stalls(timeline: Timeline, trace: Trace, outcome: Outcome) -> list[Finding]:
    found: list[tuple[float, Finding]] = []
    for state, make in _MAKERS.items():
        spent = timeline.states[state]
        if not _costs(spent, timeline):
            # A session lives on heartbeats, also before and after its work.
            whole = timeline.whole.get(state)
            stuck = outcome.stopped and whole is not None and whole.last_until(trace.end) >= STUCK
            if whole is None or not (stuck or whole.longest >= HEARTBEAT):
                continue
            spent = whole
        found.append((spent.seconds, make(spent, timeline)))
    spent = timeline.result_in_loop
    if _costs(spent, timeline):
        found.append((spent.seconds, _result_in_loop(spent, timeline, trace)))
    return [finding for _, finding in sorted(found, key=lambda item: -item[0])]


def _where(spent: Spent) -> str:
    blame = spent.top[0][0].blame if spent.top else None
    return str(blame) if blame else ""


def _evidence(spent: Spent, timeline: Timeline) -> Iterator[str]:
    share = f", {spent.seconds / timeline.seconds:.0%} of it" if timeline.seconds else ""
    run = f"the {timeline.seconds:.1f} s between first and last request"
    if not timeline.seconds or any(spent is other for other in timeline.whole.values()):
        run, share = "the whole run", ""
    longest = f"; {spent.stretches} times, the longest {spent.longest:.1f} s"
    yield f"{spent.seconds:.1f} s of {run}{share}{longest if spent.stretches else ''}"
    for stack, seconds in spent.top[:STACK_LINES]:
        if seconds >= 0.05 * spent.seconds:
            yield f"{seconds:.1f} s at {stack.place}"


def _heartbeats(spent: Spent) -> Iterator[str]:
    if spent.longest >= HEARTBEAT_WARNING:
        yield (
            f"{spent.longest:.0f} s without a heartbeat: the SDK sends one every "
            f"{HEARTBEAT:.0f} s, warns after {HEARTBEAT_WARNING:.0f} s, and the session may expire"
        )
    elif spent.longest >= HEARTBEAT:
        yield (
            f"{spent.longest:.0f} s without a heartbeat: the SDK sends one every "
            f"{HEARTBEAT:.0f} s and warns after {HEARTBEAT_WARNING:.0f} s"
        )


def _client(spent: Spent, timeline: Timeline) -> Finding:
    return Finding(
        "client-stall",
        f"the service had nothing to do for {spent.seconds:.1f} s while the script ran its own "
        f"code in {_where(spent)}",
        where=_where(spent),
        evidence=tuple(_evidence(spent, timeline)),
        fix="do this work before the loop, or submit the next step before it (submit, prepare "
        "the next batch, then wait), so that a request is in flight meanwhile",
        then="python scripts/check_pipelining.py train.py",
    )


def _loop(spent: Spent, timeline: Timeline) -> Finding:
    return Finding(
        "event-loop-blocked",
        f"a call in {_where(spent)} blocked the script's event loop for {spent.seconds:.1f} s: no "
        "other task ran and nothing was in flight",
        where=_where(spent),
        evidence=tuple(_evidence(spent, timeline)),
        fix="await an asynchronous form (asyncio.sleep for time.sleep), or move the call off the "
        "loop: await asyncio.to_thread(...), a process pool for heavy Python",
        then="python scripts/check_pipelining.py train.py",
    )


def _idle(spent: Spent, timeline: Timeline) -> Finding:
    return Finding(
        "idle-gaps",
        f"nothing was in flight for {spent.seconds:.1f} s while the script waited for something "
        "that is not the Tinker service",
        where=_where(spent),
        evidence=tuple(_evidence(spent, timeline)),
        fix="find what it awaits at this line (a sleep, a download, a grader, a queue, a thread) "
        "and keep requests in flight meanwhile; --every 2 prints the tasks while it waits",
    )


def _sdk(spent: Spent, timeline: Timeline) -> Finding:
    own = bool(spent.top) and getattr(spent.top[0][0].blame, "library", "") == "own"
    return Finding(
        "sdk-loop-blocked",
        f"{_where(spent)} blocked the SDK's own event loop for {spent.seconds:.1f} s: no request, "
        "no result and no heartbeat passed",
        where=_where(spent),
        evidence=(*_evidence(spent, timeline), *_heartbeats(spent)),
        fix="done callbacks and coroutines handed to the SDK's loop run on its one thread: keep "
        "them short, and hand work to a thread or a queue of your own"
        if own
        else "the SDK's own code took this long: measure what a request costs to serialize",
        then="" if own else "python scripts/serialization_test.py",
    )


def _gil(spent: Spent, timeline: Timeline) -> Finding:
    return Finding(
        "gil-held",
        f"the GIL was held for {spent.seconds:.1f} s by a call in {_where(spent)}: no other "
        "thread ran, the SDK's included",
        where=_where(spent),
        evidence=(*_evidence(spent, timeline), *_heartbeats(spent)),
        fix="this call runs C code that keeps the GIL: move it to a process of its own "
        "(multiprocessing, a process pool), cut it into smaller calls, or use a form that "
        "releases the GIL",
    )


_MAKERS = {"client": _client, "loop": _loop, "idle": _idle, "sdk": _sdk, "gil": _gil}


def _result_in_loop(spent: Spent, timeline: Timeline, trace: Trace) -> Finding:
    others = trace.most_tasks - 1
    return Finding(
        "result-in-async",
        f"a blocking .result() in {_where(spent)} held the script's event loop for "
        f"{spent.seconds:.1f} s",
        where=_where(spent),
        evidence=(
            *_evidence(spent, timeline),
            f"{max(others, 0)} other tasks were on that loop at most",
        ),
        fix="await the future instead: `result = await future`; independent requests with "
        "asyncio.gather",
        then="python scripts/check_pipelining.py train.py",
        # With a single task nothing else could have run: a habit to drop, not a loss.
        severity="problem" if others > 0 else "warning",
    )


def _notes(
    traces: list[Trace],
    timeline: Timeline,
    outcome: Outcome,
    folder: Path,
    findings: list[Finding],
) -> Iterator[str]:
    trace = traces[0]
    if timeline.seconds and findings:
        yield f"time between first and last request: {timeline.words()}"
    if outcome.code is None:
        yield "how the script ended is not known (it may still be running)"
    elif outcome.interrupted:
        yield f"the script was stopped by a signal and ended with exit code {outcome.code}"
        if trace.samples:
            yield f"when it was stopped its main thread was at {trace.samples[-1].main.place}"
    elif outcome.code:
        yield f"the script ended with exit code {outcome.code}"
    if not trace.ended and outcome.code is not None:
        yield "the script's process had no time to end its trace: its last moments may be missing"
    if trace.latencies:
        yield f"slowest answer of the SDK's loop to a ping: {max(trace.latencies):.2f} s"
    round_trip = service.round_trip(trace)
    if round_trip is not None:
        yield f"a small call to the service takes {round_trip:.2f} s (median)"
    if len(traces) > 1:
        yield f"{len(traces) - 1} more Python processes were watched; this is the one with the most requests"
    yield from dict.fromkeys(trace.notes)
    yield f"trace: {folder}"


def _details(trace: Trace, timeline: Timeline, outcome: Outcome, folder: Path) -> dict[str, Any]:
    counts: dict[str, int] = {}
    for request in trace.requests:
        counts[request.method] = counts.get(request.method, 0) + 1
    return {
        "trace": str(folder),
        "child_exit_code": outcome.code,
        "seconds": round(trace.end - trace.start, 3),
        "active_seconds": round(timeline.seconds, 3),
        "spent": {name: round(spent.seconds, 3) for name, spent in timeline.states.items()},
        "requests": counts,
        "most_in_flight": submissions.most_in_flight(trace.work, trace.end),
        "round_trip_seconds": service.round_trip(trace),
    }
