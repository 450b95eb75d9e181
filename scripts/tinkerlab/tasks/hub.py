"""Tasks from a Hugging Face dataset, streamed: ``hf:openai/gsm8k:main@test``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
    for number, row in enumerate(rows(spec), start=1):
        place = f"hf:{spec} row {number}"
        try:
            yield task_of(row, place)
        except RowError as error:
            raise InputError(f"{place}: {error}") from None


def rows(spec: str) -> Iterator[dict[str, Any]]:
    """The raw rows of ``NAME[:CONFIG][@SPLIT]``, streamed.

    Raises:
        InputError: the package or the hub is not there, or no such dataset.
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
    found = iter(())
    try:
        found = iter(load_dataset(name, config or None, split=split or "train", streaming=True))
    except Exception as error:
        raise _unreadable(spec, error) from None
    while True:
        try:
            row = next(found)
        except StopIteration:
            return
        except Exception as error:
            raise _unreadable(spec, error) from None
        yield dict(row)


def _unreadable(spec: str, error: Exception) -> InputError:
    """One line; the hub's client, its HTTP library and fsspec each raise errors of their own."""
    text = " ".join(str(error).split())[:200]
    return InputError(
        f"hf:{spec} can't be read ({type(error).__name__}: {text}); check its name and the"
        " network, or give a JSONL file"
    )
