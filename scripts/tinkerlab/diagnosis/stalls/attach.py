"""Looks at a process that is already running, through py-spy, and names its state."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinkerlab.diagnosis.findings import Diagnosis, Finding
from tinkerlab.diagnosis.stalls.stacks import Frame, Stack
from tinkerlab.errors import InputError

INSTALL = "python -m pip install py-spy"


@dataclass(frozen=True)
class Look:
    """The threads of a process at one moment; ``keeper`` is the one that py-spy saw with the GIL."""

    main: Stack
    sdk: Stack | None
    keeper: Stack | None
    threads: int


def parse_dump(text: str) -> Look:
    """What ``py-spy dump --json`` printed.

    Raises:
        InputError: it is not that.
    """
    try:
        rows = json.loads(text)
        threads = [(row, _stack(row)) for row in rows]
    except (ValueError, KeyError, TypeError):
        raise InputError("py-spy printed something other than its JSON dump") from None
    if not threads:
        raise InputError("py-spy found no Python thread in this process")
    # Linux gives the main thread the process's own number; py-spy knows its name only once
    # `threading` has been imported.
    main = next(
        (stack for row, stack in threads if row.get("os_thread_id") == row.get("pid")),
        None,
    ) or next((s for row, s in threads if row.get("thread_name") == "MainThread"), threads[0][1])
    sdk = next((stack for _, stack in threads if _is_sdk(stack)), None)
    keeper = next((stack for row, stack in threads if row.get("owns_gil")), None)
    return Look(main, sdk, keeper, len(threads))


def _stack(row: dict[str, Any]) -> Stack:
    return Stack(tuple(Frame(f["filename"], f["line"], f["name"]) for f in row["frames"]))


def _is_sdk(stack: Stack) -> bool:
    return any(
        frame.function.endswith("_background_thread_func") and frame.library == "sdk"
        for frame in stack.frames
    )


def look(pid: int) -> Look:
    """
    Raises:
        InputError: py-spy is missing, or may not or cannot look.
    """
    beside = Path(sys.executable).with_name("py-spy")
    program = str(beside) if beside.is_file() else shutil.which("py-spy")
    if program is None:
        raise InputError(f"attach needs py-spy: {INSTALL}")
    done = subprocess.run(
        [program, "dump", "--pid", str(pid), "--json"], capture_output=True, text=True, timeout=60
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[0]
        if "ermission" in done.stderr or "Operation not permitted" in done.stderr:
            raise InputError(
                f"no permission to look into process {pid}: run this as its owner with sudo, or "
                "allow ptrace (kernel.yama.ptrace_scope, --cap-add SYS_PTRACE in a container)"
            )
        raise InputError(f"py-spy cannot look into process {pid}: {said}")
    return parse_dump(done.stdout)


def observe(pid: int, times: int, seconds: float) -> list[Look]:
    """``times`` looks spread over ``seconds``.

    Raises:
        InputError: as ``look``; a process that ends in between ends the looking.
    """
    looks = [look(pid)]
    while len(looks) < times:
        time.sleep(seconds / (times - 1))
        try:
            looks.append(look(pid))
        except InputError:
            if not Path(f"/proc/{pid}").exists():
                break
            raise
    return looks


def judge(looks: Sequence[Look], seconds: float) -> Diagnosis:
    """Name a state that every look saw; a state that only some saw accuses nobody."""
    findings = [
        finding
        for finding in (_gil(looks, seconds), _sdk(looks, seconds), _main(looks, seconds))
        if finding is not None
    ][:1]
    uses_sdk = any(seen.sdk is not None for seen in looks)
    return Diagnosis(
        healthy=_healthy(looks, uses_sdk),
        checked={"looks": len(looks), "threads": max(seen.threads for seen in looks)},
        findings=findings if len(looks) > 1 else [],
        notes=[
            f"main thread: {_doing(looks[-1].main)}",
            *([f"SDK's thread: {_doing(looks[-1].sdk)}"] if looks[-1].sdk else []),
            *([] if uses_sdk else ["the SDK's thread is not running: no client was created yet"]),
            "seen from outside: requests in flight are not known; "
            "`task_dump.py run -- python train.py` counts them",
        ],
        details={"main": [str(frame) for frame in looks[-1].main.frames[:20]]},
    )


def _healthy(looks: Sequence[Look], uses_sdk: bool) -> str:
    waiting = sum(_waits(seen.main) for seen in looks)
    if waiting == len(looks):
        if uses_sdk and all(seen.sdk is not None and seen.sdk.loop_idle for seen in looks):
            if any(seen.main.loop_idle for seen in looks):
                # An async script: what its tasks await is not to be seen from outside.
                return (
                    "both event loops wait: for the service, or for something of the script's own"
                    " (a queue that nobody fills, a task); `task_dump.py run --every 5` tells which"
                )
            return "the main thread waits and the SDK's loop is free: waiting on the service"
        return "the main thread waits for something"
    return f"no thread stood still: the main thread waited in {waiting} of {len(looks)} looks"


def _waits(stack: Stack) -> bool:
    return stack.loop_idle or stack.waits_for_future or stack.waits_elsewhere


def _same(stacks: Sequence[Stack | None]) -> Stack | None:
    """The stack of all looks when each blames the same function, else None."""
    first = stacks[0]
    if first is None or first.blame is None:
        return None
    return first if all(s is not None and s.key == first.key for s in stacks) else None


def _evidence(stack: Stack, looks: Sequence[Look], seconds: float) -> tuple[str, ...]:
    return (f"{len(looks)} of {len(looks)} looks over {seconds:.1f} s saw {stack.place}",)


def _gil(looks: Sequence[Look], seconds: float) -> Finding | None:
    """The same line with the GIL every time: Python code that runs would have moved on."""
    stack = _same([seen.keeper for seen in looks])
    if stack is None or any(seen.keeper.frames[0] != stack.frames[0] for seen in looks):  # type: ignore[union-attr]
        return None
    return Finding(
        "gil-held",
        f"{stack.blame} keeps the GIL: no other thread runs, the SDK's included",
        where=str(stack.blame),
        evidence=_evidence(stack, looks, seconds),
        fix="move this call to a process of its own, or use a form that releases the GIL",
    )


def _sdk(looks: Sequence[Look], seconds: float) -> Finding | None:
    if any(seen.sdk is None or seen.sdk.loop_idle for seen in looks):
        return None
    stack = _same([seen.sdk for seen in looks])
    if stack is None:
        return None
    return Finding(
        "sdk-loop-blocked",
        f"{stack.blame} blocks the SDK's own event loop: no request and no heartbeat passes",
        where=str(stack.blame),
        evidence=_evidence(stack, looks, seconds),
        fix="keep done callbacks and coroutines on the SDK's loop short; hand work to a thread",
    )


def _main(looks: Sequence[Look], seconds: float) -> Finding | None:
    mains = [seen.main for seen in looks]
    if any(_waits(main) for main in mains) or all(seen.sdk is None for seen in looks):
        return None
    stack = _same(mains)
    if stack is None:
        return None
    in_loop = all(main.runs_loop for main in mains)
    return Finding(
        "event-loop-blocked" if in_loop else "client-stall",
        f"the main thread stays in {stack.blame}"
        + (" and blocks the script's event loop" if in_loop else ", in the script's own code"),
        where=str(stack.blame),
        evidence=_evidence(stack, looks, seconds),
        fix="if it should be waiting for the service instead: submit the next requests before "
        "this work, or move it out of the loop",
    )


def _doing(stack: Stack | None) -> str:
    if stack is None or not stack.frames:
        return "not seen"
    if stack.loop_idle:
        return "its event loop waits for events"
    if stack.waits_for_future:
        return f"waits for a future in {stack.blame}"
    return f"in {stack.place}"
