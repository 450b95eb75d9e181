"""Cuts a trace into states: who kept the run from going on, and for how long."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tinkerlab.diagnosis.stalls.stacks import Stack, holder
from tinkerlab.diagnosis.stalls.trace import Outcome, Request, Sample, Trace

Span = tuple[float, float]

# A ping that the SDK's loop has not answered for this long, while its thread runs something.
BLOCKED = 0.15
# Stretches of one state that are no further apart are one: a sample in between saw a helper.
TOGETHER = 0.02

WORDS = {
    "service": "waiting on the service",
    "overlap": "computing while the service worked",
    "client": "the script's own code, nothing in flight",
    "loop": "blocking the script's event loop, nothing in flight",
    "import": "importing libraries",
    "idle": "waiting for something else, nothing in flight",
    "sdk": "the SDK's loop blocked",
    "gil": "the GIL held",
}


@dataclass
class Spent:
    """Seconds in one state, by the function to blame, with the longest stretch."""

    seconds: float = 0.0
    longest: float = 0.0
    stretches: int = 0
    places: dict[tuple[str, str], float] = field(default_factory=dict)
    examples: dict[tuple[str, str], Stack] = field(default_factory=dict)
    _open: Span | None = None

    def stretch(self, span: Span) -> None:
        """Count ``span`` as a stretch of this state, or as more of the last one."""
        if self._open is not None and span[0] - self._open[1] <= TOGETHER:
            self._open = (self._open[0], span[1])
        else:
            self._open = span
            self.stretches += 1
        self.longest = max(self.longest, self._open[1] - self._open[0])

    def last_until(self, end: float) -> float:
        """Length of the last stretch if it went on until ``end``, else 0."""
        reached = self._open is not None and end - self._open[1] < 0.5
        return self._open[1] - self._open[0] if self._open and reached else 0.0

    def add(self, seconds: float, stack: Stack | None) -> None:
        self.seconds += seconds
        if seconds > 0 and stack is not None and stack.blame is not None:
            self.places[stack.key] = self.places.get(stack.key, 0.0) + seconds
            self.examples.setdefault(stack.key, stack)

    @property
    def top(self) -> list[tuple[Stack, float]]:
        """Stacks with their seconds, the most expensive function first."""
        ranked = sorted(self.places.items(), key=lambda item: -item[1])
        return [(self.examples[key], seconds) for key, seconds in ranked]


@dataclass
class Timeline:
    """The states of a run between its first and its last piece of work.

    Attributes:
        span: first submission to last result, or to the end of a run that was stopped; (0, 0)
            when no work was submitted.
        states: by the keys of ``WORDS``.
        result_in_loop: seconds in which ``.result()`` blocked the script's own event loop.
        whole: the states ``sdk`` and ``gil`` over the whole life of the session.
    """

    span: Span
    states: dict[str, Spent]
    result_in_loop: Spent
    whole: dict[str, Spent]

    @property
    def seconds(self) -> float:
        return self.span[1] - self.span[0]

    def share(self, state: str) -> float:
        return self.states[state].seconds / self.seconds if self.seconds > 0 else 0.0

    def words(self) -> str:
        """Where the time went, largest part first, parts under one per cent left out."""
        parts = sorted(self.states, key=lambda state: -self.states[state].seconds)
        said = [f"{self.share(p):.0%} {WORDS[p]}" for p in parts if self.share(p) >= 0.01]
        return ", ".join(said) or "nothing was measured"


def union(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


class Cover:
    """A set of spans, cut out of other spans; those are asked about in order of time."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self.spans = union(spans)
        self._starts = [start for start, _ in self.spans]

    def outside(self, spans: Sequence[Span]) -> list[Span]:
        """The parts of ``spans`` that lie under none of ours."""
        left: list[Span] = []
        for start, end in spans:
            index = max(bisect_right(self._starts, start) - 1, 0)
            while index < len(self.spans) and self.spans[index][0] < end:
                covered, until = self.spans[index]
                if until > start:
                    if covered > start:
                        left.append((start, covered))
                    start = max(start, until)
                index += 1
            if start < end:
                left.append((start, end))
        return left

    def seconds(self, start: float, end: float) -> float:
        """How much of an interval lies under the spans."""
        return end - start - _length(self.outside([(start, end)]))


def _length(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in spans)


def flights(requests: Sequence[Request], end: float) -> list[Span]:
    return [(request.start, end if request.end is None else request.end) for request in requests]


