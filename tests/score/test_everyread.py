"""Every read of a sheet is kept, whoever audits its finding."""

import pytest

from bpals.errors import TruthError, UnknownName
from bpals.findings import NIH
from bpals.reviews.verdicts import GROUPS, every_read


def read(tmp_path, text):
    """Read a sheet."""
    (tmp_path / "sheet.csv").write_text(text)
    table = every_read(tmp_path / "sheet.csv", vocabulary=NIH, groups=GROUPS)
    return table.select("image_id", "finding", "reader", "verdict").rows()


def test_a_column_outside_the_vocabulary_is_a_finding(tmp_path):
    """Where its cells are verdicts; ids, sets and empty columns are none."""
    rows = read(tmp_path, "Image ID,Reader ID,Fracture,Nodule/mass,Set ID,Remark\nf1,7,YES,HEDGE,val,\nf2,7,NO,,val,\n")
    assert sorted(rows) == [
        ("f1", "Fracture", "7", "present"),
        ("f1", "Nodule or mass", "7", "uncertain"),
        ("f2", "Fracture", "7", "absent"),
    ]


def test_a_reader_who_speaks_twice_is_heard_twice(tmp_path):
    """Whether he says the same or not."""
    rows = read(tmp_path, "image_id,reader,finding,verdict\nf1,7,mass,YES\nf1,7,Mass,NO\nf1,7,Mass,NO\n")
    assert [row[3] for row in rows] == ["present", "absent", "absent"]


def test_a_slip_of_the_pen_is_refused(tmp_path):
    """In a column and in a cell: a finding that nobody knows may be new, but not nearly an old one."""
    with pytest.raises(UnknownName, match="Did you mean 'Pneumothorax'"):
        read(tmp_path, "image_id,reader,Pneumothoraks\nf1,7,YES\n")
    with pytest.raises(UnknownName, match="Did you mean 'Pneumothorax'"):
        read(tmp_path, "image_id,reader,finding,verdict\nf1,7,Pneumothoraks,YES\n")


def test_the_key_of_a_reading_list_is_used(tmp_path):
    """The chances with which the pairs were drawn lie beside the sheet."""
    (tmp_path / "sheet.key.csv").write_text("image_id,finding,inclusion\nf1,Mass,0.25\n")
    (tmp_path / "sheet.csv").write_text("image_id,finding,reader,verdict\nf1,Mass,ann,YES\n")
    assert every_read(tmp_path / "sheet.csv", vocabulary=NIH, groups=GROUPS)["inclusion"].to_list() == [0.25]


def test_a_sheet_without_reads_is_refused(tmp_path):
    """One that nobody has filled in, and one that has no findings."""
    with pytest.raises(TruthError, match="holds no read"):
        read(tmp_path, "image_id,finding,reader,verdict\nf1,Mass,,\n")
    with pytest.raises(TruthError, match="no column holds verdicts"):
        read(tmp_path, "image_id,reader,remark\nf1,7,fine\n")
