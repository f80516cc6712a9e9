"""The one file of reads that a command hears."""

from pathlib import Path

import pytest

from bpals.cli.reads import one_file
from bpals.errors import UsageError


def test_one_file_is_heard():
    """Or none."""
    assert one_file([Path("reads.csv")]) == Path("reads.csv")
    assert one_file(None) is None
    assert one_file([]) is None


def test_two_files_are_refused_and_named():
    """The last alone would be heard, and nobody would notice."""
    with pytest.raises(UsageError, match=r"given 2 times \(a\.csv, b\.csv\)\. Join the rows"):
        one_file([Path("a.csv"), Path("b.csv")])
