"""Two surfaces (``surface.py``) against each other: what is gone, new or different.

    python tests/drift/compare.py pinned.json newest.json

Exit 0: nothing that was there is gone or different; 1: something is; 2: not two surfaces.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path


def lines(before: dict[str, str], after: dict[str, str]) -> Iterator[str]:
    """The report: versions first, then what was lost, then changes, then additions."""
    for name in sorted(n for n in before if n.startswith("version of ")):
        arrow = "" if before[name] == after.get(name) else f" -> {after.get(name)}"
        yield f"{name.removeprefix('version of ')} {before[name]}{arrow}"
    gone, changed, new = differences(before, after)
    for title, names in (("gone", gone), ("changed", changed), ("new", new)):
        yield f"{title}: {len(names)}"
        for name in names:
            yield f"  {name}"
            if title == "changed":
                yield from _both(before[name], after[name])


def differences(
    before: dict[str, str], after: dict[str, str]
) -> tuple[list[str], list[str], list[str]]:
    """Names that are gone, that say something else, that are new; versions aside.

    What lies below a name that is itself gone or new is left out: it says nothing more.
    """
    old = {n for n in before if not n.startswith("version of ")}
    fresh = {n for n in after if not n.startswith("version of ")}
    changed = sorted(n for n in old & fresh if before[n] != after[n])
    return _tops(old - fresh), changed, _tops(fresh - old)


def _tops(names: set[str]) -> list[str]:
    return sorted(n for n in names if n.rpartition(".")[0] not in names)


def _both(before: str, after: str) -> Iterator[str]:
    """The two texts; of long ones, only the words that differ."""
    if max(len(before), len(after)) < 100:
        yield f"    {before}  ->  {after}"
        return
    for word in difflib.ndiff(before.split(), after.split()):
        if word[0] in "+-":
            yield f"    {word}"


def main(arguments: Sequence[str]) -> int:
    try:
        before, after = (json.loads(Path(name).read_text(encoding="utf-8")) for name in arguments)
    except (OSError, ValueError) as error:
        print(f"error: give two files of surface.py: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines(before, after)))
    gone, changed, _ = differences(before, after)
    return 1 if gone or changed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
