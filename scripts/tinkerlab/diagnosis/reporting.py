"""How every diagnostic script ends: print the diagnosis, return the exit code."""

from __future__ import annotations

from tinkerlab import cli
from tinkerlab.diagnosis.findings import Diagnosis


def report(diagnosis: Diagnosis, as_json: bool) -> int:
    """Print ``diagnosis`` on stdout and return 0, or 1 when it names a problem.

    Raises:
        InputError: nothing was checked.
    """
    diagnosis.require_checked()
    if as_json:
        cli.emit_json(diagnosis.as_dict())
    else:
        for line in diagnosis.lines():
            print(cli.redact(line))
    return cli.EXIT_OK if diagnosis.ok else cli.EXIT_FOUND
