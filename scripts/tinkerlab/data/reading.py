"""Read a JSONL file of conversations: every line becomes a row, or a bad row with its reason.

The file is read as a stream of lines and never changed. A file has one format: the one that
most of its rows have; a row of another format is a bad row, because such a mix is nearly always
two files glued together by mistake.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from tinkerlab.data import formats
from tinkerlab.data.messages import (
    Messages,
    RowError,
    clean_tools,
    kind,
    nothing_to_train_on,
)
from tinkerlab.data.words import counted, of_rows
from tinkerlab.errors import InputError

MAX_LINE_BYTES = 16 * 2**20  # far over any context window; a file without newlines stops here
LISTED = 20  # bad rows that an error message lists

_BOM = b"\xef\xbb\xbf"
_NOT_TEXT = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "a zip archive",
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One usable conversation.

    Attributes:
        index: position among the file's usable rows, from 0.
        line: line of the file, from 1.
        messages: ``{"role", "content", ...}`` objects, checked; plain JSON data.
        tools: tool declarations ``{"name", "description", "parameters"}``.
        file: the file's name, for messages.
    """

    index: int
    line: int
    messages: Messages
    tools: tuple[dict[str, Any], ...] = ()
    file: str = ""

    @property
    def place(self) -> str:
        """Where the row stands: ``train.jsonl line 7``."""
        return f"{self.file} line {self.line}" if self.file else f"line {self.line}"


@dataclass(frozen=True, slots=True)
class BadRow:
    """A line that can't be used, and why."""

    line: int
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}"


class BadRowsError(InputError):
    """A file has bad rows. ``data`` holds all of them; the message lists the first ones."""

    def __init__(self, message: str, data: LoadedData) -> None:
        super().__init__(message)
        self.data = data


@dataclass
class LoadedData:
    """What a file holds.

    Attributes:
        path: the file.
        rows: usable rows in the file's order.
        bad: the others, in the file's order.
        format: name of the file's format; "" when no row has a known one.
        notes: harmless oddities that were worked around (BOM, CRLF, blank lines, unused keys).
    """

    path: Path
    rows: list[Row]
    bad: list[BadRow]
    format: str
    notes: list[str] = field(default_factory=list)

    @property
    def summary(self) -> str:
        """One line: ``train.jsonl: 128 rows, format messages``."""
        bad = f", {len(self.bad)} bad" if self.bad else ""
        rows = counted(len(self.rows), "row")
        return f"{self.path.name}: {rows}{bad}, format {self.format or 'unknown'}"

    @property
    def refused(self) -> str:
        """``2 of 9 rows can't be used``, with the reason where all have the same one."""
        reasons = {row.reason for row in self.bad}
        why = f" ({reasons.pop()})" if len(reasons) == 1 else ""
        return f"{of_rows(len(self.bad), len(self.rows) + len(self.bad))} can't be used{why}"


def load_rows(
    path: str | Path,
    skip_bad_rows: bool = False,
    train_on_what: str = "all_assistant_messages",
) -> LoadedData:
    """Read and check ``path``.

    Args:
        skip_bad_rows: leave bad rows out instead of refusing the file; they stay in ``.bad``.
        train_on_what: a row in which this trains nothing is a bad row.

    Raises:
        BadRowsError: there are bad rows and ``skip_bad_rows`` is false.
        InputError: the file can't be read, isn't JSON lines, or has no usable row.
    """
    data = scan(path, train_on_what)
    if data.bad and not skip_bad_rows:
        raise BadRowsError(_refusal(data), data)
    if not data.rows:
        raise InputError(f"{data.path}: no usable row\n{describe_bad(data.bad)}")
    return data


def scan(path: str | Path, train_on_what: str = "all_assistant_messages") -> LoadedData:
    """Read and check ``path``; bad rows are reported in the result, not raised.

    Raises:
        InputError: the file can't be read, holds nothing, or isn't JSON lines.
    """
    path = Path(path).expanduser()
    try:
        with path.open("rb") as stream:
            reader = _Reader(path, train_on_what)
            for number, line in _lines(stream, reader.notes):
                reader.take(number, line)
    except OSError as error:
        raise InputError(f"data file {path}: {error.strerror or error}") from None
    return reader.finish()


