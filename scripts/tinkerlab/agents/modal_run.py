"""Do an agent's job in a Modal sandbox: run_agent.py itself runs there, its folder comes back."""

from __future__ import annotations

import importlib.util
import json
import math
import tarfile
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import IO, Any

from tinkerlab import cli
from tinkerlab.agents.events import one_line
from tinkerlab.agents.job import Job
from tinkerlab.agents.outcome import Outcome, with_results
from tinkerlab.agents.secrets import Redactor
from tinkerlab.agents.setup import Part
from tinkerlab.errors import CheckFailed, InputError
from tinkerlab.folders import make_folder

# Of the sandbox: the image is Debian, which has /srv.
ABOVE, THERE, TASK_THERE = "/srv", "/srv/job", "/opt/task.md"
LONGEST_SANDBOX = 86_400  # seconds; Modal's own limit
MARGIN = 900  # seconds beside the agent's own: start, check, packing
CPUS, MEMORY_MB = 2.0, 8192
# A rehearsal's checkpoints: large, and of no use elsewhere.
LEFT_THERE = ("job/store", "job/.claude")

Open = Callable[[Job, Mapping[str, str], int], Any]


def require_modal() -> None:
    """Refuse --modal without the package.

    Raises:
        InputError: it is not installed.
    """
    if importlib.util.find_spec("modal") is None:
        raise InputError("--modal needs the package: pip install modal, then `modal setup`")


def parts() -> list[Part]:
    """The app's definition can be made, and there is a token; the service is not asked."""
    import modal  # pyright: ignore[reportMissingImports]

    from tinkerlab.agents import modal_app

    token = bool(modal.config.config.get("token_id"))
    return [
        Part("modal", True, f"{modal.__version__}, app {modal_app.NAME} is defined"),
        Part("modal account", token, "a token is set" if token else "run `modal setup`"),
    ]


def inner_command(job: Job) -> list[str]:
    """run_agent.py with the same job, as the sandbox sees it."""
    from tinkerlab.agents import modal_app

    command = [
        modal_app.PYTHON, f"{modal_app.ROOT}/scripts/run_agent.py", "--workdir", THERE,
        "--agent", job.agent_name, "--time-limit", f"{job.time_limit:g}", "--json",
    ]  # fmt: skip
    command += ["--recipe", job.recipe] if job.recipe else ["--prompt", TASK_THERE]
    command += ["--model", job.model] if job.model else []
    command += ["--max-turns", str(job.max_turns)] if job.max_turns else []
    for name in job.secrets:
        command += ["--secret", name]
    return [*command, "--", *job.options] if job.options else command


def work(job: Job, values: Mapping[str, str], open_sandbox: Open | None = None) -> Outcome:
    """Run the job in a sandbox, bring its folder back, and check the results here.

    Args:
        values: the secrets by name; they go there as a Modal secret of this sandbox alone.
        open_sandbox: makes the sandbox.

    Raises:
        InputError: a time limit beyond Modal's, or no account.
        CheckFailed: the sandbox broke off.
    """
    seconds = math.ceil(job.time_limit) + MARGIN
    if seconds > LONGEST_SANDBOX:
        most = LONGEST_SANDBOX - MARGIN
        raise InputError(f"--time-limit: with --modal at most {most} seconds")
    cli.say("starting a Modal sandbox (its image is built on the first start)")
    sandbox = (open_sandbox or _open)(job, values, seconds)
    try:
        return _work_in(sandbox, job, Redactor(values))
    finally:
        sandbox.terminate()


def _work_in(sandbox: Any, job: Job, redactor: Redactor) -> Outcome:
    process = sandbox.exec(*inner_command(job))
    thread = threading.Thread(target=_pass_on, args=(process.stderr, redactor), daemon=True)
    thread.start()
    interrupted = False
    printed = ""
    try:
        printed = redactor(process.stdout.read())
        process.wait()
        thread.join(MARGIN)
    except KeyboardInterrupt:
        interrupted = True
        cli.say("interrupted; fetching the folder")
    fetch(sandbox, job.workdir)
    found = _outcome(printed, job)
    if interrupted:
        found = replace(found, how="interrupted", problem="interrupted")
    # What ran there could say anything of itself; the results are judged here.
    return with_results(found, job.workdir)


def _open(job: Job, values: Mapping[str, str], seconds: int) -> Any:
    import modal  # pyright: ignore[reportMissingImports]

    from tinkerlab.agents import modal_app

    image = modal_app.image
    if job.prompt is not None:
        image = image.add_local_file(job.prompt, TASK_THERE)
    try:
        app = modal.App.lookup(modal_app.NAME, create_if_missing=True)
        return modal.Sandbox.create(
            app=app,
            image=image,
            secrets=[modal.Secret.from_dict(dict(values))] if values else [],
            timeout=seconds,
            workdir=ABOVE,
            cpu=CPUS,
            memory=MEMORY_MB,
        )
    except modal.exception.AuthError as error:
        raise InputError(f"modal: {_brief(error)}; run `modal setup`") from None
    except modal.exception.Error as error:
        raise CheckFailed(f"modal: {_brief(error)}") from None


def _pass_on(stream: Any, redactor: Redactor) -> None:
    for text in stream:
        for line in str(text).splitlines():
            cli.say(one_line(redactor(line)))


def _outcome(printed: str, job: Job) -> Outcome:
    """The outcome as the script there told it; one that says so where it told none."""
    from pydantic import TypeAdapter

    try:
        told = json.loads(printed)
        known = {field.name for field in fields(Outcome)}
        told = {key: value for key, value in told.items() if key in known}
        found = TypeAdapter(Outcome).validate_python(told)
        found = replace(found, problem=one_line(found.problem))
    except (ValueError, TypeError, AttributeError, RecursionError):
        found = Outcome(job.agent_name, "", "", "ended", "run_agent.py there told nothing", -1, 0.0)
    return replace(found, workdir=str(job.workdir), logs=str(job.logs))


def fetch(sandbox: Any, workdir: Path) -> None:
    """Bring the job's folder here.

    Raises:
        CheckFailed: it could not be packed, or holds what must not be unpacked.
    """
    make_folder(workdir, "--workdir")
    leave = [f"--exclude={path}" for path in LEFT_THERE]
    with tempfile.TemporaryFile() as archive:
        process = sandbox.exec("tar", "-C", ABOVE, *leave, "-cf", "-", "job", text=False)
        for piece in process.stdout:
            archive.write(piece)
        if process.wait() != 0:
            raise CheckFailed("the agent left no folder in the sandbox")
        archive.seek(0)
        unpack(archive, workdir)


def unpack(archive: IO[bytes], workdir: Path) -> None:
    """Unpack ``job/`` of a tar archive; nothing in it may lie, or point, outside ``workdir``.

    Raises:
        CheckFailed: something does, or the archive is damaged.
    """

    def inside(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
        _, _, name = member.name.partition("/")
        return tarfile.data_filter(member.replace(name=name), folder) if name else None

    try:
        with tarfile.open(fileobj=archive) as packed:
            packed.extractall(workdir, filter=inside)  # noqa: S202 - filtered, see inside
    except (tarfile.TarError, OSError) as error:
        raise CheckFailed(f"can't unpack the sandbox's folder: {_brief(error)}") from None


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
