"""How many rows and tokens a data file holds, as the supervised trainer would count them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tinkerlab.errors import InputError


@dataclass(frozen=True)
class Counted:
    """Sizes of the usable rows of a file.

    Attributes:
        tokens: what one pass feeds the model, after truncation.
        trained_tokens: of these, the ones with a loss weight.
        left_out: rows that can't be used.
    """

    rows: int
    tokens: int
    trained_tokens: int
    left_out: int


def count_rows(
    data: Path, model: str, tokenizer: str | None = None, *, max_seq_len: int = 2048
) -> Counted:
    """Count ``data`` with ``model``'s tokenizer and renderer.

    Raises:
        InputError: the file can't be read or holds no usable row; no such tokenizer.
    """
    from tinkerlab.data.files import CheckPlan, check_files

    result = check_files(
        CheckPlan(
            train_file=data,
            base_model=model,
            tokenizer=tokenizer,
            max_seq_len=max_seq_len,
            val_fraction=0.0,
            skip_bad_rows=True,
        )
    )
    statistics = result.report.statistics.get("train")
    if not statistics or not statistics.rows:
        raise InputError(f"{data}: no usable row; python scripts/check_data.py --data {data}")
    return Counted(
        rows=statistics.rows,
        tokens=statistics.tokens,
        trained_tokens=statistics.trained_tokens,
        left_out=len(result.files[0].bad),
    )