def read_objects(
    path: str | Path, limit: int | None = None
) -> tuple[list[tuple[int, dict[str, Any] | RowError]], list[str]]:
    """Every line's number and JSON object, or why it is none; and the notes on the file's bytes.

    For rows that are no conversations, such as preference pairs.

    Args:
        limit: lines to read, from the start.

    Raises:
        InputError: the file can't be read, holds nothing, or isn't JSON lines.
    """
    path = Path(path).expanduser()
    notes = _FileNotes()
    found: list[tuple[int, dict[str, Any] | RowError]] = []
    try:
        with path.open("rb") as stream:
            for number, line in itertools.islice(_lines(stream, notes), limit):
                try:
                    found.append((number, _parse(line)))
                except RowError as error:
                    found.append((number, error))
    except OSError as error:
        raise InputError(f"data file {path}: {error.strerror or error}") from None
    if not found:
        raise InputError(f"data file {path}: is empty; give it one JSON object a line")
    if all(isinstance(value, RowError) for _, value in found):
        refuse_json_document(path, len(found))
    return found, notes.sentences()


def describe_bad(bad: list[BadRow], limit: int = LISTED) -> str:
    """The first ``limit`` bad rows, a line each, and how many more there are."""
    listed = [f"  {row}" for row in bad[:limit]]
    if len(bad) > limit:
        listed.append(f"  ... and {len(bad) - limit} more")
    return "\n".join(listed)


def _refusal(data: LoadedData) -> str:
    return (
        f"{data.path}: {data.refused}; mend them, or set skip_bad_rows=true to train without "
        f"them\n{describe_bad(data.bad)}"
    )


@dataclass
class _FileNotes:
    """Oddities of the file's bytes."""

    byte_order_mark: bool = False
    crlf_lines: int = 0
    blank_lines: list[int] = field(default_factory=list)

    def sentences(self) -> list[str]:
        found = []
        if self.byte_order_mark:
            found.append("starts with a byte order mark, ignored")
        if self.crlf_lines:
            found.append(f"{counted(self.crlf_lines, 'line')} with a CRLF end (Windows), ignored")
        if self.blank_lines:
            some = ", ".join(map(str, self.blank_lines[:LISTED]))
            more = ", ..." if len(self.blank_lines) > LISTED else ""
            found.append(
                f"{counted(len(self.blank_lines), 'blank line')} between rows, ignored: {some}{more}"
            )
        return found


class _Reader:
    """Collects rows line by line; ``finish`` settles the format."""

    def __init__(self, path: Path, train_on_what: str) -> None:
        self.path = path
        self.train_on_what = train_on_what
        self.notes = _FileNotes()
        self.formats: Counter[str] = Counter()
        self.unused_keys: Counter[str] = Counter()
        self.found: list[tuple[int, str, Messages, tuple[dict[str, Any], ...]]] = []
        self.bad: list[BadRow] = []
        self.lines = 0

    def take(self, number: int, line: bytes | RowError) -> None:
        self.lines += 1
        try:
            row = _parse(line)
            used = formats.detect(row)
            # Counted before the row's content is checked: a broken row has a format too.
            self.formats[used.name] += 1
            messages = used.convert(row)
            tools = tuple(clean_tools(row["tools"])) if row.get("tools") else ()
            if reason := nothing_to_train_on(messages, self.train_on_what):
                raise RowError(reason)
            self.unused_keys.update(formats.extra_keys(row, used))
            self.found.append((number, used.name, messages, tools))
        except RowError as error:
            self.bad.append(BadRow(number, str(error)))

    def finish(self) -> LoadedData:
        if not self.lines:
            raise InputError(f"data file {self.path}: is empty; give it one JSON object a line")
        chosen, count = self.formats.most_common(1)[0] if self.formats else ("", 0)
        rows: list[Row] = []
        for number, name, messages, tools in self.found:
            if name == chosen:
                rows.append(Row(len(rows), number, messages, tools, self.path.name))
            else:
                reason = (
                    f"a {name} row in a file whose format is {chosen} ({counted(count, 'row')}); "
                    "convert it, or put it into a file of its own"
                )
                self.bad.append(BadRow(number, reason))
        self.bad.sort(key=lambda row: row.line)
        if not rows:
            refuse_json_document(self.path, self.lines)
        notes = self.notes.sentences()
        if self.unused_keys:
            keys = ", ".join(
                f"{key} ({counted(n, 'row')})" for key, n in self.unused_keys.most_common(8)
            )
            notes.append(f"keys without a use here: {keys}")
        return LoadedData(self.path, rows, self.bad, chosen, notes)


