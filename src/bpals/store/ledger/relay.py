"""One writer for two processes: the reading room's process also commits the answers of a judge run beside it.

SQLite bears one writing process (`sqlite.old_sqlite`). `RelayServer` is a thread of the serving process that listens
on a socket in the workspace. `RelayedLedger` is the ledger of the run: it reads the file by itself and sends what it
wants written. A message is answered when it is durable. A message without an answer is sent again, to the next server
if the first was killed; each takes effect once.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bpals import errors
from bpals.errors import BpalsError, UsageError, WorkspaceError
from bpals.store.ledger import runs
from bpals.store.ledger.answers import AskedFilm
from bpals.store.ledger.ledger import Backend, Ledger
from bpals.store.ledger.locks import RUNNING, SERVING, holder, only_writer
from bpals.store.ledger.postgres import is_url
from bpals.store.ledger.sqlite import Place
from bpals.types import Attempt, JudgeCard, Judgment, Question, Reply, Usage

# Bytes of one message: a commit of 1,000 images with long text answers has about 50 MB.
LONGEST = 256 << 20
# The kernel takes about 108 bytes for the path of a socket.
LONGEST_ADDRESS = 100
# How long a run waits for a serving process that was killed to be started again.
PATIENCE_S = 60.0
PAUSE_S = 0.2

_LENGTH = struct.Struct(">I")
_KNOWN = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, BpalsError)}

Work = Callable[[Ledger, Mapping[str, Any]], Mapping[str, Any] | None]
"""A piece of writing that another process may ask for by name; asked for twice, it is done once."""


def send(channel: socket.socket, message: Mapping[str, Any]) -> None:
    """Send one message."""
    # A model may return half a character. ASCII escapes carry it; UTF-8 would refuse it.
    content = json.dumps(message, ensure_ascii=True).encode()
    if len(content) > LONGEST:
        raise WorkspaceError(
            f"{len(content) >> 20:,} MB are more than the {LONGEST >> 20} that the open reading room takes at once. "
            "Close it with Ctrl-C where it was started, then type the same command again"
        )
    channel.sendall(_LENGTH.pack(len(content)) + content)


def receive(channel: socket.socket) -> dict[str, Any] | None:
    """Receive one message; None where the other side has gone."""
    if (head := _exactly(channel, _LENGTH.size)) is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > LONGEST:
        raise WorkspaceError(f"a message of {length} bytes was announced, and {LONGEST} are the most that is taken")
    if (content := _exactly(channel, length)) is None:
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
    """Give an address for a socket at a path; a long path is reached through its open folder."""
    if len(os.fsencode(path)) <= LONGEST_ADDRESS:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def pack_films(films: Sequence[AskedFilm]) -> list[list[Any]]:
    """Write images as lists of plain values."""
    return [
        [
            film.image_id,
            film.sha256,
            film.control,
            [[*_values(each), each.usage.prompt, each.usage.cached, each.usage.output] for each in film.replies],
            [_values(judgment) for judgment in film.judgments],
            [_values(failure) for failure in film.failures],
        ]
        for film in films
    ]


def _values(made: Reply | Judgment | Attempt) -> list[Any]:
    return [getattr(made, name) for name in made.__dataclass_fields__ if name != "usage"]


def unpack_films(packed: Sequence[Sequence[Any]]) -> list[AskedFilm]:
    """Read images that `pack_films` wrote."""
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


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Make values plain; one that JSON does not have becomes its text, as the ledger would write it."""
    return dict(json.loads(json.dumps(dict(values), default=str)))


def _pack_error(error: Exception) -> dict[str, Any]:
    """Write an error so that the other process can raise the same."""
    if isinstance(error, OSError):
        return {"kind": "OSError", "number": error.errno or 0, "file": str(error.filename or ""), "message": str(error)}
    return {"kind": type(error).__name__, "message": str(error)}


def _unpack_error(packed: Mapping[str, Any]) -> Exception:
    """Make the error that `_pack_error` wrote."""
    if packed["kind"] == "OSError":
        return OSError(packed["number"], os.strerror(packed["number"] or errno.EIO), packed["file"])
    return _KNOWN.get(packed["kind"], WorkspaceError)(packed["message"])


