"""Ray as the engine: actors of Ray Data do the tasks, on this machine or on a cluster.

Tasks are pulled in bounded chunks, a chunk is one stream of Ray Data, and its actors hold what was opened for the work.
A worker that dies is replaced by Ray, and its task done again; what Ray loses altogether is given to it anew, by
number, so that the totals always add up. Ray keeps nothing for us: the ledger does.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import logging
import os
import pickle
import platform
import queue
import secrets
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Generic

from bpals.errors import BpalsError, JudgeError, MissingExtra, Stopped, UsageError
from bpals.judges.engine import Hire, R, Results, T
from bpals.optional import silence
from bpals.text import several

OLDEST = (2, 52)
"""The first Ray that can be closed to strangers: before, whoever reaches it runs code on it."""
CHUNK_TASKS = 1024
CHUNK_BYTES = 256 << 20
"""What one stream of Ray Data is given, whichever is less."""
ROUNDS = 3
"""How often what Ray has lost is given to it, while nothing of it comes back."""
PATIENCE_S = 900.0
LOOK_UP_S = 0.2
STDERR = 2
CLOSE_S = 5.0
"""How long a Ray that is ended is waited for."""
STORE_BYTES = 512 << 20
"""The object store of a Ray that we start ourselves: blocks and answers are small."""

_QUIET = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_ENABLE_AUTO_CONNECT": "0",
}
"""What Ray reads of its surroundings: it reports nothing to anybody, speaks only when it dies, and does not start
another of itself when it was ended in the middle of something."""
_AUTH = "RAY_AUTH_MODE"
_FILTER = (
    "import os, re\n"
    "while heard := os.read(0, 65536):\n"
    "    os.write(2, re.sub(rb'[^\\n]*Set ray log level from environment[^\\n]*\\n', b'', heard))"
)
"""What stands between Ray and stderr while it starts: it greets with a line about how quiet it will be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayEngine:
    """A Ray that is there already, at an address, or one that is started here and ends with the work."""

    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    address: str | None = None
    """`auto`, or HOST:PORT of a running cluster; None starts a Ray of our own on this machine."""
    gpus: float = 0.0
    """What each worker holds of a GPU."""
    patience_s: float = PATIENCE_S
    """How long no result may come before the run is stopped: Ray is known to hang on lost devices."""
    say: Callable[[str], None] = field(default=lambda _sentence: None, compare=False, repr=False)
    """Told what a user waits for while nothing comes yet."""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.workers < 1:
            raise UsageError(f"{self.workers} workers do nothing. Type: --ray-workers 2")
        if find_spec("ray") is None:
            raise MissingExtra.of("--engine ray", "ray")
        if self.address is not None:
            _refuse_open(self.address, os.environ)

    def run(self, tasks: Iterator[T], hire: Hire[T, R]) -> Results[R]:
        """Have tasks done by so many actors."""
        return _Stream(self, tasks, hire)


def _refuse_open(address: str, surroundings: Mapping[str, str]) -> None:
    """Refuse a cluster that takes anybody's code, unless only this machine can reach it."""
    if surroundings.get(_AUTH) == "token" or _is_local(address):
        return
    raise UsageError(
        f"Ray at {address} would run the code of whoever reaches it. Start it with {_AUTH}=token, "
        f"and type here: export {_AUTH}=token (and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH)"
    )


