"""Is everything there that an agent needs? Each part is looked at without starting it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinkerlab.agents import secrets, task
from tinkerlab.agents.clis import AgentCLI
from tinkerlab.agents.events import one_line
from tinkerlab.errors import InputError
from tinkerlab.folders import require_writable

ASK_SECONDS = 60.0


@dataclass(frozen=True)
class Part:
    """One part of the set-up.

    Attributes:
        detail: what was found; where it is not ok, what to do.
    """

    name: str
    ok: bool
    detail: str


def workspace(folder: Path) -> Part:
    """The working folder is new or empty, and can be written."""
    try:
        if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
            return Part("workspace", False, f"--workdir {folder} is not empty; name a new folder")
        require_writable(folder, "--workdir")
    except OSError as error:
        return Part("workspace", False, f"--workdir {folder}: {error.strerror}; name a new folder")
    except InputError as error:
        return Part("workspace", False, str(error))
    return Part("workspace", True, f"{folder} can be written")


def task_text(file: Callable[[], Path]) -> Part:
    """The recipe or prompt can be read."""
    try:
        found = file()
        return Part("task", True, f"{found}, {len(task.read(found)):,} characters")
    except InputError as error:
        return Part("task", False, str(error))


def named_secrets(names: Sequence[str]) -> list[Part]:
    """Each secret is set; its value is never looked at beyond its length."""
    parts = []
    for name in names:
        problem = secrets.problem_of(name)
        shown = name if secrets.may_be_shown(name) else "(not a name)"
        parts.append(Part(f"secret {shown}", not problem, problem or "set"))
    return parts


def cli(agent: AgentCLI, env: Mapping[str, str]) -> list[Part]:
    """The agent's CLI is there, takes this plugin, and reaches an account."""
    found = shutil.which(agent.executable, path=env.get("PATH"))
    if found is None:
        return [Part("agent", False, f"no {agent.executable} on PATH; {agent.get}")]
    code, said = _ask([found, "--version"], env)
    parts = [Part("agent", code == 0, f"{found}: {said or f'exit code {code}'}")]
    if code != 0:
        return parts
    if agent.validate:
        code, said = _ask([found, *agent.validate], env)
        parts.append(Part("plugin", code == 0, "valid" if code == 0 else f"not valid: {said}"))
    code, _ = _ask([found, *agent.login], env)
    told = (
        "the CLI has an account"
        if code == 0
        else f"not logged in: pass its key with --secret, or run {agent.executable} once by hand"
    )
    return [*parts, Part("login", code == 0, told)]


def _ask(command: Sequence[str], env: Mapping[str, str]) -> tuple[int, str]:
    """Exit code and last line of a short command; where it can't be run, -1 and why."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                list(command),
                cwd=folder,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=ASK_SECONDS,
            )
        except OSError as error:
            return -1, str(error.strerror)
        except subprocess.TimeoutExpired:
            return -1, f"no answer within {ASK_SECONDS:.0f} s"
    text = (done.stdout + b"\n" + done.stderr).decode("utf-8", "replace").strip()
    return done.returncode, one_line(text.splitlines()[-1]) if text else ""
