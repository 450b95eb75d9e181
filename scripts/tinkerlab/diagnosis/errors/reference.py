"""The page of known errors, written from the table that the script uses."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from tinkerlab.diagnosis.errors.patterns import Pattern, known_patterns

PAGE = Path(__file__).resolve().parents[4] / "skills" / "debug" / "references" / "errors.md"

HEAD = """\
# Errors

Give the text to the script; it finds the entry, shows the line, and says what to run next:

```bash
python ${CLAUDE_PLUGIN_ROOT}/scripts/explain_error.py \\
    "TinkerError: The api_key client option must be set" || true
```

A message, a log file, or `-` for standard input. Exit 1: a cause was found; 0: nothing known, or only things to wait for. Several errors in one log are listed with the one that stands last first, since it is the one that ended the run; look at the earlier ones for the reason. What is marked "reported" comes from the hosted service and could not be produced here.

This page is written by `python scripts/explain_error.py --write-reference`; do not edit it.
"""


def render() -> str:
    """The page's text."""
    parts = [HEAD]
    ordered = sorted(known_patterns(), key=lambda pattern: _sections().index(pattern.section))
    for section, patterns in groupby(ordered, key=lambda pattern: pattern.section):
        parts.append(f"\n## {section}\n\n| cause | means | do |\n| --- | --- | --- |\n")
        parts += [_row(pattern) for pattern in patterns]
    return "".join(parts)


def _sections() -> list[str]:
    return list(dict.fromkeys(pattern.section for pattern in sorted(known_patterns(), key=_place)))


def _place(pattern: Pattern) -> int:
    return _ORDER.index(pattern.section)


_ORDER = [
    "Requests that the service refuses",
    "Checkpoints and paths",
    "Capacity, load and the network",
    "Account and credentials",
    "Using the SDK",
    "tinker-cookbook",
    "Other libraries",
]


def _row(pattern: Pattern) -> str:
    classes = [name.rsplit(".", 1)[-1] for name in pattern.exceptions]
    means = pattern.says + (f" ({', '.join(f'`{name}`' for name in classes)})" if classes else "")
    do = pattern.fix
    if pattern.then:
        do += f"; then `{pattern.then.replace('python scripts/', 'scripts/')}`"
    if "reported" in pattern.source:
        means += " (reported)"
    return f"| {pattern.cause} | {_cell(means)} | {_cell(do)} |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
