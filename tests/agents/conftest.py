"""A fake agent on PATH that behaves like Claude Code, and the script that starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from repository import ROOT

SCRIPT = ROOT / "scripts" / "run_agent.py"
KEY = 'sk-"quoted"-überlong-secret-0123456789'
"""A secret that JSON writes in another form than a log."""

FAKE = """\
#!{python}
import json, os, signal, subprocess, sys, time
sys.path[:0] = [{scripts!r}, {tests!r}]
from pathlib import Path

mode, key = os.environ.get("FAKE_MODE", "good"), os.environ.get("ANTHROPIC_API_KEY", "")

def tell(**event):
    print(json.dumps(event), flush=True)

def text(words):
    tell(type="assistant", message=dict(content=[dict(type="text", text=words)]))

def done(**more):
    tell(**dict(dict(type="result", subtype="success", is_error=False, num_turns=3,
                     total_cost_usd=0.25, result="all done"), **more))

arguments = sys.argv[1:]
if arguments == ["--version"]:
    sys.exit(print("9.9.9 (Claude Code)") if mode != "no version" else 7)
if arguments[:2] == ["auth", "status"]:
    sys.exit(0 if key else 1)
if arguments[:2] == ["plugin", "validate"]:
    sys.exit(print("x Validation failed") or 1 if mode == "bad plugin" else 0)
Path("seen.json").write_text(json.dumps(dict(
    arguments=arguments, task=sys.stdin.read(), environment=dict(os.environ))))
tell(type="system", subtype="init", model="fake-1", plugins=[dict(name="tinker")])
text("I begin.")
tell(type="assistant", message=dict(content=[dict(
    type="tool_use", name="Bash", input=dict(command="python scripts/check_data.py"))]))
tell(type="user", message=dict(content=[dict(type="tool_result", content="OK\\nline two")]))

if mode == "crash":
    print("Error: out of luck", file=sys.stderr)
    sys.exit(3)
if mode == "hang":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path("child.pid").write_text(str(child.pid))
    while True:
        time.sleep(1)
if mode == "waits":
    Path("partial.txt").write_text("half of the work")
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        sys.exit(130)
if mode == "leaves a child":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path("child.pid").write_text(str(child.pid))
if mode == "silent":
    sys.exit(0)
if mode == "says error":
    done(is_error=True, result="Not logged in")
    sys.exit(0)
if mode == "out of turns":
    done(subtype="error_max_turns", result=None)
    sys.exit(0)
if mode == "hostile":
    text("the key is " + key)
    print("plain: " + key, flush=True)
    print("on stderr: " + key, file=sys.stderr, flush=True)
    text("\\x1b[2J\\x1b]0;title\\x07 \\u202e cleared? \\ud800 " + "x" * 5000)
    print("not json \\x1b[31m", flush=True)
    sys.stdout.buffer.write(b"\\xff\\xfe\\x00 bytes\\n")
    print("[" * 100_000, flush=True)
    for odd in ([], 3, None, dict(type=7), dict(type="assistant", message=5),
                dict(type="assistant", message=dict(content=[None, 4, dict(type="text")])),
                dict(type="system", subtype="init", plugins=dict(a=1)),
                dict(type="result", subtype="success", num_turns="many", total_cost_usd="free")):
        print(json.dumps(odd), flush=True)
    # A key exactly where a line is cut off: at 4,000,000 bytes.
    print("y" * (4_000_000 - len(key.encode()) // 2) + key, flush=True)
    print("z" * 6_000_000, flush=True)
    tell(type="system", subtype="init", model="fake-1", plugins=[])
if mode == "forges":
    folder = Path("results")
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps(dict(scores=dict(verdict="great"))))
    done()
    sys.exit(0)
if mode != "no results":
    from results_factory import write_folder
    write_folder(Path.cwd(), "rl")
done()
"""


@dataclass(frozen=True)
class Ran:
    """How ``run_agent.py`` ended."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def raw(self) -> str:
        return (self.folder / ".agent" / "stream.jsonl").read_text()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A PATH on which the only agent is the fake one."""
    folder = tmp_path / "bin"
    folder.mkdir()
    fake = folder / "claude"
    fake.write_text(
        FAKE.format(python=sys.executable, scripts=str(SCRIPT.parent), tests=str(ROOT / "tests"))
    )
    fake.chmod(0o755)
    return {
        "PATH": os.pathsep.join([str(folder), "/usr/bin", "/bin"]),
        "HOME": str(tmp_path),
        "LANG": "C.UTF-8",
        "ANTHROPIC_API_KEY": KEY,
        "WANDB_API_KEY": "0123456789abcdef-wandb",
        "MY_SETTING": "kept",
    }


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path, environment: dict[str, str]) -> Start:
    """Starts run_agent.py with the recipe ``arithmetic`` in ``work/``."""

    def begin(*arguments: str, mode: str = "good", workdir: str = "work") -> subprocess.Popen[str]:
        task = [] if "--prompt" in arguments or "--recipe" in arguments else ["--recipe"]
        return subprocess.Popen(
            [sys.executable, str(SCRIPT), "--workdir", workdir, *task, *(["arithmetic"] if task else []),
             *arguments],
            cwd=tmp_path,
            env={**environment, "FAKE_MODE": mode},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    return begin


@pytest.fixture
def run(start: Start, tmp_path: Path) -> Callable[..., Ran]:
    """Runs it to its end."""

    def to_the_end(*arguments: str, mode: str = "good", workdir: str = "work") -> Ran:
        process = start(*arguments, mode=mode, workdir=workdir)
        out, err = process.communicate(timeout=120)
        assert "Traceback" not in err, err
        return Ran(process.returncode, out, err, tmp_path / workdir)

    return to_the_end
