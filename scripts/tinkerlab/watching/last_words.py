"""Why a process ended, from the end of what it printed."""

from __future__ import annotations

import re
from pathlib import Path

TAIL = 65_536  # bytes; a traceback with its causes fits many times
LONGEST = 300

# How this project's scripts stop (tinkerlab.cli), and the last line of a traceback.
_SAID = re.compile(r"^(?:error|failed|interrupted)\b[:;]?.*")
_RAISED = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt|Exit|Killed)\b(?::.*)?$")


def last_words(log: Path) -> str:
    """The last line of ``log`` that tells why its process ended; "" if none does, or no log.

    Only what was printed since the last ``$ command`` line counts, which begins each attempt.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - TAIL, 0))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    for line in reversed(text.splitlines()):
        if line.startswith("$ "):
            break
        found = _SAID.match(line) or _RAISED.match(line)
        if found:
            said = found.group(0).strip()
            return said if len(said) <= LONGEST else said[: LONGEST - 3] + "..."
    return ""
