"""NIH ChestX-ray14: the embedded record is whole, and a user's own copy is read or refused with its line (F18)."""

import gzip
import re
import time
from pathlib import Path

import polars as pl
import pytest

import embed_nih
from bpals.errors import SourceError
from bpals.findings import NIH
from bpals.sources import nih
from bpals.sources.mapping import load_mapping
from bpals.types import IMAGES, claims_schema
from world.words import mentions

HEADER = (
    "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
    "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y]"
)
ROWS = [
    "00000001_000.png,Cardiomegaly|Emphysema,0,1,57,M,PA,2682,2749,0.143,0.143",
    "00000002_000.png,No Finding,0,2,80,M,AP,2500,2048,0.171,0.171",
]


@pytest.fixture(scope="module")
def record():
    """The embedded record."""
    return nih.load()


@pytest.fixture
def load(tmp_path):
    """Load a copy of NIH's CSV from its lines."""

    def load(*rows, header=HEADER, end="\n", encoding="utf-8"):
        path = tmp_path / "Data_Entry_2017.csv"
        path.write_bytes("".join(line + end for line in (header, *rows)).encode(encoding))
        return nih.load(str(path))

    return load


@pytest.fixture
def refusal(load):
    """The one line that a copy is refused with."""

    def refusal(*rows, **options):
        with pytest.raises(SourceError) as caught:
            load(*rows, **options)
        assert "\n" not in str(caught.value)
        assert "Data_Entry_2017.csv" in str(caught.value)
        return str(caught.value)

    return refusal


def present(dataset, image):
    """The findings that a film claims present."""
    return dataset.claims.filter(pl.col("image_id") == image, pl.col("says") == "present")["finding"].to_list()


# The embedded record


def test_the_record_has_every_film_and_every_claim(record):
    """112,120 films of 30,805 patients, and 14 claims on each."""
    assert record.images.height == 112_120
    assert record.images.schema == IMAGES
    assert record.images["image_id"].is_unique().all()
    assert record.images["patient_id"].n_unique() == 30_805
    assert record.claims.height == 1_569_680
    assert record.claims.schema == claims_schema(NIH)
    assert record.claims.filter(pl.col("says") == "present").height == 81_176
    assert record.claims["says"].unique().to_list() == ["present", "absent"]
    assert record.vocabulary is NIH
    assert record.notices == ()


def test_the_claims_come_film_by_film_in_the_order_of_the_vocabulary(record):
    """A row's place says what it is about."""
    first = record.claims.head(28)
    assert first["image_id"].unique(maintain_order=True).to_list() == ["00000001_000.png", "00000001_001.png"]
    assert first["finding"].to_list() == [*NIH.findings, *NIH.findings]
    assert record.claims["image_id"].gather_every(14).equals(record.images["image_id"])


def test_no_finding_claims_all_14_absent(record):
    """60,361 films say so."""
    present = record.claims.filter(pl.col("says") == "present")["image_id"].n_unique()
    assert record.images.height - present == 60_361
    film = record.claims.filter(pl.col("image_id") == "00000002_000.png")
    assert film["says"].to_list() == ["absent"] * 14


def test_nothing_is_missing_about_a_film(record):
    """Only the study is unknown: NIH names none."""
    assert {name for name, n in record.images.null_count().row(0, named=True).items() if n} == {"study_id"}
    assert record.images.row(5) == ("00000003_002.png", "3", None, 1, "PA", 75.0, "F", 2048, 2500)


def test_the_embedded_record_is_what_the_published_csv_says(record, xrv_tables):
    """Film by film and claim by claim, read by the other way in."""
    own = nih.load(xrv_tables / "Data_Entry_2017_v2020.csv.gz")
    assert own.images.equals(record.images)
    assert own.claims.equals(record.claims)
    assert own.notices == ()


def test_the_record_loads_in_about_a_second():
    """Generous here, because the machine may be busy: it takes about 0.2 s alone."""
    start = time.perf_counter()
    nih.load()
    assert time.perf_counter() - start < 3


def test_the_record_names_whom_to_thank(record):
    """NIH asks for three things: its name, the paper, the link."""
    text = (Path(nih.__file__).parent / "embedded" / "ATTRIBUTION.md").read_text()
    for thanks in (record.attribution, text):
        assert "NIH Clinical Center" in thanks
        assert "CVPR 2017" in thanks
        assert "https://nihcc.app.box.com/v/ChestXray-NIHCC" in thanks


