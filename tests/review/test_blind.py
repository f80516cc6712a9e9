"""Blindness: what a reader's browser gets before the lock, and what it cannot get by any route."""

import json

import pytest
from sqlalchemy import select

from bpals.store.ledger.schema import ENTRY, REVIEW
from world import rooms

OTHER = "OTHERCANARY"
BLIND_FIELDS = {
    "reading_id", "case_no", "of", "findings", "state", "phase", "version", "answer", "films", "unmarked", "revealed",
}  # fmt: skip
SIGNAL_WORDS = ("LABELCANARY", "0.8125", "0.6875", "0.9375", "likely_mislabelled", "inclusion", "of-a-signal", OTHER)


@pytest.fixture
def room(tmp_path):
    """A room in which another reader has read everything, and said so loudly."""
    with rooms.open_room(rooms.address_of(tmp_path)) as opened:
        other = opened.browser("berta")
        for _ in range(6):
            reading = other.next()["reading"]
            answer = {"verdicts": {"Mass": "present"}, "note": OTHER, "boxes": [
                {"finding": "Mass", "x": 1.5, "y": 2.5, "width": 3.5, "height": 4.5},
            ]}  # fmt: skip
            locked = other.lock(reading, answer=answer)
            assert other.act("second", locked.json()["reading"], answer=answer, spent=rooms.SPENT).status_code == 200
        opened.shelf.reveals.clear()
        yield opened


def whole(reply):
    """All of a reply that a browser could look at: its headers, its address and its body."""
    return f"{reply.headers} {reply.url}".encode() + reply.content


def test_s20_nothing_that_a_blind_reader_gets_says_anything(room):
    """S20: pages, JSON, headers, pixels and addresses are searched for label, judges, flag, file and other readers."""
    anna = room.browser("anna")
    got = [anna.get(path) for path in ("/read", "/progress", "/adjudicate")]
    for _ in range(3):
        reply = anna.post("/api/next")
        handed = reply.json()
        reading = handed["reading"]
        assert set(reading) == BLIND_FIELDS
        assert set(handed) == {"reading", "why", "why_code", "ahead", "study", "reveal"}
        assert handed["reveal"] is None
        assert [set(film) for film in reading["films"]] == [{"n", "current", "when"}] * 2
        assert [set(ahead) for ahead in handed["ahead"]] == [{"reading_id", "films"}] * len(handed["ahead"])
        address = f"/api/readings/{reading['reading_id']}"
        got += [reply, anna.get(address), anna.act("draft", reading, answer={"verdicts": {"Mass": "absent"}})]
        for ahead in [reading, *handed["ahead"]]:
            got += [anna.get(f"/api/readings/{ahead['reading_id']}/films/{n}") for n in (0, 1, 2)]
            got += [anna.post(f"/api/readings/{ahead['reading_id']}/reveal")]
        got += [anna.get("/api/progress"), anna.post("/api/rounds/next"), anna.post("/api/adjudication/next")]
        got += [anna.act("skip", anna.get(address).json())]
    named = [*room.shelf.contents, "film-0", "patient-0", "berta"]
    for reply in got:
        for word in (*SIGNAL_WORDS, *named):
            assert word.encode() not in whole(reply), (word, reply.url)
    assert room.shelf.reveals == []
    assert len(got) > 40


def test_s20_a_film_has_nothing_in_it_but_pixels(room):
    """S20: no text of the file goes with them, and which film it is does not show."""
    anna = room.browser("anna")
    image_id = next(iter(room.shelf.contents))
    for name in list(room.shelf.contents):
        room.shelf.contents[name] = rooms.film_png(7, Comment=f"{OTHER} {image_id}", PatientName=OTHER)
    reading = anna.next()["reading"]
    for n in (0, 1):
        reply = anna.get(f"/api/readings/{reading['reading_id']}/films/{n}")
        assert reply.status_code == 200
        assert OTHER.encode() not in whole(reply)
        assert b"tEXt" not in reply.content
        assert set(json.loads(reply.headers["x-film"])) == {
            "kind", "width", "height", "bits", "window", "level", "slope", "intercept", "spacing_mm",
        }  # fmt: skip


