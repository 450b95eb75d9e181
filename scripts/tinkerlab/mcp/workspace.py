"""Paths that an agent gives: inside the workspace, or refused."""

from __future__ import annotations

from pathlib import Path

from tinkerlab.mcp.errors import Refusal

SESSIONS = "tinker-sessions"


def inside(workspace: Path, given: str, *, must_exist: bool = True) -> Path:
    """``given`` as an absolute path below ``workspace``, symbolic links followed.

    Args:
        given: relative to the workspace, or absolute.

    Raises:
        Refusal: it lies elsewhere, is no path at all, or is not there.
    """
    if not given or "\0" in given:
        raise Refusal("bad_input", f"{given!r} is not a path", "give a file of the workspace")
    path = (workspace / Path(given).expanduser()).resolve()
    if not path.is_relative_to(workspace):
        raise Refusal(
            "outside_workspace",
            f"{given} is outside the workspace {workspace}",
            "copy the file into the workspace, or start the server with another"
            " TINKER_MCP_WORKSPACE",
        )
    if must_exist and not path.exists():
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
