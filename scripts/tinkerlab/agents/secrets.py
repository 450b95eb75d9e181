"""Secrets by name: handed to the agent from our environment, and kept out of every log."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from tinkerlab.cli import redact
from tinkerlab.errors import InputError

# Shorter ones can't be blanked without blanking half the log.
SHORTEST = 8
# What may be repeated in a message; another word could be the secret itself.
_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")
_LOOKS_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)


def problem_of(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """Why the variable can't be passed as a secret; "" where it can. Never says its value."""
    if not may_be_shown(name, environment):
        return "give a variable's name, never the secret itself"
    if not environment.get(name):
        return f"{name} is not set; export it first"
    if len(environment[name]) < SHORTEST:
        return f"{name} has fewer than {SHORTEST} characters, too few to be kept out of a log"
    return ""


def may_be_shown(name: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a word given for a variable's name is one, and no secret by mistake."""
    return name in environment or _NAME.fullmatch(name) is not None


def collect(names: Sequence[str], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The secrets by name.

    Raises:
        InputError: one that can't be passed.
    """
    for name in names:
        problem = problem_of(name, environment)
        if problem:
            raise InputError(f"--secret: {problem}")
    return {name: environment[name] for name in names}


def agent_environment(
    secrets: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Our environment without what looks like a secret, the named ones apart.

    ``python`` in it is the one that runs this script, which has the packages.
    """
    kept = {name: value for name, value in environment.items() if not _LOOKS_SECRET.search(name)}
    folder = str(Path(sys.executable).absolute().parent)
    path = os.pathsep.join([folder, kept.get("PATH", os.defpath)])
    return {**kept, **secrets, "PATH": path}


def left_out(named: Collection[str], environment: Mapping[str, str] = os.environ) -> list[str]:
    """Names of the variables that ``agent_environment`` keeps back."""
    return sorted(n for n in environment if _LOOKS_SECRET.search(n) and n not in named)


class Redactor:
    """Blanks the values of secrets, also as JSON writes them, and whatever looks like a key."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._names: dict[str, str] = {}
        for name, value in secrets.items():
            # A secret of several lines (a key file) reaches a log a line at a time.
            parts = [value, *(part.strip() for part in value.splitlines())]
            for part in parts:
                if len(part) >= SHORTEST:
                    ascii_form, plain_form = json.dumps(part), json.dumps(part, ensure_ascii=False)
                    for form in (part, ascii_form[1:-1], plain_form[1:-1]):
                        self._names[form] = f"[{name}]"
        # Longest first: one secret may be the beginning of another.
        self._forms = sorted(self._names, key=len, reverse=True)

    @property
    def longest(self) -> int:
        """Characters of the longest form."""
        return max(map(len, self._forms), default=0)

    def __call__(self, text: str) -> str:
        for form in self._forms:
            text = text.replace(form, self._names[form])
        return redact(text)
