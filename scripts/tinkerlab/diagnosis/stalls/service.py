"""What the requests themselves tell about the service: pauses, errors, slow answers."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator

from tinkerlab.diagnosis.findings import Finding
from tinkerlab.diagnosis.stalls.timeline import Timeline
from tinkerlab.diagnosis.stalls.trace import Http, Outcome, Request, Trace

# A training step hands over two requests, one after the other (tinker 0.38, TrainingClient.
# _take_turn): half a second each is a second a step that no pipelining hides. A distant but
# healthy service answers in a few tenths.
SLOW_ROUND_TRIP = 0.5
# The rehearsal creates a client in under a second. What is usual on the hosted service could
# not be checked; doctor.py measures it there.
SLOW_CREATE = 15.0
# What somebody gave up waiting for, by Ctrl-C or a job's time limit.
STOPPED_CREATE = 5.0
NO_ANSWER = 20.0
ERRORS = 3
ERROR_SHARE = 0.05

# Polls are held open by the service until there is something to say.
_POLLS = ("/retrieve_future", "/telemetry")
_PAYLOAD = ("/forward_backward", "/forward")
DOCTOR = "python scripts/doctor.py"


def round_trip(trace: Trace) -> float | None:
    """Median seconds of the small requests that the service answers at once."""
    calls = [
        call.seconds
        for call in trace.http
        if call.status == 200 and not _any(call.path, _POLLS) and not _any(call.path, _PAYLOAD)
    ]
    return round(statistics.median(calls), 3) if len(calls) >= 3 else None


def _any(path: str, parts: tuple[str, ...]) -> bool:
    return any(part in path for part in parts)


def findings(trace: Trace, timeline: Timeline, outcome: Outcome) -> Iterator[Finding]:
    stalled = timeline.share("sdk") + timeline.share("gil")
    paused = _paused(trace)
    errors = _errors(trace, outcome)
    if paused:
        yield paused
    if errors:
        yield errors
    if stalled < 0.1:  # a blocked loop makes every answer look late
        seconds = round_trip(trace)
        if seconds is not None and seconds >= SLOW_ROUND_TRIP:
            yield _slow(seconds, trace, timeline)
        slow = [_unanswered(trace, outcome), _create(trace, outcome)]
        if not paused and not errors:
            yield from [finding for finding in slow if finding is not None][:1]


def _paused(trace: Trace) -> Finding | None:
    if not trace.paused:
        return None
    states = Counter(state for _, state in trace.paused)
    state = states.most_common(1)[0][0]
    first, last = trace.paused[0][0], trace.paused[-1][0]
    capacity = state == "paused_capacity"
    return Finding(
        "capacity-paused" if capacity else "rate-limited",
        "the service held requests back: it is short on capacity"
        if capacity
        else f"the service held requests back: {state}",
        evidence=(
            f"{len(trace.paused)} answers said {state}, over {last - first:.1f} s",
            f"the pause began {first - trace.start:.1f} s after the start",
        ),
        fix="nothing is wrong with the script: wait, the SDK keeps asking; save state now and then "
        "so that the run can be resumed, or take a model that is in less demand"
        if capacity
        else "fewer clients and sampler weights at the same time",
        then=DOCTOR,
    )


def _errors(trace: Trace, outcome: Outcome) -> Finding | None:
    failed = [call for call in trace.http if _failed(call)]
    if len(failed) < ERRORS or len(failed) < ERROR_SHARE * len(trace.http):
        return None
    kinds = Counter(f"{c.status or c.error} for {c.path.partition('/api/v1')[2]}" for c in failed)
    unreachable = all(call.status is None for call in failed)
    last = trace.http[-1]
    return Finding(
        "service-unreachable" if unreachable else "service-errors",
        f"{len(failed)} of {len(trace.http)} calls to the service failed, and the SDK retried them "
        "without a word",
        evidence=(
            *(f"{count} times {kind}" for kind, count in kinds.most_common(4)),
            f"the last call {'failed' if _failed(last) else 'went through'}",
        ),
        fix="check the network and the service before changing the script",
        then=DOCTOR,
    )


def _failed(call: Http) -> bool:
    """408 is how a poll says "not yet"; a cancelled call is the script's own doing."""
    if call.error is not None:
        return call.error != "CancelledError" and not call.path.endswith("/telemetry")
    return call.status == 429 or (call.status or 0) >= 500


def _slow(seconds: float, trace: Trace, timeline: Timeline) -> Finding:
    return Finding(
        "slow-round-trip",
        f"each call to the service takes {seconds:.2f} s, before it has done any work",
        evidence=(
            f"median of {len(trace.http)} calls, polls and payloads aside",
            f"{timeline.share('service'):.0%} of the time was spent waiting on the service",
        ),
        fix="submit ahead so that steps overlap; look at the network, a proxy or a VPN between",
        then=DOCTOR,
    )


def _open(trace: Trace, least: float) -> Request | None:
    """The request that had waited longest when the trace ended."""
    waiting = [r for r in trace.requests if r.end is None and trace.end - r.start >= least]
    return min(waiting, key=lambda request: request.start, default=None)


def _unanswered(trace: Trace, outcome: Outcome) -> Finding | None:
    request = _open(trace, NO_ANSWER)
    if request is None or request.kind == "create" or not outcome.stopped:
        return None
    since = trace.end - request.start
    return Finding(
        "no-answer",
        f"{request.method} had no answer after {since:.0f} s, when the run was stopped",
        where=str(request.at or ""),
        evidence=(_polls(trace, request.start),),
        fix="the request reached the service and is not done: wait longer, or take its id from "
        "the log to the Tinker team",
        then=DOCTOR,
    )


def _create(trace: Trace, outcome: Outcome) -> Finding | None:
    created = [r for r in trace.requests if r.kind == "create"]
    took = [((r.end or trace.end) - r.start, r) for r in created]
    seconds, request = max(took, key=lambda item: item[0], default=(0.0, None))
    given_up = outcome.stopped and request is not None and request.end is None
    if request is None or seconds < (STOPPED_CREATE if given_up else SLOW_CREATE):
        return None
    ended = "took" if request.end is not None else "had no answer after"
    return Finding(
        "slow-create",
        f"{request.method} {ended} {seconds:.0f} s",
        where=str(request.at or ""),
        evidence=(_polls(trace, request.start),),
        fix="the service has no room for this model yet, or is loading it: wait, or try a smaller "
        "model, which answers at once when only the large one is short",
        then=DOCTOR,
    )


def _polls(trace: Trace, since: float) -> str:
    later = [call for call in trace.http if call.end >= since]
    answered = sum(call.error is None for call in later)
    return f"since then {answered} of {len(later)} calls to the service were answered"