def test_s20_two_readers_get_the_same_case_under_different_names(room):
    """S20: an address says nothing about who else reads the film."""
    anna, clara = room.browser("anna"), room.browser("clara")
    first = {anna.next()["reading"]["reading_id"], *(ahead["reading_id"] for ahead in anna.next()["ahead"])}
    second = {clara.next()["reading"]["reading_id"], *(ahead["reading_id"] for ahead in clara.next()["ahead"])}
    assert not first & second
    assert all(len(reading_id) >= 22 for reading_id in first | second)


def test_s21_before_the_lock_nothing_is_revealed(room):
    """S21: whatever is tried; the signal is not even looked up."""
    anna = room.browser("anna")
    reading = anna.next()["reading"]
    reply = anna.post(f"/api/readings/{reading['reading_id']}/reveal")
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "not_now")
    for act, more in (
        ("second", {"answer": {}, "spent": rooms.SPENT}),
        ("amend", {"answer": {}, "reason": "to see it"}),
        ("undo", {}),
    ):
        assert anna.act(act, reading, **more).status_code == 409
    assert room.shelf.reveals == []
    assert anna.get(f"/api/readings/{reading['reading_id']}").json()["revealed"] is False


def test_s21_what_is_written_after_the_reveal_is_a_second_read(room):
    """S21: the blind one stays as it was, the second stands apart, and the log knows which signal was seen."""
    anna = room.browser("anna")
    reading = anna.next()["reading"]
    blind = {"verdicts": {"Mass": "absent", "Nodule": "absent", "Pneumothorax": "absent"}}
    locked = anna.lock(reading, answer=blind).json()
    assert locked["reveal"]["version"] == rooms.VERSION
    assert {pair["finding"] for pair in locked["reveal"]["pairs"]} == {"Mass", "Nodule", "Pneumothorax"}
    after = locked["reading"]
    assert anna.lock(after, answer={"verdicts": {"Mass": "present"}}).status_code == 409
    assert anna.act("draft", {**after, "version": 0}, answer={"verdicts": {"Mass": "present"}}).status_code == 409
    assert anna.act("undo", after).status_code == 409
    changed = {"verdicts": {**blind["verdicts"], "Mass": "present"}}
    assert anna.act("second", after, answer=changed, spent=rooms.SPENT).status_code == 200
    rows = room.ledger.look(
        lambda connection: connection.execute(
            select(REVIEW.c.phase, REVIEW.c.verdict, REVIEW.c.saw_signal, REVIEW.c.signal).where(
                REVIEW.c.reading_id == reading["reading_id"], REVIEW.c.finding == "Mass"
            )
        ).all()
    )
    assert sorted(tuple(row) for row in rows) == [
        ("blind", "absent", 0, None),
        ("second", "present", 1, rooms.VERSION),
    ]
    entries = room.ledger.look(
        lambda connection: connection.execute(
            select(ENTRY.c.action).where(ENTRY.c.reading_id == reading["reading_id"]).order_by(ENTRY.c.sequence)
        ).scalars().all()
    )  # fmt: skip
    assert [action for action in entries if action in {"lock", "revealed", "second"}] == ["lock", "revealed", "second"]


def test_s21_a_reload_after_the_lock_reveals_the_same_again(room):
    """S21: and a signal that was learned meanwhile is noted before it is shown, and called changed once."""
    anna = room.browser("anna")
    reading = anna.next()["reading"]
    locked = anna.lock(reading).json()
    address = f"/api/readings/{reading['reading_id']}/reveal"
    assert anna.post(address).json() == locked["reveal"] == anna.next()["reveal"]
    assert locked["reveal"]["changed"] is False
    room.shelf.version = "sha256:learned-anew"
    shown = [anna.next()["reveal"], anna.post(address).json()]
    assert [each["version"] for each in shown] == ["sha256:learned-anew"] * 2
    assert [each["changed"] for each in shown] == [True, False]
    seen = room.ledger.look(
        lambda connection: connection.execute(
            select(ENTRY.c.detail).where(ENTRY.c.reading_id == reading["reading_id"], ENTRY.c.action == "revealed")
        ).scalars().all()
    )  # fmt: skip
    assert [json.loads(detail)["signal"] for detail in seen] == [rooms.VERSION, "sha256:learned-anew"]