class RelayServer:
    """Listens in the serving process, and writes for others; one thread per connection."""

    def __init__(self, ledger: Ledger, works: Mapping[str, Work] | None = None) -> None:
        """Listen on the socket beside the ledger's file, which only its owner may use."""
        self._ledger = ledger
        self._works = {**_WORKS, **(works or {})}
        self._path = Place(ledger.path).socket
        self._closing = threading.Event()
        self._open: set[socket.socket] = set()
        self._listener = _listen(self._path)
        self._thread = threading.Thread(target=self._accept, name="bpals-relay", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and close all connections; what was not answered will be sent again."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for channel in list(self._open):
            with contextlib.suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        threads: list[threading.Thread] = []
        while not self._closing.is_set():
            try:
                channel, _ = self._listener.accept()
            except OSError:
                break
            self._open.add(channel)
            thread = threading.Thread(target=self._serve, args=(channel,), name="bpals-relayed", daemon=True)
            thread.start()
            threads = [*(other for other in threads if other.is_alive()), thread]
        for thread in threads:
            thread.join()

    def _serve(self, channel: socket.socket) -> None:
        try:
            with channel, contextlib.suppress(OSError, ValueError, WorkspaceError):
                if not _same_user(channel):
                    return
                while not self._closing.is_set() and (message := receive(channel)) is not None:
                    send(channel, self._answer(message))
        finally:
            self._open.discard(channel)

    def _answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        try:
            work = self._works.get(str(message.get("work")))
            if work is None:
                raise UsageError(f"the serving process does not know the work {message.get('work')!r}")
            return {"given": dict(work(self._ledger, message["given"]) or {})}
        except (BpalsError, OSError) as error:
            return {"error": _pack_error(error)}
        except (KeyError, TypeError, ValueError) as error:
            return {"error": _pack_error(UsageError(f"{message.get('work')}: {type(error).__name__}: {error}"))}


def _listen(path: Path) -> socket.socket:
    """Make the socket under another name, close it to others, then rename it: it is never open to others."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        part.unlink(missing_ok=True)
        with address_of(part) as address:
            listener.bind(address)
        part.chmod(0o600)
        listener.listen()
        part.replace(path)
    except OSError as error:
        listener.close()
        raise WorkspaceError(f"{path} cannot be made: {error.strerror}. Name another folder: --workspace DIR") from None
    return listener


def _same_user(channel: socket.socket) -> bool:
    """Say whether the other side is this user, or root, where the system has that information."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    # struct ucred: pid, uid, gid, four bytes each.
    credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[4:8], "little") in {os.geteuid(), 0}


def _enrol(ledger: Ledger, given: Mapping[str, Any]) -> dict[str, Any]:
    card = JudgeCard(**{**given["card"], "polarities": tuple(given["card"]["polarities"])})
    questions = [Question(**question) for question in given["questions"]]
    return {"judge_id": ledger.enrol(card, questions, given["dataset"])}


_WORKS: Mapping[str, Work] = {
    "enrol": _enrol,
    "note_observed": lambda ledger, given: ledger.note_observed(given["judge_id"], given["observed"]),
    "begin": lambda ledger, given: {"run_id": ledger.change(lambda c: runs.begin(c, given["row"], again=True))},
    "end": lambda ledger, given: ledger.end(given["run_id"], given["state"], given["counts"]),
    "event": lambda ledger, given: ledger.change(lambda c: runs.event(c, given["row"], again=True)),
    "write": lambda ledger, given: ledger.write(given["judge_id"], given["run_id"], unpack_films(given["films"])),
}


