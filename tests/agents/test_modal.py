"""--modal: the app's definition, and a job in a sandbox that is a folder of this machine.

A real sandbox needs an account, so none is started.
"""

from __future__ import annotations

import importlib.util
import io
import json
import re
import subprocess
import sys
import tarfile
import types
from pathlib import Path
from typing import Any

import pytest
from repository import ROOT
from results_factory import write_folder

import run_agent
from tinkerlab.agents import modal_run
from tinkerlab.agents.job import Job
from tinkerlab.errors import CheckFailed, InputError


def job(folder: Path, **changes: Any) -> Job:
    settings: dict[str, Any] = {
        "workdir": folder,
        "agent_name": "claude",
        "recipe": "arithmetic",
        "prompt": None,
        "model": "Qwen/Qwen3-8B",
        "secrets": ("ANTHROPIC_API_KEY",),
        "time_limit": 1800.0,
        "max_turns": 5,
        "options": ("--model", "opus"),
    }
    return Job(**{**settings, **changes})


def told(**changes: Any) -> dict[str, Any]:
    return {
        "ok": True, "agent": "claude", "how": "ended", "problem": "", "exit_code": 0,
        "seconds": 3.0, "turns": 4, "results_valid": True, "workdir": modal_run.THERE,
        "logs": f"{modal_run.THERE}/.agent", **changes,
    }  # fmt: skip


class Recorder:
    """Stands for modal.Image: remembers each call, and gives itself."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple, dict]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Recorder:
            self.calls.append((name, arguments, named))
            return self

        return call


@pytest.fixture
def definition(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """What modal_app.py declares, told by a modal that only listens."""
    recorder = Recorder()
    fake = types.ModuleType("modal")
    fake.Image = recorder  # type: ignore[attr-defined]
    fake.App = lambda name: name  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "modal", fake)
    monkeypatch.delitem(sys.modules, "tinkerlab.agents.modal_app", raising=False)
    importlib.import_module("tinkerlab.agents.modal_app")
    monkeypatch.delitem(sys.modules, "tinkerlab.agents.modal_app")
    return recorder


def test_the_image_holds_the_plugin_and_nothing_of_the_user(definition: Recorder) -> None:
    added = [args for name, args, _ in definition.calls if name.startswith("add_local")]
    assert all(Path(source).exists() for source, _ in added)
    top = {Path(source).relative_to(ROOT).parts[0] for source, _ in added}
    assert top == {
        ".claude-plugin", ".mcp.json", "LICENSE", "Makefile", "pyproject.toml", "scripts",
        "skills", "templates",
    }  # fmt: skip
    # Packages are installed before anything that changes often is added.
    names = [name for name, _, _ in definition.calls]
    assert max(i for i, name in enumerate(names) if name == "run_commands") < min(
        i for i, call in enumerate(definition.calls) if str(call[1][-1:]).find("/opt/tinker") > 0
    )


def test_the_image_has_the_versions_that_are_tested(definition: Recorder) -> None:
    commands = [
        text for name, args, _ in definition.calls if name == "run_commands" for text in args
    ]
    tested = (ROOT / "tests" / "plugin" / "conftest.py").read_text()
    version = re.search(r'CLAUDE_CODE_VERSION = "(.+)"', tested)
    assert version and f"@anthropic-ai/claude-code@{version[1]}" in commands[0]
    assert commands[-1] == "make -C /opt/build install VENV=/opt/venv"
    assert re.search(r"^install:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_real_package_takes_the_definition() -> None:
    modal = pytest.importorskip("modal", reason="the optional package modal is not installed")
    sys.modules.pop("tinkerlab.agents.modal_app", None)
    modal_app = importlib.import_module("tinkerlab.agents.modal_app")
    assert isinstance(modal_app.app, modal.App) and modal_app.app.name == "tinker-agent"
    assert isinstance(modal_app.image, modal.Image)
    assert [part.ok for part in modal_run.parts()][:1] == [True]
    assert callable(modal.Sandbox.create) and callable(modal.Secret.from_dict)


def test_the_command_in_the_sandbox_is_one_that_the_script_takes(
    definition: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = modal_run.inner_command(job(tmp_path / "work"))
    assert command[:2] == ["/opt/venv/bin/python", "/opt/tinker/scripts/run_agent.py"]
    args = run_agent.parse(command[2:])
    assert (args.recipe, args.model, args.max_turns) == ("arithmetic", "Qwen/Qwen3-8B", 5)
    assert args.secret == ["ANTHROPIC_API_KEY"] and args.options == ["--model", "opus"]
    assert args.json and not args.modal
    own = modal_run.inner_command(job(tmp_path, recipe=None, prompt=Path("task.md"), options=()))
    assert run_agent.parse(own[2:]).prompt == Path("/opt/task.md")


class Process:
    def __init__(self, done: subprocess.CompletedProcess, text: bool) -> None:
        self._code = done.returncode
        self.stderr = iter(done.stderr.decode().splitlines(keepends=True))
        self.stdout: Any = io.StringIO(done.stdout.decode()) if text else iter([done.stdout])

    def wait(self) -> int:
        return self._code


class LocalSandbox:
    """A Modal sandbox's calls, on a folder of this machine."""

    def __init__(self, above: Path, outcome: Any, noise: str = "") -> None:
        self.above, self.ended = above, False
        self._outcome, self._noise = outcome, noise

    def exec(self, *command: str, text: bool = True) -> Process:
        if "run_agent.py" in command[1]:
            printed = self._outcome if isinstance(self._outcome, str) else json.dumps(self._outcome)
            run = [sys.executable, "-c", "import sys; print(sys.argv[1]); print(sys.argv[2],"
                   " file=sys.stderr)", printed, self._noise]  # fmt: skip
        else:
            run = [str(self.above) if part == modal_run.ABOVE else part for part in command]
        return Process(subprocess.run(run, capture_output=True), text)

    def terminate(self) -> None:
        self.ended = True


