"""The bounds of an answer: what cannot be kept is refused with a clear message, and nothing else is."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpals.errors import Refused
from bpals.room.desk.readings import Answer, Box, Spent, check_answer, check_key, check_reason, check_spent, complete

FINDINGS = ("Mass", "Nodule")


def box(**sides):
    """A box of a mass."""
    return Box(**({"finding": "Mass", "x": 0, "y": 0, "width": 1, "height": 1} | sides))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Answer(verdicts={"Hernia": "present"}), "on 'Hernia', which this case does not ask. It asks: Mass, Nodule"),
        (Answer(verdicts={"Mass": "maybe"}), "the verdict on Mass is 'maybe'; it is one of present, absent"),
        (Answer(verdicts={"Mass": None}), "the verdict on Mass is None"),
        (Answer(confidence={"Mass": 101}), "the confidence of Mass is 101; it is a whole number from 0 to 100"),
        (Answer(confidence={"Mass": -1}), "from 0 to 100"),
        (Answer(confidence={"Mass": 50.5}), "from 0 to 100"),
        (Answer(confidence={"Mass": True}), "from 0 to 100"),
        (Answer(confidence={"Fracture": 5}), "a confidence is given on 'Fracture'"),
        (Answer(boxes=(box(x=-1),)), "x, y are 0 or more"),
        (Answer(boxes=(box(width=0),)), "width and height above 0"),
        (Answer(boxes=(box(y=math.nan),)), "the box of Mass"),
        (Answer(boxes=(box(height=math.inf),)), "the box of Mass"),
        (Answer(boxes=(box(x=100_001),)), "at most 100,000 pixels"),
        (Answer(boxes=(box(x="1"),)), "the box of Mass"),
        (Answer(boxes=(box(finding="Hernia"),)), "a box is given on 'Hernia'"),
        (Answer(boxes=(box(),) * 201), "201 boxes are more than the 200"),
        (Answer(note="x" * 10_001), "the note has 10,001 characters; 10,000 are kept"),
        (Answer(note="a\0b"), "a character that cannot be kept"),
        (Answer(note="\ud83d"), "a character that cannot be kept"),
        (Answer(note=None), "the note is no text"),
        (Answer(quality="bad"), "the quality of the film is 'bad'"),
        (Answer(devices="some"), "devices is 'some'"),
    ],
)
def test_what_nobody_can_say_is_refused(answer, message):
    """One line that names the value and what is kept."""
    with pytest.raises(Refused) as error:
        check_answer(answer, FINDINGS)
    assert message in str(error.value)


def test_the_bounds_themselves_are_kept():
    """0 and 100, 10,000 characters, 200 boxes, and letters of any script."""
    check_answer(
        Answer(
            verdicts={"Mass": "unreadable"},
            confidence={"Mass": 0, "Nodule": 100},
            boxes=(box(x=100_000, y=0.5),) * 200,
            note="ä" * 9_990 + "\U0001f600 \u200f\u05d0\n",
            quality="good",
            devices="absent",
        ),
        FINDINGS,
    )


@given(st.builds(Answer, note=st.text(max_size=50), quality=st.text(max_size=12) | st.none()))
def test_an_answer_is_kept_or_refused_and_what_is_kept_comes_back(answer):
    """Whatever is typed, there is no other error, and what passes can be written and read again."""
    try:
        check_answer(answer, FINDINGS)
    except Refused:
        return
    assert Answer.from_json(answer.as_json()) == answer
    answer.note.encode()


def test_what_is_not_marked_means_what_the_study_says():
    """Absent, or asked for; and of a film that nobody can read, unreadable."""
    marked = Answer(verdicts={"Mass": "present"})
    assert complete(marked, FINDINGS, "absent") == {"Mass": "present", "Nodule": "absent"}
    unreadable = Answer(verdicts={"Mass": "present"}, quality="unreadable")
    assert complete(unreadable, FINDINGS, "absent")["Nodule"] == "unreadable"
    with pytest.raises(Refused, match="no verdict on Nodule"):
        complete(marked, FINDINGS, "ask")


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf, "5", None, True])
def test_seconds_that_are_none_are_refused(seconds):
    """A browser that counts backwards is not believed."""
    with pytest.raises(Refused, match="it is seconds, 0 or more"):
        check_spent(Spent(active_s=1.0, wall_s=seconds))


@pytest.mark.parametrize("key", ["", "x" * 201, "a\nb", None, 5])
def test_a_key_that_tells_nothing_is_refused(key):
    """Without a key a retry could not be told from a second answer."""
    with pytest.raises(Refused, match="carries a key"):
        check_key(key)


def test_a_reason_is_trimmed_and_needed():
    """Blanks are no reason."""
    assert check_reason("  wrong key ") == "wrong key"
    for nothing in ("", " \n", None):
        with pytest.raises(Refused):
            check_reason(nothing)
