"""Paths that an agent gives: inside the workspace, or refused."""

from __future__ import annotations

from pathlib import Path

from tinkerlab.mcp.errors import Refusal

SESSIONS = "tinker-sessions"


def inside(workspace: Path, given: str) -> Path:
    """``given`` as an absolute path below ``workspace``, symbolic links followed.

    Args:
        given: relative to the workspace, or absolute.

    Raises:
        Refusal: it lies elsewhere, is no path at all, or is not there.
    """
    if not given or "\0" in given:
        raise Refusal("bad_input", f"{given!r} is not a path", "give a file of the workspace")
    try:
        path = (workspace / Path(given).expanduser()).resolve()
        there = path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long, a loop of links, no such user
        raise Refusal(
            "bad_input", f"{given[:80]!r} is not a path ({error})", "give a file of the workspace"
        ) from None
    if not path.is_relative_to(workspace):
        raise Refusal(
            "outside_workspace",
            f"{given} is outside the workspace {workspace}",
            "copy the file into the workspace, or start the server with another"
            " TINKER_MCP_WORKSPACE",
        )
    if not there:
        raise Refusal(
            "bad_input",
            f"{given}: no such file in {workspace}",
            "check the name, or write it first",
        )
    return path


def data_file(workspace: Path, given: str, max_line_bytes: int) -> Path:
    """A data file inside the workspace whose lines are of a sane length.

    Raises:
        Refusal: see ``inside``; or a line is longer than ``max_line_bytes``, which no reader
            should be made to hold in memory.
    """
    path = inside(workspace, given)
    if not path.is_file():
        raise Refusal("bad_input", f"{given} is not a file", "give a JSON Lines file")
    with path.open("rb") as file:
        number = 0
        while line := file.readline(max_line_bytes + 1):
            number += 1
            if len(line) > max_line_bytes:
                raise Refusal(
                    "bad_input",
                    f"{given}:{number}: a line of more than {max_line_bytes / 1e6:g} MB",
                    "one example a line; raise TINKER_MCP_MAX_LINE_MB if it is meant so",
                )
    return path


def task_source(workspace: Path, given: str, max_line_bytes: int) -> str:
    """Tasks by name, or a data file inside the workspace.

    Raises:
        Refusal: see ``data_file``.
    """
    if given == "human_eval" or given.startswith(("reasoning_gym:", "hf:")):
        return given
    return str(data_file(workspace, given, max_line_bytes))


def grader_spec(workspace: Path, spec: str) -> str:
    """A grader as ``tinkerlab.grading`` names it; a file in it lies inside the workspace.

    Raises:
        Refusal: see ``inside``.
    """
    kind, _, argument = spec.partition(":")
    if kind == "json_schema" and argument:
        return f"{kind}:{inside(workspace, argument)}"
    file, _, function = spec.rpartition(":")
    if file.endswith(".py") and kind != "regex":
        return f"{inside(workspace, file)}:{function}"
    return spec