def test_a_damaged_installation_is_refused_with_the_line_that_mends_it(tmp_path):
    """A byte that changed on disk must not change a trust."""
    content = bytearray(nih.read_embedded(nih.ENTRIES))
    content[1000] ^= 1
    (tmp_path / nih.ENTRIES).write_bytes(content)
    for name in (nih.ENTRIES, nih.BOXES):
        with pytest.raises(SourceError, match=r"damaged: .*git checkout -- src"):
            nih.read_embedded(name, tmp_path)


def test_the_script_makes_the_embedded_files_again(xrv_wheel, tmp_path):
    """Two runs give the same bytes, and the tables are those in the tree."""
    for run in ("one", "two"):
        embed_nih.main(["--wheel", str(xrv_wheel), "--out", str(tmp_path / run)])
    for name in nih.EMBEDDED:
        made = (tmp_path / "one" / name).read_bytes()
        assert made == (tmp_path / "two" / name).read_bytes()
        assert pl.read_parquet(made).equals(pl.read_parquet(nih.read_embedded(name)))
        # Another version of polars may write the same table in other bytes.
        if f"version {pl.__version__} ".encode() in nih.read_embedded(name)[-200:]:
            assert made == nih.read_embedded(name)
    assert sum(len(nih.read_embedded(name)) for name in nih.EMBEDDED) < 1_500_000


def test_the_mapping_speaks_of_the_same_findings():
    """The closed vocabulary and nih.toml have the 14 in one order."""
    assert load_mapping("nih").labels.audited == NIH.findings


# The boxes


def test_the_boxes_are_those_of_the_published_csv(xrv_tables):
    """984 boxes on 880 films, each on a film of the record."""
    boxes = nih.load_boxes()
    assert boxes.equals(nih.load_boxes(xrv_tables / "BBox_List_2017.csv.gz"))
    assert boxes.shape == (984, 6)
    assert boxes.columns == ["image_id", "finding", "x", "y", "width", "height"]
    assert boxes["image_id"].n_unique() == 880
    assert boxes.filter(pl.col("finding") == "Infiltration").height == 123


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a.png,Mas,1,2,3,4", "line 3: no finding is called 'Mas'. Did you mean 'Mass'?"),
        ("a.png,Mass,1,2,x,4", "line 3, column 'w', holds 'x', which is no pixel"),
        ("a.png,Mass,1,-2,3,4", "line 3, column 'y', holds '-2', which is no pixel"),
        ("a.png,Mass,1,2,3", "line 3 has 5 fields where the header has 9: the file is cut off"),
    ],
)
def test_a_wrong_box_is_refused_with_its_line(tmp_path, row, message):
    """In one line."""
    path = tmp_path / "BBox_List_2017.csv"
    path.write_text(f"Image Index,Finding Label,Bbox [x,y,w,h],,,\na.png,Mass,1,2,3,4\n{row}\n")
    with pytest.raises(SourceError) as caught:
        nih.load_boxes(path)
    assert message in str(caught.value)


def test_a_table_that_is_no_list_of_boxes_is_refused(tmp_path):
    """The labels were given for the boxes."""
    path = tmp_path / "Data_Entry_2017.csv"
    path.write_text(f"{HEADER}\n{ROWS[0]}\n")
    with pytest.raises(SourceError, match=r"'Finding Label'.*'Finding Labels'"):
        nih.load_boxes(path)


# A copy of one's own (F18)


def test_f18_a_byte_order_mark_and_either_line_ending_are_read(load):
    """Spreadsheets add the one and change the other."""
    plain = load(*ROWS)
    for other in (load(*ROWS, end="\r\n"), load(*ROWS, encoding="utf-8-sig")):
        assert other.images.equals(plain.images)
        assert other.claims.equals(plain.claims)
    assert present(plain, "00000001_000.png") == ["Cardiomegaly", "Emphysema"]
    assert plain.images.row(0) == ("00000001_000.png", "1", None, 0, "PA", 57.0, "M", 2682, 2749)


def test_f18_latin_1_is_refused_with_its_line(refusal):
    """A guess at the encoding could change a name."""
    assert mentions(refusal(ROWS[0], ROWS[1].replace("No", "é"), encoding="latin-1"), "line 3", "0xe9")


def test_f18_extra_columns_are_read_over(load):
    """The file of 2017 ends each line with a comma; others append columns."""
    rows = [f"{row}," for row in ROWS]
    assert load(*rows, header=HEADER + ",").claims.equals(load(*ROWS).claims)
    assert load(*[f"{row},x,y" for row in ROWS], header=HEADER + ",fold,note").claims.equals(load(*ROWS).claims)


