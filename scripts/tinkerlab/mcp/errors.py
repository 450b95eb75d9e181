"""How a tool says no: one JSON object that an agent can act on."""

from __future__ import annotations

import json
from typing import Literal

from tinkerlab import cli

Kind = Literal[
    "bad_input",
    "outside_workspace",
    "unknown_session",
    "busy",
    "not_worth_training",
    "reward_refused",
    "run_failed",
    "service_failed",
    "stopped",
]


class Refusal(Exception):
    """A tool's anticipated failure.

    Args:
        kind: stable, for programs.
        message: what is wrong and where, in one line.
        fix: what to do next.
    """

    def __init__(self, kind: Kind, message: str, fix: str) -> None:
        super().__init__(message)
        self.kind, self.message, self.fix = kind, message, fix

    def text(self) -> str:
        """``{"error": {"kind", "message", "fix"}}``, keys and tokens blanked."""
        error = {"kind": self.kind, "message": self.message, "fix": self.fix}
        return cli.redact(json.dumps({"error": error}, ensure_ascii=False))
