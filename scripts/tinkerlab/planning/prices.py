"""The price table of ``templates/prices.yaml``, checked as it is read."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinkerlab.errors import InputError

DEFAULT_FILE = Path(__file__).resolve().parents[3] / "templates" / "prices.yaml"


@dataclass(frozen=True)
class Price:
    """USD per million tokens of one model.

    Attributes:
        read: when the figures were read, as the table says it.
    """

    prefill: float
    sample: float
    train: float
    read: str


@dataclass(frozen=True)
class PriceTable:
    """Prices of the service.

    Attributes:
        cached_prefill_discount: share taken off prompt tokens that repeat a cached prefix.
        storage_gb_month: USD per GB of checkpoints and month.
    """

    source: str
    cached_prefill_discount: float
    storage_gb_month: float
    models: dict[str, Price]

    def of(self, model: str) -> Price:
        """The price of ``model``.

        Raises:
            InputError: the table has none; names the nearest.
        """
        if model in self.models:
            return self.models[model]
        nearest = difflib.get_close_matches(model, self.models, n=1, cutoff=0.6)
        hint = f"did you mean {nearest[0]}? " if nearest else ""
        raise InputError(
            f"no price for {model}: {hint}Look it up at {self.source}, and add it to a copy of"
            " templates/prices.yaml that you pass with --prices"
        )


def read_prices(file: Path = DEFAULT_FILE) -> PriceTable:
    """Read a price table.

    Raises:
        InputError: not such a file, a missing key, or a price that is no number of at least 0.
    """
    from tinkerlab.training.config import read_yaml

    document = read_yaml(file)
    rows = document.get("models")
    if not isinstance(rows, dict) or not rows:
        raise InputError(f"{file}: no models; copy templates/prices.yaml and change its figures")
    return PriceTable(
        source=str(document.get("source") or "the service's price page"),
        cached_prefill_discount=_amount(file, "file", document, "cached_prefill_discount"),
        storage_gb_month=_amount(file, "file", document, "storage_gb_month"),
        models={str(name): _price(file, str(name), row) for name, row in rows.items()},
    )


def _price(file: Path, model: str, row: Any) -> Price:
    if not isinstance(row, dict):
        raise InputError(
            f"{file}: {model}: write {{prefill: ..., sample: ..., train: ..., read: ...}}"
        )
    amounts = [_amount(file, model, row, key) for key in ("prefill", "sample", "train")]
    return Price(*amounts, read=str(row.get("read") or "at an unknown date"))


def _amount(file: Path, where: str, row: dict[str, Any], key: str) -> float:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise InputError(f"{file}: {where}: {key} must be a number of at least 0, got {value!r}")
    return float(value)
