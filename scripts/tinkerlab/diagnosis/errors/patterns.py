"""The known errors of ``patterns.toml``. Imports nothing heavy: the script must answer at once."""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinkerlab.diagnosis.findings import Severity

FILE = Path(__file__).with_name("patterns.toml")


@dataclass(frozen=True)
class Pattern:
    """One known error; the file explains the fields."""

    cause: str
    section: str
    match: tuple[str, ...]
    says: str
    fix: str
    source: str
    then: str = ""
    severity: Severity = "problem"
    generic: bool = False
    exceptions: tuple[str, ...] = ()

    @functools.cached_property
    def expression(self) -> re.Pattern[str]:
        names = (name.rsplit(".", 1)[-1] for name in self.exceptions)
        return re.compile("|".join([*self.match, *(rf"\b{name}\b" for name in names)]))


@functools.cache
def known_patterns() -> tuple[Pattern, ...]:
    """All patterns, particular ones before generic ones."""
    with FILE.open("rb") as file:
        rows = tomllib.load(file)["error"]
    found = []
    for row in rows:
        lists: dict[str, Any] = {name: tuple(row.pop(name, ())) for name in ("match", "exceptions")}
        found.append(Pattern(**row, **lists))
    return tuple(sorted(found, key=lambda pattern: pattern.generic))
