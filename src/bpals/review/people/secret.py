"""The secret of one installation: a file that only its owner can read, or it is not used."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from bpals.durable import sync_folder

SECRET_BYTES = 32
OWNER_ONLY = 0o600


NEVER = "there was none"
"""Why a secret is new in a room that was never opened."""


def read_secret(path: Path) -> tuple[bytes, str]:
    """Give the secret, and why it is new if it is; one that others could have read, or that is cut off, is replaced.

    Tokens are hashed with it, so whoever was in by the old one is out.
    """
    why = _unfit(path)
    if not why:
        return path.read_bytes(), ""
    part = path.with_name(f"{path.name}.part-{os.getpid()}")
    part.unlink(missing_ok=True)
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
    content = secrets.token_bytes(SECRET_BYTES)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)
    return content, why


def _unfit(path: Path) -> str:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return NEVER
    if not stat.S_ISREG(found.st_mode):
        return "it was no plain file"
    if stat.S_IMODE(found.st_mode) & 0o077:
        return f"others could read it (mode {stat.S_IMODE(found.st_mode):04o})"
    if found.st_uid != os.getuid():
        return "it belonged to somebody else"
    return "" if found.st_size == SECRET_BYTES else "it was cut off"
