"""Reads the traces that the watchdog left: samples, requests, HTTP calls, dumps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinkerlab.diagnosis.stalls.stacks import Frame, Stack, parse_faulthandler
from tinkerlab.errors import InputError

EMPTY = Stack(())
OUTCOME = "outcome.json"


@dataclass(frozen=True)
class Sample:
    """What was seen from ``start`` to ``end`` (seconds of the process's monotonic clock).

    Attributes:
        ping: for how long the SDK's loop had not answered when this was seen.
        awaits: where most tasks of the script's idle loop waited, when nothing was in flight.
    """

    start: float
    end: float
    main: Stack
    sdk: Stack | None
    others: tuple[Stack, ...]
    ping: float
    awaits: Stack | None = None


@dataclass
class Request:
    """One public call of the SDK, from its submission to its result.

    Attributes:
        extends: a sample whose prompt begins with the whole prompt before it.
    """

    method: str
    at: Frame | None
    start: float
    end: float | None = None
    error: str | None = None
    extends: bool = False

    @property
    def name(self) -> str:
        return self.method.rpartition(".")[2]

    @property
    def kind(self) -> str:
        """``train``, ``sample``, ``save`` (the work), ``create`` or ``other``."""
        name = self.name.removesuffix("_async")
        if self.method.startswith("TrainingClient."):
            if name.startswith(("forward", "optim")):
                return "train"
            return "save" if name.startswith(("save", "load")) else "other"
        if self.method.startswith("SamplingClient."):
            return "sample" if name in ("sample", "compute_logprobs") else "create"
        return "create" if name.startswith("create") else "other"


@dataclass(frozen=True)
class Http:
    path: str
    end: float
    seconds: float
    status: int | None
    error: str | None


@dataclass(frozen=True)
class Late:
    """The watchdog asked for the GIL and did not get it from ``start`` to ``end``.

    Attributes:
        stacks: of all threads while it was kept, main first, the SDK's second, when
            faulthandler could write them; otherwise what was seen right afterwards.
    """

    start: float
    end: float
    stacks: tuple[Stack, ...]
    during: bool

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass
class Trace:
    path: Path
    argv: list[str] = field(default_factory=list)
    parent: int = 0
    pid: int = 0
    main_thread: int = 0
    start: float = 0.0
    end: float = 0.0
    ended: bool = False
    sdk_seen: float | None = None
    samples: list[Sample] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    http: list[Http] = field(default_factory=list)
    late: list[Late] = field(default_factory=list)
    paused: list[tuple[float, str]] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    most_tasks: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def work(self) -> list[Request]:
        return [request for request in self.requests if request.kind in ("train", "sample", "save")]


@dataclass(frozen=True)
class Outcome:
    """How the watched command ended, as its parent wrote it down.

    Attributes:
        code: exit code, 128 + the signal's number when a signal ended it; None if unknown.
        at: when, on the machine's monotonic clock.
        interrupted: a signal was passed on to it.
    """

    code: int | None = None
    at: float = 0.0
    interrupted: bool = False

    @property
    def stopped(self) -> bool:
        """It was stopped from outside rather than coming to its end."""
        return self.interrupted or (self.code or 0) > 128

    def write(self, folder: Path) -> None:
        (folder / OUTCOME).write_text(json.dumps(self.__dict__))

    @classmethod
    def read(cls, folder: Path) -> Outcome:
        try:
            return cls(**json.loads((folder / OUTCOME).read_text()))
        except (OSError, ValueError, TypeError):
            return cls()  # the parent was killed too, or the run is still going on


def read_folder(folder: Path, outcome: Outcome) -> list[Trace]:
    """All traces of a folder, the process that used the SDK most first.

    Raises:
        InputError: no folder, no trace in it, or a damaged one.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give the one that `run` named")
    begun = [path for path in sorted(folder.glob("trace-*.jsonl")) if _has_begun(path)]
    traces = [read(path, outcome.at) for path in begun]
    if not traces:
        raise InputError(
            f"{folder}: holds no trace-*.jsonl: no Python process started under the watchdog "
            "(python -I and -E ignore PYTHONPATH, by which it gets in)"
        )
    return sorted(traces, key=lambda trace: (-len(trace.requests), trace.start))


def _has_begun(path: Path) -> bool:
    """False for the file of a worker that was ended before its first record."""
    try:
        with path.open("rb") as file:
            line = file.readline()
        return line != b""
    except OSError:
        return True  # for the reader to say why


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a trace; a torn last line, normal for a killed process, is left out."""
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            assert isinstance(record["k"], str)
            yield record
        except (ValueError, TypeError, KeyError, AssertionError):
            if number < len(lines):
                raise InputError(
                    f"{path}:{number}: not a record of the watchdog; was the file edited?"
                ) from None


class _Reader:
    def __init__(self, path: Path, until: float) -> None:
        self.trace = Trace(path)
        self._until = until
        self._frames: dict[int, Frame] = {}
        self._stacks: dict[int | None, Stack] = {None: EMPTY}
        self._open: dict[int, Request] = {}
        self._sdk = 0

    def read(self) -> Trace:
        trace = self.trace
        for record in records(trace.path):
            try:
                getattr(self, "on_" + record["k"])(record)
            except (AttributeError, KeyError, TypeError, ValueError):
                raise InputError(
                    f"{trace.path}: a {record['k']!r} record of another version of task_dump.py"
                ) from None
            trace.end = max(trace.end, record["t"])
        self._last_words()
        return trace

    def on_start(self, record: dict[str, Any]) -> None:
        self.trace.argv, self.trace.pid = record["argv"], record["pid"]
        self.trace.parent, self.trace.main_thread = record["parent"], record["main"]
        self.trace.start = record["t"]

    def on_frame(self, record: dict[str, Any]) -> None:
        self._frames[record["id"]] = Frame(*record["at"])

    def on_stack(self, record: dict[str, Any]) -> None:
        self._stacks[record["id"]] = Stack(tuple(self._frames[i] for i in record["frames"]))

    def on_sample(self, record: dict[str, Any]) -> None:
        sdk = record["sdk"]
        self.trace.samples.append(
            Sample(
                record["until"] - record["passed"],
                record["until"],
                self._stacks[record["main"]],
                None if sdk is None else self._stacks[sdk],
                tuple(self._stacks[number] for number in record["others"]),
                record["ping"],
                Stack((Frame(*record["awaits"]),)) if record.get("awaits") else None,
            )
        )
        if "latency" in record:
            self.trace.latencies.append(record["latency"])

    def on_late(self, record: dict[str, Any]) -> None:
        self._sdk = record["sdk"] or self._sdk
        dumped = self._ordered(record["dump"] or "")
        stacks = dumped or tuple(
            self._stacks[number]
            for number in (record["main"], record["sdk_stack"], *record["others"])
        )
        span = (record["t"] - record["seconds"], record["t"])
        self.trace.late.append(Late(*span, stacks, bool(dumped)))

    def _ordered(self, text: str) -> tuple[Stack, ...]:
        """Stacks of faulthandler's last dump in ``text``: main thread, SDK's thread, others."""
        stacks = parse_faulthandler(text.rpartition("Timeout (")[2])
        first = [stacks.pop(ident, EMPTY) for ident in (self.trace.main_thread, self._sdk)]
        return (*first, *stacks.values()) if stacks or any(s.frames for s in first) else ()

    def on_submit(self, record: dict[str, Any]) -> None:
        at = Frame(*record["at"]) if record["at"] else None
        request = self._open[record["id"]] = Request(record["method"], at, record["t"])
        request.extends = record.get("extends", False)
        self.trace.requests.append(request)

    def on_done(self, record: dict[str, Any]) -> None:
        request = self._open.pop(record["id"], None)
        if request is not None:
            request.end, request.error = record["t"], record["error"]

    def on_http(self, record: dict[str, Any]) -> None:
        keys = ("path", "t", "seconds", "status", "error")
        self.trace.http.append(Http(*(record[key] for key in keys)))

    def on_queue(self, record: dict[str, Any]) -> None:
        self.trace.paused.append((record["t"], record["state"]))

    def on_tasks(self, record: dict[str, Any]) -> None:
        self.trace.tasks[record["loop"]] = record
        if record["loop"] == "main":
            self.trace.most_tasks = max(self.trace.most_tasks, record["count"])

    def on_note(self, record: dict[str, Any]) -> None:
        if record["text"] == "sdk imported":
            self.trace.sdk_seen = record["t"]
        else:
            self.trace.notes.append(record["text"])

    def on_stacks(self, record: dict[str, Any]) -> None:
        """Written for the dumps that are printed while the command runs."""

    def on_end(self, record: dict[str, Any]) -> None:
        self.trace.ended = True

    def _last_words(self) -> None:
        """A process killed while the GIL was kept wrote no record of it, but faulthandler did."""
        trace = self.trace
        dump = trace.path.with_name(trace.path.stem.replace("trace", "gil") + ".txt")
        if trace.ended or not dump.is_file() or not trace.samples:
            return
        text = dump.read_text(errors="replace")
        last = text.rpartition("Timeout (")[2]
        seen = trace.late[-1].stacks if trace.late and trace.late[-1].during else ()
        stacks = self._ordered(text)
        if last and stacks and stacks != seen:
            trace.end = max(trace.end, self._until)
            trace.late.append(Late(trace.samples[-1].end, trace.end, stacks, True))


def read(path: Path, until: float = 0.0) -> Trace:
    """Read one trace; ``until`` is when its process is known to have ended.

    Raises:
        InputError: it cannot be read, or is no trace.
    """
    try:
        trace = _Reader(path, until).read()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from None
    if not trace.argv:
        raise InputError(f"{path}: no trace of the watchdog: it has no start record")
    return trace