def build(trace: Trace, outcome: Outcome) -> Timeline:
    span = _active(trace, outcome)
    states = {state: Spent() for state in WORDS}
    whole = {"sdk": Spent(), "gil": Spent()}
    in_loop = Spent()
    flying = Cover(flights(trace.requests, trace.end))
    late = [(episode.start, episode.end) for episode in trace.late]
    blocked = _blocked(trace.samples, Cover(late))
    gil, stuck = Cover(late), Cover(blocked)
    for sample in trace.samples:
        inside = _clip([(sample.start, sample.end)], span)
        if not inside:
            continue
        free = stuck.outside(gil.outside(inside))
        states["sdk"].add(_length(gil.outside(inside)) - _length(free), sample.sdk)
        idle = flying.outside(free)
        for pieces, in_flight in ((Cover(idle).outside(free), True), (idle, False)):
            state, stack = _state(sample, in_flight)
            states[state].add(_length(pieces), stack)
            for piece in pieces:
                states[state].stretch(piece)
        if sample.main.waits_for_future and sample.main.runs_loop:
            in_loop.add(_length(free), sample.main)
    for episode in trace.late:
        kept, keeper = _clip([(episode.start, episode.end)], span), _keeper(episode.stacks)
        state = states["import" if keeper is not None and keeper.imports else "gil"]
        state.add(_length(kept), keeper)
        _episodes(state, kept)
    _episodes(states["sdk"], _clip(blocked, span))
    _whole(trace, whole, blocked)
    return Timeline(span, states, in_loop, whole)


def _active(trace: Trace, outcome: Outcome) -> Span:
    work = trace.work
    if not work:
        return (0.0, 0.0)
    ends = [request.end for request in work]
    open_ended = outcome.stopped or None in ends
    last = trace.end if open_ended else max(end for end in ends if end is not None)
    return (min(request.start for request in work), last)


def _clip(spans: Iterable[Span], to: Span) -> list[Span]:
    clipped = [(max(start, to[0]), min(end, to[1])) for start, end in spans]
    return [(start, end) for start, end in clipped if end > start]


def _episodes(spent: Spent, spans: Iterable[Span]) -> None:
    for span in spans:
        spent.stretch(span)


def _keeper(stacks: Sequence[Stack]) -> Stack | None:
    """Who kept the GIL. Where no thread stands out, the first that is in the user's code."""
    known = [stack for stack in stacks if stack.frames]
    own = [s for s in known if s.blame is not None and s.blame.library == "own"]
    return holder(known) or (own or known or [None])[0]


def _blocked(samples: Sequence[Sample], late: Cover) -> list[Span]:
    """When the SDK's loop did not answer because its thread was busy, less where the GIL was kept.

    A loop whose thread sits in ``select`` while a ping is open is starved, not blocked.
    """
    spans = []
    for sample in samples:
        busy = sample.sdk is not None and sample.sdk.frames and not sample.sdk.loop_idle
        if sample.ping >= BLOCKED and busy:
            start = sample.end - sample.ping
            if late.seconds(start, sample.end) < 0.5 * (sample.end - start):
                spans.append((min(start, sample.start), sample.end))
    return spans


def _state(sample: Sample, in_flight: bool) -> tuple[str, Stack]:
    """What the main thread was doing, and the stack to blame for it."""
    main = sample.main
    waiting = main.loop_idle or main.waits_for_future or main.waits_elsewhere
    if not waiting and (in_flight or main.imports):
        return ("overlap" if in_flight else "import"), main
    if not waiting:
        return ("loop" if main.runs_loop else "client"), main
    for other in sample.others:
        # A custom loss is computed on a thread of its own, and what was submitted behind it waits
        # for its turn: in flight by name only (tinker 0.38, TrainingClient._take_turn).
        if other.computes_custom_loss:
            return "client", other
        # Nothing in flight and the main thread waits, for a thread of the user's own.
        own = other.blame is not None and other.blame.library == "own"
        if not in_flight and own and not other.source_waits:
            return "client", other
    if in_flight:
        return "service", main
    return "idle", sample.awaits or main


def _whole(trace: Trace, whole: dict[str, Spent], blocked: Sequence[Span]) -> None:
    """The GIL and the SDK's loop over all of the session: heartbeats run for as long as it."""
    if not trace.requests:
        return
    began = trace.requests[0].start
    for episode in trace.late:
        keeper = _keeper(episode.stacks)
        if episode.end > began and not (keeper is not None and keeper.imports):
            whole["gil"].add(episode.seconds, keeper)
            _episodes(whole["gil"], [(episode.start, episode.end)])
    cover = Cover(blocked)
    for sample in trace.samples:
        whole["sdk"].add(cover.seconds(sample.start, sample.end), sample.sdk)
    _episodes(whole["sdk"], cover.spans)
