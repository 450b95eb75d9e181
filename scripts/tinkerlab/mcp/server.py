"""The MCP server: tools, resources and prompts around one ``Lab``.

Nothing heavy is imported here: the server lists its tools at once, and without a key.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ResourceNotFoundError
from mcp.types import CallToolResult, TextContent

from tinkerlab.errors import CheckFailed, InputError
from tinkerlab.mcp import figures
from tinkerlab.mcp.errors import Refusal
from tinkerlab.mcp.lab import Lab
from tinkerlab.mcp.looking_tools import LookingTools
from tinkerlab.mcp.settings import Settings
from tinkerlab.mcp.training_tools import TrainingTools
from tinkerlab.mcp.weights_tools import WeightsTools

RECIPES = Path(__file__).resolve().parents[3] / "templates" / "recipes"
INSTRUCTIONS = (
    "Fine-tune a language model in steps: check_environment, inspect_dataset, init_sft or"
    " init_grpo, then train a few steps, look (metrics, sample, compare_with_base), decide, and"
    " finish, which compares base and trained model on held-out items. Without a key everything"
    " runs on a local rehearsal. Every failure is one JSON object with kind, message and fix."
)
TOOLS = (
    "list_models", "check_environment", "inspect_dataset", "init_sft", "init_grpo",
    "train_sft_step", "train_grpo_step", "sample", "evaluate", "compare_with_base", "save",
    "load", "list_checkpoints", "export", "status", "stop", "finish",
)  # fmt: skip


def build(settings: Settings) -> MCPServer:
    """The server of one workspace."""
    lab = Lab(settings)

    @asynccontextmanager
    async def lifespan(server: MCPServer) -> AsyncIterator[None]:
        import anyio

        try:
            yield
        finally:
            # The client is gone; what trains shall save all the same.
            with anyio.CancelScope(shield=True):
                await lab.close()

    server = MCPServer("tinker", instructions=INSTRUCTIONS, lifespan=lifespan, log_level="WARNING")
    training = TrainingTools(lab)
    owners = (training, LookingTools(lab), WeightsTools(lab, training))
    for name in TOOLS:
        owner = next(owner for owner in owners if hasattr(owner, name))
        tool = getattr(owner, name)
        server.tool(name=name, description=inspect.getdoc(tool))(_guarded(tool))
    _add_resources(server, lab)
    _add_prompts(server)
    return server


def _guarded(tool: Callable[..., Any]) -> Callable[..., Any]:
    """The tool, with its anticipated failures as one JSON object for the agent."""

    @functools.wraps(tool)
    async def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return await tool(*args, **kwargs)
        except Refusal as refusal:
            return _refused(refusal)
        except (InputError, CheckFailed) as error:
            kind = "bad_input" if isinstance(error, InputError) else "run_failed"
            return _refused(Refusal(kind, str(error), "see the message"))

    # Annotations are text (PEP 563), to be read with the names of the tool's own module.
    signature = inspect.signature(tool, eval_str=True)
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {
        **{name: p.annotation for name, p in signature.parameters.items()},
        "return": signature.return_annotation,
    }
    return call


def _refused(refusal: Refusal) -> CallToolResult:
    """A failed call, with its reason as JSON text.

    Not as structured content: clients built on the protocol's TypeScript SDK hold that to the
    tool's output schema in a failed call, too, and would show the user a schema error instead.
    """
    return CallToolResult(content=[TextContent(type="text", text=refusal.text())], is_error=True)


def _add_resources(server: MCPServer, lab: Lab) -> None:
    def session_of(session_id: str) -> Any:
        try:
            return lab.sessions.get(session_id)
        except Refusal as refusal:
            raise ResourceNotFoundError(refusal.message) from None

    @server.resource("session://{session_id}/metrics", mime_type="application/jsonl")
    def metrics(session_id: str) -> str:
        """Every row that the session's trainer logged."""
        file = session_of(session_id).run / "metrics.jsonl"
        return file.read_text(encoding="utf-8") if file.is_file() else ""

    @server.resource("session://{session_id}/curves", mime_type="image/png")
    def curves(session_id: str) -> bytes:
        """Training and held-out figures by step, as a picture."""
        return figures.drawn(session_of(session_id))

    @server.resource("session://{session_id}/report", mime_type="text/html")
    def report(session_id: str) -> str:
        """The page that finish wrote."""
        file = session_of(session_id).folder / "report.html"
        if not file.is_file():
            raise ResourceNotFoundError(f"session {session_id} has no report; call finish")
        return file.read_text(encoding="utf-8")

    @server.resource("session://{session_id}/config", mime_type="application/yaml")
    def config(session_id: str) -> str:
        """The trainer's config, which works without this server as well."""
        return session_of(session_id).config.read_text(encoding="utf-8")


def _add_prompts(server: MCPServer) -> None:
    for page in sorted(RECIPES.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        title = text.split("\n", 1)[0].removeprefix("# ")

        def recipe(text: str = text) -> str:
            return f"Carry out this task with the tinker tools, or with its commands.\n\n{text}"

        recipe.__signature__ = inspect.Signature()  # type: ignore[attr-defined]
        server.prompt(name=page.stem, title=title, description=title)(recipe)
