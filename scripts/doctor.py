#!/usr/bin/env python3
"""Environment and service in one go: what is wrong with this machine, and is Tinker up?

First without the network: versions against a table of known-bad ones, credential (never
printed), address, disk, limits. Then the service: reachable, round trip, key, models, and with
--model whether a training client of it is to be had now, under a deadline.
Exit 0: nothing wrong; 1: a problem; 2: bad input.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from tinkerlab import cli
from tinkerlab.diagnosis.environment import machine, versions
from tinkerlab.diagnosis.environment.credentials import find_credential
from tinkerlab.diagnosis.findings import Diagnosis
from tinkerlab.diagnosis.reporting import report
from tinkerlab.errors import InputError

EXAMPLES = """\
examples:
  python scripts/doctor.py --model Qwen/Qwen3-8B
  python scripts/doctor.py --offline --log-path runs/
  python scripts/doctor.py --freeze their-pip-freeze.txt
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", metavar="NAME", help="also: is it served, and can it be trained now?")
    add("--offline", action="store_true", help="only what needs no network (under half a second)")
    add("--freeze", type=Path, metavar="FILE", help="judge another machine's `pip freeze` alone")
    add("--log-path", type=Path, default=Path(), metavar="DIR", help="where the runs go (here)")
    add(
        "--timeout",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="wait for the service's answer to each question (default: 20)",
    )
    add(
        "--create-timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="wait for a training client of --model (default: 60; 0 creates none)",
    )
    add("--json", action="store_true", help="print one JSON document on stdout")
    return parser


def judge_freeze(file: Path) -> Diagnosis:
    found = versions.frozen_versions(file)
    return Diagnosis(
        healthy="no version in it is known to break something",
        checked={"packages": len(found)},
        findings=list(versions.version_findings(found, here=False)),
        notes=[_listed(found)],
        details={"versions": found},
    )


def judge_here(log_path: Path, model: str | None) -> Diagnosis:
    """Everything that needs no network."""
    found = versions.installed_versions()
    credential = find_credential()
    base_url = os.environ.get("TINKER_BASE_URL", "")
    looks = [
        versions.version_findings(found, here=True),
        credential.findings,
        machine.variable_findings(),
        machine.disk_findings(log_path),
        machine.limit_findings(),
    ]
    if base_url:
        looks.append(machine.address_findings(base_url))
    if model:
        looks.append(machine.gated_findings(model, machine.has_hub_token()))
    findings = [finding for look in looks for finding in look]
    notes = [
        f"Python {platform.python_version()}; {_listed(found)}",
        f"credential: {credential.source or 'none'}",
        f"address: {machine.without_password(base_url) or 'the hosted service'}",
        *credential.notes,
        *machine.variable_notes(),
    ]
    if "torch" not in found:
        notes.append("torch is not installed: forward_backward_custom needs it")
    return Diagnosis(
        healthy="environment and service are as they should be",
        checked={"packages": len(found), "settings": len(looks)},
        findings=findings,
        notes=notes,
        details={
            "versions": {"python": platform.python_version(), **found},
            "credential": credential.source,
            "base_url": machine.without_password(base_url) or None,
        },
    )


def ask_service(diagnosis: Diagnosis, args: argparse.Namespace) -> None:
    """Add what the service says; stops at the first step that fails."""
    from tinker.lib.base_url import resolve_base_url

    from tinkerlab.diagnosis.service.access import access
    from tinkerlab.diagnosis.service.reach import ROUNDS, reach

    cli.say("asking the service ...")
    answer = reach(resolve_base_url())
    diagnosis.findings += answer.findings
    diagnosis.checked["requests"] = ROUNDS if answer.answered else 1
    if answer.median is not None:
        diagnosis.notes.append(f"round trip: {answer.median * 1000:.0f} ms (median of {ROUNDS})")
    diagnosis.details["round_trip_seconds"] = answer.median
    if not answer.answered:
        return
    allowed = access(
        args.model,
        answer.median,
        ask_seconds=args.timeout,
        create_seconds=args.create_timeout,
    )
    diagnosis.findings += allowed.findings
    diagnosis.notes += allowed.notes
    diagnosis.checked["requests"] += allowed.asked
    diagnosis.details["models"] = [
        {"name": name, "trainable": trainable, "sampleable": sampleable, "context": length}
        for name, trainable, sampleable, length in allowed.models
    ]
    if allowed.models:
        diagnosis.notes.append(f"{len(allowed.models)} models are served")


def _listed(found: versions.Versions) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items()) or "no package of ours"


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    if not (args.create_timeout >= 0 and args.timeout > 0):  # NaN is neither
        raise InputError("--timeout must be above 0 and --create-timeout not negative")
    if args.freeze:
        return report(judge_freeze(args.freeze), args.json)
    diagnosis = judge_here(args.log_path, args.model)
    usable = diagnosis.details["credential"] and "tinker" in diagnosis.details["versions"]
    if args.offline:
        diagnosis.healthy = "the environment is as it should be (the service was not asked)"
    elif usable:
        ask_service(diagnosis, args)
    else:
        diagnosis.notes.append("the service was not asked: there is no credential or no SDK")
    return report(diagnosis, args.json)


if __name__ == "__main__":
    cli.run(main)
