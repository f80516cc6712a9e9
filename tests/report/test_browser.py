"""The report in a real browser: on a phone, on a desk and on paper."""

import re
import shutil
from contextlib import contextmanager

import pytest

from bpals.report.comparison_page import render_comparison
from bpals.report.page import render
from bpals.report.scorecard_page import render_scorecard

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
PAGES = [
    "page", "pictured_page", "calibrated_page", "patientless_page", "hostile_page", "scorecard", "comparison",
    "hostile_comparison",
]  # fmt: skip
WIDTHS = {"phone": 390, "desk": 1280}
PAPER_PX = 687
"""A4 less the margins of the style sheet, at 96 dots an inch."""

OPEN_ALL = "document.querySelectorAll('details').forEach(fold => { fold.open = true })"
WIDER_THAN_THE_WINDOW = """
[...document.querySelectorAll('body *')]
  .filter(e => e.getBoundingClientRect().width > 0 && !e.closest('thead') && !e.closest('svg'))
  .filter(e => e.getBoundingClientRect().right > innerWidth + 1 || e.getBoundingClientRect().left < -1)
  .map(e => `${e.tagName}.${e.className}`)
"""
UNSEEN_FOLDS = "[...document.querySelectorAll('details > :not(summary)')].filter(e => !e.checkVisibility()).length"
SMALLEST_TEXT = """
(() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const sizes = [];
  while (walker.nextNode()) {
    const holder = walker.currentNode.parentElement;
    const seen = holder.getBoundingClientRect().width > 0 && !holder.closest('style, title, desc, thead');
    if (seen && walker.currentNode.data.trim()) sizes.push(parseFloat(getComputedStyle(holder).fontSize));
  }
  return Math.min(...sizes);
})()
"""


@pytest.fixture(scope="module")
def browser():
    """Debian's Chromium, started once; nothing is downloaded."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def files(request, tmp_path_factory):
    """Each kind of page as a file."""
    folder = tmp_path_factory.mktemp("pages")
    scored = request.getfixturevalue("calibrated_page")
    for name in PAGES:
        if name == "scorecard":
            html = render_scorecard(scored.scores, scored.reliability, {"bpals": "0.1.0"})
        elif name.endswith("comparison"):
            html = render_comparison(request.getfixturevalue(name))
        else:
            html = render(request.getfixturevalue(name))
        (folder / f"{name}.html").write_text(html, encoding="utf-8")
    return folder


@contextmanager
def opened(browser, file, width=390, scheme="light"):
    """A page in a window, with all that it asked for and complained about."""
    window = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    window.heard = []
    window.on("request", lambda request: window.heard.append(request.url))
    window.on("console", lambda message: window.heard.append(f"console: {message.text}"))
    window.on("pageerror", lambda error: window.heard.append(f"error: {error}"))
    window.on("dialog", lambda dialog: window.heard.append(f"dialog: {dialog.message}") or dialog.dismiss())
    window.goto(file.as_uri())
    yield window
    window.close()


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_the_page_fits_its_window_and_is_silent(browser, files, name, width):
    """No sideways scroll, folded or open, light or dark; no tiny text; one request, for the file; no message."""
    file = files / f"{name}.html"
    with opened(browser, file, width) as window:
        fits(window)
        window.evaluate(OPEN_ALL)
        window.emulate_media(color_scheme="dark")
        fits(window)
        assert window.evaluate(SMALLEST_TEXT) >= 12
        assert window.heard == [file.as_uri()]


def fits(window):
    """Fail if anything reaches beyond the window."""
    assert window.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    assert window.evaluate(WIDER_THAN_THE_WINDOW) == []


def test_a_page_that_does_not_fit_would_be_found(browser, tmp_path):
    """The rules above are not blind: a wide table, a tiny text and a picture from elsewhere are noticed."""
    bad = tmp_path / "bad.html"
    wide = '<table style="width:800px"><tr><td style="font-size:9px">x</td></tr></table>'
    bad.write_text(f"<!doctype html><body>{wide}<img src='file:///nowhere.png'></body>", encoding="utf-8")
    with opened(browser, bad) as window:
        assert window.evaluate("document.scrollingElement.scrollWidth > innerWidth")
        assert "TABLE." in window.evaluate(WIDER_THAN_THE_WINDOW)
        assert window.evaluate(SMALLEST_TEXT) == 9
        assert len(window.heard) > 1


def test_a_row_of_a_table_is_a_card_on_a_phone(browser, files):
    """Eleven columns in 390 px could not be read; every cell then says what it is."""
    cells = "[...document.querySelectorAll('td')].map(e => getComputedStyle(e).display === 'table-cell')"
    with opened(browser, files / "calibrated_page.html", WIDTHS["phone"]) as window:
        assert not any(window.evaluate(cells))
        label = "getComputedStyle(document.querySelector('td.trust'), '::before').content"
        assert window.evaluate(label) == '"readers would reject"'
        window.set_viewport_size({"width": WIDTHS["desk"], "height": 844})
        assert all(window.evaluate(cells))


def test_folds_are_closed_until_they_are_opened(browser, files):
    """On a screen the cases of each finding wait behind its name."""
    with opened(browser, files / "page.html") as window:
        assert window.evaluate(UNSEEN_FOLDS) > 0
        window.evaluate(OPEN_ALL)
        assert window.evaluate(UNSEEN_FOLDS) == 0


def test_a_script_would_not_run(browser, files, tmp_path):
    """Even if markup got through, the page's own policy would stop it."""
    page = (files / "page.html").read_text(encoding="utf-8")
    broken = tmp_path / "broken.html"
    broken.write_text(page.replace("</main>", "<script>document.title = 'owned'</script></main>"), encoding="utf-8")
    with opened(browser, broken) as window:
        assert window.title() != "owned"
        assert any("Content Security Policy" in line for line in window.heard)


