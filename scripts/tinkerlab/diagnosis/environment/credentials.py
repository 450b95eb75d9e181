"""Which credential the SDK would use, and what is wrong with it; never its value.

The order is that of ``tinker/lib/_auth_token_provider.py``, ``resolve_auth_provider``: a key in
the environment, else the credential command, else the stored default key.
"""

from __future__ import annotations

import base64
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tinkerlab.diagnosis.findings import Finding

PREFIXES = ("tml-", "eyJ")  # an API key; a JWT


@dataclass
class Credential:
    """What was found.

    Attributes:
        source: how the SDK would get its credential, in words; None when it would get none.
    """

    source: str | None = None
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find_credential(
    environment: Mapping[str, str] = os.environ, home: Path | None = None
) -> Credential:
    """Look where the SDK looks."""
    found = Credential()
    key = environment.get("TINKER_API_KEY", "")
    command = environment.get("TINKER_CREDENTIAL_CMD", "")
    file = (home or Path("~").expanduser()) / ".tinker" / "credentials.json"
    stored = _stored_key(file, found)
    if key:
        found.source = "TINKER_API_KEY"
        problems = list(_key_findings(key, "TINKER_API_KEY"))
        if problems and command and not key.startswith(PREFIXES):
            found.source = "TINKER_CREDENTIAL_CMD"
            found.notes.append(
                "TINKER_API_KEY has no valid form, so the SDK runs the command instead"
            )
        else:
            found.findings += problems
        if stored:
            found.notes.append("TINKER_API_KEY wins over the key stored by `tinker auth login`")
    elif command:
        found.source = "TINKER_CREDENTIAL_CMD"
        found.notes.append("the credential command is run by the SDK, not by this check")
    elif stored:
        found.source = f"stored key ({file})"
        found.findings += _key_findings(stored, str(file))
    else:
        found.findings.append(
            Finding(
                "no-credential",
                "no Tinker credential: not in the environment, no credential command, none stored",
                evidence=("looked at TINKER_API_KEY, TINKER_CREDENTIAL_CMD and " + str(file),),
                fix="export TINKER_API_KEY=..., or `tinker auth login`; without a key, put"
                " `python scripts/rehearse.py run --` in front of the command",
            )
        )
    return found


def _stored_key(file: Path, found: Credential) -> str | None:
    if not file.exists():
        return None
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        default = document.get("default")
        record = document.get("keys", {}).get(default) if default else None
        if file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            found.findings.append(
                Finding(
                    "credentials-readable",
                    "others on this machine can read the stored key",
                    where=str(file),
                    fix=f"chmod 600 {file}",
                    severity="warning",
                )
            )
        return str(record["key"]) if record else None
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        found.findings.append(
            Finding(
                "credentials-file",
                f"the stored credentials can't be read ({type(error).__name__})",
                where=str(file),
                fix="`tinker auth login` writes the file anew (move the old one away first)",
            )
        )
        return None


def _key_findings(key: str, where: str) -> Iterator[Finding]:
    fault = None
    if key != key.strip():
        fault = "has spaces or a line end around it"
    elif key[:1] in "'\"" or key[-1:] in "'\"":
        fault = "has quotes around it that belong to the shell, not to the key"
    elif not key.startswith(PREFIXES):
        fault = "does not begin with tml-: a key of something else"
    elif any(character.isspace() or not character.isprintable() for character in key):
        fault = "holds spaces or control characters"
    elif len(key) < 12 and not key.startswith("tml-rehearsal"):
        fault = "is too short: cut off when it was copied"
    if fault:
        yield Finding(
            "api-key-malformed", f"the key {fault}", where=where, fix="copy the key again"
        )
        return
    expiry = _jwt_expiry(key)
    if expiry is not None and expiry <= time.time():
        yield Finding(
            "credential-expired",
            f"the credential expired {(time.time() - expiry) / 3600:.1f} hours ago",
            where=where,
            fix="get a fresh one, or set TINKER_CREDENTIAL_CMD to a command that prints one",
        )


def _jwt_expiry(key: str) -> float | None:
    """The ``exp`` claim of a JWT; None for anything else."""
    if not key.startswith("eyJ"):
        return None
    try:
        body = key.split(".")[1]
        return float(json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["exp"])
    except (IndexError, KeyError, ValueError, TypeError):
        return None
