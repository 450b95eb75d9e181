"""The official MCP client, driving our server over stdio as an agent's host would."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from repository import ROOT

MODEL = "tiny:llama"
SFT = {
    "data_file_path": "chats.jsonl",
    "base_model": MODEL,
    "learning_rate": 0.01,
    "lora_rank": 4,
    "max_seq_len": 256,
    "total_steps": 8,
    "eval_every": 4,
}


class Agent:
    """Calls tools and keeps what was reported of their progress."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.progress: list[tuple[float, float | None, str | None]] = []

    async def call(self, tool: str, /, **arguments: Any) -> Any:
        """The structured result.

        Raises:
            AssertionError: the tool refused.
        """
        result = await self._call(tool, arguments)
        assert not result.is_error, result.content
        found = result.structured_content
        return found["result"] if found and set(found) == {"result"} else found

    async def refused(self, tool: str, /, **arguments: Any) -> dict[str, str]:
        """The error object of a call that must fail."""
        result = await self._call(tool, arguments)
        assert result.is_error, result.structured_content
        return refusal_of(result)

    async def _call(self, tool: str, arguments: dict[str, Any]) -> Any:
        async def note(progress: float, total: float | None, message: str | None) -> None:
            self.progress.append((progress, total, message))

        return await self.client.call_tool(tool, arguments, progress_callback=note)


def refusal_of(result: Any) -> dict[str, str]:
    """The error object of a failed call."""
    [content] = result.content
    return json.loads(content.text)["error"]


def workspace(folder: Path) -> Path:
    """A folder with the example conversations in it."""
    folder.mkdir(exist_ok=True)
    chats = files("tinker_cookbook").joinpath("example_data/conversations.jsonl").read_text()
    (folder / "chats.jsonl").write_text(chats, encoding="utf-8")
    return folder


@asynccontextmanager
async def agent(folder: Path, **environment: str) -> AsyncIterator[Agent]:
    """A server of its own for ``folder``, and a client of it. No key."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("TINKER_API")}
    env |= {
        "HOME": str(folder),
        "TINKER_MCP_WORKSPACE": str(folder),
        "TINKER_MCP_REHEARSAL_MODELS": MODEL,
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
        **environment,
    }
    server = StdioServerParameters(
        command=sys.executable, args=[str(ROOT / "scripts" / "mcp_server.py")], env=env
    )
    async with Client(stdio_client(server)) as client:
        yield Agent(client)
