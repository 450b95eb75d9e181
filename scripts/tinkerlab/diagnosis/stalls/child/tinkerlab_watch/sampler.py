"""The watchdog thread: stacks, the SDK loop's latency, its own lateness, tasks now and then."""

from __future__ import annotations

import faulthandler
import importlib
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from .sdk import library, sdk_thread

# The watchdog asks for the GIL when its sleep is over. CPython hands it over within 5 ms a
# running thread (sys.getswitchinterval) unless C code keeps it: 0.2 s is far beyond that.
LATE = 0.2
# While the GIL is kept no Python thread can look. faulthandler's timer is a C thread that
# needs no GIL: it writes all stacks after this long without a sign of life from us.
DUMP_AFTER = 0.6
ARM_EVERY = 0.2
PING_EVERY = 0.1
AWAITS_EVERY = 0.2
HELD_TASKS = 40  # tasks of a loop that a dump lists
_SCHEDSTAT = Path("/proc/thread-self/schedstat")
MERGE = 0.5  # equal samples are written as one of at most this many seconds
IDLE_FILES = ("threading.py", "selectors.py", "queue.py", "thread.py", "socket.py", "process.py")


class Sampler(threading.Thread):
    def __init__(
        self, recorder: Any, interval: float, dump_every: float, monitor_port: int, requests: Any
    ):
        super().__init__(name="task-dump-watchdog", daemon=True)
        self._recorder = recorder
        self._requests = requests
        self._interval = interval
        self._dump_every = dump_every
        self._monitor_port = monitor_port
        self._main = threading.main_thread().ident
        self._stop = False
        self._ping_sent: float | None = None
        self._last_ping = 0.0
        self._latency: list[float] = []
        self._sample: dict[str, Any] | None = None
        self._dumped = 0
        self._awaits: list[Any] | None = None
        self._awaits_at = 0.0
        self._monitored: list[Any] = []
        self._theirs = _leave_to_the_user()

    def run(self) -> None:
        armed = dumped = before = time.monotonic()
        waited = _run_delay()
        self._arm()
        while not self._stop:
            time.sleep(self._interval)
            now, delayed = time.monotonic(), _run_delay()
            passed = now - before
            # Time in the scheduler's queue is the machine's fault, not the GIL's.
            late = passed - self._interval - (delayed - waited)
            before, waited = now, delayed
            try:
                self._look(now, passed, late)
                if now - dumped >= self._dump_every:
                    dumped = now
                    self.dump_tasks()
            except Exception as error:
                self._recorder.put("note", text=f"a sample failed: {error!r}")
            if now - armed >= ARM_EVERY:
                armed = now
                self._arm()
            self._recorder.write()

    def finish(self) -> None:
        """The process ends: write what is left."""
        self._stop = True
        if not self._theirs:
            faulthandler.cancel_dump_traceback_later()
        self._flush_sample()
        self._recorder.put("end")
        self._recorder.write()

    def _arm(self) -> None:
        if not self._theirs and not self._stop:
            faulthandler.dump_traceback_later(DUMP_AFTER, file=self._recorder.dumps)

    def _look(self, now: float, passed: float, late: float) -> None:
        frames = sys._current_frames()
        loop, thread = sdk_thread()
        sdk = getattr(thread, "ident", None)
        sample: dict[str, Any] = {
            "main": self._recorder.stack(frames.get(self._main or 0)),
            "sdk": self._recorder.stack(frames.get(sdk)) if sdk in frames else None,
            "others": self._others(frames, sdk),
        }
        if late >= LATE:
            self._flush_sample()
            text = self._faulthandler_text()
            self._recorder.put(
                "late", seconds=round(late, 4), dump=text, sdk=sdk, **sample_of(sample)
            )
        if self._requests.open == 0 and now - self._awaits_at >= AWAITS_EVERY:
            self._awaits_at = now
            self._awaits = self._awaited(frames.get(self._main or 0))
        sample["awaits"] = self._awaits if self._requests.open == 0 else None
        age = now - self._ping_sent if self._ping_sent is not None else 0.0
        sample["ping"] = round(age, 3) if age > 0.1 else 0
        self._keep(sample, now, passed)
        self._ping(loop, now)

    def _keep(self, sample: dict[str, Any], now: float, passed: float) -> None:
        kept = self._sample
        same = kept is not None and all(kept[key] == sample[key] for key in sample)
        if same and kept is not None and kept["passed"] + passed <= MERGE:
            kept["passed"] += passed
            kept["until"] = now
            return
        self._flush_sample()
        self._sample = {**sample, "passed": passed, "until": now}

    def _flush_sample(self) -> None:
        if self._sample is not None:
            kept, self._sample = self._sample, None
            kept["passed"] = round(kept["passed"], 4)
            kept["until"] = round(kept["until"], 4)
            latency, self._latency = self._latency, []
            if latency:
                kept["latency"] = round(max(latency), 4)
            self._recorder.put("sample", **kept)

    def _others(self, frames: dict[int, FrameType], sdk: int | None) -> list[int]:
        """Stacks of at most four further threads that are not plainly waiting."""
        busy = []
        for ident, frame in frames.items():
            if ident in (self._main, sdk, self.ident):
                continue
            if Path(frame.f_code.co_filename).name not in IDLE_FILES:
                busy.append(self._recorder.stack(frame))
        return busy[:4]

    def _awaited(self, frame: FrameType | None) -> list[Any] | None:
        """Where most tasks of the main thread's loop wait: the innermost line of the user's own."""
        loop = _running_loop(frame)
        if loop is None:
            return None
        counts: dict[tuple[Any, ...], int] = {}
        for task in list(sys.modules["asyncio"].all_tasks(loop))[:HELD_TASKS]:
            own = [place for place in _where(task) if not library(place[0])]
            if own:
                counts[tuple(own[-1])] = counts.get(tuple(own[-1]), 0) + 1
        return list(max(counts, key=lambda place: counts[place])) if counts else None

    def _ping(self, loop: Any, now: float) -> None:
        """Ask the SDK's loop to run one callback; how late it does is its latency."""
        if loop is None or self._ping_sent is not None or now - self._last_ping < PING_EVERY:
            return
        self._ping_sent = self._last_ping = now

        def answer() -> None:
            self._latency.append(time.monotonic() - now)
            self._ping_sent = None

        try:
            loop.call_soon_threadsafe(answer)
        except RuntimeError:  # closed
            self._ping_sent = None

    def _faulthandler_text(self) -> str | None:
        """What faulthandler wrote since the last look."""
        dumps = self._recorder.dumps
        dumps.seek(self._dumped)
        text = dumps.read()
        self._dumped += len(text)
        return text[:8000] or None

    def dump_tasks(self) -> None:
        """Record the stacks of both threads, and the tasks of the loops that they run."""
        frames = sys._current_frames()
        sdk_loop, thread = sdk_thread()
        sdk = frames.get(getattr(thread, "ident", None) or 0)
        stacks = {
            name: self._recorder.stack(frame)
            for name, frame in (("main", frames.get(self._main or 0)), ("sdk", sdk))
        }
        self._recorder.put("stacks", **stacks)
        asyncio: Any = sys.modules.get("asyncio")
        if asyncio is None:  # never imported on the user's behalf
            return
        main_loop = _running_loop(frames.get(self._main or 0))
        idents = (self._main, getattr(thread, "ident", None))
        for name, loop, ident in zip(("main", "sdk"), (main_loop, sdk_loop), idents, strict=True):
            if loop is None:
                continue
            self._monitor(name, loop, ident)
            tasks = [task for task in asyncio.all_tasks(loop) if not task.done()]
            rows = [[task.get_name(), _where(task)] for task in tasks[:HELD_TASKS]]
            self._recorder.put("tasks", loop=name, count=len(tasks), tasks=rows)

    def _monitor(self, name: str, loop: Any, thread: int | None) -> None:
        if not self._monitor_port or loop in self._monitored:
            return
        self._monitored.append(loop)
        aiomonitor: Any = importlib.import_module("aiomonitor")
        port = self._monitor_port + 10 * (name == "sdk")
        ports = {"port": port, "webui_port": port + 1, "console_port": port + 2}
        monitor = aiomonitor.start_monitor(loop, host="127.0.0.1", console_enabled=False, **ports)
        # It takes the thread that starts it for the loop's own.
        monitor._event_loop_thread_id = thread
        self._recorder.put("note", text=f"aiomonitor of the {name} loop: telnet 127.0.0.1 {port}")


