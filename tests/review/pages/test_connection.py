"""Lost connections, reloads, two windows, slow lines: nothing written is lost or doubled, and the page says so."""

from world import browsers
from world.browsers import until
from world.words import mentions

BLIND = "document.getElementById('sheet').dataset.phase === 'blind' && !document.getElementById('written').hidden"
SECOND = "document.getElementById('sheet').dataset.phase === 'second'"
FILM = "document.querySelector('.pane.current cxr-canvas')?.film"
NOTHING = "!document.getElementById('nothing').hidden"
SLOW_CLOCK = """longest => void (setTimeout = ((later) => (work, after, ...more) =>
  later(work, after > longest ? 1000 * after : after, ...more))(setTimeout))"""
"""From now on longer timers of the page take a thousand times as long: what still comes does not wait for one."""
LATE_MS = 2500
"""Timers up to this long say that a reply is late; longer ones give a request up."""
LOW = {"width": 1280, "height": 757}
WHOLLY_SEEN = """selector => { const box = document.querySelector(selector).getBoundingClientRect();
  const front = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
  return box.height > 0 && box.top >= 0 && box.bottom <= innerHeight && front?.matches(selector); }"""
OFFLINE = ("ERR_INTERNET_DISCONNECTED", "Failed to load resource")


def state(word):
    """Say that the line at the top shows a state of the outbox."""
    return f"document.getElementById('sending').dataset.state === '{word}'"


def case(number):
    """Say that a case is on the screen."""
    return f"document.getElementById('case').textContent.startsWith('Case {number}')"


def test_u06_what_is_written_without_a_connection_is_sent_once_when_it_is_back(hall, enter):
    """U06: the state is visible, the count too; after the line is back every act is in the ledger exactly once."""
    room = hall(browsers.case_films(4), reveal=False)
    window = enter(room, allowed=OFFLINE)
    until(window, FILM)
    until(window, "performance.getEntriesByType('resource').filter(each => each.name.includes('/films/')).length === 3")
    window.context.set_offline(True)
    window.keyboard.press("m")
    until(window, state("waiting"))
    assert mentions(window.inner_text("#sending"), "Not saved yet", "1 kept here")
    window.keyboard.press("Enter")
    until(window, case(2))
    window.keyboard.press("e")
    window.keyboard.press("Enter")
    until(window, case(3))
    assert len(room.reviews()) == 0
    window.context.set_offline(False)
    until(window, state("saved"))
    kept = room.reviews()
    assert len(kept) == 2 * 14
    assert kept.filter(verdict="present")["finding"].to_list() == ["Mass", "Effusion"]


def test_u06_a_reply_that_is_lost_makes_nothing_twice(hall, enter):
    """U06: the room kept the lock and the reply did not arrive; the same act again is the same lock."""
    room = hall(browsers.case_films(2))
    window = enter(room, allowed=("Failed to load resource",))
    until(window, FILM)
    lost = []

    def lose_first(route):
        if lost:
            route.continue_()
        else:
            lost.append(route.fetch().status)
            route.abort()

    window.route("**/lock", lose_first)
    window.keyboard.press("m")
    window.keyboard.press("Enter")
    until(window, SECOND)
    assert lost == [200]
    kept = room.reviews()
    assert len(kept) == 14
    assert set(kept["phase"]) == {"blind"}


def test_u06_a_lock_without_a_connection_says_so_and_is_sent_at_once_when_it_is_back(hall, enter):
    """U06: not saved yet, with a button that tries now; the browser's own sign that it is online is enough."""
    room = hall(browsers.case_films(2))
    window = enter(room, allowed=OFFLINE)
    until(window, FILM)
    window.keyboard.press("m")
    until(window, state("saved"))
    window.evaluate(SLOW_CLOCK, 0)
    window.context.set_offline(True)
    window.keyboard.press("Enter")
    until(window, state("waiting"))
    assert window.inner_text("#phase").startswith("Not saved yet")
    assert window.is_visible("#retry")
    window.context.set_offline(False)
    until(window, SECOND)
    assert window.is_hidden("#retry")
    assert "Your read: present" in window.inner_text("[data-finding=Mass] .known")
    assert len(room.reviews()) == 14


def test_u06_retry_now_sends_what_hangs(hall, enter):
    """U06: a request that gets no reply is given up by the button and sent anew; the same key makes it one lock."""
    room = hall(browsers.case_films(2))
    window = enter(room, allowed=("Failed to load resource",))
    until(window, FILM)
    window.evaluate(SLOW_CLOCK, LATE_MS)
    held = []
    window.route("**/lock", lambda route: route.continue_() if held else held.append(route))
    window.keyboard.press("m")
    window.keyboard.press("Enter")
    until(window, state("waiting"))
    window.click("#retry")
    until(window, SECOND)
    assert len(held) == 1
    assert len(room.reviews()) == 14


