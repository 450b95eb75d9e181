"""Says how far Inspect is, on stderr and at most every few seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from inspect_ai.hooks import Hooks, SampleEnd, hooks

from tinkerlab.cli import say
from tinkerlab.data.words import counted

SECONDS = 5.0


@hooks(name="tinkerlab_progress", description="Progress lines of run_inspect_evals.py")
class Progress(Hooks):
    """Inspect makes the only one, when this module is imported."""

    total = 0
    done = 0
    failed = 0
    told = 0.0

    def enabled(self) -> bool:
        return Progress.total > 0

    async def on_sample_end(self, data: SampleEnd) -> None:
        Progress.done += 1
        Progress.failed += data.sample.error is not None
        now = time.monotonic()
        if now - Progress.told >= SECONDS or Progress.done == Progress.total:
            Progress.told = now
            failed = f", {Progress.failed} of them failed" if Progress.failed else ""
            say(f"{Progress.done} of {Progress.total} samples{failed}")


@contextmanager
def telling(total: int) -> Iterator[None]:
    """Tell of samples that end inside; ``total`` counts those of every model and epoch."""
    Progress.total, Progress.done, Progress.failed = total, 0, 0
    Progress.told = time.monotonic()
    try:
        yield
        if Progress.done < total:
            before = total - Progress.done
            say(f"{counted(Progress.done, 'sample')} run, {before} were there from before")
    finally:
        Progress.total = 0
