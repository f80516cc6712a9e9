"""Ray as the executor: actors of Ray Data do the tasks, on this machine or on a cluster.

Tasks are pulled in bounded chunks, one stream of Ray Data per chunk; its actors keep what they opened for the work.
Ray replaces a worker that dies and repeats its task. What Ray loses altogether is given to it again, by number, so
that the totals always add up. Ray stores nothing for us: the ledger does.
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
from bpals.judges.runner.executor import MakeWorker, R, Results, T
from bpals.optional import silence
from bpals.text import several

# The first Ray that can be closed to strangers: before, whoever reaches it runs code on it.
OLDEST = (2, 52)
# What one stream of Ray Data is given, whichever is less.
CHUNK_TASKS = 1024
CHUNK_BYTES = 256 << 20
# How often lost tasks are given to Ray again, while none of them comes back.
ROUNDS = 3
PATIENCE_S = 900.0
POLL_S = 0.2
# How long to wait for a Ray that is being ended.
CLOSE_S = 5.0
# The object store of a Ray that we start ourselves: blocks and responses are small.
STORE_BYTES = 512 << 20
STDERR = 2

AUTH = "RAY_AUTH_MODE"
# Ray logs only when it dies, and does not start another Ray of its own when it was ended in the middle of something.
ENVIRONMENT = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_ENABLE_AUTO_CONNECT": "0",
}
# Between Ray and stderr while it starts: Ray prints one line about its log level, whatever the level is.
FILTER = (
    "import os, re\n"
    "while text := os.read(0, 65536):\n"
    "    os.write(2, re.sub(rb'[^\\n]*Set ray log level from environment[^\\n]*\\n', b'', text))"
)
AGAIN = "Type the same command: it goes on where it was"


@dataclass(frozen=True, slots=True, kw_only=True)
class RayExecutor:
    """A running Ray at an address, or one that is started here and ends with the work."""

    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    address: str | None = None
    """`auto`, or HOST:PORT of a running cluster; None starts a Ray of our own on this machine."""
    gpus: float = 0.0
    """GPUs, or the share of one, for each worker."""
    patience_s: float = PATIENCE_S
    """How long no result may come before the run stops: Ray is known to hang on lost devices."""
    say: Callable[[str], None] = field(default=lambda _sentence: None, compare=False, repr=False)
    """Called with a sentence for the user while nothing comes yet."""
    in_blocks: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        """Refuse what cannot work, before anything starts."""
        if self.workers < 1:
            raise UsageError(f"{self.workers} workers do nothing. Type: --ray-workers 2")
        if find_spec("ray") is None:
            raise MissingExtra.of("--engine ray", "ray")
        if self.address is not None and os.environ.get(AUTH) != "token" and not _is_loopback(self.address):
            raise UsageError(
                f"Ray at {self.address} would run the code of whoever reaches it. Start it with {AUTH}=token, "
                f"and type here: export {AUTH}=token (and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH)"
            )

    def map(self, tasks: Iterator[T], make_worker: MakeWorker[T, R]) -> Results[R]:
        """Let actors do the tasks."""
        return _Stream(self, tasks, make_worker)


def _is_loopback(address: str) -> bool:
    host = address.removeprefix("ray://").rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Stream(Generic[T, R]):
    """The results of one map: Ray works in a thread of its own, so that a Ray that hangs is noticed."""

    def __init__(self, executor: RayExecutor, tasks: Iterator[T], make_worker: MakeWorker[T, R]) -> None:
        """Start nothing yet: the first call of next() does."""
        self._executor = executor
        self._tasks = tasks
        self._make_worker = make_worker
        self._results: queue.Queue[tuple[str, Any]] = queue.Queue(maxsize=2)
        self._closing = threading.Event()
        self._session = RaySession(executor)
        self._thread: threading.Thread | None = None

    def __iter__(self) -> Iterator[R]:
        return self

    def __next__(self) -> R:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="bpals-ray", daemon=True)
            self._thread.start()
        until = time.monotonic() + self._executor.patience_s
        while not self._closing.is_set():
            try:
                kind, result = self._results.get(timeout=POLL_S)
            except queue.Empty:
                if time.monotonic() > until:
                    self._closing.set()
                    raise Stopped(
                        f"no Ray worker has given anything back for {self._executor.patience_s:.0f} s. What is done "
                        "is kept: look at the cluster (ray status), then type the same command"
                    ) from None
                continue
            if kind == "result":
                return result  # type: ignore[no-any-return]
            self._closing.set()
            if kind == "error":
                raise result
        raise StopIteration

    def close(self) -> None:
        """End the workers; a Ray that was started here ends at once, with whatever it is doing."""
        self._closing.set()
        if self._thread is None:
            return
        # Ray is left to the thread that uses it: ended from here in the middle of a call, it has been seen to end the
        # whole process. Only a thread that waits too long for its next result has Ray ended below it.
        self._thread.join(timeout=CLOSE_S)
        if self._thread.is_alive():
            self._session.end()
            self._thread.join(timeout=2 * CLOSE_S)

    def _put(self, kind: str, result: Any) -> bool:
        """Hand something over; return whether anybody still wants it."""
        while not self._closing.is_set():
            with contextlib.suppress(queue.Full):
                self._results.put((kind, result), timeout=POLL_S)
                return True
        return False

    def _work(self) -> None:
        """Do everything that needs Ray, in this one thread."""
        self._session.prepare()
        import ray.exceptions

        try:
            with self._session:
                self._executor.say("Ray has started, and its workers load the judge: the first films take longest")
                numbered = ((number, _dumps(task)) for number, task in enumerate(self._tasks))
                while not self._closing.is_set() and (chunk := dict(_chunk(numbered))):
                    self._do(chunk)
            self._put("end", None)
        except (BpalsError, OSError) as error:
            self._put("error", error)
        except ray.exceptions.RayError as error:
            self._put("error", Stopped(f"Ray has failed: {_first_line(error)}. What is done is kept: {AGAIN}"))
        except (RuntimeError, ValueError, ConnectionError, TimeoutError) as error:
            self._put("error", Stopped(f"Ray cannot be used: {_first_line(error)}. {AGAIN}"))

    def _do(self, waiting: dict[int, bytes]) -> None:
        """Do one chunk to its last task."""
        import ray.exceptions

        failures = 0
        while waiting and not self._closing.is_set():
            before, why = len(waiting), "they did not come back"
            try:
                for number, body in self._streamed(waiting):
                    # A task that Ray repeated may come back twice: the second result is dropped.
                    if waiting.pop(number, None) is not None and not self._hand_over(body):
                        # Before the stream ends: Ray reports workers that the stream kills one by one as failures.
                        self._session.end()
                        return
            except ray.exceptions.RayError as error:
                why = _first_line(error)
            failures = failures + 1 if len(waiting) == before else 0
            if waiting and failures >= ROUNDS:
                raise Stopped(f"Ray has lost {several(len(waiting), 'block')} of films ({why}). {AGAIN}")

    def _hand_over(self, body: bytes) -> bool:
        result = pickle.loads(body)  # noqa: S301  our own workers wrote it
        if isinstance(result, BpalsError):
            raise result
        return self._put("result", result)

    def _streamed(self, waiting: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
        """Run one stream of Ray Data over the waiting tasks: number and result as they come."""
        import ray.data
        import ray.exceptions

        rows = [{"number": number, "task": body} for number, body in waiting.items()]
        size = min(self._executor.workers, len(rows))
        with warnings.catch_warnings(action="ignore"):
            stream = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
                RayActor,
                batch_size=None,
                batch_format="numpy",
                compute=ray.data.ActorPoolStrategy(size=size, max_tasks_in_flight_per_actor=2),
                fn_constructor_args=(_dumps(self._make_worker),),
                num_cpus=1,
                num_gpus=self._executor.gpus or None,
            )
            batches: Any = iter(stream.iter_batches(batch_size=None, prefetch_batches=0, batch_format="numpy"))
            try:
                for batch in batches:
                    yield from zip(map(int, batch["number"]), map(bytes, batch["result"]), strict=True)
            finally:
                # Left to the garbage collector, a stream whose Ray has already ended prints a traceback.
                with contextlib.suppress(ray.exceptions.RayError):
                    batches.close()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _dumps(what: object) -> bytes:
    # cloudpickle also takes a function that was written in a notebook.
    from ray import cloudpickle

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


class RayActor:
    """An actor of Ray Data: it makes its worker with the first task, and does tasks one by one."""

    def __init__(self, make_worker: bytes) -> None:
        """Open nothing yet: a failure here is only a dead actor to Ray, a later one is a result with words."""
        self._make_worker = make_worker
        self._work: Any = None

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Do the tasks of a batch."""
        return {"number": list(batch["number"]), "result": [self._do(bytes(body)) for body in batch["task"]]}

    def _do(self, body: bytes) -> bytes:
        try:
            if self._work is None:
                self._work = pickle.loads(self._make_worker)()  # noqa: S301  the run that started us wrote it
            return _dumps(self._work(pickle.loads(body)))  # noqa: S301
        except BpalsError as error:
            return _dumps(error)
        except Exception as error:  # noqa: BLE001
            # A worker runs anybody's code. Its mistake travels back in words; Ray would only try it again.
            words = f"the work failed in a Ray worker on {platform.node()}: {type(error).__name__}: {error}"
            return _dumps(JudgeError(words))