def test_u06_the_next_case_is_read_blind_while_a_lock_waits(hall, enter):
    """U06: go on meanwhile, lock that too; back on the line both are stored once, and each is revealed in its turn."""
    room = hall(browsers.case_films(3))
    window = enter(room, allowed=OFFLINE)
    until(window, FILM)
    until(window, "performance.getEntriesByType('resource').filter(each => each.name.includes('/films/')).length === 3")
    window.context.set_offline(True)
    window.keyboard.press("m")
    window.keyboard.press("Enter")
    window.click("#meanwhile")
    until(window, case(2))
    assert window.evaluate(BLIND)
    window.keyboard.press("e")
    window.keyboard.press("Enter")
    until(window, state("waiting"))
    window.context.set_offline(False)
    seconds = []
    for _ in range(2):
        until(window, SECOND)
        seconds.append(window.inner_text("#case").split()[1])
        number = window.inner_text("#case")
        window.wait_for_timeout(650)
        window.keyboard.press("Enter")
        until(window, "words => document.getElementById('case').textContent !== words", number)
    assert seconds == ["1", "2"]
    until(window, case(3))
    until(window, state("saved"))
    kept = room.reviews()
    assert dict(kept.group_by("phase").len().rows()) == {"blind": 28, "second": 28}
    assert kept.filter(verdict="present", phase="blind")["finding"].to_list() == ["Mass", "Effusion"]


def test_u07_a_lock_that_waits_outlives_a_reload(hall, enter):
    """U07: the marks lie in the browser until the room has them; then the reveal comes, and the lock is one."""
    room = hall(browsers.case_films(2))
    window = enter(room, allowed=("Failed to load resource",))
    until(window, FILM)
    window.route("**/lock", lambda route: route.abort())
    window.keyboard.press("m")
    window.keyboard.press("Enter")
    until(window, state("waiting"))
    window.reload()
    until(window, state("waiting"))
    assert "kept in this browser" in window.inner_text("#phase")
    assert len(room.reviews()) == 0
    window.unroute("**/lock")
    # It is sent again by itself too: the button may be gone before a hand could reach it.
    window.evaluate("document.getElementById('retry').click()")
    until(window, SECOND)
    assert "Your read: present" in window.inner_text("[data-finding=Mass] .known")
    assert len(room.reviews()) == 14


def test_u07_a_reload_loses_nothing_and_stays_blind(hall, enter):
    """U07: verdicts, note and time are there again after a reload; after the lock it is still the second phase."""
    room = hall(browsers.case_films(2))
    window = enter(room)
    until(window, FILM)
    window.keyboard.press("m")
    window.keyboard.press("n")
    window.keyboard.type("half a sent")
    window.reload()
    until(window, FILM)
    assert "present" in window.inner_text("[data-finding=Mass] .sign")
    assert window.input_value("#note") == "half a sent"
    assert window.evaluate(BLIND)
    window.go_back()
    window.go_forward()
    until(window, FILM)
    assert "present" in window.inner_text("[data-finding=Mass] .sign")
    window.keyboard.press("Enter")
    until(window, SECOND)
    window.reload()
    until(window, SECOND)
    until(window, FILM)
    assert "Label present" in window.inner_text("[data-finding=Effusion] .known")
    assert len(room.reviews()) == 14


def test_u07_what_a_closed_window_had_not_sent_is_sent_by_the_next(hall, enter):
    """U07: written without a connection, closed, opened again with one: it is there."""
    room = hall(browsers.case_films(2))
    window = enter(room, allowed=OFFLINE)
    until(window, FILM)
    window.context.set_offline(True)
    window.keyboard.press("m")
    until(window, state("waiting"))
    window.close()
    window.context.set_offline(False)
    again = enter(room, beside=window)
    until(again, FILM)
    assert "present" in again.inner_text("[data-finding=Mass] .sign")


def test_u07_two_windows_of_one_reader_show_both_versions(hall, enter):
    """U07, C03: the second window is told, sees both, and keeps its own; nothing is overwritten unseen."""
    room = hall(browsers.case_films(2))
    first = enter(room)
    until(first, FILM)
    second = enter(room, beside=first, allowed=("409",))
    until(second, FILM)
    first.keyboard.press("m")
    until(first, state("saved"))
    second.keyboard.press("e")
    second.wait_for_selector("#conflict[open]")
    rows = second.inner_text("#conflict-rows")
    assert "Mass\tno verdict\tpresent\tdiffers" in rows
    assert "Effusion\tpresent\tno verdict\tdiffers" in rows
    second.click("#keep-here")
    until(second, state("saved"))
    second.reload()
    until(second, FILM)
    assert second.inner_text("[data-finding=Mass] .sign") == ""
    assert "present" in second.inner_text("[data-finding=Effusion] .sign")


def test_u07_the_rooms_version_can_be_taken_instead(hall, enter):
    """U07, C03: what was written here is let go, and what the room has is shown."""
    room = hall(browsers.case_films(2))
    first = enter(room)
    until(first, FILM)
    second = enter(room, beside=first, allowed=("409",))
    until(second, FILM)
    first.keyboard.press("m")
    until(first, state("saved"))
    second.keyboard.press("e")
    second.wait_for_selector("#conflict[open]")
    second.click("#conflict [value=there]")
    until(second, FILM)
    until(second, "document.querySelector('[data-finding=Mass] .sign').textContent.includes('present')")
    assert second.inner_text("[data-finding=Effusion] .sign") == ""


