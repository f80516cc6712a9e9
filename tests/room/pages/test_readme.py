"""README's own commands, as they stand: the room opens on drawn films, and twenty cases are read in a browser."""

import os
import re
import shlex
import signal
import subprocess
import sys

import pytest

import shape
from world import browsers
from world.browsers import until

BLIND = "document.getElementById('sheet').dataset.phase === 'blind' && !document.getElementById('written').hidden"
SECOND = "document.getElementById('sheet').dataset.phase === 'second'"
FILM = "document.querySelector('.pane.current cxr-canvas')?.film"
CALM_MS = 650
CASES = 20


@pytest.fixture
def opened(tmp_path):
    """Type the line of README that opens the room, in a copy of its Makefile's folder; give the address."""
    text = (shape.ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition("## Bring your own VLM, read, rate")[2]
    line = shlex.split(re.search(r"^\$ (make room)", section, re.MULTILINE)[1])
    # The demo is made where make runs; the environment that runs the tests is the one that make would install.
    options = [f"ARGS=--workspace {tmp_path / 'demo'} --port 0 --no-browser", f"VENV={sys.prefix}"]
    # `-o` says that the environment is as it should be: tests install nothing into themselves.
    touch = ["-o", f"{sys.prefix}/.room"]
    with subprocess.Popen(
        [*line, *touch, *options],
        cwd=shape.ROOT,
        env=os.environ | {"PYTHONPATH": str(shape.ROOT / "src")},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as room:
        address = next((found[1] for said in room.stdout if (found := re.match(r"Open: (\S+)", said))), None)
        assert address, "the room did not say where it is"
        yield address
        os.killpg(room.pid, signal.SIGINT)
        room.wait(30)


def test_twenty_cases_are_read_after_readmes_own_commands(opened, chromium):
    """From the link that is printed to the twentieth second verdict, by keyboard, without an error in the console."""
    heard = []
    window = chromium.new_context(viewport={"width": 1280, "height": 860}).new_page()
    window.on("console", lambda message: message.type == "error" and heard.append(message.text))
    window.on("pageerror", lambda error: heard.append(str(error)))
    window.goto(opened)
    window.wait_for_url("**/read")
    for case in range(1, CASES + 1):
        until(window, BLIND)
        until(window, FILM)
        assert window.inner_text("#case").startswith(f"Case {case} of")
        window.keyboard.press("e")
        window.keyboard.press("Enter")
        until(window, SECOND)
        window.wait_for_timeout(CALM_MS)
        window.keyboard.press("Enter")
    until(window, BLIND)
    window.goto(f"{opened.partition('/enter')[0]}/progress")
    window.wait_for_selector("main")
    window.context.close()
    assert heard == []


def test_the_stand_ins_of_this_test_are_real():
    """Chromium is there, and the Makefile has the target that README names."""
    assert browsers.CHROMIUM is not None
    assert re.search(r"^room: ", (shape.ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