def _is_local(address: str) -> bool:
    host = address.removeprefix("ray://").rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Stream(Generic[T, R]):
    """The results of one run: Ray works in a thread, so that a Ray that hangs is noticed."""

    def __init__(self, engine: RayEngine, tasks: Iterator[T], hire: Hire[T, R]) -> None:
        """Start nothing yet: the first result that is asked for does."""
        self._engine = engine
        self._tasks = tasks
        self._hire = hire
        self._given: queue.Queue[tuple[str, Any]] = queue.Queue(maxsize=2)
        self._closing = threading.Event()
        self._session = RaySession(engine)
        self._thread: threading.Thread | None = None

    def __iter__(self) -> Iterator[R]:
        return self

    def __next__(self) -> R:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="bpals-ray", daemon=True)
            self._thread.start()
        until = time.monotonic() + self._engine.patience_s
        while not self._closing.is_set():
            try:
                what, given = self._given.get(timeout=LOOK_UP_S)
            except queue.Empty:
                if time.monotonic() > until:
                    self._closing.set()
                    raise Stopped(
                        f"no Ray worker has given anything back for {self._engine.patience_s:.0f} s. What is done is "
                        "kept: look at the cluster (ray status), then type the same command"
                    ) from None
                continue
            if what == "result":
                return given  # type: ignore[no-any-return]
            self._closing.set()
            if what == "error":
                raise given
        raise StopIteration

    def close(self) -> None:
        """Let the workers go; what they are at is lost, so that a Ray that was started here is ended at once."""
        self._closing.set()
        if self._thread is not None and self._thread.is_alive():
            self._session.end()
            self._thread.join(timeout=2 * CLOSE_S)

    def _put(self, what: str, given: Any) -> bool:
        """Hand something over; say whether anybody still wants it."""
        while not self._closing.is_set():
            try:
                self._given.put((what, given), timeout=LOOK_UP_S)
            except queue.Full:
                continue
            return True
        return False

    def _work(self) -> None:
        """Do everything that needs Ray, in this one thread."""
        self._session.prepare()
        import ray.exceptions  # noqa: PLC0415  an extra

        try:
            with self._session:
                self._engine.say("Ray has started, and its workers load the judge: the first films take longest")
                numbered = _pickled(self._tasks)
                while not self._closing.is_set() and (chunk := dict(_chunk(numbered))):
                    self._do(chunk)
            self._put("end", None)
        except (BpalsError, OSError) as error:
            self._put("error", error)
        except ray.exceptions.RayError as error:
            self._put("error", Stopped(f"Ray has failed: {_first_line(error)}. What is done is kept: {_AGAIN}"))
        except (RuntimeError, ValueError, ConnectionError, TimeoutError) as error:
            self._put("error", Stopped(f"Ray cannot be used: {_first_line(error)}. {_AGAIN}"))

    def _do(self, waiting: dict[int, bytes]) -> None:
        """Have one chunk done to the last task."""
        import ray.exceptions  # noqa: PLC0415  an extra

        failures = 0
        while waiting and not self._closing.is_set():
            before, why = len(waiting), "they did not come back"
            try:
                for number, body in _streamed(self._engine, waiting, self._hire):
                    if waiting.pop(number, None) is not None and not self._hand_over(body):
                        # Before the stream is: workers that it kills one by one are reported by Ray as failures.
                        self._session.end()
                        return
            except ray.exceptions.RayError as error:
                why = _first_line(error)
            failures = failures + 1 if len(waiting) == before else 0
            if waiting and failures >= ROUNDS:
                raise Stopped(f"Ray has lost {several(len(waiting), 'block')} of films ({why}). {_AGAIN}")

    def _hand_over(self, body: bytes) -> bool:
        given = pickle.loads(body)  # noqa: S301  our own workers wrote it
        if isinstance(given, BpalsError):
            raise given
        return self._put("result", given)


_AGAIN = "Type the same command: it goes on where it was"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _pickled(tasks: Iterator[Any]) -> Iterator[tuple[int, bytes]]:
    for number, task in enumerate(tasks):
        yield number, _dumps(task)


def _dumps(what: object) -> bytes:
    """Write anything for the way to a worker and back, a function of a notebook too."""
    from ray import cloudpickle  # noqa: PLC0415  an extra

    dumps: Any = cloudpickle.dumps
    return bytes(dumps(what))


def _chunk(numbered: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Take as many tasks as one stream is given."""
    size = 0
    for number, body in itertools.islice(numbered, CHUNK_TASKS):
        yield number, body
        size += len(body)
        if size >= CHUNK_BYTES:
            return


class Desk:
    """An actor of Ray Data: hires its worker with the first task, and does tasks one by one."""

    def __init__(self, hire: bytes) -> None:
        """Open nothing yet: what fails here is only a dead actor to Ray, what fails later is an answer."""
        self._hire = hire
        self._work: Any = None

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Do the tasks of a batch."""
        done = [self._do(bytes(body)) for body in batch["task"]]
        return {"number": list(batch["number"]), "result": done}

    def _do(self, body: bytes) -> bytes:
        try:
            if self._work is None:
                self._work = pickle.loads(self._hire)()  # noqa: S301  the run that hires us wrote it
            return _dumps(self._work(pickle.loads(body)))  # noqa: S301
        except BpalsError as error:
            return _dumps(error)
        except Exception as error:  # noqa: BLE001
            # A worker runs anybody's code. Its mistake travels back in words; to Ray it would be one to try again.
            words = f"the work failed in a Ray worker on {platform.node()}: {type(error).__name__}: {error}"
            return _dumps(JudgeError(words))


def _streamed(engine: RayEngine, waiting: Mapping[int, bytes], hire: Hire[Any, Any]) -> Iterator[tuple[int, bytes]]:
    """Run one stream of Ray Data over the tasks that wait: number and result as they come."""
    import ray.data  # noqa: PLC0415  an extra

    rows = [{"number": number, "task": body} for number, body in waiting.items()]
    size = min(engine.workers, len(rows))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stream = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            Desk,
            batch_size=None,
            batch_format="numpy",
            compute=ray.data.ActorPoolStrategy(size=size, max_tasks_in_flight_per_actor=2),
            fn_constructor_args=(_dumps(hire),),
            num_cpus=1,
            num_gpus=engine.gpus or None,
        )
        batches = iter(stream.iter_batches(batch_size=None, prefetch_batches=0, batch_format="numpy"))
        for batch in batches:
            yield from zip((int(number) for number in batch["number"]), map(bytes, batch["result"]), strict=True)


