#!/usr/bin/env python3
"""Rehearse: run Tinker scripts against a local service that really trains, without a key.

serve    start the service and print the two export lines for your shell
run      start it, run one command against it, stop it; passes output, exit code and signals on
models   list what can be served
faults   list the faults that --fault can produce
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tinkerlab import cli
from tinkerlab.errors import InputError

EXAMPLES = """\
examples:
  python scripts/rehearse.py run -- python scripts/sl_trainer.py --config templates/training-config.yaml
  python scripts/rehearse.py run --alias Qwen/Qwen3-8B=tiny:qwen3 -- python train.py
  python scripts/rehearse.py serve --port 8123 --fault latency:200ms
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="start the service; stop it with Ctrl-C")
    run = commands.add_parser("run", help="run one command against a service of its own")
    for command in (serve, run):
        command.add_argument(
            "--model",
            action="append",
            default=[],
            metavar="NAME_OR_DIR",
            help="model to serve, repeatable (default: the embedded SmolLM2-135M-Instruct)",
        )
        command.add_argument(
            "--alias",
            action="append",
            default=[],
            metavar="NAME=DIR",
            help="answer to NAME (such as Qwen/Qwen3-8B) with the model in DIR",
        )
        command.add_argument(
            "--store",
            type=Path,
            metavar="DIR",
            help="where checkpoints and records live (default: store/ in the rehearsal's cache)",
        )
        command.add_argument(
            "--fault",
            action="append",
            default=[],
            metavar="KIND[:ARGS]",
            help="misbehave on purpose, repeatable; `rehearse.py faults` lists the kinds",
        )
        command.add_argument(
            "--client-flag",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="a feature flag that the SDK asks the service for, to test its other paths",
        )
    serve.add_argument(
        "--port", type=int, default=0, help="port on 127.0.0.1 (default: a free one)"
    )
    serve.add_argument("--until-stdin-closes", action="store_true", help=argparse.SUPPRESS)
    run.add_argument("child", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")
    models = commands.add_parser("models", help="list what can be served")
    models.add_argument("--json", action="store_true", help="print one JSON document")
    faults = commands.add_parser("faults", help="list the faults that --fault can produce")
    faults.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = build_parser().parse_args(argv)
    if arguments.command == "serve":
        return serve_command(arguments)
    if arguments.command == "run":
        return run_command(arguments)
    if arguments.command == "models":
        return models_command(arguments)
    return faults_command(arguments)


def serve_command(arguments: argparse.Namespace) -> int:
    from tinkerlab.rehearsal.service.faults import Fault, Faults

    # What can be refused is refused before the slow part: importing torch, loading weights.
    faults = Faults([Fault.parse(text) for text in arguments.fault])
    store = arguments.store or default_store()

    from tinkerlab.rehearsal.models import registry
    from tinkerlab.rehearsal.service.hub_overlay import build_overlay
    from tinkerlab.rehearsal.service.serve import LOOPBACK, bind, client_config, serve

    aliases = registry.parse_aliases(arguments.alias)
    config = client_config(arguments.client_flag)
    sock = bind(arguments.port)
    names = arguments.model or ([] if aliases else [registry.DEFAULT_MODEL])
    sources = [registry.resolve(name, aliases) for name in dict.fromkeys([*names, *aliases])]
    folders = {source.name: source.directory for source in sources}

    def announce() -> None:
        overlay = build_overlay(store / "hub", folders)
        print(f"export HF_HUB_CACHE={overlay.resolve()}")
        print(f"export TINKER_BASE_URL=http://{LOOPBACK}:{sock.getsockname()[1]}")
        print("export TINKER_API_KEY=tml-rehearsal", flush=True)
        cli.say(f"serving {', '.join(folders)}; checkpoints and records in {store}")

    serve(
        sources,
        store,
        sock,
        config=config,
        faults=faults,
        until_stdin_closes=arguments.until_stdin_closes,
        announce=announce,
    )
    return cli.EXIT_OK


def run_command(arguments: argparse.Namespace) -> int:
    from tinkerlab.rehearsal.service.launch import rehearsal_server

    command = arguments.child[1:] if arguments.child[:1] == ["--"] else arguments.child
    if not command:
        raise InputError("nothing to run: put the command after --, as in `run -- python train.py`")
    store = arguments.store or default_store()
    with rehearsal_server(
        arguments.model,
        store=store,
        aliases=arguments.alias,
        faults=arguments.fault,
        client_flags=arguments.client_flag,
    ) as server:
        cli.say(f"rehearsal at {server.base_url}, checkpoints and records in {store}")
        try:
            # In a session of its own the child gets each signal once: the one that we pass on.
            child = subprocess.Popen(command, env=server.env, start_new_session=True)
        except OSError as error:
            raise InputError(f"can't run {command[0]}: {error.strerror}") from None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda received, _: _forward(child, received))
        code = child.wait()
    # A child ended by a signal has a negative code; shells show it as 128 + signal.
    return code if code >= 0 else 128 - code


def _forward(child: subprocess.Popen[bytes], number: int) -> None:
    # It may have ended this very moment.
    with contextlib.suppress(ProcessLookupError):
        os.kill(child.pid, number)


def models_command(arguments: argparse.Namespace) -> int:
    from tinkerlab.rehearsal.models import registry

    rows = registry.available()
    if arguments.json:
        cli.emit_json([{"name": row.name, "description": row.description} for row in rows])
        return cli.EXIT_OK
    width = max(len(row.name) for row in rows)
    for row in rows:
        print(f"{row.name:<{width}}  {row.description}")
    return cli.EXIT_OK


def faults_command(arguments: argparse.Namespace) -> int:
    from tinkerlab.rehearsal.service.faults import KINDS

    if arguments.json:
        rows = [
            {"kind": name, "effect": kind.effect, "on": kind.on, "seconds": kind.seconds}
            for name, kind in KINDS.items()
        ]
        cli.emit_json(rows)
        return cli.EXIT_OK
    for name, kind in KINDS.items():
        print(f"{name:<15} {kind.effect} (on={kind.on})")
    print("\nKIND[:ARG,...]: ARG is a duration 200ms or 5s, a count 3x, a share 10%, or on=ROUTE")
    return cli.EXIT_OK


def default_store() -> Path:
    from tinkerlab.rehearsal.models.cache import cache_root

    return cache_root() / "store"


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    cli.run(main)