class RaySession:
    """A Ray to work with: one that is already connected, one at an address, or one of our own, which ends here.

    Hold one open around several runs to start Ray only once.
    """

    def __init__(self, executor: RayExecutor) -> None:
        """Start nothing yet."""
        self._executor = executor
        self._ours = False

    def prepare(self) -> None:
        """Set the environment that Ray reads when it is imported, and import it."""
        silence()
        environment = dict(ENVIRONMENT)
        # A Ray of our own listens on all addresses of the machine, whatever it is told: a token closes it. Ray reads
        # the token once, at its import, so one that somebody has already imported stays as they wanted it.
        if self._executor.address is None and "ray" not in sys.modules:
            environment |= {AUTH: "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        with warnings.catch_warnings(action="ignore"):
            for name, value in environment.items():
                os.environ.setdefault(name, value)
            import ray.data  # noqa: F401  an extra

    def __enter__(self) -> None:
        self.prepare()
        with warnings.catch_warnings(action="ignore"):
            import ray.data

            if tuple(int(part) for part in ray.__version__.split(".")[:2]) < OLDEST:
                raise UsageError(f"Ray {ray.__version__} is too old. Type: pip install 'ray[data]>=2.52'")
            if not ray.is_initialized():
                self._begin(ray)
            logging.getLogger("ray.data").setLevel(logging.ERROR)
            ray.data.DataContext.get_current().enable_progress_bars = False
            resources: Any = ray.cluster_resources
            self._check(resources())

    def _begin(self, ray: Any) -> None:
        executor = self._executor
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        with _without_greeting():
            if executor.address is not None:
                executor.say(f"Ray at {executor.address} is joined")
                ray.init(address=executor.address, **quiet)
            else:
                executor.say(f"Ray starts on this machine, for {several(executor.workers, 'worker')}")
                ray.init(num_cpus=executor.workers, include_dashboard=False, object_store_memory=STORE_BYTES, **quiet)
        self._ours = True

    def _check(self, there: Mapping[str, float]) -> None:
        """Refuse what the cluster cannot hold: Ray would wait for it without a word."""
        workers = self._executor.workers
        for what, wanted in (("CPU", float(workers)), ("GPU", self._executor.gpus * workers)):
            if wanted > there.get(what, 0.0):
                raise UsageError(
                    f"{workers} Ray workers need {wanted:g} {what}s, and the cluster has "
                    f"{there.get(what, 0.0):g}. Type: --ray-workers with a smaller number"
                )

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End a Ray of our own, or leave a cluster that we joined; our workers end with that."""
        if self._ours:
            import ray

            self._ours = False
            ray.shutdown()


@contextlib.contextmanager
def _without_greeting() -> Iterator[None]:
    """Leave one known line of Ray out of stderr; the rest passes at once, also the last words of a Ray that dies."""
    usual, (read_end, write_end) = os.dup(STDERR), os.pipe()
    # A process, so that it outlives this one, in a session of its own, so that Ctrl-C does not end it.
    passing = subprocess.Popen(  # noqa: S603  our own words
        [sys.executable, "-c", FILTER], stdin=read_end, stderr=usual, start_new_session=True
    )
    os.dup2(write_end, STDERR)
    os.close(write_end)
    os.close(read_end)
    try:
        yield
    finally:
        os.dup2(usual, STDERR)
        os.close(usual)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process of Ray may speak through it for longer
            passing.wait(timeout=CLOSE_S)
