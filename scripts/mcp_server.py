#!/usr/bin/env python3
"""Training as tools: an MCP server on stdio, for agents that should not write a training script.

Sessions of SFT and GRPO are kept in the workspace, and outlive the server. Without a key it
offers the rehearsal. The plugin's .mcp.json starts it; by hand it waits for a client on stdin.

Exit 0: the client left; 2: bad settings.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tinkerlab import cli

EXAMPLES = """\
examples:
  python scripts/mcp_server.py --check          # settings and tools, then end
  TINKER_MCP_WORKSPACE=work python scripts/mcp_server.py

Environment:
"""

PYTHON_VARIABLE = "TINKER_MCP_PYTHON"
TRIED = "TINKER_MCP_PYTHON_TRIED"


def build_parser() -> argparse.ArgumentParser:
    from tinkerlab.mcp.settings import VARIABLES

    lines = [f"  {name} ({default})\n      {what}" for name, (default, what) in VARIABLES.items()]
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=EXAMPLES + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="print settings and tools, and end")
    return parser


def other_python() -> str | None:
    """Another interpreter that may have the packages, since a client starts any `python3`.

    The one that the environment names, the user's project's, the plugin's own; only once.
    """
    if os.environ.get(TRIED):
        return None
    os.environ[TRIED] = "1"
    folders = (Path.cwd(), Path(__file__).resolve().parents[1])
    candidates = [
        os.environ.get(PYTHON_VARIABLE),
        *(f / ".venv" / "bin" / "python" for f in folders),
    ]
    return next((str(c) for c in candidates if c and Path(c).is_file()), None)


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)

    from tinkerlab.errors import InputError
    from tinkerlab.mcp import settings

    found = settings.read()
    try:
        from tinkerlab.mcp.server import TOOLS, build
    except ModuleNotFoundError as error:
        other = other_python()
        if other is not None:
            os.execv(other, [other, *sys.argv])  # noqa: S606
        raise InputError(
            f"the package {error.name} is missing in {sys.executable}; make an environment with"
            " `make install` in the plugin's folder, or name a python that has it in"
            f" {PYTHON_VARIABLE}"
        ) from None
    if args.check:
        print(f"workspace {found.workspace}")
        print(f"rehearsal of {', '.join(found.rehearsal_models)}")
        print(f"{len(TOOLS)} tools: {', '.join(TOOLS)}")
        return cli.EXIT_OK
    build(found).run("stdio")
    return cli.EXIT_OK


if __name__ == "__main__":
    cli.run(main)
