"""What the MCP server takes from its environment. ``VARIABLES`` is the whole list."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tinkerlab.errors import InputError

# Name -> (default as text, what it does).
VARIABLES: dict[str, tuple[str, str]] = {
    "TINKER_MCP_WORKSPACE": (
        "the folder that the server starts in",
        "files are read and sessions are kept below it, and nowhere else",
    ),
    "TINKER_MCP_BUSY_SECONDS": (
        "10",
        "how long a call waits for another call on the same session before it says busy",
    ),
    "TINKER_MCP_KEEP_REWARD": (
        "0.3",
        "a reward session's first checkpoint at or above this mean reward is kept for good",
    ),
    "TINKER_MCP_KEEP_AFTER": ("3", "but not one of fewer steps than this"),
    "TINKER_MCP_REHEARSAL_MODELS": (
        "HuggingFaceTB/SmolLM2-135M-Instruct,tiny:llama",
        "what the rehearsal serves, separated by commas",
    ),
    "TINKER_MCP_PYTHON": (
        "",
        "a python with the packages, where the one that the client starts has none",
    ),
    "TINKER_MCP_MAX_LINE_MB": ("4", "a data file with a longer line is refused"),
}


@dataclass(frozen=True)
class Settings:
    """The server's settings.

    Attributes:
        workspace: absolute, without symbolic links.
        busy_seconds: see ``TINKER_MCP_BUSY_SECONDS``.
        max_line_bytes: of a data file.
    """

    workspace: Path
    busy_seconds: float = 10.0
    keep_reward: float = 0.3
    keep_after: int = 3
    rehearsal_models: tuple[str, ...] = ("HuggingFaceTB/SmolLM2-135M-Instruct", "tiny:llama")
    max_line_bytes: int = 4_000_000


def read(environment: Mapping[str, str] = os.environ) -> Settings:
    """Settings from ``environment``.

    Raises:
        InputError: a value that can't be read, or a workspace that is not there.
    """
    workspace = Path(environment.get("TINKER_MCP_WORKSPACE") or Path.cwd()).expanduser()
    if not workspace.is_dir():
        raise InputError(f"TINKER_MCP_WORKSPACE {workspace}: no such folder")
    models = (
        environment.get("TINKER_MCP_REHEARSAL_MODELS")
        or VARIABLES["TINKER_MCP_REHEARSAL_MODELS"][0]
    )
    return Settings(
        workspace=workspace.resolve(),
        busy_seconds=_number(environment, "TINKER_MCP_BUSY_SECONDS"),
        keep_reward=_number(environment, "TINKER_MCP_KEEP_REWARD"),
        keep_after=int(_number(environment, "TINKER_MCP_KEEP_AFTER")),
        rehearsal_models=tuple(name.strip() for name in models.split(",") if name.strip()),
        max_line_bytes=int(_number(environment, "TINKER_MCP_MAX_LINE_MB") * 1_000_000),
    )


def _number(environment: Mapping[str, str], name: str) -> float:
    text = environment.get(name) or VARIABLES[name][0]
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise InputError(f"{name} must be a number of 0 or more, not {text!r}")
    return value