def test_light_and_dark_are_painted_differently(browser, files):
    """The page follows the reader's choice."""
    grounds = []
    for scheme in ("light", "dark"):
        with opened(browser, files / "page.html", 390, scheme) as window:
            grounds.append(window.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert grounds == ["rgb(252, 251, 248)", "rgb(20, 24, 28)"]


@pytest.mark.parametrize("name", PAGES)
def test_the_page_prints(browser, files, name):
    """Several sheets, nothing cut off at the side, and what was folded is printed."""
    with opened(browser, files / f"{name}.html", PAPER_PX) as window:
        window.emulate_media(media="print")
        fits(window)
        assert window.evaluate(UNSEEN_FOLDS) == 0
        window.emulate_media(media=None)
        sheets = re.findall(rb"/Type\s*/Page\b(?!s)", window.pdf(prefer_css_page_size=True))
    assert len(sheets) >= 2


def test_every_chart_is_an_image_with_a_name(browser, files):
    """What a screen reader gets: an image and its title."""
    with opened(browser, files / "calibrated_page.html") as window:
        window.evaluate(OPEN_ALL)
        names = window.evaluate(
            "[...document.querySelectorAll('svg[role=img]')].map(s => s.querySelector('title').textContent)"
        )
        loose = window.evaluate(
            "document.querySelectorAll('svg:not([role=img]):not([aria-hidden]):not(svg svg)').length"
        )
    assert len(names) > 20
    assert all(names)
    assert loose == 0


def test_the_strip_draws_the_timeline_that_the_record_tells(browser, files, page):
    """Filled squares stand where the label is on, in the order of follow-up, and one of them is marked."""
    with opened(browser, files / "page.html", 1280) as window:
        strip = window.locator("#suspects .timeline").first
        cells = strip.locator(".cell")
        classes = [cells.nth(i).get_attribute("class") for i in range(cells.count())]
        left = [cells.nth(i).bounding_box()["x"] for i in range(cells.count())]
        film = window.locator("#suspects .case code").first.inner_text()
        finding = window.locator("#suspects .case h3").first.inner_text().split(",")[0].replace(" ", "_")
    claims = page.dataset.claims.filter(finding=finding).join(page.dataset.images, on="image_id").sort("follow_up")
    patient = claims.filter(image_id=film)["patient_id"].item()
    told = claims.filter(patient_id=patient)
    at = told["image_id"].to_list().index(film)
    start = max(0, min(at - 10, len(told) - 21))
    assert left == sorted(left)
    assert [re.search(r"says-(\w+)", c).group(1) for c in classes] == told["says"].to_list()[start : start + 21]
    assert [i for i, c in enumerate(classes) if "asked" in c] == [at - start]


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_images_stand_beside_the_strips_and_are_small(browser, files, width):
    """They are decoded from the page itself, three in a row, and one that is missing takes a line."""
    with opened(browser, files / "pictured_page.html", width) as window:
        window.evaluate(OPEN_ALL)
        sizes = window.evaluate(
            "[...document.querySelectorAll('.films img')].map(i => [i.naturalWidth, i.getBoundingClientRect().width])"
        )
        missing = window.evaluate(
            "[...document.querySelectorAll('.films .no-film')].map(e => e.getBoundingClientRect().height)"
        )
    assert len(sizes) > 6
    assert all(natural > 0 and 80 < drawn < 200 for natural, drawn in sizes)
    assert missing
    assert max(missing) < 80
