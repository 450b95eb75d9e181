"""Start a rehearsal in a process of its own, and stop it with the one that started it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinkerlab.errors import InputError
from tinkerlab.folders import make_folder

SCRIPT = Path(__file__).resolve().parents[3] / "rehearse.py"
DUMMY_KEY = "tml-rehearsal"
_EXPORT = "export TINKER_BASE_URL="
_OVERLAY = "export HF_HUB_CACHE="


@dataclass
class Rehearsal:
    """A running rehearsal.

    Attributes:
        base_url: what TINKER_BASE_URL must be.
        env: environment for a child process that talks to it; never holds a real key.
        process: the server's process.
        log: where its messages go.
    """

    base_url: str
    env: dict[str, str]
    process: subprocess.Popen[str]
    log: Path

    def stop(self, timeout: float = 30.0) -> None:
        """Let the work in progress finish, then stop; kill it when that takes too long."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_rehearsal(arguments: Sequence[str], log: Path) -> Rehearsal:
    """Start ``rehearse.py serve`` with ``arguments`` and wait until it answers.

    Raises:
        InputError: it refused its arguments; the message is its own.
    """
    make_folder(log.parent, "--store")
    command = [sys.executable, str(SCRIPT), "serve", "--until-stdin-closes", *arguments]
    with log.open("ab") as stream:
        start = stream.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
            # Ctrl-C is for the training script; the server stops when we close its stdin.
            start_new_session=True,
        )
    assert process.stdout is not None
    env = {**os.environ, "TINKER_API_KEY": DUMMY_KEY}
    # A stored or generated credential must not reach the rehearsal instead of the dummy.
    env.pop("TINKER_CREDENTIAL_CMD", None)
    base_url = None
    for line in process.stdout:
        if line.startswith(_OVERLAY):
            env["HF_HUB_CACHE"] = line.removeprefix(_OVERLAY).strip()
        elif line.startswith(_EXPORT):
            base_url = line.removeprefix(_EXPORT).strip()
            break
    if base_url is None:
        process.wait()
        raise InputError(_reason(log, start) or f"the rehearsal did not start; see {log}")
    env["TINKER_BASE_URL"] = base_url
    return Rehearsal(base_url, env, process, log)


@contextlib.contextmanager
def rehearsal_server(
    models: Sequence[str] = (),
    *,
    store: Path,
    aliases: Sequence[str] = (),
    faults: Sequence[str] = (),
    client_flags: Sequence[str] = (),
) -> Iterator[Rehearsal]:
    """A rehearsal for the time of a ``with`` block.

    Args:
        models: names or folders to serve; empty serves the embedded default.
        store: where its checkpoints and records live.
        aliases: ``NAME=DIR`` pairs.
        faults: faults on purpose, see ``faults.py``.
        client_flags: ``name=value`` of ``tinker.types.ClientConfigResponse``.

    Raises:
        InputError: a model that can't be served, a store in use, a fault that doesn't exist.
    """
    arguments = ["--store", str(store)]
    for option, values in (
        ("--model", models),
        ("--alias", aliases),
        ("--fault", faults),
        ("--client-flag", client_flags),
    ):
        for value in values:
            arguments += [option, value]
    server = start_rehearsal(arguments, store / "server.log")
    try:
        yield server
    finally:
        server.stop()


def _reason(log: Path, start: int) -> str:
    """The server's own words for why it did not start: the last line that it wrote."""
    with log.open("rb") as stream:
        stream.seek(start)
        lines = stream.read().decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("error: ") if lines else ""