def sample_of(sample: dict[str, Any]) -> dict[str, Any]:
    return {"main": sample["main"], "sdk_stack": sample["sdk"], "others": sample["others"]}


def _run_delay() -> float:
    """Seconds that this thread was ready to run and had no core; 0 where Linux does not say."""
    try:
        with _SCHEDSTAT.open() as stat:
            return int(stat.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _running_loop(frame: FrameType | None) -> Any:
    """The event loop that a stack runs, read from the frame of ``run_forever`` or ``asyncio.run``.

    The second form finds loops written in C, which have no frame of their own.
    """
    while frame is not None:
        name, filename = frame.f_code.co_name, frame.f_code.co_filename
        if name == "run_forever" and filename.endswith("base_events.py"):
            return frame.f_locals.get("self")
        if name == "run" and filename.endswith("runners.py"):
            return getattr(frame.f_locals.get("self"), "_loop", None)
        frame = frame.f_back
    return None


def _where(task: Any) -> list[list[Any]]:
    """Where a suspended task waits: [file, line, function] from the outermost await inwards."""
    places: list[list[Any]] = []
    awaited = task.get_coro()
    while awaited is not None and len(places) < 12:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        code = getattr(awaited, "cr_code", None) or getattr(awaited, "gi_code", None)
        if code is None:
            break
        name = getattr(code, "co_qualname", code.co_name)
        places.append([code.co_filename, frame.f_lineno if frame else 0, name])
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return places


class _Theirs:
    """Whether the user's script has taken faulthandler's one timer for itself."""

    def __init__(self) -> None:
        self.taken = False

    def __bool__(self) -> bool:
        return self.taken


def _leave_to_the_user() -> _Theirs:
    """There is one timer per process: from the user's first use of it on, it is not ours."""
    theirs = _Theirs()
    arm = faulthandler.dump_traceback_later

    def dump_traceback_later(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread().name != "task-dump-watchdog":
            theirs.taken = True
        return arm(*args, **kwargs)

    faulthandler.dump_traceback_later = dump_traceback_later
    return theirs