def refuse_json_document(path: Path, lines: int) -> None:
    """A file that is one JSON document gets one sentence instead of a bad row per line.

    Args:
        lines: how many lines of the file hold something.

    Raises:
        InputError: it is such a file.
    """
    if path.stat().st_size > MAX_LINE_BYTES:
        return
    try:
        document = json.loads(path.read_bytes().removeprefix(_BOM))
    except (ValueError, RecursionError):
        return
    # One object on one line is a row, and was reported as such.
    if isinstance(document, list) or lines > 1:
        raise InputError(
            f"data file {path}: is one JSON {kind(document).split()[-1]}, not JSON lines; "
            "write one object a line, for example with: jq -c '.[]' IN.json > OUT.jsonl"
        )


def _lines(stream: BinaryIO, notes: _FileNotes) -> Iterator[tuple[int, bytes | RowError]]:
    """Yield (line number, content) of every line that isn't blank; too long ones as an error.

    Raises:
        InputError: the first bytes are those of another kind of file.
    """
    number = 0
    blank: list[int] = []
    while chunk := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if number == 1:
            _refuse_other_kinds(chunk, stream)
            if chunk.startswith(_BOM):
                notes.byte_order_mark = True
                chunk = chunk.removeprefix(_BOM)
        if len(chunk) > MAX_LINE_BYTES:
            while chunk and not chunk.endswith(b"\n"):
                chunk = stream.readline(MAX_LINE_BYTES)
            yield number, RowError(f"longer than {MAX_LINE_BYTES // 2**20} MB")
            continue
        if chunk.endswith(b"\r\n"):
            notes.crlf_lines += 1
        if not chunk.strip():
            blank.append(number)
            continue
        notes.blank_lines += blank  # only now known not to be at the end
        blank.clear()
        yield number, chunk.rstrip(b"\r\n")


def _refuse_other_kinds(start: bytes, stream: BinaryIO) -> None:
    for magic, name in _NOT_TEXT.items():
        if start.startswith(magic):
            raise InputError(
                f"data file {stream.name}: is {name}, not JSON lines; "
                "unpack or convert it to UTF-8 text with one JSON object a line"
            )


def _parse(line: bytes | RowError) -> dict[str, Any]:
    if isinstance(line, RowError):
        raise line
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RowError(
            f"not UTF-8 (byte {error.start + 1} is 0x{line[error.start]:02x}); save the file as UTF-8"
        ) from None
    if "\0" in text:
        raise RowError("holds NUL bytes; the file may have been cut off by a crash")
    try:
        value = json.loads(
            text, object_pairs_hook=_object_without_repeats, parse_constant=_no_constant
        )
    except json.JSONDecodeError as error:
        raise RowError(f"not JSON: {error.msg} (column {error.colno})") from None
    except RecursionError:
        raise RowError("not usable JSON: nested too deeply") from None
    except ValueError:  # an integer of more digits than Python converts
        raise RowError("not usable JSON: a number with too many digits") from None
    if not isinstance(value, dict):
        raise RowError(f"must be a JSON object, not {kind(value)}")
    return value


def _object_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        repeated = next(key for key, n in Counter(key for key, _ in pairs).items() if n > 1)
        raise RowError(f"the key {repeated[:40]!r} occurs twice in one object")
    return made


def _no_constant(name: str) -> Any:
    raise RowError(f"not JSON: {name} has no meaning in JSON")