class RelayClient:
    """Sends works to the serving process, one at a time, again if there is no answer."""

    def __init__(self, path: Path, patience_s: float = PATIENCE_S) -> None:
        """Take the path of the socket; nothing is opened yet."""
        self._path = path
        self._patience_s = patience_s
        self._channel: socket.socket | None = None
        self._lock = threading.Lock()

    def call(self, work: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Have a work done, and give its result; it is durable then."""
        ends = time.monotonic() + self._patience_s
        with self._lock:
            while (answer := self._try({"work": work, "given": given})) is None:
                if time.monotonic() >= ends:
                    raise WorkspaceError(
                        f"the reading room that writes to {self._path.parent} has not answered for "
                        f"{self._patience_s:.0f} s. Start it again or leave it, then type the same command again"
                    )
                time.sleep(PAUSE_S)
        if "error" in answer:
            raise _unpack_error(answer["error"])
        return dict(answer["given"])

    def _try(self, message: Mapping[str, Any]) -> dict[str, Any] | None:
        try:
            if self._channel is None:
                self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                with address_of(self._path) as address:
                    self._channel.connect(address)
            send(self._channel, message)
            answer = receive(self._channel)
        except OSError:
            answer = None
        if answer is None:
            self.close()
        return answer

    def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None


class RelayedLedger(Ledger):
    """A ledger that reads its file by itself, and has everything written by the serving process."""

    def __init__(self, backend: Backend) -> None:
        """Take over a backend that was opened for reading: use `RelayedLedger.open(path, readonly=True)`."""
        super().__init__(backend)
        self._client = RelayClient(Place(backend.path).socket)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        super().close()

    def enrol(self, card: JudgeCard, questions: Sequence[Question], dataset: str) -> int:
        """Give the id of a judge; a name that is bound to another judge, other questions or data is refused."""
        given = {"card": _plain(asdict(card)), "questions": [asdict(each) for each in questions], "dataset": dataset}
        judge_id = int(self._client.call("enrol", given)["judge_id"])
        self._question_sets.pop(judge_id, None)
        return judge_id

    def note_observed(self, judge_id: int, observed: Mapping[str, object]) -> None:
        """Add to what was observed of a judge; it does not change who the judge is."""
        self._client.call("note_observed", {"judge_id": judge_id, "observed": _plain(observed)})

    def begin(self, judge_id: int, plan: Mapping[str, object], environment: Mapping[str, object]) -> int:
        """Write down that a run begins, and give its id."""
        return int(self._client.call("begin", {"row": runs.run_row(judge_id, plan, environment)})["run_id"])

    def end(self, run_id: int, state: str, counts: Mapping[str, object]) -> None:
        """Write down how a run ended."""
        self._client.call("end", {"run_id": run_id, "state": state, "counts": _plain(counts)})

    def event(self, run_id: int, kind: str, detail: Mapping[str, object] | str) -> None:
        """Write down what happened to a run."""
        self._client.call("event", {"row": runs.event_row(run_id, kind, detail)})

    def write(self, judge_id: int, run_id: int, films: Sequence[AskedFilm]) -> None:
        """Have whole images written in one transaction; they are durable when this returns."""
        question_set = self._questions_of(judge_id)
        for film in films:  # an incomplete image is refused here, before it travels
            question_set.reply_rows(film)
            question_set.judgment_rows(film)
        self._client.call("write", {"judge_id": judge_id, "run_id": run_id, "films": pack_films(films)})


@contextlib.contextmanager
def serving(ledger: Ledger, works: Mapping[str, Work] | None = None) -> Iterator[None]:
    """Be the process that serves the reading room: the only writer of a file, which also writes for others."""
    if ledger.dialect == "postgresql":
        yield
        return
    with ledger.lock(SERVING), contextlib.closing(RelayServer(ledger, works)):
        yield


def is_served(address: str | os.PathLike[str]) -> bool:
    """Say whether the reading room of a workspace is being served, so that its ledger is written through it."""
    return not is_url(address) and holder(Place(address).lock) == SERVING


@contextlib.contextmanager
def for_a_run(address: str | os.PathLike[str], shard: str = "") -> Iterator[Ledger]:
    """Open a ledger for a run of a judge, as its only writer or through the process that serves the reading room.

    On PostgreSQL the shards of a run work at once, each in one process.
    """
    if is_served(address):
        with only_writer(Place(address).relayed, RUNNING), RelayedLedger.open(address, readonly=True) as relayed:
            yield relayed
        return
    with Ledger.open(address) as ledger, ledger.lock(f"{RUNNING} {shard}".rstrip()):
        yield ledger


def have_done(address: str | os.PathLike[str], work: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Have a work of another kind done by the serving process; check `is_served` first."""
    with contextlib.closing(RelayClient(Place(address).socket)) as client:
        return client.call(work, given)
