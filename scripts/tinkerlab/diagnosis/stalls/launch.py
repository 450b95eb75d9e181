"""Runs the user's command under the watchdog: environment, signals, periodic printing."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinkerlab import cli
from tinkerlab.diagnosis.stalls.follow import Follower
from tinkerlab.diagnosis.stalls.trace import Outcome
from tinkerlab.errors import InputError

CHILD = Path(__file__).parent / "child"
# As the watchdog reads them, in child/tinkerlab_watch/__init__.py.
_PREFIX = "TINKERLAB_WATCH_"
POLL = 0.1
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Options:
    """How to watch.

    Attributes:
        folder: for the trace; created, must be empty.
        interval: seconds between samples.
        every: seconds between printed dumps, None to print none.
        monitor_port: of aiomonitor on the loopback address, 0 for none.
        profile: run under pyinstrument, which writes ``profile.html`` into the folder.
        own_stdout: send the command's stdout to our stderr, to keep stdout for JSON.
    """

    folder: Path
    interval: float = 0.05
    every: float | None = None
    monitor_port: int = 0
    profile: bool = False
    own_stdout: bool = False


def complete(command: Sequence[str]) -> list[str]:
    """The command to start: ``python`` means this interpreter, ``x.py`` a script for it.

    Raises:
        InputError: no command, no such file, or a script that does not parse.
    """
    words = list(command[1:] if command[:1] == ["--"] else command)
    if not words:
        raise InputError("nothing to run: put it after --, as in `run -- python train.py`")
    if words[0].endswith(".py") or Path(words[0]).is_dir():
        words = ["python", *words]
    if words[0] in ("python", "python3"):
        words[0] = sys.executable
    elif shutil.which(words[0]) is None:
        raise InputError(f"can't run {words[0]}: no such command")
    if Path(words[0]).name.startswith("python") and len(words) > 1:
        _check_script(words[1])
    return words


def _check_script(name: str) -> None:
    """Refuse a script that could never start, in a line instead of a traceback."""
    if name.startswith("-"):
        return  # -m, -c and flags: python says itself what is wrong
    path = Path(name)
    if path.is_dir():
        raise InputError(f"{name}: a folder; give the script in it")
    if not path.is_file():
        raise InputError(f"{name}: no such script")
    try:
        source = path.read_bytes()
        if not source.strip():
            raise InputError(f"{name}: empty, there is nothing to run")
        compile(source, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        place = f"{name}:{line}" if line else name
        raise InputError(f"{place}: does not parse as Python: {error}") from None


def watched(command: Sequence[str], options: Options) -> Outcome:
    """Run ``command`` (see ``complete``) to its end and return how it ended.

    SIGINT, SIGTERM and SIGHUP are passed on once; a second one kills the command.

    Raises:
        InputError: it cannot be started, or the folder is in use.
    """
    folder = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise InputError(f"{folder}: not empty; give a new folder for the trace")
    words = _profiled(command, folder) if options.profile else list(command)
    # At a terminal the command stays in the foreground group: it may ask for input, and Ctrl-C
    # reaches it without us. Otherwise it gets a session of its own and each signal once.
    terminal = sys.__stdin__ is not None and sys.__stdin__.isatty()
    try:
        child = subprocess.Popen(
            words,
            env=_environment(options),
            start_new_session=not terminal,
            stdout=2 if options.own_stdout else None,
        )
    except OSError as error:
        raise InputError(f"can't run {words[0]}: {error.strerror}") from None
    follower = Follower(folder) if options.every is not None else None
    with _passing_on(child, terminal) as received:
        while True:
            try:
                code = child.wait(POLL)
                break
            except subprocess.TimeoutExpired:
                if follower is not None:
                    follower.print_new()
    outcome = Outcome(code if code >= 0 else 128 - code, time.monotonic(), bool(received))
    outcome.write(folder)
    for dump in folder.glob("gil-*.txt"):
        if not dump.stat().st_size:
            dump.unlink()
    return outcome


def _environment(options: Options) -> dict[str, str]:
    path = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(CHILD), path] if path else [str(CHILD)]),
        _PREFIX + "FOLDER": str(options.folder.resolve()),
        _PREFIX + "INTERVAL": str(options.interval),
        _PREFIX + "AIOMONITOR": str(options.monitor_port),
    }
    if options.every is not None:
        environment[_PREFIX + "DUMP_EVERY"] = str(options.every)
    return environment


def _profiled(command: Sequence[str], folder: Path) -> list[str]:
    """The command under pyinstrument, which tells awaited time from idle time."""
    if not Path(command[0]).name.startswith("python"):
        raise InputError("--profile needs a `python ...` command: pyinstrument runs the script")
    found = subprocess.run([command[0], "-c", "import pyinstrument"], capture_output=True)
    if found.returncode:
        raise InputError(f"--profile needs pyinstrument: {command[0]} -m pip install pyinstrument")
    profile = ["-m", "pyinstrument", "-r", "html", "-o", str(folder / "profile.html")]
    return [command[0], *profile, *command[1:]]


def check_monitor(command: Sequence[str]) -> None:
    """
    Raises:
        InputError: the command's interpreter has no aiomonitor.
    """
    python = command[0] if Path(command[0]).name.startswith("python") else sys.executable
    if subprocess.run([python, "-c", "import aiomonitor"], capture_output=True).returncode:
        raise InputError(f"--aiomonitor needs aiomonitor: {python} -m pip install aiomonitor")


@contextlib.contextmanager
def _passing_on(child: subprocess.Popen[bytes], terminal: bool) -> Iterator[list[int]]:
    """Pass signals on while the child runs; yields the list of those received."""
    received: list[int] = []

    def forward(number: int, _frame: object) -> None:
        received.append(number)
        with contextlib.suppress(ProcessLookupError):
            if len(received) > 1:
                cli.say("second signal: the command is killed")
                child.kill()
            elif not (terminal and number == signal.SIGINT):
                os.kill(child.pid, number)

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.signal(number, forward) for number in SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
