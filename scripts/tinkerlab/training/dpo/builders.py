"""Pairs from a comparison builder of tinker-cookbook, or from a user's own of the same class."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinkerlab.data.messages import RowError
from tinkerlab.data.preferences import LoadedPairs, collect
from tinkerlab.errors import InputError


def load_comparisons(
    name: str, arguments: Mapping[str, str], max_train: int, max_val: int
) -> tuple[LoadedPairs, LoadedPairs | None]:
    """Training pairs, and the builder's test pairs where it has some.

    Args:
        name: ``module:Class`` or ``file.py:Class``, a ``ComparisonDatasetBuilder``.
        arguments: the builder's fields.
        max_train, max_val: rows of its data sets that are converted, from the start.

    Raises:
        InputError: no such class, or it fails; names its own error.
    """
    builder = _make(name, arguments)
    try:
        train, test = builder.get_train_and_test_datasets()
    except Exception as error:  # the hub's client, the disk and the builder each have theirs
        raise InputError(
            f"comparison_builder {name}: its data can't be had: {_brief(error)}"
        ) from None
    label = name.rpartition(":")[2]
    return (
        _pairs(label, builder, train, max_train),
        _pairs(f"{label} (test)", builder, test, max_val) if test is not None else None,
    )


def _make(name: str, arguments: Mapping[str, str]) -> Any:
    import chz
    from tinker_cookbook.preference.preference_datasets import ComparisonDatasetBuilder

    module_name, _, class_name = name.rpartition(":")
    try:
        made = getattr(_module(module_name), class_name, None)
    except Exception as error:  # the module's own code runs here
        raise InputError(f"comparison_builder {name}: {_brief(error)}") from None
    if not isinstance(made, type) or not issubclass(made, ComparisonDatasetBuilder):
        raise InputError(
            f"comparison_builder {name}: {module_name} has no ComparisonDatasetBuilder"
            f" {class_name!r}"
        )
    unknown = [key for key in arguments if key not in chz.chz_fields(made)]
    if unknown:
        raise InputError(
            f"comparison_builder_args: {class_name} has no field {unknown[0]!r}; it has"
            f" {', '.join(chz.chz_fields(made))}"
        )
    try:
        return made(**dict[str, Any](arguments))
    except (TypeError, ValueError) as error:
        raise InputError(f"comparison_builder {name}: {_brief(error)}") from None


def _module(name: str) -> Any:
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    spec = importlib.util.spec_from_file_location(f"comparison_builder_{path.stem}", path)
    assert spec and spec.loader  # a .py file has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where chz looks up the types of a class's fields
    spec.loader.exec_module(module)
    return module


def _pairs(name: str, builder: Any, rows: Any, limit: int) -> LoadedPairs:
    """The data set's rows as pairs; those that the builder itself passes over are counted."""
    numbered: list[tuple[int, dict[str, Any] | RowError]] = []
    passed_over = 0
    for index in range(min(len(rows), limit)):
        try:
            labeled = builder.example_to_labeled_comparison(rows[index])
        except Exception as error:  # the builder's own code
            raise InputError(f"{name}: row {index + 1}: {_brief(error)}") from None
        if labeled is None:
            passed_over += 1
            continue
        comparison = labeled.comparison
        document = {
            "prompt_conversation": comparison.prompt_conversation,
            "completion_A": comparison.completion_A,
            "completion_B": comparison.completion_B,
        }
        numbered.append((index + 1, {"comparison": document, "label": labeled.label}))
    notes = []
    if len(rows) > limit:
        notes.append(
            f"{len(rows) - limit:,} of {len(rows):,} rows not read: the limit is {limit:,}"
        )
    if passed_over:
        notes.append(f"{passed_over:,} rows that the builder passes over")
    return collect(name, numbered, notes)


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
