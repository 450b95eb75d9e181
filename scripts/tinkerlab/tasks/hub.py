"""Tasks from a Hugging Face dataset, streamed: ``hf:openai/gsm8k:main@test``."""

from __future__ import annotations

from collections.abc import Iterator

from tinkerlab.data.messages import RowError
from tinkerlab.errors import InputError
from tinkerlab.tasks.rows import task_of
from tinkerlab.tasks.types import Task


def stream(spec: str) -> Iterator[Task]:
    """The tasks of ``NAME[:CONFIG][@SPLIT]``; the split is ``train`` unless named.

    Nothing is downloaded before the first task is asked for.

    Raises:
        InputError: the package or the hub is not there, no such dataset, or a row that is no
            task.
    """
    name, _, split = spec.partition("@")
    name, _, config = name.partition(":")
    if not name:
        raise InputError("hf: names no dataset; write hf:openai/gsm8k:main@test")
    try:
        from datasets import load_dataset
    except ImportError:
        raise InputError(
            "Hugging Face datasets need the package datasets: pip install datasets"
        ) from None
    try:
        rows = load_dataset(name, config or None, split=split or "train", streaming=True)
        for number, row in enumerate(rows, start=1):
            place = f"hf:{spec} row {number}"
            try:
                task = task_of(dict(row), place)
            except RowError as error:
                raise InputError(f"{place}: {error}") from None
            yield task
    except InputError:
        raise
    except Exception as error:  # the hub's client, its HTTP library, fsspec: each has its own
        text = " ".join(str(error).split())[:200]
        raise InputError(
            f"hf:{spec} can't be read ({type(error).__name__}: {text}); check its name and the"
            " network, or give a JSONL file"
        ) from None
