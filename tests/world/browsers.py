"""What the tests of the pages share: a real browser, films of every kind, and rooms that it reads in."""

import contextlib
import io
import shutil
import time
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from PIL import Image

from bpals.findings import NIH
from bpals.images.rendition import render
from bpals.room.desk.desk import Desk
from bpals.room.desk.readings import Answer, Box
from bpals.room.desk.study import assign_keys
from bpals.room.people.accounts import Accounts
from bpals.room.people.sessions import Sessions
from bpals.room.room import JudgeAnswer, PatientFilm, Revealed, RevealedPair, Room, Settings
from bpals.room.web.app import create_app
from bpals.store.ledger import Ledger
from bpals.types import Refusal
from world import desks, rooms

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
KEYS = assign_keys(NIH.findings, {})
SIGNAL = "sha256:of-a-signal"


def chest(width=256, height=256, *, seed=0, bits=8):
    """Draw two dark lungs under noise, in any depth."""
    top = (1 << bits) - 1
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    lungs = np.exp(-((np.abs(x) - 0.45) ** 2 / 0.05 + y**2 / 0.3))
    noise = np.random.default_rng(seed).normal(0, 0.03, x.shape)
    grey = np.clip(0.75 - 0.5 * lungs + noise + 0.02 * seed, 0, 1)
    return np.rint(grey * top).astype(np.uint8 if bits <= 8 else np.uint16)


def png(values):
    """Write an array as PNG, 8 or 16 bits deep."""
    written = io.BytesIO()
    Image.fromarray(values).save(written, "PNG", compress_level=1)
    return written.getvalue()


@dataclass
class Films:
    """Films by image id; the patient's others; what is revealed."""

    contents: dict[str, bytes] = field(default_factory=dict)
    earlier: dict[str, list[str]] = field(default_factory=dict)
    says: dict[str, str] = field(default_factory=lambda: {"Effusion": "present", "Mass": "absent"})
    reason: str = "against: absent on the films before and after"
    judge: str = "record"
    findings: tuple[str, ...] = NIH.findings
    asked: list[str] = field(default_factory=list)

    def film(self, image_id):
        """Render a film, and remember that it was asked for."""
        self.asked.append(image_id)
        if image_id not in self.contents:
            return Refusal(code="missing", message="nothing has its name")
        return render(self.contents[image_id])

    def others(self, image_id):
        """The patient's films in time order."""
        names = [*self.earlier.get(image_id, []), image_id]
        return [PatientFilm(image_id=name, when=f"follow-up {at}") for at, name in enumerate(names)]

    def signal(self):
        """The version of what is shown after the lock."""
        return SIGNAL

    def reveal(self, image_id):
        """What is shown after the lock."""
        del image_id
        answers = (JudgeAnswer(judge=self.judge, outcome="answered", p_present=0.0625),)
        pairs = tuple(
            RevealedPair(
                finding=finding, says=self.says.get(finding, "absent"), p_present=0.0625,
                trust=0.0625 if self.says.get(finding) == "present" else 0.9375, trust_low=0.03, trust_high=0.97,
                flag="likely_mislabelled" if self.says.get(finding) == "present" else "trusted",
                reasons=(self.reason,), judges=answers,
            )
            for finding in self.findings
        )  # fmt: skip
        return Revealed(version=SIGNAL, pairs=pairs)


@dataclass
class Hall:
    """A room that a browser can enter."""

    room: Room
    ledger: Ledger
    films: Films
    origin: str

    def link(self, name, role="reader"):
        """Give the address that lets somebody in, once."""
        known = {card.account.name: card.account for card in self.room.accounts.cards()}
        account = known.get(name) or self.room.accounts.make(name, role)
        return f"{self.origin}/enter#{self.room.accounts.make_link(account, by='test')}"

    def reviews(self):
        """Every review that is kept."""
        return self.room.desk.reviews()


@contextlib.contextmanager
def open_hall(folder, contents, *, earlier=None, progress=None, title="Reading room", films=None, **study):
    """Open a room on these films, by a real server; what a test wants of the study is given by name."""
    ledger = Ledger.open(rooms.address_of(folder))
    try:
        shelf = replace(films or Films(), contents=dict(contents), earlier=earlier or {})
        wanted = {"findings": NIH.findings, "keys": KEYS, "reveal": True, "readers_per_case": 1, "adjudication": "none"}
        desk = Desk.open(ledger, desks.make_study(**(wanted | study)))
        drawn = [image_id for image_id in contents if not image_id.endswith("-before")]
        columns = {"patient_id": pl.col("image_id") + "-patient", "finding": pl.lit("Effusion"), "how": pl.lit("value")}
        desk.draw(pl.DataFrame({"image_id": drawn}).with_columns(**columns, inclusion=pl.lit(0.25)), SIGNAL)
        port = rooms.free_port()
        settings = Settings(origin=f"http://127.0.0.1:{port}", title=title)
        room = Room(
            settings=settings,
            study=desk.study,
            desk=desk,
            accounts=Accounts(ledger, rooms.SECRET),
            sessions=Sessions(ledger, rooms.SECRET, idle_s=settings.idle_s, stay_s=settings.stay_s),
            film=shelf.film,
            others=shelf.others,
            signal=shelf.signal,
            reveal=shelf.reveal,
            progress=progress or dict,
            after_lock=lambda: None,
        )
        with rooms.serving(create_app(room), port):
            yield Hall(room=room, ledger=ledger, films=shelf, origin=settings.origin)
    finally:
        ledger.close()


def case_films(count, **size):
    """Films that look alike and are not the same, by image id."""
    return {f"00000{number:03}_000.png": png(chest(seed=number, **size)) for number in range(count)}


def until(window, holds, *given, seconds=30.0):
    """Wait until an expression holds; the page's policy forbids the browser to evaluate texts by itself."""
    ends = time.monotonic() + seconds
    while not window.evaluate(holds, *given):
        assert time.monotonic() < ends, f"not within {seconds} s: {holds}"
        window.wait_for_timeout(20)


def disagree(room, image_id, *, first="present", second="absent", note="", finding="Effusion"):
    """Have two readers read a film without a browser, and differ."""
    for name, verdict in (("bea", first), ("cyd", second)):
        account = room.room.accounts.make(name, "reader")
        while True:
            view = room.room.desk.next(account).current
            box = Box(finding=finding, x=20, y=30, width=60, height=50)
            said = Answer(verdicts={finding: verdict}, note=note, boxes=(box,) if verdict == "present" else ())
            key = desks.fresh_key()
            spent = desks.SPENT
            room.room.desk.lock(account, view.reading_id, version=view.version, key=key, answer=said, spent=spent)
            if view.image_id == image_id:
                break
