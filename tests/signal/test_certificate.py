"""A certificate says what is promised, or what it would take."""

import dataclasses

from bpals.signal.certificate import Certificate

GIVEN = Certificate(
    promise="precision",
    level=0.8,
    doubt=0.1,
    cut=0.3,
    reviewed=40,
    wrong=36,
    more=0,
    population="claims on films like those that were read, one a patient",
    words="certified",
)


def test_what_has_a_cut_is_certified():
    """Without one nothing is promised."""
    assert GIVEN.certified
    assert not dataclasses.replace(GIVEN, cut=None, more=12).certified
    assert dataclasses.replace(GIVEN, cut=0.0).certified


def test_it_can_be_written_down():
    """As a record of plain values, for run.json."""
    assert dataclasses.asdict(GIVEN)["promise"] == "precision"
    assert all(isinstance(value, str | int | float) for value in dataclasses.asdict(GIVEN).values())
