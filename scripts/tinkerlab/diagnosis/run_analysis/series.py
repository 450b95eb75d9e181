"""The rows of a metrics file as columns of numbers: 16 bytes a value, whatever the row held."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinkerlab.diagnosis.run_analysis import names

if TYPE_CHECKING:
    import numpy as np

_NOT_FINITE = {"nan", "inf", "-inf", "infinity", "-infinity"}
_LARGEST_STEP = 2**53  # beyond it a float no longer counts
_FINITE = frozenset(names.FINITE)


@dataclass(frozen=True)
class Curve:
    """One metric over the training steps, one value a step (the last one logged), by step.

    Attributes:
        steps: [n] int64, rising.
        values: [n] float64.
    """

    key: str
    steps: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.steps)

    def finite(self) -> Curve:
        import numpy as np

        good = np.isfinite(self.values)
        return Curve(self.key, self.steps[good], self.values[good])

    def at(self, step: int) -> float | None:
        import numpy as np

        index = int(np.searchsorted(self.steps, step))
        found = index < len(self) and int(self.steps[index]) == step
        return float(self.values[index]) if found else None


class Metrics:
    """Columns of a metrics file. Texts, lists and booleans are left out."""

    def __init__(self) -> None:
        self.rows = 0
        self._columns: dict[str, tuple[array[int], array[float]]] = {}
        self._dense: dict[str, tuple[int, np.ndarray]] = {}
        self._nulls: dict[str, array[int]] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        """Take one row over."""
        columns, number = self._columns, self.rows
        for key, value in row.items():
            kind = type(value)
            if kind is not float and kind is not int:
                if value is None and key in _FINITE:
                    self._nulls.setdefault(key, array("I")).append(number)
                value = _odd_value(key, value)
                if value is None:
                    continue
            column = columns.get(key)
            if column is None:
                column = columns[key] = (array("I"), array("d"))
            try:
                column[1].append(value)
            except OverflowError:  # an integer beyond the range of a float
                column[1].append(float("inf"))
            column[0].append(number)
        self.rows += 1

    def __contains__(self, key: str) -> bool:
        return key in self._columns

    @property
    def keys(self) -> list[str]:
        return list(self._columns)

    def first(self, keys: Sequence[str]) -> str | None:
        """The first of ``keys`` that some row has."""
        return next((key for key in keys if key in self._columns), None)

    def sparse(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """(row numbers, values) of the rows that have ``key``."""
        import numpy as np

        index, values = self._columns.get(key, (array("I"), array("d")))
        return np.array(index, dtype=np.int64), np.array(values, dtype=np.float64)

    def lost_at(self, key: str) -> np.ndarray:
        """Rows whose null stands for a NaN, as JSON has no word for it.

        A table that was written out as rows has null as well wherever a row lacks the metric,
        such as an evaluation between two others. So the nulls count where the row holds other
        numbers of training (if the run logs any), and they are few or all follow the last number.
        """
        import numpy as np

        nulls = np.array(self._nulls.get(key, ()), dtype=np.int64)
        if not len(nulls):
            return nulls
        rows, values = self.sparse(key)
        numbers = rows[np.isfinite(values)]
        for_good = len(numbers) >= 3 and nulls[0] > numbers[-1]
        if not for_good and 5 * len(nulls) > len(numbers):
            return nulls[:0]
        others = any(name in self._columns for name in names.TRAINING if name != key)
        return np.intersect1d(nulls, self.training_rows()) if others else nulls

    def dense(self, key: str) -> np.ndarray:
        """[rows] values, NaN where a row lacks ``key``."""
        import numpy as np

        known = self._dense.get(key)
        if known and known[0] == self.rows:
            return known[1]
        result = np.full(self.rows, np.nan)
        index, values = self.sparse(key)
        result[index] = values
        self._dense[key] = (self.rows, result)
        return result

    def row_steps(self) -> np.ndarray:
        """[rows] int64 step of each row; the row's number where no row tells."""
        import numpy as np

        result = np.arange(self.rows, dtype=np.float64)
        for key in reversed(names.STEP):  # the preferred names last, over the others
            index, values = self.sparse(key)
            good = (values >= 0) & (values < _LARGEST_STEP)
            result[index[good]] = values[good]
        return result.astype(np.int64)

    def training_rows(self) -> np.ndarray:
        """[n] numbers of the rows that are training steps; all rows if none can be told."""
        import numpy as np

        mask = np.zeros(self.rows, dtype=bool)
        for key in names.TRAINING:
            if key in self._columns:
                mask[self.sparse(key)[0]] = True
        return np.flatnonzero(mask) if mask.any() else np.arange(self.rows)

    def curve(self, keys: str | Sequence[str], *, training_only: bool = False) -> Curve | None:
        """The first of ``keys`` that is there; None without any value."""
        import numpy as np

        key = keys if isinstance(keys, str) else self.first(keys)
        if key is None or key not in self._columns:
            return None
        index, values = self.sparse(key)
        if training_only:
            keep = np.isin(index, self.training_rows())
            index, values = index[keep], values[keep]
        if not len(index):
            return None
        steps = self.row_steps()[index]
        # The last value of a step counts: reversed, np.unique keeps it.
        unique, last = np.unique(steps[::-1], return_index=True)
        return Curve(key, unique, values[::-1][last])


def _odd_value(key: str, value: Any) -> float | None:
    """A number for what other writers make of NaN; None for what is no number."""
    if isinstance(value, bool):
        return float(value)
    if key in _FINITE and str(value).lower() in _NOT_FINITE:
        return float("nan")
    return None