class RaySession:
    """A Ray to work with: one that is connected already, one at an address, or one of our own, which ends here.

    Whoever has several runs to do holds one open around them.
    """

    def __init__(self, engine: RayEngine) -> None:
        """Start nothing yet."""
        self._engine = engine
        self._ours = False

    def prepare(self) -> None:
        """Set up what Ray reads when it is imported, and import it."""
        silence()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, value in (_QUIET | self._closed()).items():
                os.environ.setdefault(name, value)
            import ray.data  # noqa: F401, PLC0415  an extra

    def __enter__(self) -> None:
        self.prepare()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import ray.data  # noqa: PLC0415  an extra

            if tuple(int(part) for part in ray.__version__.split(".")[:2]) < OLDEST:
                raise UsageError(f"Ray {ray.__version__} is too old. Type: pip install 'ray[data]>=2.52'")
            if not ray.is_initialized():
                self._begin(ray)
            logging.getLogger("ray.data").setLevel(logging.ERROR)
            ray.data.DataContext.get_current().enable_progress_bars = False
            resources: Any = ray.cluster_resources
            self._check(resources())

    def _closed(self) -> dict[str, str]:
        """Give a Ray of our own a token: it listens on all addresses of the machine, whatever it is told.

        Ray reads this once, when it is imported: where somebody has imported it already, it is as they wanted it.
        """
        if self._engine.address is not None or "ray" in sys.modules:
            return {}
        return {_AUTH: "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}

    def _begin(self, ray: Any) -> None:
        engine = self._engine
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        with _without_greeting():
            if engine.address is not None:
                engine.say(f"Ray at {engine.address} is joined")
                ray.init(address=engine.address, **quiet)
            else:
                engine.say(f"Ray starts on this machine, for {several(engine.workers, 'worker')}")
                ray.init(
                    num_cpus=engine.workers,
                    include_dashboard=False,
                    object_store_memory=STORE_BYTES,
                    **quiet,
                )
        self._ours = True

    def _check(self, there: Mapping[str, float]) -> None:
        """Refuse what the cluster cannot hold: Ray would wait for it without a word."""
        engine = self._engine
        for what, wanted in (("CPU", float(engine.workers)), ("GPU", engine.gpus * engine.workers)):
            if wanted > there.get(what, 0.0):
                raise UsageError(
                    f"{engine.workers} Ray workers need {wanted:g} {what}s, and the cluster has "
                    f"{there.get(what, 0.0):g}. Type: --ray-workers with a smaller number"
                )

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End a Ray of our own, or leave a cluster that we came to; its workers end with that."""
        if self._ours:
            import ray  # noqa: PLC0415  an extra

            self._ours = False
            ray.shutdown()


@contextlib.contextmanager
def _without_greeting() -> Iterator[None]:
    """Leave one known line of Ray out of stderr; the rest passes at once, also the last words of one that dies."""
    usual, (heard, told) = os.dup(STDERR), os.pipe()
    # A process, so that it outlives this one, in a session of its own, so that Ctrl-C does not end it.
    passing = subprocess.Popen(  # noqa: S603  our own words
        [sys.executable, "-c", _FILTER], stdin=heard, stderr=usual, start_new_session=True
    )
    os.dup2(told, STDERR)
    os.close(told)
    os.close(heard)
    try:
        yield
    finally:
        os.dup2(usual, STDERR)
        os.close(usual)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process of Ray may speak through it for longer
            passing.wait(timeout=CLOSE_S)
