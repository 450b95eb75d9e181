"""Follow a live run: what it says first, and then only what is new."""

from __future__ import annotations

import time

from tinkerlab import cli
from tinkerlab.diagnosis.findings import Diagnosis
from tinkerlab.diagnosis.run_analysis import saved
from tinkerlab.diagnosis.run_analysis.analysis import analyze
from tinkerlab.diagnosis.run_analysis.run import Run


def watch(run: Run, seconds: float, until_step: int | None, *, quiet: bool) -> Diagnosis:
    """Read and analyze every ``seconds``; the last diagnosis.

    Ends when the final checkpoint is recorded, when ``until_step`` is logged, or on Ctrl-C.

    Args:
        quiet: print no findings on the way (stdout is kept for the JSON document).
    """
    known: set[str] = set()
    diagnosis: Diagnosis | None = None
    try:
        while True:
            grown = run.read()
            if grown or diagnosis is None:
                diagnosis = analyze(run)
                cli.say(f"{time.strftime('%H:%M:%S')}  {run.progress_line()}")
            else:
                diagnosis = analyze(run)  # time itself may be the news: a run that stopped
            for finding in diagnosis.findings:
                if finding.cause not in known:
                    known.add(finding.cause)
                    if not quiet:
                        print("\n".join(cli.redact(line) for line in finding.lines()), flush=True)
            last = saved.last_step(run)
            if saved.final_record(run) is not None:
                break
            if until_step is not None and last is not None and last >= until_step:
                break
            time.sleep(seconds)
    except KeyboardInterrupt:
        cli.say("stopped watching")
        if diagnosis is None:
            raise
    return diagnosis
