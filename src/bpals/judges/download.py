"""A file that the user named by its address and its hash, kept in the user's cache; nothing else is ever fetched."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from bpals.durable import sync_folder
from bpals.errors import JudgeError
from bpals.judges.address import shown

HERE = ("127.0.0.1", "localhost", "::1")
PIECE = 1 << 20
SILENT_S = 60.0
"""How long a server may say nothing."""


def fetch(url: str, sha256: str, folder: Path, *, largest: int) -> Path:
    """Give the file of that hash: from the folder if it is there, else downloaded into it, whole or not at all."""
    _check(url)
    folder /= sha256[:16]
    target = folder / file_name(url)
    if _holds(target, sha256):
        return target
    part = folder / f".{target.name}.{os.getpid()}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            found = _copy(url, file, largest)
            file.flush()
            os.fsync(file.fileno())
        if found != sha256:
            raise JudgeError(
                f"{shown(url)} gives a file with the sha256 {found}, not {sha256}: it is another file, and was not kept"
            )
        part.replace(target)
        sync_folder(folder)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise JudgeError(f"{shown(url)} cannot be downloaded to {folder}: {reason}. Try again") from None
    finally:
        part.unlink(missing_ok=True)
    return target


def file_name(url: str) -> str:
    """Name a file as its address does, in letters that any disk takes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", urlsplit(url).path.rpartition("/")[2])[-150:] or "weights"


def _holds(path: Path, sha256: str) -> bool:
    """Say whether a file is there and is the one that is meant; a damaged one is fetched again."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sha256


def _copy(url: str, file: IO[bytes], largest: int) -> str:
    """Copy what a server sends into a file, piece by piece, and give its hash."""
    digest, size = hashlib.sha256(), 0
    opener = urllib.request.build_opener(_Careful)
    with closing(opener.open(url, timeout=SILENT_S)) as answer:
        promised = answer.headers.get("Content-Length")
        while piece := answer.read(PIECE):
            size += len(piece)
            if size > largest:
                raise JudgeError(f"{shown(url)} sends more than {largest:,} bytes; weights of a classifier have fewer")
            digest.update(piece)
            file.write(piece)
    if promised is not None and promised.isdecimal() and int(promised) != size:
        raise JudgeError(f"{shown(url)} broke off after {size:,} of {int(promised):,} bytes. Try again")
    return digest.hexdigest()


class _Careful(urllib.request.HTTPRedirectHandler):
    """Follows a server elsewhere only where a user might have pointed: weights often lie behind a redirect."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        _check(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check(url: str) -> None:
    """Refuse what is neither https nor this machine, and names or passwords in an address."""
    parts = urlsplit(url)
    local = parts.scheme == "http" and parts.hostname in HERE
    if not (parts.scheme == "https" or local) or not parts.hostname or "@" in parts.netloc:
        raise JudgeError(f"{shown(url)} is not downloaded from: weights come by https://HOST/FILE, without a password")
