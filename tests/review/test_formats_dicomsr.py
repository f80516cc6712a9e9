"""DICOM SR is written for DICOM films only, read by highdicom, and gives back the fields that it lists."""

import io
import json

import polars as pl
import pytest

from bpals.errors import TruthError, UsageError
from bpals.reviews import dicom_sr
from bpals.reviews.exchange import Films
from world import review_tables

pydicom = pytest.importorskip("pydicom")
highdicom = pytest.importorskip("highdicom")

FILM = review_tables.dicom()
SENT = review_tables.reviews(12, images=("a.dcm",)).with_columns(note=pl.lit("as before"))


@pytest.fixture(scope="module")
def written():
    """Reports of twelve reads of one film."""
    return dicom_sr.write(SENT, Films(dicom=lambda _: FILM))


def test_the_listed_fields_come_back(written):
    """And boxes to a hundredth of a pixel."""
    back = dicom_sr.read(written.files, "reports").table
    assert review_tables.same(back, SENT, dicom_sr.GIVEN_BACK)
    boxes = back.filter(pl.col("external_id") == "read/0")["box"][0]
    assert json.loads(boxes)[0] == pytest.approx([1.5, 2, 30.25, 0.3], abs=0.005)


def test_highdicom_reads_a_report(written):
    """As a measurement report with a group a finding and a region a box, of the film's own study."""
    film = pydicom.dcmread(io.BytesIO(FILM))
    groups = regions = 0
    for content in written.files.values():
        report = highdicom.sr.srread(io.BytesIO(content))
        assert report.StudyInstanceUID == film.StudyInstanceUID
        assert report.PatientName == film.PatientName
        groups += len(report.content.get_image_measurement_groups())
        regions += len(report.content.get_planar_roi_measurement_groups())
        referenced = {
            str(each.referenced_sop_instance_uid)
            for group in report.content.get_image_measurement_groups()
            for each in group.source_images
        }
        assert referenced == {str(film.SOPInstanceUID)}
    assert (groups, regions) == (12, 3)


def test_written_twice_it_is_the_same_report(written):
    """So that an archive that has it already does not keep it twice."""
    again = dicom_sr.write(SENT, Films(dicom=lambda _: FILM))
    assert again.files.keys() == written.files.keys()
    for name, content in written.files.items():
        first, second = (pydicom.dcmread(io.BytesIO(each)) for each in (content, again.files[name]))
        assert first.SOPInstanceUID == second.SOPInstanceUID


def test_no_file_is_called_after_a_patient(written):
    """A name may stand in a log."""
    assert not [name for name in written.files if "doe" in name.lower() or name.startswith("7")]


def test_a_png_gets_no_report():
    """No study, series or instance is invented for it; where no film is DICOM the export is refused."""
    some = dicom_sr.write(review_tables.reviews(), Films(dicom=lambda film: FILM if film == "a.png" else None))
    assert [(notice.code, notice.count) for notice in some.notices] == [("no_dicom", 16)]
    with pytest.raises(UsageError, match=r" 3 films .*DICOM .*a\.png"):
        dicom_sr.write(review_tables.reviews(), Films())


def test_other_files_are_counted(written):
    """A film, or a text, in the folder of reports."""
    found = dicom_sr.read({**written.files, "film.dcm": FILM, "note.txt": b"hello"}, "reports")
    assert [(notice.code, notice.count) for notice in found.notices] == [("strange_files", 2)]
    with pytest.raises(TruthError, match="no report that bpals wrote"):
        dicom_sr.read({"film.dcm": FILM}, "reports")
