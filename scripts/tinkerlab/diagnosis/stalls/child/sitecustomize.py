"""Starts the watchdog before the user's script; found by way of PYTHONPATH.

``site`` imports a module of this name at the start of every Python process. The user's own
``sitecustomize``, if there is one further along the path, is run after ours, as if this file
were not here. Nothing that goes wrong in here may stop the user's script.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path


def _start() -> None:
    try:
        import tinkerlab_watch

        tinkerlab_watch.start()
    except Exception:
        sys.stderr.write("task_dump: the watchdog did not start; the script runs without it\n")
        traceback.print_exc()


def _chain() -> None:
    """Run the next ``sitecustomize`` of the path, the one that this file hides."""
    here = str(Path(__file__).resolve().parent)
    hidden = [entry for entry in sys.path if entry and Path(entry).resolve() == Path(here)]
    for entry in hidden:
        sys.path.remove(entry)
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


_start()
_chain()
