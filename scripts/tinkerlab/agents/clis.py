"""The coding agents that can be started, and how each is told to work without a person.

Options checked with the CLIs themselves: Claude Code 2.1.197 and Codex 0.171.0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinkerlab.errors import InputError

PLUGIN = Path(__file__).resolve().parents[3]

# What the agent may do without being asked. Nobody could answer, so anything else is denied.
# bypassPermissions would allow more, and the CLI refuses it to root, as one is in a sandbox.
ALLOWED_TOOLS = (
    "Bash", "Edit", "Write", "Read", "Glob", "Grep", "Skill", "NotebookEdit", "WebFetch",
    "mcp__plugin_tinker_tinker",
)  # fmt: skip


@dataclass(frozen=True)
class AgentCLI:
    """One coding agent's command line. It reads its task from stdin and prints JSON lines.

    Attributes:
        login: arguments that exit with 0 where the CLI can reach its model's account.
        validate: arguments that check this plugin; () for an agent that knows no plugins.
        get: how to install it, for a message.
    """

    name: str
    executable: str
    arguments: Callable[[int | None], list[str]]
    login: tuple[str, ...]
    validate: tuple[str, ...]
    get: str

    def command(self, max_turns: int | None, more: Sequence[str]) -> list[str]:
        """The whole command; ``more`` goes to the CLI as it is.

        Raises:
            InputError: a limit of turns that this agent has no option for.
        """
        return [self.executable, *self.arguments(max_turns), *more]


def _claude(max_turns: int | None) -> list[str]:
    arguments = [
        "-p", "--output-format", "stream-json", "--verbose", "--plugin-dir", str(PLUGIN),
        "--permission-mode", "acceptEdits", "--allowedTools", ",".join(ALLOWED_TOOLS),
    ]  # fmt: skip
    return [*arguments, "--max-turns", str(max_turns)] if max_turns is not None else arguments


def _codex(max_turns: int | None) -> list[str]:
    if max_turns is not None:
        raise InputError("--max-turns: codex has no such limit; use --time-limit")
    # Its sandbox has no network otherwise, not even a rehearsal's; and its shell drops variables
    # that look like secrets, of which only those named with --secret are there at all.
    settings = (
        "sandbox_workspace_write.network_access=true",
        "shell_environment_policy.inherit=all",
        "shell_environment_policy.ignore_default_excludes=true",
    )
    more = [part for setting in settings for part in ("-c", setting)]
    return ["exec", "--json", "--sandbox", "workspace-write", "--skip-git-repo-check", *more, "-"]


AGENTS = {
    agent.name: agent
    for agent in (
        AgentCLI(
            "claude",
            "claude",
            _claude,
            ("auth", "status"),
            ("plugin", "validate", "--strict", str(PLUGIN)),
            "npm install -g @anthropic-ai/claude-code",
        ),
        AgentCLI("codex", "codex", _codex, ("login", "status"), (), "npm install -g @openai/codex"),
    )
}
