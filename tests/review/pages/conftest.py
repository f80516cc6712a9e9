"""A real browser that fails a test at the first error in its console, and rooms that it reads in."""

import contextlib
import re

import pytest

from world import browsers


@pytest.fixture(scope="module")
def chromium():
    """Debian's Chromium, started once; nothing is downloaded."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    if browsers.CHROMIUM is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=browsers.CHROMIUM, args=browsers.ARGUMENTS)
        yield started
        started.close()


@pytest.fixture
def hall(tmp_path):
    """Open a room, which is closed with the test."""
    with contextlib.ExitStack() as stack:

        def opened(contents, **more):
            folder = tmp_path / f"room{len(list(tmp_path.iterdir()))}"
            return stack.enter_context(browsers.open_hall(folder, contents, **more))

        yield opened


@pytest.fixture
def enter(chromium):
    """Let somebody in and give the window; whatever it complains of fails the test, but what the test allows."""
    contexts, heard = [], []

    def listen(window, allowed):
        def hear(kind, text):
            if not any(words in text for words in allowed):
                heard.append(f"{kind}: {text}")

        window.on("console", lambda message: message.type == "error" and hear("console", message.text))
        window.on("pageerror", lambda error: hear("error", str(error)))
        window.on("dialog", lambda dialog: (hear("dialog", dialog.message), dialog.dismiss()))

    def entered(hall, name="ada", role="reader", *, page="/read", allowed=(), **options):
        window = options.pop("beside", None)
        context = window.context if window else chromium.new_context(**({"viewport": SCREEN} | options))
        contexts.append(context)
        fresh = context.new_page()
        fresh.set_default_timeout(10_000)
        listen(fresh, allowed)
        if window is None:
            fresh.goto(hall.link(name, role))
            fresh.wait_for_url(re.compile("/(read|adjudicate)$"))
        if window is not None or not fresh.url.endswith(page):
            fresh.goto(f"{hall.origin}{page}")
        return fresh

    yield entered
    for context in dict.fromkeys(contexts):
        context.close()
    assert heard == []


SCREEN = {"width": 1280, "height": 860}
