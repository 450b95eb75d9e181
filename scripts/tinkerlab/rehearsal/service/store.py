"""Sessions, training runs, checkpoints, samplers and results, in one SQLite file.

Weights are files beside it (``checkpoints.py``); a checkpoint exists once its row does, and
its row is written after its files are complete, so a crash leaves either all of it or none.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (
    session_id TEXT PRIMARY KEY, created REAL NOT NULL, tags TEXT NOT NULL,
    user_metadata TEXT, display_name TEXT, project_id TEXT, sdk_version TEXT, finish TEXT);
CREATE TABLE IF NOT EXISTS runs (
    model_id TEXT PRIMARY KEY, session_id TEXT NOT NULL, base_model TEXT NOT NULL,
    lora TEXT NOT NULL, user_metadata TEXT, created REAL NOT NULL, last_request REAL NOT NULL);
CREATE TABLE IF NOT EXISTS checkpoints (
    path TEXT PRIMARY KEY, model_id TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,
    directory TEXT NOT NULL, base_model TEXT NOT NULL, lora TEXT NOT NULL, created REAL NOT NULL,
    size INTEGER NOT NULL, public INTEGER NOT NULL DEFAULT 0, user_metadata TEXT, expires REAL);
CREATE TABLE IF NOT EXISTS samplers (
    sampler_id TEXT PRIMARY KEY, session_id TEXT NOT NULL, base_model TEXT NOT NULL,
    model_path TEXT, directory TEXT, shared_with TEXT, clients INTEGER NOT NULL DEFAULT 0,
    created REAL NOT NULL);
CREATE TABLE IF NOT EXISTS inflight (model_id TEXT PRIMARY KEY, directory TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS futures (
    request_id TEXT PRIMARY KEY, grouping TEXT, state TEXT NOT NULL, content_type TEXT,
    body BLOB, completed INTEGER, created REAL NOT NULL);
CREATE INDEX IF NOT EXISTS futures_by_group ON futures (grouping, completed);
CREATE INDEX IF NOT EXISTS checkpoints_by_run ON checkpoints (model_id);
"""

# Results older than this are dropped at start; a client that waits longer is gone.
_FUTURE_RETENTION_SECONDS = 7 * 24 * 3600


@dataclass(frozen=True)
class FutureRow:
    state: str
    content_type: str
    body: bytes


class Store:
    """The rehearsal's records. Every method is one transaction and safe from any thread."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self._lock = threading.RLock()
        self._db = sqlite3.connect(
            root / "rehearsal.sqlite", check_same_thread=False, isolation_level=None
        )
        self._db.row_factory = sqlite3.Row
        self._db.execute("PRAGMA journal_mode=WAL")
        # WAL with NORMAL survives a killed process; only a power cut can lose the last rows.
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(_SCHEMA)
        self._db.execute(
            "DELETE FROM futures WHERE created < ?", (time.time() - _FUTURE_RETENTION_SECONDS,)
        )
        row = self._db.execute("SELECT COALESCE(MAX(completed), 0) FROM futures").fetchone()
        self._completed: int = row[0]

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def insert(self, table: str, **values: Any) -> bool:
        """Insert one row; False when its primary key exists already. Dicts become JSON."""
        columns = ", ".join(values)
        marks = ", ".join("?" for _ in values)
        # Table and column names are literals of this package, never a client's text.
        sql = f"INSERT OR IGNORE INTO {table} ({columns}) VALUES ({marks})"  # noqa: S608
        with self._lock:
            return self._db.execute(sql, [_encode(v) for v in values.values()]).rowcount == 1

    def update(self, table: str, key: str, value: str, **changes: Any) -> bool:
        """Change the row whose ``key`` column is ``value``; False when there is none."""
        assignments = ", ".join(f"{column} = ?" for column in changes)
        sql = f"UPDATE {table} SET {assignments} WHERE {key} = ?"  # noqa: S608
        with self._lock:
            parameters = [*(_encode(v) for v in changes.values()), value]
            return self._db.execute(sql, parameters).rowcount == 1

    def delete(self, table: str, key: str, value: str) -> bool:
        with self._lock:
            sql = f"DELETE FROM {table} WHERE {key} = ?"  # noqa: S608
            return self._db.execute(sql, (value,)).rowcount == 1

    def one(self, table: str, key: str, value: str) -> dict[str, Any] | None:
        """The row whose ``key`` column is ``value``."""
        found = self.rows(table, f"WHERE {key} = ?", value)
        return found[0] if found else None

    def rows(self, table: str, rest: str = "", *parameters: Any) -> list[dict[str, Any]]:
        """Rows of ``table``; ``rest`` is the tail of the SELECT, with ``?`` for parameters."""
        with self._lock:
            cursor = self._db.execute(f"SELECT * FROM {table} {rest}", parameters)  # noqa: S608
            return [_decode(row) for row in cursor.fetchall()]

    def count(self, table: str, rest: str = "", *parameters: Any) -> int:
        with self._lock:
            sql = f"SELECT COUNT(*) FROM {table} {rest}"  # noqa: S608
            return self._db.execute(sql, parameters).fetchone()[0]

    # Futures are the hot path, so they get statements of their own.

    def begin_future(self, request_id: str, group: str | None) -> bool:
        return self.insert(
            "futures", request_id=request_id, grouping=group, state="pending", created=time.time()
        )

    def finish_future(
        self, request_id: str, state: str, content_type: str, body: bytes
    ) -> str | None:
        """Store a result and return the request's group."""
        with self._lock:
            self._completed += 1
            row = self._db.execute(
                "UPDATE futures SET state = ?, content_type = ?, body = ?, completed = ?"
                " WHERE request_id = ? RETURNING grouping",
                (state, content_type, body, self._completed, request_id),
            ).fetchone()
            return row["grouping"] if row else None

    def future(self, request_id: str) -> FutureRow | None:
        with self._lock:
            row = self._db.execute(
                "SELECT state, content_type, body FROM futures WHERE request_id = ?", (request_id,)
            ).fetchone()
        return None if row is None else FutureRow(row["state"], row["content_type"], row["body"])

    def completed_futures(self, group: str, after: int) -> list[tuple[int, str, str, int]]:
        with self._lock:
            cursor = self._db.execute(
                "SELECT completed, request_id, state, LENGTH(body) FROM futures"
                " WHERE grouping = ? AND completed > ? ORDER BY completed",
                (group, after),
            )
            return [tuple(row) for row in cursor.fetchall()]

    def break_pending_futures(self) -> None:
        """Mark what was pending when the last process ended: nobody will finish it now."""
        with self._lock:
            self._db.execute("UPDATE futures SET state = 'broken' WHERE state = 'pending'")


_JSON_COLUMNS = ("tags", "user_metadata", "finish", "lora")


def _encode(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, (dict, list)) else value


def _decode(row: sqlite3.Row) -> dict[str, Any]:
    record = dict(row)
    for column in _JSON_COLUMNS:
        if isinstance(record.get(column), str):
            record[column] = json.loads(record[column])
    return record