def test_s21_an_amendment_after_a_new_signal_says_which_one_was_seen(room):
    """S21: a finished case shows what is known now beside the stored reads; the amendment names that version."""
    anna = room.browser("anna")
    reading = anna.next()["reading"]
    locked = anna.lock(reading, answer={"verdicts": {"Mass": "absent"}}).json()["reading"]
    anna.act("second", locked, answer={"verdicts": {"Mass": "present"}}, spent=rooms.SPENT)
    room.shelf.version = "sha256:learned-anew"
    address = f"/api/readings/{reading['reading_id']}"
    shown = anna.post(f"{address}/reveal").json()
    assert (shown["version"], shown["changed"]) == ("sha256:learned-anew", True)
    assert (shown["read"]["verdicts"]["Mass"], shown["read"]["second"]["Mass"]) == ("absent", "present")
    back = anna.get(address).json()
    assert anna.act("amend", back, answer={"verdicts": {"Mass": "uncertain"}}, reason="a slip").status_code == 200
    mass = (REVIEW.c.reading_id == reading["reading_id"]) & (REVIEW.c.finding == "Mass")
    rows = room.ledger.look(
        lambda connection: connection.execute(select(REVIEW.c.phase, REVIEW.c.signal).where(mass)).all()
    )
    assert dict(map(tuple, rows)) == {
        "blind": None, "second": rooms.VERSION, "amended": "sha256:learned-anew",
    }  # fmt: skip


def test_a_study_without_reveal_reveals_nothing(tmp_path):
    """Not at the lock, not afterwards."""
    with rooms.open_room(rooms.address_of(tmp_path), reveal=False) as opened:
        anna = opened.browser("anna")
        reading = anna.next()["reading"]
        locked = anna.lock(reading)
        assert locked.json()["reveal"] is None
        assert anna.post(f"/api/readings/{reading['reading_id']}/reveal").status_code == 409
        assert opened.shelf.reveals == []


def test_without_priors_only_the_film_itself_is_shown(tmp_path):
    """The patient's other films are a setting of the study."""
    with rooms.open_room(rooms.address_of(tmp_path), priors=False) as opened:
        anna = opened.browser("anna")
        reading = anna.next()["reading"]
        assert reading["films"] == [{"n": 0, "current": True, "when": ""}]
        assert anna.get(f"/api/readings/{reading['reading_id']}/films/0").status_code == 200
        assert anna.get(f"/api/readings/{reading['reading_id']}/films/1").status_code == 404


def test_an_adjudicator_sees_verdicts_without_names(room):
    """Two readers differ: what they said is shown side by side, and who they are is not."""
    anna = room.browser("anna")
    for _ in range(6):
        locked = anna.lock(anna.next()["reading"], answer={"verdicts": {"Mass": "absent"}}).json()
        anna.act("second", locked["reading"], answer={"verdicts": {"Mass": "absent"}}, spent=rooms.SPENT)
    judge = room.browser("jutta", "adjudicator")
    reply = judge.post("/api/adjudication/next")
    assert "anna" not in reply.text
    assert "berta" not in reply.text
    for word in room.shelf.contents:
        assert word not in reply.text
    case = reply.json()["case"]
    if case is not None:
        assert {opinion["verdict"] for opinion in case["disputes"][0]["opinions"]} == {"present", "absent"}
        assert judge.get(f"/api/adjudication/{case['case_id']}/films/1").status_code == 200
        assert room.browser("clara").get(f"/api/adjudication/{case['case_id']}/films/1").status_code == 403


def test_s20_a_reader_sees_his_own_progress_and_nobody_elses(tmp_path):
    """S20: what others found could tell him what to expect; whoever settles sees it all."""
    told = {
        "counts": {"readings": 3, "repeats": 2},
        "errors": [{"finding": "Mass", "confirmed": 1}],
        "agreement": [{"finding": "Mass", "agreement": 0.5}],
        "series": [{"reads": 1, "found": 1}],
        "against": [{"first": "anna", "agreement": 0.1}],
        "pace": [{"reader": "anna", "readings": 1}, {"reader": "berta", "readings": 2}],
        "within": [{"first": "berta", "agreement": 1.0}],
        "learner": {"failure": "film-000001 cannot be read"},
    }
    with rooms.open_room(rooms.address_of(tmp_path), progress=lambda: told) as opened:
        seen = opened.browser("anna").get("/api/progress").json()
        assert seen == {"counts": {"readings": 3}, "pace": [{"reader": "anna", "readings": 1}], "within": []}
        for role in ("adjudicator", "admin"):
            assert opened.browser(role, role).get("/api/progress").json() == told
