"""How one process tells another what to write: a length, then JSON; and how films, judges and errors stand in it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bpals import errors
from bpals.errors import BpalsError, WorkspaceError
from bpals.ledger.asked import AskedFilm, Attempt
from bpals.types import JudgeCard, Judgment, Question, Reply, Usage

LONGEST = 256 << 20
"""Bytes of one message: a commit of 1,000 films with long spoken answers has about 50 MB."""
LONGEST_ADDRESS = 100

_LENGTH = struct.Struct(">I")
_KNOWN = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, BpalsError)}


def send(channel: socket.socket, message: Mapping[str, Any]) -> None:
    """Send one message."""
    # Half characters, as a model may say them, stand in ASCII as escapes.
    content = json.dumps(message, ensure_ascii=True).encode()
    if len(content) > LONGEST:
        raise WorkspaceError(
            f"{len(content) >> 20:,} MB are more than the {LONGEST >> 20} that the open reading room takes at once. "
            "Close it with Ctrl-C where it was started, then type the same command again"
        )
    channel.sendall(_LENGTH.pack(len(content)) + content)


def receive(channel: socket.socket) -> dict[str, Any] | None:
    """Receive one message; none where the other side has gone."""
    head = _exactly(channel, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > LONGEST:
        raise WorkspaceError(f"a message of {length} bytes was announced, and {LONGEST} are the most that is taken")
    content = _exactly(channel, length)
    if content is None:
        return None
    message = json.loads(content)
    if not isinstance(message, dict):
        raise WorkspaceError("a message to the ledger's writer is not an object")
    return message


def _exactly(channel: socket.socket, length: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < length:
        part = channel.recv(min(1 << 20, length - len(parts)))
        if not part:
            return None
        parts += part
    return bytes(parts)


@contextlib.contextmanager
def address_of(path: Path) -> Any:
    """Give an address for a socket at a path: a long path is reached through its folder, as addresses are short."""
    if len(os.fsencode(path)) <= LONGEST_ADDRESS:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def pack_films(films: Sequence[AskedFilm]) -> list[list[Any]]:
    """Write films as lists of plain values."""
    return [
        [
            film.image_id,
            film.sha256,
            film.control,
            [_pack_reply(reply) for reply in film.replies],
            [[getattr(judgment, name) for name in Judgment.__dataclass_fields__] for judgment in film.judgments],
            [[getattr(failure, name) for name in Attempt.__dataclass_fields__] for failure in film.failures],
        ]
        for film in films
    ]


def _pack_reply(reply: Reply) -> list[Any]:
    values = [getattr(reply, name) for name in Reply.__dataclass_fields__ if name != "usage"]
    return [*values, reply.usage.prompt, reply.usage.cached, reply.usage.output]


def unpack_films(packed: Sequence[Sequence[Any]]) -> list[AskedFilm]:
    """Read films that `pack_films` wrote."""
    return [
        AskedFilm(
            image_id=image_id,
            sha256=sha256,
            control=control,
            replies=[_unpack_reply(reply) for reply in replies],
            judgments=[Judgment(**dict(zip(Judgment.__dataclass_fields__, row, strict=True))) for row in judgments],
            failures=[Attempt(**dict(zip(Attempt.__dataclass_fields__, row, strict=True))) for row in failures],
        )
        for image_id, sha256, control, replies, judgments, failures in packed
    ]


def _unpack_reply(values: Sequence[Any]) -> Reply:
    *plain, prompt, cached, output = values
    names = [name for name in Reply.__dataclass_fields__ if name != "usage"]
    given = dict(zip(names, plain, strict=True))
    given["top"] = tuple((token, value) for token, value in given["top"])
    return Reply(**given, usage=Usage(prompt=prompt, cached=cached, output=output))


def pack_card(card: JudgeCard) -> dict[str, Any]:
    """Write a card as plain values; a value that JSON does not have is written as its text, as the ledger would."""
    return dict(json.loads(json.dumps(asdict(card), default=str)))


def unpack_card(packed: Mapping[str, Any]) -> JudgeCard:
    """Read a card that `pack_card` wrote."""
    return JudgeCard(**{**packed, "polarities": tuple(packed["polarities"])})


def pack_questions(questions: Sequence[Question]) -> list[dict[str, Any]]:
    """Write questions as plain values."""
    return [asdict(question) for question in questions]


def unpack_questions(packed: Sequence[Mapping[str, Any]]) -> list[Question]:
    """Read questions that `pack_questions` wrote."""
    return [Question(**question) for question in packed]


def pack_error(error: Exception) -> dict[str, Any]:
    """Write an error so that the other process can raise the same."""
    if isinstance(error, OSError):
        return {"kind": "OSError", "number": error.errno or 0, "file": str(error.filename or ""), "message": str(error)}
    return {"kind": type(error).__name__, "message": str(error)}


def unpack_error(packed: Mapping[str, Any]) -> Exception:
    """Make the error that `pack_error` wrote."""
    if packed["kind"] == "OSError":
        return OSError(packed["number"], os.strerror(packed["number"] or errno.EIO), packed["file"])
    return _KNOWN.get(packed["kind"], WorkspaceError)(packed["message"])
