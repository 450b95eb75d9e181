"""age encryption of exported files (filippo.io/age), as ``save_weights_external`` offers it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyrage

from tinkerlab.rehearsal.errors import UserError

# The extension module ships no type information.
_age: Any = pyrage


def encrypt_folder(folder: Path, recipients: list[str]) -> None:
    """Replace every file in ``folder`` by ``<file>.age``, readable by each recipient.

    Args:
        recipients: ``age1...`` keys or SSH public keys.

    Raises:
        UserError: a recipient that is neither, or none at all.
    """
    if not recipients:
        raise UserError("age_encryption_recipients is empty: name a recipient or leave it out")
    keys = [_recipient(text) for text in recipients]
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        _age.encrypt_file(str(file), f"{file}.age", keys)
        file.unlink()


def _recipient(text: str) -> Any:
    for kind in (_age.x25519.Recipient, _age.ssh.Recipient):
        try:
            return kind.from_str(text)
        except _age.RecipientError:
            continue
    raise UserError("age_encryption_recipients: one is no age1... key and no SSH public key")