def test_f18_a_missing_or_doubled_column_is_refused(refusal):
    """With the name that was meant, and what file was wanted."""
    line = refusal(*ROWS, header=HEADER.replace("Patient ID", "Patient Id"))
    assert mentions(line, "'Patient ID'", "'Patient Id'?")
    assert mentions(line, "NIH ChestX-ray14", "Data_Entry_2017.csv", "Data_Entry_2017_v2020.csv")
    assert mentions(refusal(*ROWS, header=HEADER.replace("Follow-up #", "Patient ID")), "'Patient ID' 2 times")


def test_f18_a_csv_of_something_else_is_refused(refusal):
    """It has none of the columns."""
    assert mentions(refusal("1,2", header="a,b"), "'Image Index'", "a, b.")


def test_f18_a_duplicated_image_index_is_refused_with_both_lines(refusal):
    """Two rows that differ cannot both be right."""
    again = ROWS[0].replace("Cardiomegaly", "Mass")
    line = refusal(*ROWS, again)
    assert re.search(r"line 4 .*'00000001_000\.png' .*line 2", line)


def test_f18_an_unknown_label_is_refused_with_its_line(refusal):
    """And with the label that was meant."""
    line = refusal(ROWS[0], ROWS[1].replace("No Finding", "Mass|Pneumotorax"))
    assert mentions(line, "line 3", "'Pneumotorax'", "'Pneumothorax'?")


def test_f18_contradictory_labels_are_reported(load):
    """`No Finding|Mass` claims the mass present, and the film is counted."""
    dataset = load(ROWS[0], ROWS[1].replace("No Finding", "No Finding|Mass"))
    assert present(dataset, "00000002_000.png") == ["Mass"]
    notice = next(notice for notice in dataset.notices if notice.code == "contradiction")
    told = "Films that say 'No Finding' and a finding, which is claimed present: 1, first in Data_Entry_2017.csv line 3"
    assert notice.message == told


def test_f18_a_trailing_bar_stray_blanks_and_case_do_not_matter(load):
    """What is meant is plain."""
    for cell in ("Mass|Pleural_Thickening|", " mass | pleural thickening", "MASS|Pleural-Thickening"):
        dataset = load(ROWS[0], ROWS[1].replace("No Finding", cell))
        assert present(dataset, "00000002_000.png") == ["Mass", "Pleural_Thickening"]


def test_f18_a_field_of_10_megabytes_is_refused_with_its_line(refusal):
    """A quote that closes too late makes such a field."""
    line = refusal(ROWS[0], ROWS[1].replace("No Finding", '"' + "x" * 10_485_760 + '"'))
    assert mentions(line, "line 3", "'Finding Labels'", "10,485,760 bytes")


def test_f18_a_formula_cell_is_refused_with_its_line(refusal):
    """It is never evaluated, and never passed on."""
    assert "line 3: the image is '=1+1'" in refusal(ROWS[0], ROWS[1].replace("00000002_000.png", "=1+1"))
    formula = "=cmd|' /C calc'!A0"
    assert mentions(refusal(ROWS[0], ROWS[1].replace("No Finding", formula)), "line 3", "'=cmd'")


def test_ages_of_the_first_edition_are_read(load):
    """NIH's file of 2017 writes 058Y, and has ages such as 412, which are unknown and counted."""
    dataset = load(ROWS[0].replace(",57,", ",058Y,"), ROWS[1].replace(",80,", ",412,"))
    assert dataset.images["age"].to_list() == [58.0, None]
    assert [(notice.code, notice.count) for notice in dataset.notices if "age" in notice.code] == [
        ("age_impossible", 1)
    ]


def test_a_patient_in_two_orders_is_counted(load):
    """The file of 2017 has patients whose follow-up number goes up while they grow younger."""
    later = ROWS[0].replace("_000.png", "_001.png").replace(",0,1,57,", ",1,1,49,")
    tied = ROWS[1].replace("_000.png", "_001.png")
    codes = {notice.code: notice.count for notice in load(*ROWS, later, tied).notices}
    assert codes["order_against_age"] == 1
    assert codes["order_tied"] == 2


def test_a_gzipped_copy_that_is_cut_off_is_refused(tmp_path):
    """Nothing before the cut is used."""
    path = tmp_path / "Data_Entry_2017.csv.gz"
    whole = gzip.compress("\n".join([HEADER, *ROWS]).encode())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceError, match=r"cut off: .*gzip"):
        nih.load(path)
