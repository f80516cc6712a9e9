"""A proxy before a PostgreSQL server that loses a connection on command: before a commit, or before its answer."""

import contextlib
import selectors
import socket
import threading

COMMIT = b"COMMIT\0"
"""The statement itself: READ COMMITTED begins a transaction."""


class LossyProxy:
    """Listens in a folder as a server would, and passes everything on to another."""

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
