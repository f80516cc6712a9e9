"""What the tests of the room's routes share: a room on a real ledger with real films, browsers, and a real server."""

import contextlib
import io
import itertools
import json
import logging
import socket
import threading
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psycopg
from fastapi import FastAPI
from PIL import Image, PngImagePlugin
from starlette.testclient import TestClient

from bpals.images.rendition import render
from bpals.room.desk.desk import Desk
from bpals.room.people.accounts import Accounts
from bpals.room.people.sessions import Sessions
from bpals.room.room import JudgeAnswer, PatientFilm, Revealed, RevealedPair, Room, Settings
from bpals.room.web.app import create_app
from bpals.room.web.server import Binding, make_server
from bpals.store.ledger import Ledger
from bpals.types import Refusal
from world import desks
from world.waiting import wait_until

ORIGIN = "http://127.0.0.1:8765"
PASSWORD = "four plain words together"  # noqa: S105 -- of a test
SECRET = b"0" * 32
LABEL = "LABELCANARY"
"""Stands in every field that a blind reader must not get."""
VERSION = "sha256:of-a-signal"


def film_png(seed, **text):
    """A small grey PNG, with text chunks where a test wants some."""
    about = PngImagePlugin.PngInfo()
    for name, words in text.items():
        about.add_text(name, words)
    shades = np.random.default_rng(seed).integers(0, 256, (48, 64), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(shades).save(buffer, "PNG", pnginfo=about)
    return buffer.getvalue()


@dataclass
class Shelf:
    """Films by image id, the others of each patient, and what would be revealed of them."""

    contents: dict[str, bytes] = field(default_factory=dict)
    version: str = VERSION
    locks: int = 0
    reveals: list[str] = field(default_factory=list)

    def film(self, image_id):
        """Render a film as the room does."""
        if image_id not in self.contents:
            return Refusal(code="missing", message=f"nothing is called {image_id}")
        return render(self.contents[image_id])

    def others(self, image_id):
        """The film itself, and one from before."""
        return [
            PatientFilm(image_id=f"{image_id}-before", when="follow-up 0"),
            PatientFilm(image_id=image_id, when="follow-up 1"),
        ]

    def signal(self):
        """The version of what would be revealed."""
        return self.version

    def reveal(self, image_id):
        """What a blind reader must not get."""
        self.reveals.append(image_id)
        said = (JudgeAnswer(judge=f"{LABEL}-judge", outcome="answered", p_present=0.8125),)
        pairs = tuple(
            RevealedPair(
                finding=finding,
                says="present",
                p_present=0.8125,
                trust=0.8125,
                trust_low=0.6875,
                trust_high=0.9375,
                flag="likely_mislabelled",
                reasons=(f"{LABEL}: a reason",),
                judges=said,
            )
            for finding in desks.FINDINGS
        )
        return Revealed(version=self.version, pairs=pairs)

    def after_lock(self):
        """Count the locks that the learner hears of."""
        self.locks += 1


@dataclass
class Open:
    """A room that is open."""

    room: Room
    app: FastAPI
    ledger: Ledger
    shelf: Shelf

    def account(self, name, role="reader", **more):
        """Make an account that may enter."""
        return self.room.accounts.make(name, role, **more)

    def visitor(self, **more):
        """Give a browser that nobody has logged in with."""
        return Browser(TestClient(self.app, base_url=self.room.settings.origin, **more), self.room.settings.origin)

    def browser(self, name, role="reader"):
        """Give a browser that is logged in by a link as this account, which is made if there is none."""
        known = {card.account.name: card.account for card in self.room.accounts.cards()}
        account = known.get(name) or self.account(name, role)
        visitor = self.visitor()
        token = self.room.accounts.make_link(account, by="test")
        assert visitor.post("/enter", {"token": token}).status_code == 200
        return visitor


class Browser:
    """Sends what a browser sends from a page of the room."""

    def __init__(self, client, origin):
        """Take the client that speaks HTTP."""
        self.client = client
        self.origin = origin

    @property
    def cookies(self):
        """The cookies it holds."""
        return self.client.cookies

    def get(self, path, **more):
        """Fetch, from a page of the room."""
        headers = {"sec-fetch-site": "same-origin"} | more.pop("headers", {})
        return self.client.get(path, headers=headers, follow_redirects=False, **more)

    def post(self, path, body=None, **more):
        """Post JSON, from a page of the room."""
        headers = {"sec-fetch-site": "same-origin", "origin": self.origin} | more.pop("headers", {})
        given = {} if body is None else {"content": json.dumps(body).encode()}
        headers |= {} if body is None else {"content-type": "application/json"}
        return self.client.post(path, headers=headers, follow_redirects=False, **given, **more)

    def next(self):
        """Take the case that comes next."""
        return self.post("/api/next").json()

    def act(self, act, reading, **more):
        """Do something with a reading, under a key of its own."""
        body = {"version": reading["version"], "key": fresh_key(), **more}
        return self.post(f"/api/readings/{reading['reading_id']}/{act}", body)

    def lock(self, reading, **more):
        """Lock a reading."""
        return self.act("lock", reading, **({"answer": {}, "spent": SPENT} | more))


SPENT = {"active_s": 3.0, "wall_s": 5.0}
_KEYS = itertools.count()


def fresh_key():
    """A key that no request had before."""
    return f"request-{next(_KEYS)}"


def address_of(folder):
    """Where the ledger of a room in this folder lies."""
    return Path(folder) / "audit" / "ledger.sqlite"


@contextlib.contextmanager
def open_room(address, *, films=6, origin=ORIGIN, settings=None, oidc=None, progress=None, **study):
    """Open a room with some films to read; what a test wants of the study or the settings is given by name."""
    ledger = Ledger.open(address)
    try:
        shelf = Shelf()
        cases = desks.films(films)
        for seed, image_id in enumerate(cases["image_id"]):
            shelf.contents[image_id] = film_png(seed)
            shelf.contents[f"{image_id}-before"] = film_png(seed + 1000)
        setup = desks.make_study(**({"reveal": True, "readers_per_case": 2, "keys": KEYS} | study))
        desk = Desk.open(ledger, setup)
        if desk.counts().cases == 0:
            desk.draw(cases, VERSION)
        options = Settings(origin=origin, **(settings or {}))
        room = Room(
            settings=options,
            study=setup,
            desk=desk,
            accounts=Accounts(ledger, SECRET),
            sessions=Sessions(ledger, SECRET, idle_s=options.idle_s, stay_s=options.stay_s),
            film=shelf.film,
            others=shelf.others,
            signal=shelf.signal,
            reveal=shelf.reveal,
            progress=progress or (lambda: {"counts": {"readings": desk.counts().locked}}),
            after_lock=shelf.after_lock,
            oidc=oidc,
        )
        yield Open(room=room, app=create_app(room), ledger=ledger, shelf=shelf)
    finally:
        ledger.close()


def new_database(address):
    """Make a database on a server, and give its address; it goes with the server."""
    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return address.replace("/postgres?", f"/{name}?")


KEYS = {"Mass": "m", "Nodule": "o", "Pneumothorax": "p"}


def free_port():
    """A port that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextlib.contextmanager
def serving(app, port, *, head_s=10.0, **binding):
    """Serve an application by a real server, in a thread; what it sets up for its log goes with it."""
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    server = make_server(app, Binding(port=port, **binding), head_s=head_s)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started, 30)
    try:
        yield server
    finally:
        server.should_exit = True
        thread.join(10)
        root.level, root.handlers = before
