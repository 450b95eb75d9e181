"""Checkpoints: names, files and their records.

A save writes into a temporary folder, renames it, and only then writes the record; an
overwrite points the record at the new folder before the old one is deleted. So a process
killed at any moment leaves every listed checkpoint whole.
"""

from __future__ import annotations

import os
import re
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tinker import types

from tinkerlab.rehearsal.errors import Conflict, NotFound, UserError
from tinkerlab.rehearsal.service.store import Store

# Path segment of each checkpoint type (tinker/types/checkpoint.py).
TRAINING, SAMPLER, EXTERNAL = "weights", "sampler_weights", "external_weights"
TYPES = {TRAINING: "training", SAMPLER: "sampler", EXTERNAL: "external"}

# "1 hour (3600) to 10 years" (tinker/types/save_weights_request.py).
_TTL_RANGE = (3600, 10 * 365 * 24 * 3600)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=@-]{0,199}")


@dataclass(frozen=True)
class Saved:
    """A checkpoint's record."""

    path: str
    model_id: str
    kind: str
    name: str
    directory: Path
    base_model: str
    lora: dict[str, Any]


class Checkpoints:
    """Writes, finds and lists checkpoints under one store's folder."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._root = store.root / "weights"
        self._root.mkdir(exist_ok=True)
        self._claimed: set[str] = set()
        self._remove_leftovers()

    def claim(self, model_id: str, kind: str, name: str, *, overwrite: bool = False) -> str:
        """Reserve a name for a save that is about to be queued; returns its tinker path.

        Raises:
            UserError: not a usable name.
            Conflict: the name is taken; worded as the hosted service words it.
        """
        if not _NAME.fullmatch(name):
            raise UserError(
                f"checkpoint name {name!r} is not usable: letters, digits and . _ + = @ - only,"
                " 200 characters at most"
            )
        path = f"tinker://{model_id}/{kind}/{name}"
        if not overwrite and (path in self._claimed or self.find(path) is not None):
            raise Conflict(
                f"Checkpoint '{name}' already exists for model {model_id} in {kind}."
                " Please choose a different name to avoid overwriting."
            )
        self._claimed.add(path)
        return path

    def release(self, path: str) -> None:
        """Give back a claimed name after its save finished or failed."""
        self._claimed.discard(path)

    def write(
        self,
        path: str,
        run: dict[str, Any],
        write_files: Callable[[Path], None],
        *,
        ttl_seconds: int | None = None,
        user_metadata: dict[str, str] | None = None,
    ) -> str:
        """Write a checkpoint's files through ``write_files(folder)`` and list it."""
        folder = self.write_unlisted(write_files)
        parsed = types.ParsedCheckpointTinkerPath.from_tinker_path(path)
        now = time.time()
        row = {
            "model_id": parsed.training_run_id,
            "kind": path.split("/")[3],
            "name": path.split("/")[4],
            "directory": folder.name,
            "base_model": run["base_model"],
            "lora": run["lora"],
            "created": now,
            "size": sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
            "public": 0,
            "user_metadata": user_metadata,
            "expires": None if ttl_seconds is None else now + ttl_seconds,
        }
        old = self._store.one("checkpoints", "path", path)
        if old is None:
            self._store.insert("checkpoints", path=path, **row)
        else:
            self._store.update("checkpoints", "path", path, **row)
            self._delete_folder(old["directory"])
        return path

    def write_unlisted(self, write_files: Callable[[Path], None]) -> Path:
        """Write weights that no name points to (the ephemeral sampler's)."""
        folder = self._root / uuid.uuid4().hex
        temporary = folder.with_suffix(".partial")
        temporary.mkdir()
        try:
            write_files(temporary)
            for file in temporary.rglob("*"):
                if file.is_file():
                    _sync(file)
            temporary.rename(folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return folder

    def folder(self, directory: str) -> Path:
        return self._root / directory

    def find(self, path: str) -> Saved | None:
        """The unexpired checkpoint at ``path``, or None."""
        row = self._store.one("checkpoints", "path", path)
        if row is None or _expired(row):
            return None
        return Saved(
            path=path,
            model_id=row["model_id"],
            kind=row["kind"],
            name=row["name"],
            directory=self._root / row["directory"],
            base_model=row["base_model"],
            lora=row["lora"],
        )

    def get(self, path: str, *, kind: str | None = None, use: str = "") -> Saved:
        """The checkpoint at ``path``.

        Raises:
            UserError: not a checkpoint path, or one of another kind than ``use`` needs.
            NotFound: no such checkpoint, or it has expired.
        """
        try:
            types.ParsedCheckpointTinkerPath.from_tinker_path(path)
        except ValueError:
            raise UserError(
                f"Path is invalid: {path!r} is not tinker://<run>/<weights kind>/<name>"
            ) from None
        found_kind = path.split("/")[3]
        if kind is not None and found_kind != kind:
            raise UserError(f"Path is invalid: {use} needs .../{kind}/<name>, not {path}")
        saved = self.find(path)
        if saved is None:
            raise NotFound(f"no checkpoint {path}, or it has expired")
        return saved

    def delete(self, path: str) -> None:
        self.get(path)
        row = self._store.one("checkpoints", "path", path)
        self._store.delete("checkpoints", "path", path)
        if row is not None:
            self._delete_folder(row["directory"])

    def publish(self, path: str, public: bool) -> None:
        self.get(path)
        self._store.update("checkpoints", "path", path, public=int(public))

    def set_ttl(self, path: str, ttl_seconds: int | None) -> None:
        check_ttl(ttl_seconds)
        self.get(path)
        expires = None if ttl_seconds is None else time.time() + ttl_seconds
        self._store.update("checkpoints", "path", path, expires=expires)

    def list(
        self, model_id: str | None = None, *, offset: int = 0, limit: int = -1
    ) -> tuple[list[types.Checkpoint], int]:
        """A page of checkpoints, oldest first, and how many there are in all."""
        where, parameters = "WHERE (expires IS NULL OR expires > ?)", [time.time()]
        if model_id is not None:
            where, parameters = f"{where} AND model_id = ?", [*parameters, model_id]
        total = self._store.count("checkpoints", where, *parameters)
        rows = self._store.rows(
            "checkpoints", f"{where} ORDER BY created LIMIT ? OFFSET ?", *parameters, limit, offset
        )
        return [_public_record(row) for row in rows], total

    def latest(self, model_id: str, kind: str) -> types.Checkpoint | None:
        rows = self._store.rows(
            "checkpoints",
            "WHERE model_id = ? AND kind = ? AND (expires IS NULL OR expires > ?)"
            " ORDER BY created DESC LIMIT 1",
            model_id,
            kind,
            time.time(),
        )
        return _public_record(rows[0]) if rows else None

    def _delete_folder(self, directory: str) -> None:
        # A sampler that was created from these weights keeps them until it has gone.
        if not self._store.count("samplers", "WHERE directory = ?", directory):
            shutil.rmtree(self._root / directory, ignore_errors=True)

    def _remove_leftovers(self) -> None:
        """Delete half-written folders and weights that nothing points to any more."""
        used = {row["directory"] for row in self._store.rows("checkpoints") if not _expired(row)}
        used |= {row["directory"] for row in self._store.rows("samplers")}
        used |= {row["directory"] for row in self._store.rows("inflight")}
        for folder in self._root.iterdir():
            if folder.name not in used:
                shutil.rmtree(folder, ignore_errors=True)


def check_ttl(ttl_seconds: int | None) -> None:
    """Raise ``UserError`` unless the lifetime is one that the service grants."""
    low, high = _TTL_RANGE
    if ttl_seconds is not None and not low <= ttl_seconds <= high:
        raise UserError(
            f"ttl_seconds is {ttl_seconds}: it must be from {low} (1 hour) to {high} (10 years),"
            " or null to keep the checkpoint for good"
        )


def _expired(row: dict[str, Any]) -> bool:
    return row["expires"] is not None and row["expires"] <= time.time()


def _public_record(row: dict[str, Any]) -> types.Checkpoint:
    expires = row["expires"]
    return types.Checkpoint(
        checkpoint_id=f"{row['kind']}/{row['name']}",
        checkpoint_type=TYPES[row["kind"]],  # type: ignore[arg-type]
        time=datetime.fromtimestamp(row["created"], UTC),
        tinker_path=row["path"],
        size_bytes=row["size"],
        public=bool(row["public"]),
        user_metadata=row["user_metadata"],
        expires_at=None if expires is None else datetime.fromtimestamp(expires, UTC),
    )


def _sync(file: Path) -> None:
    with file.open("rb") as handle:
        os.fsync(handle.fileno())
