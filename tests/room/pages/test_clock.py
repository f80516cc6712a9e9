"""U08: time on a case. The browser's own clock is moved; nothing of ours is replaced."""

from world import browsers
from world.browsers import until

FILM = "document.querySelector('.pane.current cxr-canvas')?.film"
NOTHING = "!document.getElementById('nothing').hidden"
KEPT = """() => JSON.parse(localStorage.getItem(
  Object.keys(localStorage).find(name => name.startsWith('bpals.clock.') && !name.endsWith('.second'))))"""


def spent(window):
    """Active and wall seconds so far, as the page keeps them."""
    kept = window.evaluate(KEPT)
    return kept["active_ms"] / 1000, (window.evaluate("Date.now()") - kept["began"]) / 1000


def pass_seconds(window, seconds, *, key=None, every=20):
    """Let time pass; now and then a key is pressed that does no harm."""
    for second in range(seconds):
        if key and second % every == 0:
            window.keyboard.press(key)
        window.clock.run_for(1000)


def test_u08_active_time_leaves_out_idle_hidden_and_asleep(hall, chromium):
    """U08: 30 s at work count; a minute after the last key, hidden or asleep nothing does; wall time does."""
    room = hall(browsers.case_films(1), reveal=False)
    context = chromium.new_context(viewport={"width": 1280, "height": 860})
    window = context.new_page()
    window.clock.install()
    window.goto(room.link("ada"))
    window.wait_for_url("**/read")
    until(window, FILM)
    # From here on only `pass_seconds` moves the clock: a busy machine would add its own seconds.
    window.clock.pause_at(window.evaluate("Date.now()") + 1000)
    window.keyboard.press("i")
    window.clock.run_for(1000)
    before, _ = spent(window)
    pass_seconds(window, 30, key="i")
    active, wall = spent(window)
    assert 28 <= active - before <= 32
    pass_seconds(window, 200)
    idle, longer = spent(window)
    assert 48 <= idle - active <= 53
    assert longer - wall >= 198
    window.evaluate("""() => { Object.defineProperty(document, 'hidden', { value: true, configurable: true });
                              document.dispatchEvent(new Event('visibilitychange')); }""")
    pass_seconds(window, 40, key="i")
    hidden, _ = spent(window)
    assert hidden - idle <= 2
    window.evaluate("""() => { delete document.hidden; document.dispatchEvent(new Event('visibilitychange')); }""")
    window.clock.fast_forward(3_600_000)
    window.keyboard.press("i")
    pass_seconds(window, 10, key="i", every=2)
    after, whole = spent(window)
    assert 8 <= after - hidden <= 13
    assert whole >= 3800
    window.reload()
    until(window, FILM)
    assert spent(window)[0] >= after
    assert spent(window)[1] >= whole
    context.close()


def test_u08_both_times_are_stored_and_bounded_by_the_rooms_clock(hall, enter):
    """U08: what the browser counted is with every review, and no more than passed at the room."""
    room = hall(browsers.case_films(1), reveal=False)
    window = enter(room)
    until(window, FILM)
    window.keyboard.press("m")
    window.wait_for_timeout(1200)
    window.keyboard.press("Enter")
    until(window, NOTHING)
    review = room.reviews().row(0, named=True)
    assert 0.5 < review["active_s"] <= review["wall_s"] < 20