def test_a_job_in_a_sandbox(definition, tmp_path: Path, capsys) -> None:
    there = tmp_path / "there"
    write_folder(there / "job", "rl")
    (there / "job" / "store").mkdir()
    (there / "job" / "store" / "big.bin").write_text("x")
    sandbox = LocalSandbox(there, told(), "step 1 with secret-value-1234")
    asked = {}

    def open_(found: Job, values: Any, seconds: int) -> LocalSandbox:
        asked.update(values=values, seconds=seconds)
        return sandbox

    outcome = modal_run.work(
        job(tmp_path / "work"), {"ANTHROPIC_API_KEY": "secret-value-1234"}, open_
    )
    assert outcome.ok and outcome.turns == 4 and outcome.workdir == str(tmp_path / "work")
    assert (tmp_path / "work" / "results" / "summary.json").is_file()
    assert not (tmp_path / "work" / "store").exists()
    assert asked["seconds"] == 1800 + 900 and sandbox.ended
    assert "step 1 with [ANTHROPIC_API_KEY]" in capsys.readouterr().err


def test_results_are_judged_here(definition, tmp_path: Path) -> None:
    there = tmp_path / "there"
    (there / "job").mkdir(parents=True)
    outcome = modal_run.work(job(tmp_path / "work"), {}, lambda *_: LocalSandbox(there, told()))
    assert not outcome.ok and outcome.findings == ("there is no results/ folder",)


@pytest.mark.parametrize(
    "printed", ["", "null", "[1]", '{"agent": "claude"}', json.dumps(told(seconds="long"))]
)
def test_a_sandbox_that_tells_nothing(definition, tmp_path: Path, printed: str) -> None:
    write_folder(tmp_path / "there" / "job", "rl")
    outcome = modal_run.work(
        job(tmp_path / "work"), {}, lambda *_: LocalSandbox(tmp_path / "there", printed)
    )
    assert not outcome.ok and outcome.problem == "run_agent.py there told nothing"


def test_the_sandbox_is_ended_when_there_is_no_folder(definition, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    sandbox = LocalSandbox(tmp_path / "there", told())
    with pytest.raises(CheckFailed, match="left no folder"):
        modal_run.work(job(tmp_path / "work"), {}, lambda *_: sandbox)
    assert sandbox.ended


@pytest.mark.parametrize("name", ["job/../../outside.txt", "job//etc/outside.txt"])
def test_nothing_is_unpacked_outside(tmp_path: Path, name: str) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as packed:
        member = tarfile.TarInfo(name)
        member.size = 2
        packed.addfile(member, io.BytesIO(b"no"))
    archive.seek(0)
    (tmp_path / "work").mkdir()
    try:
        modal_run.unpack(archive, tmp_path / "work")
    except CheckFailed:
        pass
    else:  # an absolute name was made a relative one
        assert (tmp_path / "work" / "etc" / "outside.txt").exists()
    assert not (tmp_path / "outside.txt").exists() and not Path("/etc/outside.txt").exists()


def test_a_link_to_the_outside_is_refused(tmp_path: Path) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as packed:
        member = tarfile.TarInfo("job/link")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        packed.addfile(member)
    archive.seek(0)
    (tmp_path / "work").mkdir()
    with pytest.raises(CheckFailed, match="can't unpack"):
        modal_run.unpack(archive, tmp_path / "work")


def test_a_time_limit_beyond_modals(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at most 85500 seconds"):
        modal_run.work(job(tmp_path / "work", time_limit=86_400.0), {})


def test_without_the_package_it_is_one_line(run) -> None:
    if importlib.util.find_spec("modal") is not None:
        pytest.skip("modal is installed")
    ran = run("--modal")
    assert ran.code == 2 and ran.err == (
        "error: --modal needs the package: pip install modal, then `modal setup`\n"
    )
