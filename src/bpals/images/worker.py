"""One process that treats images: bytes in, what was made of them or a refusal out, nothing else.

It is a program of its own (`python -m bpals.images.worker`) and not a fork, so that it shares nothing with the run, and
needs no `if __name__ == "__main__"` in the script of whoever calls us. What it sends is plain text and numbers: an
image that took it over could not make the run do anything.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import Field, asdict
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from bpals.errors import MissingExtra
from bpals.types import Refusal

READY = b"ready"
CPU_S = 60.0  # of computing after which an image ends its worker; a usual one takes .03
OUT_OF_MEMORY = 70


class Made(Protocol):
    """What became of an image."""

    @property
    def sha256(self) -> str:
        """Of the file's bytes: which image this is."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the image was: keys of `prepare.NOTES`."""


M = TypeVar("M", bound=Made)


class Work(Protocol[M]):
    """A way to treat images: a dataclass of what JSON can carry, made anew in each worker."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def begin(self) -> Callable[[bytes], M | Refusal]:
        """Get ready, and give the function that turns the bytes of one file into a result or a refusal."""

    def pack(self, made: M) -> tuple[dict[str, Any], bytes]:
        """Take apart what was made: words, and bytes."""

    def unpack(self, about: Mapping[str, Any], body: bytes) -> M:
        """Put together what `pack` took apart; what no sound worker sends raises ValueError, TypeError or KeyError."""


def called(name: str) -> Any:
    """Give what `module:name` names."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def pack(work: Work[M], made: M | Refusal) -> bytes:
    """Write what was made of an image, or a refusal, as JSON and then bytes."""
    if isinstance(made, Refusal):
        return _framed({"code": made.code, "message": made.message}, b"")
    about, body = work.pack(made)
    return _framed({"made": about}, body)


def unpack(work: Work[M], reply: bytes) -> M | Refusal:
    """Read what `pack` wrote; raises MissingExtra where the worker lacks a package."""
    (length,) = struct.unpack_from("<I", reply)
    about = json.loads(reply[4 : 4 + length])
    if "extra" in about:
        raise MissingExtra.of("A film in DICOM", "dicom")
    if "made" not in about:
        return Refusal(**about)
    return work.unpack(about["made"], reply[4 + length :])


def terms(work: Work[M]) -> str:
    """Write down which work it is, for a worker."""
    kind = type(work)
    return json.dumps({"work": f"{kind.__module__}:{kind.__qualname__}", "given": asdict(work)})


def _framed(about: dict[str, object], pixels: bytes) -> bytes:
    head = json.dumps(about).encode()
    return struct.pack("<I", len(head)) + head + pixels


def main() -> None:
    """Answer until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which closes its workers
    channel = Connection(int(sys.argv[1]))
    written = json.loads(sys.argv[2])
    work = called(written["work"])(**written["given"])
    treat = work.begin()
    _limit_memory(int(sys.argv[3]))
    channel.send_bytes(READY)
    while True:
        try:
            content = channel.recv_bytes()
        except (EOFError, OSError):
            return
        # The timer's signal ends the process even inside a decoder written in C.
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        reply = _answer(work, treat, content)
        signal.setitimer(signal.ITIMER_PROF, 0)
        channel.send_bytes(reply)


def _answer(work: Work[M], treat: Callable[[bytes], M | Refusal], content: bytes) -> bytes:
    try:
        return pack(work, treat(content))
    except MissingExtra:
        return _framed({"extra": "dicom"}, b"")
    except MemoryError:  # what is left of the memory is not to be trusted: the run starts another worker
        os._exit(OUT_OF_MEMORY)


def _limit_memory(more: int) -> None:
    """Allow this much address space beyond what the process has now; where the system cannot say, do without."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + more
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    except (OSError, ValueError):
        return


if __name__ == "__main__":
    main()
