"""The files of reads that a command hears."""

from pathlib import Path

from bpals.cli.terminal import given_files


def test_one_file_is_heard():
    """Or none."""
    assert given_files([Path("reads.csv")]) == Path("reads.csv")
    assert given_files(None) is None
    assert given_files([]) is None


def test_several_files_are_all_heard():
    """In the order in which they were named."""
    assert given_files([Path("a.csv"), Path("b.csv")]) == [Path("a.csv"), Path("b.csv")]
