"""The keys of the findings: one each, and none that a tool has."""

import pytest

from bpals.errors import UsageError
from bpals.findings import NIH
from bpals.room.desk.study import FREE_KEYS, TOOL_CHARACTERS, assign_keys


def test_the_14_findings_of_nih_have_14_keys_that_no_tool_has():
    """One key each, from the start."""
    keys = assign_keys(NIH.findings, {})
    assert list(keys) == list(NIH.findings)
    assert len(set(keys.values())) == 14
    assert not set(keys.values()) & TOOL_CHARACTERS


def test_a_finding_gets_its_first_letter_where_it_is_free():
    """M is Mass, P is Pneumonia; N belongs to the note, so Nodule has another letter of its name."""
    keys = assign_keys(NIH.findings, {})
    assert (keys["Mass"], keys["Pneumonia"], keys["Nodule"], keys["Hernia"]) == ("m", "p", "o", "h")


def test_a_wanted_key_is_taken_from_nobody():
    """Who asks for P for Pneumothorax gets it; Pneumonia gets another."""
    keys = assign_keys(NIH.findings, {"Pneumothorax": "P"})
    assert keys["Pneumothorax"] == "p"
    assert len(set(keys.values())) == 14


def test_more_findings_than_keys_are_refused():
    """Nobody is given a key twice."""
    with pytest.raises(UsageError, match="more than there are keys"):
        assign_keys([f"Finding {number}" for number in range(len(FREE_KEYS) + 1)], {})
