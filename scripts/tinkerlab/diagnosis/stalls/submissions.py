"""Whether requests were submitted ahead, or each only after the one before was answered."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence

from tinkerlab.diagnosis.findings import Finding
from tinkerlab.diagnosis.stalls.trace import Request, Trace

LEAST_STEPS = 3
LEAST_REQUESTS = 8
# Between an answer and the next submission: longer, and it is not the wait that costs.
PROMPT_GAP = 0.5

CHECK = "python scripts/check_pipelining.py train.py"


def findings(trace: Trace) -> list[Finding]:
    found = [_steps(trace), _one_by_one(trace)]
    return [finding for finding in found if finding is not None]


def most_in_flight(requests: Sequence[Request], end: float) -> int:
    """The largest number of these requests that were open at the same time."""
    events = [(request.start, 1) for request in requests]
    events += [(end if request.end is None else request.end, -1) for request in requests]
    most = now = 0
    for _, change in sorted(events):
        now += change
        most = max(most, now)
    return most


def _steps(trace: Trace) -> Finding | None:
    """Optimizer steps that were submitted only after forward_backward had been answered."""
    last: Request | None = None
    steps: list[tuple[Request, Request]] = []
    for request in (request for request in trace.requests if request.kind == "train"):
        if request.name.startswith("optim"):
            if last is not None:
                steps.append((last, request))
            last = None
        elif request.name.removesuffix("_async") != "forward":
            last = request
    waited = [
        (forward, optim)
        for forward, optim in steps
        if forward.end is not None and forward.end <= optim.start
    ]
    if len(waited) < LEAST_STEPS or len(waited) < 0.8 * len(steps):
        return None
    forward, optim = waited[0]
    return Finding(
        "waits-between-submissions",
        f"{len(waited)} of {len(steps)} optimizer steps were submitted only after "
        "forward_backward had been answered",
        where=str(optim.at or ""),
        evidence=(
            f"forward_backward submitted at {forward.at}, answered after "
            f"{_median(f for f, _ in waited):.2f} s (median)",
            f"optim_step submitted at {optim.at}, only then",
        ),
        fix="submit both, then wait: f = tc.forward_backward(...); o = tc.optim_step(...); "
        "f.result(); o.result()",
        then=CHECK,
    )


def _one_by_one(trace: Trace) -> Finding | None:
    """Independent requests sent one at a time, each as soon as the one before was answered."""
    for kind, cause in (("sample", "samples-one-at-a-time"), ("train", "forwards-one-at-a-time")):
        sent = [r for r in trace.requests if r.kind == kind and not r.name.startswith("optim")]
        if kind == "train" and any(r.name.startswith("optim") for r in trace.requests):
            continue  # steps are told by _steps
        if len(sent) < LEAST_REQUESTS or most_in_flight(sent, trace.end) > 1:
            continue
        if sum(request.extends for request in sent) >= len(sent) / 2:
            continue  # turns of one conversation, which have to wait for each other
        gaps = [b.start - a.end for a, b in itertools.pairwise(sent) if a.end is not None]
        if not gaps or statistics.median(gaps) > PROMPT_GAP:
            continue
        return Finding(
            cause,
            f"{len(sent)} {sent[0].name} requests, never two in flight",
            where=str(sent[0].at or ""),
            evidence=(
                f"each took {_median(sent):.2f} s (median); the next followed "
                f"{statistics.median(gaps):.2f} s after the answer",
            ),
            fix="submit all, then wait: futures = [client.sample(...) for prompt in prompts], then "
            "their results, or asyncio.gather",
            then=CHECK,
        )
    return None


def _median(requests: Iterable[Request]) -> float:
    return statistics.median(
        [request.end - request.start for request in requests if request.end is not None] or [0.0]
    )
