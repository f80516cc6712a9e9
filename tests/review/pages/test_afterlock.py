"""After the lock, in a real browser: what is stored of the blind read, what is known besides, the headline in view."""

from dataclasses import replace

from world import browsers
from world.browsers import until
from world.words import mentions

FILM = "document.querySelector('.pane.current cxr-canvas')?.film"
SECOND = "document.getElementById('sheet').dataset.phase === 'second'"
BLIND = "document.getElementById('sheet').dataset.phase === 'blind' && !document.getElementById('written').hidden"
FINDINGS = browsers.NIH.findings
SMALL = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
IN_VIEW = """() => { const box = document.getElementById('phase').getBoundingClientRect();
  const sheet = document.getElementById('sheet').getBoundingClientRect();
  return box.height > 0 && box.top >= Math.max(0, sheet.top) && box.bottom <= innerHeight; }"""


class Unjudged(browsers.Films):
    """Films of whose labels no judge said anything."""

    def reveal(self, image_id):
        """What is shown after the lock, without any judge."""
        known = super().reveal(image_id)
        nobody = {"trust": None, "trust_low": None, "trust_high": None, "flag": "unjudged", "judges": ()}
        return replace(known, pairs=tuple(replace(pair, **nobody) for pair in known.pairs))


def press(window, *keys):
    """Press keys one after another."""
    for key in keys:
        window.keyboard.press(key)


def known(window, finding):
    """What stands under a finding after the reveal."""
    return window.inner_text(f"[data-finding={finding}] .known")


def test_the_lock_holds_and_the_reveal_says_what_is_known(hall, enter):
    """After the lock: label, trust in words and number with its interval, flag, reasons, judges; nothing before."""
    window = enter(hall(browsers.case_films(1)))
    until(window, FILM)
    press(window, "Shift+e")
    assert "Label" not in window.inner_text("#sheet")
    press(window, "Enter")
    until(window, SECOND)
    for words in ("Label present", "trust 6 % (3 to 97 %): ", "likely mislabelled", "differs"):
        assert words in known(window, "Effusion")
    assert mentions(window.inner_text("#phase"), "1 label contradicts", "Effusion")
    press(window, "e")
    detail = window.inner_text("#known-detail")
    assert mentions(detail, "absent", "before and after")
    assert "record" in detail
    assert "6 % present" in detail


def test_the_reveal_says_what_is_stored_of_every_finding(hall, enter):
    """Marked ones by their verdict, others as unmarked and so absent, with the film's quality; after a reload too."""
    room = hall(browsers.case_films(1))
    window = enter(room)
    until(window, FILM)
    press(window, "m", "Shift+h", "q", "q", "Enter")
    until(window, SECOND)
    for again in (False, True):
        if again:
            press(window, "Shift+m")
            until(window, "document.getElementById('sending').dataset.state === 'saved'")
            window.reload()
            until(window, SECOND)
        said = {finding: known(window, finding).partition(" · ")[0] for finding in FINDINGS}
        stored = dict(room.reviews().filter(phase="blind").select("finding", "verdict").rows())
        assert said.pop("Mass") == "Your read: present"
        assert said.pop("Hernia") == "Your read: absent"
        assert {name: mentions(words, "unmarked", "absent") for name, words in said.items()} == dict.fromkeys(
            said, True
        )
        assert {stored[finding] for finding in said} == {"absent"}
        assert mentions(window.inner_text("#stored"), "quality limited", "devices not said")


def test_of_an_unreadable_film_the_reveal_says_that_nothing_is_absent(hall, enter):
    """Unmarked findings of an unreadable film are stored as unreadable: said so, and no label contradicts them."""
    room = hall(browsers.case_films(1))
    window = enter(room)
    until(window, FILM)
    press(window, "q", "q", "q", "Enter")
    until(window, SECOND)
    assert "film quality unreadable" in window.inner_text("#stored")
    assert mentions(known(window, "Effusion"), "unmarked", "unreadable", "Label present")
    assert "differs" not in window.inner_text("#findings")
    assert window.inner_text("#phase").startswith("No label contradicts")
    assert set(room.reviews()["verdict"]) == {"unreadable"}


def test_the_headline_is_on_the_screen_and_has_the_focus(hall, enter):
    """At 1280 x 800 with the list scrolled to its end, and on a phone; keys go on working from there."""
    room = hall(browsers.case_films(12, width=96, height=96))
    for name, screen in (("ada", SMALL), ("bea", PHONE)):
        window = enter(room, name, viewport=screen)
        until(window, FILM)
        press(window, "e", "n", "Escape")
        window.evaluate("document.getElementById('sheet').scrollTop = 10000")
        press(window, "Enter")
        until(window, SECOND)
        assert window.evaluate(IN_VIEW)
        assert window.evaluate("document.activeElement.id") == "phase"
        press(window, "Shift+e")
        assert "absent" in window.inner_text("[data-finding=Effusion] .sign")
        window.wait_for_timeout(650)
        press(window, "Enter")
        until(window, BLIND)
        assert window.evaluate("document.activeElement.tagName") == "CXR-CANVAS"
        assert window.evaluate("scrollY + document.getElementById('sheet').scrollTop") == 0


def test_findings_that_were_not_drawn_are_called_so(hall, enter):
    """In a study that asks for what was drawn, the others are named as not drawn; an unjudged label as unjudged."""
    room = hall(browsers.case_films(1), asks="drawn", films=Unjudged())
    window = enter(room)
    until(window, FILM)
    assert window.locator("#findings li").count() == 1
    assert window.is_hidden("#undrawn")
    press(window, "Enter")
    until(window, SECOND)
    words = window.inner_text("#undrawn")
    assert mentions(words, "not asked", "Atelectasis")
    assert "Effusion" not in words
    assert "no judge answered" in known(window, "Effusion")


def test_a_label_that_is_missing_is_no_label(hall, enter):
    """A finding of which the dataset is silent still has its line: what is stored, and that there is no label."""
    room = hall(browsers.case_films(1), films=browsers.Films(findings=("Effusion",)))
    window = enter(room)
    until(window, FILM)
    press(window, "Enter")
    until(window, SECOND)
    assert mentions(known(window, "Mass"), "unmarked", "absent", "No label")


def test_help_opens_at_its_top(hall, enter):
    """With the first keys in view; Enter closes it."""
    window = enter(hall(browsers.case_films(1)), viewport=SMALL)
    until(window, FILM)
    press(window, "?")
    window.wait_for_selector("#help[open]")
    assert window.evaluate("document.getElementById('help').scrollTop") == 0
    longer = "document.getElementById('help').scrollHeight > document.getElementById('help').clientHeight"
    assert window.evaluate(longer)
    press(window, "Enter")
    window.wait_for_selector("#help", state="hidden")
