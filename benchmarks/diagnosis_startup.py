#!/usr/bin/env python3
"""How long a diagnosis that needs no network takes to answer, against ``python -c pass``.

Whole processes, in turns, medians. The targets are seconds, because a person waits for them:
``doctor.py --offline`` 0.5, ``explain_error.py`` 0.3. The ratio says what of it is Python's own
start. Exit code 1 if one is missed.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from tinkerlab import cli

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "doctor.py --offline": [str(SCRIPTS / "doctor.py"), "--offline"],
    "explain_error.py MESSAGE": [str(SCRIPTS / "explain_error.py"), "Error code: 429 - slow down"],
}
TARGETS = {"doctor.py --offline": 0.5, "explain_error.py MESSAGE": 0.3}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="example: python benchmarks/diagnosis_startup.py --rounds 20",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=10, help="runs of each (default: 10)")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    arguments = parser.parse_args(argv)

    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for number in range(arguments.rounds + 1):
        for name, command in COMMANDS.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, *command], capture_output=True, check=False)
            if number:  # the first run fills the caches of the disk and of Python
                times[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(found) for name, found in times.items()}
    bare = medians["python -c pass"]
    rows = [
        {
            "name": name,
            "seconds": medians[name],
            "target_seconds": target,
            "ratio_to_bare_python": medians[name] / bare,
            "pass": medians[name] <= target,
        }
        for name, target in TARGETS.items()
    ]
    if arguments.json:
        cli.emit_json({"bare_python_seconds": bare, "rows": rows})
    else:
        for row in rows:
            print(
                f"{'pass' if row['pass'] else 'MISS'}  {row['seconds']:.3f} s (target <="
                f" {row['target_seconds']} s)  {row['name']}: {row['ratio_to_bare_python']:.1f}x of"
                f" python -c pass ({bare:.3f} s)"
            )
    return cli.EXIT_OK if all(row["pass"] for row in rows) else cli.EXIT_FOUND


if __name__ == "__main__":
    cli.run(main)
