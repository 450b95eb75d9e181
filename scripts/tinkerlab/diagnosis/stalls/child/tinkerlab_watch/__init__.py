"""The watchdog that runs inside the user's process: standard library only, read-only.

It samples stacks from a daemon thread, observes requests of the SDK through three wrapped
methods, and appends what it saw to ``trace-<pid>.jsonl``. It decides nothing: the judge reads
the trace, in another process, so that a process that hangs or is killed is judged as well.
"""

from __future__ import annotations

import atexit
import os

from .recorder import Recorder
from .sampler import Sampler
from .sdk import Requests, install

FOLDER = "TINKERLAB_WATCH_FOLDER"
INTERVAL = "TINKERLAB_WATCH_INTERVAL"
DUMP_EVERY = "TINKERLAB_WATCH_DUMP_EVERY"
AIOMONITOR = "TINKERLAB_WATCH_AIOMONITOR"


def start() -> None:
    """Start the watchdog if the environment asks for it; child processes inherit the request."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    recorder = Recorder(folder)
    requests = Requests(recorder)
    install(requests)
    sampler = Sampler(
        recorder,
        interval=float(os.environ.get(INTERVAL, "0.05")),
        dump_every=float(os.environ.get(DUMP_EVERY, "2")),
        monitor_port=int(os.environ.get(AIOMONITOR, "0")),
        requests=requests,
    )
    sampler.start()
    # A forked child has no watchdog thread, and must not write into its parent's trace.
    os.register_at_fork(after_in_child=recorder.forget)
    # Registered first, so run last: what the user's own handlers do is still watched.
    atexit.register(sampler.finish)
