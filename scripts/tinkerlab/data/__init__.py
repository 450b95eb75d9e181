"""Conversations for training: read and check files, split, render to datums, describe.

Importing this package loads neither torch nor the cookbook; the functions do when called.
"""

from tinkerlab.data.check import check_dataset
from tinkerlab.data.datums import build_datum, conversation, render
from tinkerlab.data.messages import RowError
from tinkerlab.data.reading import BadRow, BadRowsError, LoadedData, Row, load_rows, scan
from tinkerlab.data.renderers import ResolvedRenderer, resolve_renderer
from tinkerlab.data.report import DataReport, Finding, statistics_lines
from tinkerlab.data.splits import Splits, make_splits
from tinkerlab.data.tokenizers import ModelLimits, load_tokenizer, model_limits

__all__ = [
    "BadRow",
    "BadRowsError",
    "DataReport",
    "Finding",
    "LoadedData",
    "ModelLimits",
    "ResolvedRenderer",
    "Row",
    "RowError",
    "Splits",
    "build_datum",
    "check_dataset",
    "conversation",
    "load_rows",
    "load_tokenizer",
    "make_splits",
    "model_limits",
    "render",
    "resolve_renderer",
    "scan",
    "statistics_lines",
]