def test_u07_keys_of_the_reading_do_not_answer_which_version_counts(hall, enter):
    """U07: Enter, Space and Escape throw nothing away; both choices are on a low screen, and Tab reaches them."""
    room = hall(browsers.case_films(2))
    first = enter(room, viewport=LOW)
    until(first, FILM)
    second = enter(room, beside=first, allowed=("409",))
    until(second, FILM)
    first.keyboard.press("m")
    until(first, state("saved"))
    second.keyboard.press("e")
    second.wait_for_selector("#conflict[open]")
    assert second.evaluate("document.activeElement.id") == "conflict-name"
    for key in ("Enter", "Space", "Escape", "Escape", "Enter"):
        second.keyboard.press(key)
        second.wait_for_selector("#conflict[open]")
    for button in ("#keep-here", "#conflict [value=there]"):
        assert second.evaluate(WHOLLY_SEEN, button)
    assert len(room.reviews()) == 0
    second.keyboard.press("Tab")
    second.keyboard.press("Enter")
    until(second, state("saved"))
    assert "present" in second.inner_text("[data-finding=Effusion] .sign")


def test_a_case_that_is_left_with_a_draft_and_comes_again_is_no_conflict(hall, enter):
    """Skip, mark the next, undo the mark and the skip, read the skipped one: then the next is written as if new."""
    window = enter(room := hall(browsers.case_films(4)))
    until(window, FILM)
    window.keyboard.press("s")
    until(window, case(2))
    until(window, FILM)
    for key in ("u", "z"):
        window.keyboard.press(key)
        until(window, state("saved"))
    window.keyboard.press("z")
    until(window, case(1))
    window.keyboard.press("a")
    window.keyboard.press("Enter")
    until(window, SECOND)
    window.wait_for_timeout(650)
    window.keyboard.press("Enter")
    until(window, case(2))
    window.keyboard.press("u")
    until(window, state("saved"))
    assert window.is_hidden("#conflict")
    window.keyboard.press("Enter")
    until(window, SECOND)
    found = room.reviews().filter(phase="blind", verdict="present").select("position", "finding").rows()
    keys = {key: finding for finding, key in browsers.KEYS.items()}
    assert found == [(0, keys["a"]), (1, keys["u"])]


def test_u07_a_session_that_ended_loses_nothing(hall, enter):
    """U07: written after the session ended: kept, said, and sent after the next login."""
    room = hall(browsers.case_films(2))
    window = enter(room, allowed=("401",))
    until(window, FILM)
    window.context.clear_cookies()
    window.keyboard.press("m")
    until(window, state("loggedout"))
    assert "Log in again" in window.inner_text("#sending")
    window.goto(room.link("ada"))
    window.wait_for_url("**/read")
    until(window, FILM)
    assert "present" in window.inner_text("[data-finding=Mass] .sign")


def test_u07_a_case_locked_in_one_window_is_not_written_over_by_the_other(hall, enter):
    """U07: the other window's draft and lock are refused, it says why, and goes on in the second phase."""
    room = hall(browsers.case_films(2))
    first = enter(room)
    until(first, FILM)
    second = enter(room, beside=first, allowed=("409",))
    until(second, FILM)
    first.keyboard.press("m")
    first.keyboard.press("Enter")
    until(first, SECOND)
    second.keyboard.press("Enter")
    until(second, SECOND)
    kept = room.reviews()
    assert len(kept) == 14
    assert kept.filter(finding="Mass")["verdict"].to_list() == ["present"]


def test_u05_a_slow_line_shows_the_next_case_at_once(hall, enter):
    """U05: at 512 kbit/s and 300 ms the case that was fetched ahead is on the screen within a second; none is lost."""
    room = hall(browsers.case_films(5, width=160, height=160), reveal=False)
    window = enter(room, allowed=("Failed to load resource",))
    until(window, FILM)
    slow = window.context.new_cdp_session(window)
    slow.send("Network.enable")
    line = {"offline": False, "latency": 300, "downloadThroughput": 64_000, "uploadThroughput": 64_000}
    slow.send("Network.emulateNetworkConditions", line | {"packetLoss": 2})
    ready = "performance.getEntriesByType('resource').filter(each => each.name.includes('/films/')).length >= {}"
    shown = f"""async () => {{
      const began = performance.now();
      document.getElementById('save').click();
      while (!({FILM}) || !({case(0)[:-3]}REST) ) await new Promise(requestAnimationFrame);
      return performance.now() - began;
    }}"""
    for number in range(1, 4):
        until(window, ready.format(min(5, number + 2)))
        window.keyboard.press("m")
        wanted = shown.replace(f"{case(0)[:-3]}REST", case(number + 1))
        assert window.evaluate(wanted) < 1000
    until(window, state("saved"))
    assert len(room.reviews()) == 3 * 14
    assert len(room.reviews().filter(finding="Mass", verdict="present")) == 3
