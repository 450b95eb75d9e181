"""The protocol's own inspector, another implementation than our client, reads the server."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from npm_packages import npm_program
from repository import ROOT

from tinkerlab.mcp.server import TOOLS

# The newest version that npm installs on Node 20; a later one needs Node 22.
VERSION = "0.15.0"


@pytest.fixture(scope="module")
def program() -> Path:
    return npm_program("@modelcontextprotocol/inspector", VERSION, "mcp-inspector")


def inspected(program: Path, folder: Path, *arguments: str) -> Any:
    """What the inspector says of the server that ``.mcp.json`` starts; without a key."""
    config = json.loads((ROOT / ".mcp.json").read_text(encoding="utf-8"))["mcpServers"]
    [(name, entry)] = config.items()
    for key in ("command", "args"):
        entry[key] = json.loads(json.dumps(entry[key]).replace("${CLAUDE_PLUGIN_ROOT}", str(ROOT)))
    file = folder / "servers.json"
    file.write_text(json.dumps({"mcpServers": {name: entry}}), encoding="utf-8")
    env = {k: v for k, v in os.environ.items() if not k.startswith("TINKER_")}
    done = subprocess.run(
        [program, "--cli", "--config", file, "--server", name, *arguments],
        cwd=folder,
        env=env | {"HOME": str(folder), "TINKER_MCP_WORKSPACE": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_inspector_lists_the_tools(program: Path, tmp_path: Path) -> None:
    tools = inspected(program, tmp_path, "--method", "tools/list")["tools"]
    assert sorted(tool["name"] for tool in tools) == sorted(TOOLS)
    for tool in tools:
        assert tool["description"] and "\n    " not in tool["description"]
        assert tool["inputSchema"]["type"] == "object" and "outputSchema" in tool


def test_a_refusal_reaches_a_client_that_checks_schemas(program: Path, tmp_path: Path) -> None:
    called = inspected(
        program, tmp_path, "--method", "tools/call", "--tool-name", "status",
        "--tool-arg", "session_id=none",
    )  # fmt: skip
    assert called["isError"], called
    assert json.loads(called["content"][0]["text"])["error"]["kind"] == "unknown_session"
