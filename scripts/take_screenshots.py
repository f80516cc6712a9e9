"""Take the screenshots of the reading room in docs/, on the demo's films: `python scripts/take_screenshots.py`."""

from __future__ import annotations

import argparse
import io
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from bpals.room.desk.readings import Answer, Box, Spent, Verdict
from bpals.room.desk.study import Account
from bpals.room.web.server import Binding, make_server
from bpals.tasks.demo import make_demo
from bpals.tasks.serve import Opening, OpenRoom, open_room
from shape import ROOT

SIZE = {"width": 1440, "height": 900}
PORT = 8799
STUDY = """\
name = "two readers"
readers_per_case = 2
adjudication = "adjudicator"
random_share = 0.5
repeats = 0.1
learn_every = 1000
"""
READS = 40
"""Cases that two readers read before the pictures of adjudication and progress are taken."""
HERNIA = ((697, 508), (801, 604))
"""Where the hernia stands on the first film that has another before it."""
LATER = r"follow-up [1-9]\d* \(this case\)"
FILM = "document.querySelector('.pane.current cxr-canvas')?.film"


@contextmanager
def served(room: OpenRoom) -> Iterator[str]:
    """Serve a room in a thread, and give its address."""
    server = make_server(room.app, room.binding, level="ERROR")
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield room.binding.origin
    finally:
        server.should_exit = True
        thread.join(10)


def enter(room: OpenRoom, window: Page, name: str, role: str = "reader") -> None:
    """Let somebody in."""
    known = {card.account.name: card.account for card in room.room.accounts.cards()}
    account = known.get(name) or room.room.accounts.make(name, role)
    window.goto(f"{room.binding.origin}/enter#{room.room.accounts.make_link(account, by='screenshots')}")
    window.wait_for_url(re.compile("/(read|adjudicate)$"))


def until(window: Page, holds: str, seconds: float = 60.0) -> None:
    """Wait until an expression holds in a page."""
    ends = time.monotonic() + seconds
    while not window.evaluate(holds):
        if time.monotonic() > ends:
            raise SystemExit(f"not within {seconds} s: {holds}")
        window.wait_for_timeout(50)


def read_cases(room: OpenRoom, count: int) -> None:
    """Have two readers read: mostly what the judges say, now and then something else."""
    draw = np.random.default_rng(3)
    for name in ("reader one", "reader two"):
        account = room.room.accounts.make(name, "reader")
        for _ in range(count):
            if not _read_one(room, account, draw):
                break


def _read_one(room: OpenRoom, account: Account, draw: np.random.Generator) -> bool:
    desk = room.room.desk
    view = desk.next(account, ahead=0).current
    if view is None:
        return False
    known = {pair.finding: pair for pair in room.room.reveal(view.image_id).pairs}
    said: dict[str, Verdict] = {}
    for finding in view.findings:
        p_present = known[finding].p_present or 0.0
        word: Verdict = "present" if p_present > 0.5 else "absent"
        said[finding] = ("absent" if word == "present" else "present") if draw.random() < 0.03 else word
    box = tuple(
        Box(finding=finding, x=300 + 40 * draw.random(), y=420, width=180, height=150)
        for finding, word in said.items()
        if word == "present"
    )[:1]
    answer, seconds = Answer(verdicts=said, boxes=box, note="" if draw.random() > 0.2 else "seen on both bases"), 20.0
    key = f"shot-{account.account_id}-{view.reading_id}"
    spent = Spent(active_s=seconds, wall_s=seconds)
    desk.lock(account, view.reading_id, version=view.version, key=key, answer=answer, spent=spent)
    desk.note_reveal(account, view.reading_id, room.room.reveal(view.image_id).version)
    version = desk.reading(account, view.reading_id).version
    desk.second(account, view.reading_id, version=version, key=f"{key}-2", answer=answer, spent=spent)
    return True


def shoot(window: Page, folder: Path, name: str) -> None:
    """Take one picture."""
    window.wait_for_timeout(300)
    taken = Image.open(io.BytesIO(window.screenshot()))
    # 256 colours are enough for a page and a grey film, and half the bytes.
    taken.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(folder / f"{name}.png", optimize=True)
    print(f"{folder / name}.png")


def reading(room: OpenRoom, window: Page, folder: Path) -> None:
    """Take the reading page blind, with the patient's film before, and then revealed."""
    enter(room, window, "reader")
    until(window, FILM)
    while not re.search(LATER, window.inner_text("#strip")):
        case = window.inner_text("#case")
        window.keyboard.press("s")
        until(window, f"document.getElementById('case').textContent !== '{case}'")
        until(window, FILM)
    for key in ("[", "Shift+c", "q", "h", ".", "b"):
        window.keyboard.press(key)
    until(window, "[...document.querySelectorAll('cxr-canvas')].every(each => each.film)")
    window.mouse.move(*HERNIA[0])
    window.mouse.down()
    window.mouse.move(*HERNIA[1], steps=4)
    window.mouse.up()
    shoot(window, folder, "room-read")
    window.keyboard.press("Enter")
    until(window, "document.getElementById('sheet').dataset.phase === 'second'")
    window.keyboard.press("e")
    window.keyboard.press("z")
    shoot(window, folder, "room-revealed")


def settling(room: OpenRoom, window: Page, folder: Path) -> None:
    """Take the adjudication and the progress page."""
    enter(room, window, "adjudicator", "adjudicator")
    window.goto(f"{room.binding.origin}/adjudicate")
    until(window, FILM)
    shoot(window, folder, "room-adjudication")
    window.goto(f"{room.binding.origin}/progress")
    until(
        window,
        "document.querySelector('svg.chart') && document.getElementById('words').textContent.startsWith('As of')",
    )
    shoot(window, folder, "room-progress")


def main() -> None:
    """Make the demo in a folder that is thrown away, read some of it, and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=ROOT / "docs", help="the folder of the pictures")
    parser.add_argument("--demo", type=Path, help="a demo that is there already, to save its making")
    given = parser.parse_args()
    browser = shutil.which("chromium")
    if browser is None:
        sys.exit("no chromium on this machine: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        home = Path(folder) / "demo"
        if given.demo:
            shutil.copytree(given.demo, home, ignore=shutil.ignore_patterns("ledger*", "*.sock"))
        demo = make_demo(home)
        chromium: Any = driver.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        study = Path(folder) / "study.toml"
        study.write_text(STUDY, encoding="utf-8")
        opening = Opening(workspace=home, images=demo.images, study=study, binding=Binding(port=PORT))
        with open_room(opening) as room, served(room):
            for take, theme in ((reading, "dark"), (None, ""), (settling, "light")):
                if take is None:
                    read_cases(room, READS)
                    continue
                context = chromium.new_context(viewport=SIZE, color_scheme=theme)
                take(room, context.new_page(), given.into)
                context.close()
        chromium.close()


if __name__ == "__main__":
    main()
