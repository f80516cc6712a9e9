"""The key of a reading list: the reader sees no chance, and it comes back to the reads."""

import polars as pl
import pytest

from bpals.errors import TruthError, UsageError
from bpals.findings import NIH
from bpals.reviews import verdicts
from bpals.reviews.verdicts import key_of, with_inclusion, write_sheet

pytestmark = pytest.mark.quick

LISTED = pl.DataFrame(
    {"image_id": ["a.png", "b.png"], "finding": ["Mass", "Edema"], "value": [1.5, None],
     "inclusion": [0.99, 1e-05], "drawn": ["value", "random"]}
)  # fmt: skip


def test_the_reader_s_sheet_tells_nothing_but_what_to_read(tmp_path):
    """No label, no trust, no chance, no mark; the key beside it has the rest."""
    key = write_sheet(LISTED, tmp_path / "list.csv")
    assert (tmp_path / "list.csv").read_text() == "image_id,finding,reader,verdict\na.png,Mass,,\nb.png,Edema,,\n"
    assert key == key_of(tmp_path / "list.csv") == tmp_path / "list.key.csv"
    assert pl.read_csv(key).columns == LISTED.columns


def test_a_filled_sheet_is_read_with_its_chances(tmp_path):
    """The rows that were filled in are reads; the key says with what chance each was drawn."""
    sheet = tmp_path / "list.csv"
    write_sheet(LISTED, sheet)
    sheet.write_text("image_id,finding,reader,verdict\na.png,Mass,,\nb.png,Edema,ann,HEDGE\n")
    reads = verdicts.load_reads(sheet, vocabulary=NIH)
    assert with_inclusion(reads.table, sheet).rows() == [("b.png", "Edema", "ann", "uncertain", 1e-05)]
    (notice,) = reads.notices
    assert (notice.code, notice.count) == ("key_used", 1)
    assert str(key_of(sheet)) in notice.message


def test_what_a_row_says_itself_stands_and_without_a_key_nothing_changes(tmp_path):
    """An inclusion in the sheet is older than the key; a pair the key does not know stays unknown."""
    sheet = tmp_path / "list.csv"
    sheet.write_text("image_id,finding,reader,verdict,inclusion\nb.png,Edema,ann,NO,0.5\nc.png,Mass,ann,NO,\n")
    reads = verdicts.load_reads(sheet, vocabulary=NIH).table
    assert with_inclusion(reads, sheet).equals(reads)
    LISTED.write_csv(key_of(sheet))
    assert with_inclusion(reads, sheet)["inclusion"].to_list() == [0.5, None]


def test_a_sheet_is_never_written_over(tmp_path):
    """Somebody may have filled it in."""
    write_sheet(LISTED, tmp_path / "list.csv")
    with pytest.raises(UsageError, match="is there already"):
        write_sheet(LISTED, tmp_path / "list.csv")


def test_a_sheet_that_cannot_be_written_is_one_line(tmp_path):
    """It names the file and what to type."""
    with pytest.raises(UsageError, match="cannot be written"):
        write_sheet(LISTED, tmp_path / "nowhere" / "list.csv")


def test_a_file_that_is_no_key_is_refused(tmp_path):
    """It lies where the key should and has other columns."""
    sheet = tmp_path / "list.csv"
    sheet.write_text("image_id,finding,reader,verdict\nb.png,Edema,ann,NO\n")
    key_of(sheet).write_text("film,chance\nb.png,1\n")
    with pytest.raises(TruthError, match="not the key"):
        with_inclusion(verdicts.load_reads(sheet, vocabulary=NIH).table, sheet)
