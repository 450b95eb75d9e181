"""For each cause: ways in which people write it, and the same thing written rightly.

They stand in ``lint_cases/<cause>.txt``, each under a line ``=== fault`` or ``=== healthy``.
"""

from __future__ import annotations

import re
from pathlib import Path

CASES = Path(__file__).parent / "lint_cases"

# Put before each of them.
HEAD = """
import asyncio
import tinker
from tinker import types
import tinker_cookbook
from tinker_cookbook import checkpoint_utils, cli_utils, renderers, weights
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.supervised import train

"""


def read(file: Path) -> list[tuple[str, str]]:
    """The pieces of a file with what each is, "fault" or "healthy"."""
    parts = re.split(r"^=== (fault|healthy)\n", file.read_text(), flags=re.MULTILINE)
    assert not parts[0].strip(), f"{file.name} begins with code of no kind"
    return list(zip(parts[1::2], parts[2::2], strict=True))


FILES = sorted(CASES.glob("*.txt"))
# (cause, script)
FAULTS = [(f.stem, code) for f in FILES for kind, code in read(f) if kind == "fault"]
NEIGHBOURS = [code for f in FILES for kind, code in read(f) if kind == "healthy"]
