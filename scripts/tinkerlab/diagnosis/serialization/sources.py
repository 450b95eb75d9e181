"""Where the datums to measure come from: made here, a data file, or the user's own function."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tinkerlab.errors import InputError

VOCABULARY = 150_000  # of the order of Qwen3's; only the ids' spread matters
FORMS = {
    "numpy": "numpy arrays, as tinker-cookbook makes them",
    "torch": "torch tensors",
    "lists": "Python lists of numbers",
    "scalars": "lists of one torch scalar a token: slow on purpose",
    "token-chunks": "one EncodedTextChunk a token: slow on purpose",
}


@dataclass(frozen=True)
class Source:
    """Datums to measure.

    Attributes:
        build: makes them anew.
        label: what they are, for the report.
        renders: building includes rendering text, whose time is not the datums' own.
    """

    build: Callable[[], list[Any]]
    label: str
    renders: bool = False


def made(batch: int, length: int, form: str, top_k: int = 0) -> Source:
    """``batch`` datums of ``length`` random tokens, ``top_k`` targets for each where above 0."""
    import tinker

    ids_DT = np.random.default_rng(0).integers(0, VOCABULARY, (batch, length + 1))

    def build() -> list[Any]:
        datums = []
        for ids_T in ids_DT:
            tokens, targets = ids_T[:-1].tolist(), ids_T[1:]
            weights = np.ones(length, np.float32)
            inputs: dict[str, Any] = {"target_tokens": targets, "weights": weights}
            if top_k:
                inputs = {
                    "target_tokens": np.tile(targets[:, None], (1, top_k)),
                    "weights": np.full((length, top_k), 1 / top_k, np.float32),
                }
            model_input = tinker.ModelInput.from_ints(tokens)
            if form == "token-chunks":
                chunks: list[Any] = [tinker.EncodedTextChunk(tokens=[token]) for token in tokens]
                model_input = tinker.ModelInput(chunks=chunks)
            datums.append(tinker.Datum(model_input=model_input, loss_fn_inputs=_as(form, inputs)))
        return datums

    targets = f", {top_k} targets a token" if top_k else ""
    return Source(build, f"{batch} datums of {length:,} tokens{targets}, from {FORMS[form]}")


def _as(form: str, inputs: dict[str, Any]) -> dict[str, Any]:
    if form in ("numpy", "token-chunks"):
        return inputs
    if form == "lists":
        return {name: array.tolist() for name, array in inputs.items()}
    import torch

    if form == "torch":
        return {name: torch.from_numpy(array) for name, array in inputs.items()}
    return {name: [torch.tensor(value) for value in array] for name, array in inputs.items()}


def from_file(path: Path, model: str, renderer: str, batch: int, length: int) -> Source:
    """The first ``batch`` rows of a data file, rendered for ``model``.

    Raises:
        InputError: the file, tokenizer or renderer cannot be used.
    """
    from tinkerlab.data.datums import build_datum
    from tinkerlab.data.messages import RowError
    from tinkerlab.data.reading import scan
    from tinkerlab.data.renderers import resolve_renderer
    from tinkerlab.data.tokenizers import load_tokenizer

    rows = scan(path).rows[:batch]
    if not rows:
        raise InputError(f"{path}: no usable row; check_data.py --data {path} lists why")
    resolved = resolve_renderer(model, load_tokenizer(model), renderer)

    def build() -> list[Any]:
        try:
            return [build_datum(row, resolved.renderer, length + 1) for row in rows]
        except RowError as error:
            raise InputError(f"{path}: {error}; check_data.py --data {path} lists all") from None

    return Source(build, f"the first {len(rows)} rows of {path.name}", renders=True)


def from_function(where: str) -> Source:
    """``FILE.py:FUNCTION``, a function of the user's that returns a list of datums.

    Raises:
        InputError: no such file or function, or it fails.
    """
    file, separator, name = where.rpartition(":")
    path = Path(file)
    if not separator or not name.isidentifier():
        raise InputError(f"--builder {where}: write FILE.py:FUNCTION")
    if path.is_dir() or not path.is_file():
        raise InputError(f"--builder {where}: {file} is not a file")
    spec = importlib.util.spec_from_file_location("measured_builder", path)
    if spec is None or spec.loader is None:
        raise InputError(f"--builder {where}: {file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))  # as when the script itself is run
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"--builder {where}: importing it fails: {_said(error)}") from None
    finally:
        sys.path.remove(str(path.resolve().parent))
    function = getattr(module, name, None)
    if not callable(function):
        raise InputError(f"--builder {where}: {path.name} has no function {name}")
    make: Any = function

    def build() -> list[Any]:
        import tinker

        try:
            datums = list(make())
        except Exception as error:
            raise InputError(f"--builder {where}: {name}() fails: {_said(error)}") from None
        if not datums or not all(isinstance(datum, tinker.Datum) for datum in datums):
            raise InputError(f"--builder {where}: {name}() must return a list of tinker.Datum")
        return datums

    return Source(build, f"the datums of {name} in {path.name}")


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
