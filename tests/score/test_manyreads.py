"""Several files of reads are heard as one."""

import pytest

from bpals.errors import UsageError
from bpals.findings import NIH
from bpals.reviews.verdicts import load_many, load_reads
from world.words import mentions

HEADER = "image_id,finding,reader,verdict,inclusion\n"


def write(file, *rows):
    """A file of reads."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(HEADER + "".join(f"{row}\n" for row in rows))
    return file


@pytest.fixture
def files(tmp_path):
    """Two files: one read of both is the same, one contradicts, and each has its own."""
    one = write(tmp_path / "a.csv", "f1,Mass,ann,YES,", "f2,Mass,ann,YES,0.5", "f3,Mass,ann,NO,0.5")
    two = write(tmp_path / "b.csv", "f1,Mass,ann,YES,0.25", "f2,Mass,ann,NO,0.5", "f4,Nodule/mass,bob,HEDGE,")
    return [one, two]


def test_what_one_reader_says_in_both_counts_once(files):
    """With the chance that one of the files knows; what contradicts is left out, and both are counted."""
    read = load_many(files, vocabulary=NIH)
    rows = sorted(read.table.select("image_id", "finding", "reader", "verdict", "inclusion").rows())
    assert rows == [
        ("f1", "Mass", "ann", "present", 0.25),
        ("f3", "Mass", "ann", "absent", 0.5),
        ("f4", "Nodule or mass", "bob", "uncertain", None),
    ]
    assert {notice.code: notice.count for notice in read.notices} == {"reader_contradicts": 1, "reader_repeats": 1}
    assert mentions(read.notices[0].message, "a.csv and b.csv", "1 time")
    assert [group.name for group in read.groups] == ["Nodule or mass"]
    assert set(read.inputs) == {"a.csv", "b.csv"}


def test_one_file_is_read_as_ever(files):
    """Given alone, or as a list of one."""
    alone = load_reads(files[0], vocabulary=NIH)
    for given in (files[0], str(files[0]), [files[0]]):
        assert load_many(given, vocabulary=NIH).table.equals(alone.table)


def test_a_file_that_is_named_twice_is_refused(files):
    """Its reads would all be repeats."""
    with pytest.raises(UsageError, match="names a file twice"):
        load_many([files[0], files[0]], vocabulary=NIH)


def test_two_files_of_one_name_are_told_apart(tmp_path):
    """By their folders, in what is recorded."""
    files = [write(tmp_path / name / "reads.csv", f"{name},Mass,ann,YES,") for name in ("x", "y")]
    assert set(load_many(files, vocabulary=NIH).inputs) == {str(file) for file in files}
