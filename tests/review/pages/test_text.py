"""What comes from outside is text on every page, and a blind page holds nothing that a blind reader may not know."""

import json
from pathlib import Path

import pytest

import bpals.room
from bpals.room.desk.study import Study
from world import browsers, dicoms
from world.browsers import until

FILM = "document.querySelector('.pane.current cxr-canvas')?.film"
SECOND = "document.getElementById('sheet').dataset.phase === 'second'"
ATTACK = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>&{{ 7*7 }}"
"""A text that tries to break out of a page."""
FINDINGS = ("<img src=x onerror=alert(3)>", "Effusion", "استرواح الصدر")
CANARY = "LABELCANARY"
FETCHED = "performance.getEntriesByType('resource').filter(each => each.name.includes('/films/')).length === 3"


@pytest.fixture
def hostile(hall):
    """A room in which every text that may come from outside is an attack; the DICOM's tags too."""
    films = browsers.Films(says={"Effusion": ATTACK}, reason=f"code: {ATTACK}", judge=ATTACK, findings=FINDINGS)
    tags = {"PatientName": "<script>alert(4)</script>", "StudyDescription": "<img src=x onerror=alert(5)>"}
    film = dicoms.dicom(browsers.chest(bits=12), BitsStored=12, HighBit=11, **tags)
    progress = {
        "errors": [{"finding": ATTACK, "claims": 1, "settled": 1, "confirmed": 1}],
        "pace": [{"reader": ATTACK, "readings": 1, "hours": 1.0, "per_hour": 1.0, "median_s": 1.0}],
        "notices": [ATTACK],
        "learner": {"every": 1, "waiting": 0, "lessons": 0, "running": False, "failure": ATTACK},
    }

    def opened(**more):
        keys = {FINDINGS[0]: "x", "Effusion": "e", "استرواح الصدر": "o"}
        study = {"findings": FINDINGS, "keys": keys} | more
        return hall({f"{ATTACK}.dcm": film}, films=films, progress=lambda: progress, title=ATTACK, **study)

    return opened


def shown(window, selector="body"):
    """Fail unless the attack stands there as text, and nothing of it as markup."""
    assert "<script>alert(1)</script>" in window.inner_text(selector)
    assert window.locator("img, script:not([src])").count() == 0


def test_s03_scripts_in_labels_notes_and_names_are_text_on_every_page(hostile, enter):
    """S03: title, account, finding, label, reason, judge, note, progress: no dialog, no report of the policy."""
    room = hostile()
    window = enter(room, ATTACK[:59], "admin")
    until(window, FILM)
    assert ATTACK[:59] in window.inner_text(".who")
    assert FINDINGS[0] in window.inner_text("#findings")
    window.keyboard.press("e")
    window.keyboard.press("x")
    window.keyboard.press("o")
    window.fill("#note", ATTACK)
    window.keyboard.press("Escape")
    window.keyboard.press("Enter")
    until(window, SECOND)
    window.keyboard.press("e")
    shown(window, "#known-detail")
    assert window.input_value("#note") == ATTACK
    window.goto(f"{room.origin}/progress")
    window.wait_for_selector("#numbers table")
    shown(window)
    kept = room.reviews()
    assert set(kept["note"]) == {ATTACK}
    assert kept.filter(verdict="present")["finding"].to_list() == list(FINDINGS)


def test_s03_a_note_is_text_on_the_adjudication_page(hostile, enter):
    """S03: what one reader writes another sees as text."""
    room = hostile(readers_per_case=2, adjudication="adjudicator")
    browsers.disagree(room, f"{ATTACK}.dcm", note=ATTACK)
    window = enter(room, "judge", "adjudicator", page="/adjudicate")
    until(window, FILM)
    shown(window, ".opinions")


def test_s20_a_blind_page_holds_nothing_of_label_signal_or_name(hall, enter):
    """S20: the DOM, storage, addresses, headers and bodies of a blind session do not contain any of it."""
    films = browsers.Films(says={"Effusion": CANARY}, reason=CANARY, judge=CANARY)
    room = hall(browsers.case_films(3), films=films)
    window = enter(room)
    until(window, FETCHED)
    window.goto("about:blank")
    heard = []
    window.on("response", lambda reply: heard.append(reply))  # noqa: PLW0108  it wants a function of Python
    window.goto(f"{room.origin}/read")
    until(window, FILM)
    window.keyboard.press("m")
    until(window, FETCHED)
    dom = window.content() + window.evaluate("JSON.stringify({...localStorage, ...sessionStorage}) + location.href")
    sent = [
        reply.url + json.dumps(reply.all_headers()) + reply.body().decode("latin-1")
        for reply in heard
        if reply.status == 200
    ]
    hidden = (CANARY, "00000000_000", "00000001_000", "likely_mislabelled", "0.0625", browsers.SIGNAL)
    data = [text for text in sent if "/static/" not in text.split("{")[0]]
    assert len(data) > 5
    assert [word for word in hidden if word in dom] == []
    assert [word for word in hidden for text in data if word in text] == []
    window.keyboard.press("Enter")
    until(window, SECOND)
    assert CANARY in window.content()


def test_pages_have_no_inline_script_or_style_and_load_nothing_from_elsewhere():
    """The policy has no exception: no inline script, style, handler or foreign address in any template."""
    folder = Path(bpals.room.web.__file__).parent / "templates"
    texts = {file.name: file.read_text(encoding="utf-8") for file in folder.glob("*.html")}
    assert len(texts) >= 8
    for name, text in texts.items():
        lowered = text.lower()
        assert "style=" not in lowered, name
        assert "javascript:" not in lowered, name
        assert "http://" not in lowered.replace("http://www.w3.org", ""), name
        assert "https://" not in lowered, name
        assert "|safe" not in lowered.replace(" ", ""), name
        assert "<script>" not in lowered, name


def test_a_study_can_name_any_finding():
    """The study above is one that the desk takes."""
    assert Study(name="odd", findings=FINDINGS).findings == FINDINGS
