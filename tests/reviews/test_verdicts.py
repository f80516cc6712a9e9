"""Verdicts from any table: sheets, reads, references, keys, exports, and several files as one."""

import gzip

import polars as pl
import pytest

from bpals.errors import BpalsError, TruthError, UnknownName, UsageError
from bpals.findings import AIRSPACE_OPACITY, NIH, NODULE_OR_MASS, Vocabulary
from bpals.reviews import verdicts
from bpals.reviews import verdicts as verdicts_module
from bpals.reviews.verdicts import (
    GROUPS,
    adjudicated_in_export,
    every_read,
    key_of,
    load_many,
    load_reads,
    spellings,
    voting,
    with_inclusion,
    write_sheet,
)
from bpals.types import REVIEWS
from world.words import mentions

pytestmark = pytest.mark.quick

FOUR = "Image Index,Patient ID,Fracture,Pneumothorax,Airspace opacity,Nodule or mass,Set Id\n"
READ = "Patient ID,Image ID,Reader ID,Fracture,Pneumothorax,Airspace opacity,Nodule/mass,Set ID\n"
FOURTEEN = ",".join(finding.replace("_", " ") for finding in NIH.findings)


def load(spec, **options):
    """Read a reference in NIH's vocabulary."""
    return verdicts_module.load(spec, vocabulary=NIH, **options)


def load_table(path):
    """Read a reference of the kind `table`."""
    return load(f"table={path}")


def truth(reference):
    """The truth as a dictionary."""
    return {(image, finding): present for image, finding, present, _ in reference.truth.rows()}


def counted(reference):
    """What was noticed, by code."""
    return {notice.code: notice.count for notice in reference.notices}


def fourteen(image, *present, extra="", other="NO"):
    """One row of the 14-finding file."""
    verdicts = ["YES" if finding in present else "NO" for finding in NIH.findings]
    return f"{image},7{extra},YES,{','.join(verdicts)},{other}\n"


def test_four_findings_are_one_finding_and_two_groups(sheet):
    """Fracture is not audited and is counted."""
    path = sheet(FOUR + "a.png,1,YES,YES,NO,NO,val\nb.png,2,NO,NO,YES,YES,val\n")
    reference = load(f"four-findings={path}")
    assert truth(reference) == {
        ("a.png", "Pneumothorax"): True, ("b.png", "Pneumothorax"): False,
        ("a.png", "Airspace opacity"): False, ("b.png", "Airspace opacity"): True,
        ("a.png", "Nodule or mass"): False, ("b.png", "Nodule or mass"): True,
    }  # fmt: skip
    assert reference.groups == (NODULE_OR_MASS, AIRSPACE_OPACITY)
    assert counted(reference) == {"unaudited": 1}
    assert not reference.positives_only


def test_a_folder_is_searched_and_the_split_chooses(sheet, tmp_path):
    """The readers' file beside them is another layout; a file without the split is not even counted."""
    sheet(FOUR + "a.png,1,NO,YES,NO,NO,val\n", "one.csv")
    sheet(FOUR + "b.png,2,NO,NO,NO,NO,test\n", "two.csv")
    sheet(READ + "2,b.png,77,NO,YES,YES,YES,test\n", "three.csv")
    both, test = load(f"four-findings={tmp_path}"), load(f"four-findings={tmp_path}", split="test")
    assert {image for image, _ in truth(both)} == {"a.png", "b.png"}
    assert {image for image, _ in truth(test)} == {"b.png"}
    assert list(test.inputs) == ["two.csv"]
    assert test.truth["split"].unique().to_list() == ["test"]


def test_the_fourteen_findings_are_read(sheet):
    """The columns Abnormal and Other are no audited findings and are counted."""
    rows = fourteen("a.png", "Mass", "Pleural_Thickening") + fourteen("b.png")
    path = sheet(f"Image ID,Patient ID,Abnormal,{FOURTEEN},Other\n" + rows)
    reference = load(f"all-findings={path}")
    assert len(truth(reference)) == 28
    assert {pair for pair, present in truth(reference).items() if present} == {
        ("a.png", "Mass"), ("a.png", "Pleural_Thickening"),
    }  # fmt: skip
    assert [(notice.code, notice.count) for notice in reference.notices] == [("unaudited", 2), ("unaudited", 0)]


def by_reader(*rows):
    """A file of the 14 findings with one row a reader; rows are `(image, reader, *present)`."""
    lines = [fourteen(image, *present, extra=f",{reader}") for image, reader, *present in rows]
    return f"Image ID,Patient ID,Reader ID,Abnormal,{FOURTEEN},Other\n" + "".join(lines)


def test_the_majority_of_the_readers_decides_and_ties_are_left_out(sheet):
    """Two of three make a presence; one of two makes nothing."""
    path = sheet(by_reader(("a", 1, "Mass"), ("a", 2, "Mass", "Edema"), ("a", 3), ("b", 1, "Mass"), ("b", 2)))
    reference = load(f"all-findings={path}")
    said = truth(reference)
    assert said["a", "Mass"]
    assert not said["a", "Edema"]
    assert ("b", "Mass") not in said
    assert counted(reference)["ties"] == 1


def test_a_chosen_number_of_readers_decides(sheet):
    """With one reader needed, one is enough; pairs with fewer readers than that are left out."""
    path = sheet(by_reader(("a", 1, "Mass"), ("a", 2), ("a", 3), ("b", 1, "Mass"), ("b", 2)))
    one, three = (load(f"all-findings={path}", min_readers=k) for k in (1, 3))
    assert truth(one)["a", "Mass"]
    assert truth(one)["b", "Mass"]
    assert not truth(three)["a", "Mass"]
    assert counted(three)["few_readers"] == 14


def test_more_readers_than_there_are_is_refused(sheet):
    """With the number that would do."""
    path = sheet(by_reader(("a", 1, "Mass"), ("a", 2)))
    with pytest.raises(TruthError, match="--min-readers 2"):
        load(f"all-findings={path}", min_readers=5)


def test_a_folder_with_both_files_reads_the_readers_only_when_they_are_counted(sheet, tmp_path):
    """The agreed labels stand unless `--min-readers` asks for single readers."""
    sheet(f"Image ID,Patient ID,Abnormal,{FOURTEEN},Other\n" + fourteen("a", "Mass"), "labels.csv")
    sheet(by_reader(("a", 1, "Edema"), ("a", 2)), "readers.csv")
    assert truth(load(f"all-findings={tmp_path}"))["a", "Mass"]
    assert truth(load(f"all-findings={tmp_path}", min_readers=1))["a", "Edema"]


def test_counting_readers_needs_a_file_with_readers(sheet):
    """The agreed labels do not say how many agreed."""
    path = sheet(f"Image ID,Patient ID,Abnormal,{FOURTEEN},Other\n" + fourteen("a", "Mass"))
    with pytest.raises(TruthError, match="no column 'reader'"):
        load(f"all-findings={path}", min_readers=2)


def test_the_name_of_a_file_says_its_split_where_no_column_does(sheet):
    """As in the published `..._test_labels.csv`; a file that says nothing has only `all`."""
    rows = f"Image ID,Patient ID,Abnormal,{FOURTEEN},Other\n" + fourteen("a", "Mass")
    assert load(f"all-findings={sheet(rows, 'all_test_labels.csv')}", split="test").truth["split"][0] == "test"
    with pytest.raises(TruthError, match=r"split 'val'.*--split all"):
        load(f"all-findings={sheet(rows, 'all_test_labels.csv')}", split="val")
    with pytest.raises(TruthError, match="no column 'Set Id'"):
        load(f"all-findings={sheet(rows, 'labels.csv')}", split="test")


@pytest.mark.parametrize("mark", ["=", ":"])
def test_a_long_table_has_a_row_a_pair(sheet, mark):
    """Findings as people write them, groups too; truth as YES, 1 or true."""
    rows = "a,pleural thickening,1,val\nb,MASS,NO,test\nb,Nodule/mass,true,test\n"
    path = sheet("image_id,finding,present,split\n" + rows)
    reference = load(f"table{mark}{path}")
    assert truth(reference) == {("a", "Pleural_Thickening"): True, ("b", "Mass"): False, ("b", "Nodule or mass"): True}
    assert reference.groups == (NODULE_OR_MASS,)
    assert reference.truth["split"].to_list() == ["val", "test", "test"]


def test_a_wide_table_has_a_column_a_finding(sheet):
    """A blank cell was not read, and is no truth; a column that is no verdict is no business of ours."""
    path = sheet("Image Index,Age,Mass,Edema\na,60,1,\nb,61,0,True\n")
    assert truth(load(f"table={path}")) == {("a", "Mass"): True, ("b", "Mass"): False, ("b", "Edema"): True}


def test_a_parquet_table_is_read_as_well(tmp_path):
    """Booleans and numbers are verdicts."""
    table = pl.DataFrame({"image_id": ["a", "b"], "Mass": [True, False], "Edema": [0.0, None]})
    table.write_parquet(tmp_path / "t.parquet")
    said = truth(load(f"table={tmp_path / 't.parquet'}"))
    assert said == {("a", "Mass"): True, ("b", "Mass"): False, ("a", "Edema"): False}


def test_a_table_with_readers_is_decided_by_their_majority(sheet):
    """Any table may name a reader."""
    path = sheet("image_id,reader,Mass\na,1,YES\na,2,YES\na,3,NO\nb,1,NO\n")
    voted = load(f"table={path}")
    assert truth(voted) == {("a", "Mass"): True, ("b", "Mass"): False}
    # The votes stay, so that one reader's word is not taken for an adjudication.
    assert set(voted.votes.rows()) == {("a", "Mass", 2, 1), ("b", "Mass", 0, 1)}
    path = sheet("image_id,Mass\na,YES\nb,NO\n")
    assert load(f"table={path}").votes is None


def test_boxes_are_confirmed_presences():
    """Two boxes of one pair are one presence, and no error can be scored."""
    boxes = pl.DataFrame({"image_id": ["a", "a", "b"], "finding": ["Mass", "Mass", "Effusion"]})
    reference = load("boxes", boxes=boxes)
    assert truth(reference) == {("a", "Mass"): True, ("b", "Effusion"): True}
    assert reference.positives_only


def test_findings_that_the_audit_does_not_have_are_left_out(sheet):
    """A dataset without nodules has no group of nodules and masses."""
    path = sheet(FOUR + "a.png,1,NO,YES,NO,YES,val\nb.png,2,NO,NO,YES,NO,val\n")
    small = Vocabulary(name="small", findings=("Pneumothorax", "Mass"))
    reference = verdicts_module.load(f"four-findings={path}", vocabulary=small)
    assert reference.truth["finding"].unique().to_list() == ["Pneumothorax"]
    assert reference.groups == ()
    assert [notice.count for notice in reference.notices] == [0, 1, 1]


def test_pairs_that_stand_twice_and_agree_count_once(sheet):
    """And are counted."""
    reference = load_table(sheet("image_id,Mass,Edema\na,1,0\na,1,0\n"))
    assert len(truth(reference)) == 2
    assert counted(reference) == {"duplicates": 2}


def test_pairs_that_contradict_themselves_are_left_out(sheet):
    """Nobody knows which row is right; the notice names the first."""
    reference = load_table(sheet("image_id,Mass,Edema\na,1,0\na,0,0\n"))
    assert truth(reference) == {("a", "Edema"): False}
    assert counted(reference)["contradictions"] == 1
    assert "(first: a, Mass)" in reference.notices[-1].message


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("a,Mass,YES\na,Mass,YES\n", "1 pair stands more than once"),
        ("a,Mass,YES\na,Mass,YES\nc,Mass,NO\nc,Mass,NO\n", "2 pairs stand more than once"),
        ("a,Mass,YES\na,Mass,NO\n", "1 pair contradicts itself and was left out (first: a, Mass)"),
        ("a,Mass,HEDGE\n", "1 uncertain verdict was left out"),
        ("a,Mass,HEDGE\nc,Mass,HEDGE\n", "2 uncertain verdicts were left out"),
    ],
)
def test_one_oddity_is_no_plural(sheet, rows, words):
    """Each notice agrees with its count."""
    path = sheet(f"image_id,finding,verdict\n{rows}x,Mass,YES\ny,Mass,NO\n")
    assert any(notice.message.startswith(f"{path}: {words}") for notice in load_table(path).notices)


def test_an_uncertain_truth_is_left_out_and_counted(sheet):
    """It is neither a presence nor an absence."""
    reference = load_table(sheet("image_id,Mass\na,1\nb,0\nc,HEDGE\nd,-1\n"))
    assert len(truth(reference)) == 2
    assert counted(reference) == {"uncertain_verdicts": 2}


@pytest.mark.parametrize(
    ("content", "kind", "says"),
    [
        ("image_id,Mass\na,1\nb,1\n", "table", "no negatives"),
        ("image_id,Mass\na,maybe not\n", "table", "line 2: 'maybe not' under 'Mass' is no verdict"),
        ("image_id,Mass\na,0\n,1\n", "table", "line 3: no image id"),
        ("film,Mass\na,0\n", "table", "no image column"),
        ("image_id,finding,said\na,Mass,1\n", "table", "none called 'verdict' or 'present'"),
        ("image_id,Age\na,55\n", "table", "no column is an audited finding"),
        ("image_id,Mass\na,\n", "table", "no verdict that could be used"),
        ("Image ID,Pneumothorax\na,YES\n", "four-findings", "no column 'airspace opacity', 'nodule or mass'"),
        (READ + "1,a,5,NO,YES,NO,NO,val\n", "four-findings", "one row per reader, not one per image"),
        ("Image ID,Mass\na,YES\n", "all-findings", "no column 'atelectasis'"),
        ("image_id,reader,Mass\na,,YES\nb,1,NO\n", "table", "name no reader"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_in_one_line(sheet, content, kind, says):
    """Each says what is wrong, where, and what to do."""
    with pytest.raises(TruthError) as caught:
        load(f"{kind}={sheet(content)}")
    message = str(caught.value)
    assert says in message
    assert "truth.csv" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "content", ["image_id,finding,present\na,Mass,1\nb,Pneumothorx,0\n", "image_id,Mass,Pneumothorx\na,1,0\n"]
)
def test_a_finding_nobody_knows_is_answered_with_the_nearest(sheet, content):
    """A slip of the pen in a row or in a header is not silently left out."""
    with pytest.raises(UnknownName, match=r"truth.csv, line .*'Pneumothorax'"):
        load_table(sheet(content))


def test_a_folder_without_the_right_file_says_what_is_there(sheet, tmp_path):
    """And which columns were looked for."""
    sheet("x,y\n1,2\n", "other.csv")
    with pytest.raises(TruthError, match=r"four findings .*other\.csv"):
        load(f"four-findings={tmp_path}")
    with pytest.raises(TruthError, match="is a folder"):
        load(f"table={tmp_path}")


@pytest.mark.parametrize(
    ("spec", "options", "error", "says"),
    [
        ("four-finding=x", {}, UnknownName, "Did you mean 'four-findings'"),
        ("four-findings", {}, UsageError, "--reference four-findings=PATH"),
        ("boxes", {}, UsageError, "needs the boxes"),
        ("table=x.csv", {"split": "train"}, UnknownName, "val, test, all"),
        ("table=x.csv", {"min_readers": 0}, UsageError, "--min-readers 1"),
        ("table=x.csv", {}, TruthError, "x.csv does not exist"),
    ],
)
def test_a_reference_that_cannot_be_is_refused(spec, options, error, says):
    """Before any file is read."""
    with pytest.raises(error, match=says):
        load(spec, **options)


def test_single_reads_are_kept_apart(sheet):
    """HEDGE is uncertain; `Nodule/mass` is the group; a reader who says two things is left out there only."""
    rows = "1,a,5,NO,YES,YES,HEDGE,test\n1,a,5,NO,YES,NO,HEDGE,test\n1,a,6,NO,NO,NO,NO,test\n"
    reads = verdicts_module.load_reads(sheet(READ + rows), vocabulary=NIH)
    assert reads.table.select("image_id", "finding", "reader", "verdict", "inclusion").sort(pl.all()).rows() == [
        ("a", "Airspace opacity", "6", "absent", None),
        ("a", "Nodule or mass", "5", "uncertain", None),
        ("a", "Nodule or mass", "6", "absent", None),
        ("a", "Pneumothorax", "5", "present", None),
        ("a", "Pneumothorax", "6", "absent", None),
    ]
    assert {notice.code: notice.count for notice in reads.notices} == {
        "unaudited": 0, "reader_contradicts": 1, "reader_repeats": 2,
    }  # fmt: skip


LONG = "image_id,finding,reader,verdict,inclusion\n"


def test_a_long_file_of_reads_is_read_as_a_wide_one(sheet, tmp_path):
    """A row a finding, from CSV or Parquet; a blank verdict was not read, and the chance of being drawn is kept."""
    rows = "a,mass,5,yes,0.25\na,Nodule/mass,6,HEDGE,\nb,Mass,5,unreadable,1\nb,Mass,6,,1\n"
    reads = verdicts_module.load_reads(sheet(LONG + rows), vocabulary=NIH)
    assert reads.table.schema == REVIEWS
    assert reads.table.rows() == [
        ("a", "Mass", "5", "present", 0.25),
        ("a", "Nodule or mass", "6", "uncertain", None),
        ("b", "Mass", "5", "unreadable", 1.0),
    ]
    assert [group.name for group in reads.groups] == ["Nodule or mass"]
    assert reads.readers == ["5", "6"]
    reads.table.write_parquet(tmp_path / "reads.parquet")
    assert verdicts_module.load_reads(tmp_path / "reads.parquet", vocabulary=NIH).table.equals(reads.table)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            LONG + "a,Mass,5,perhaps,\n",
            "line 2: 'perhaps' under 'Mass' is no verdict. Write present, absent, uncertain",
        ),
        (LONG + "a,Mass,5,YES,1.5\n", "line 2: '1.5' under 'inclusion' is no chance of being drawn"),
        (LONG + "a,Mass,5,YES,nan\n", "line 2: 'nan' under 'inclusion' is no chance of being drawn"),
        (LONG + "a,Mass,5,YES,0\n", "line 2: '0' under 'inclusion' is no chance of being drawn"),
        (LONG + "a,Masss,5,YES,1\n", "line 2: no finding is called 'Masss'. Did you mean 'Mass'"),
        (LONG + "a,Mass,,YES,1\n", "some rows name no reader"),
        (LONG + "a,Mass,5,,1\n", "holds no read"),
        (LONG + "a,Mass,5,YES,\na,Mass,5,NO,\n", "holds no read"),
    ],
)
def test_bad_reads_are_refused_in_one_line(sheet, text, says):
    """What is wrong, where, and what to write instead."""
    with pytest.raises(BpalsError) as refused:
        verdicts_module.load_reads(sheet(text), vocabulary=NIH)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_blank_sheet_says_which_words_are_taken(sheet):
    """Those of the reading list first."""
    with pytest.raises(TruthError, match=r"present, absent, .*unreadable"):
        verdicts_module.load_reads(sheet(LONG + "a,Mass,5,,1\n"), vocabulary=NIH)


@pytest.mark.parametrize("option", ["--reviews", "--readers"])
def test_a_file_of_reads_that_is_not_there_names_its_option(tmp_path, option):
    """And no other."""
    with pytest.raises(TruthError) as refused:
        verdicts_module.load_reads(tmp_path / "none.csv", vocabulary=NIH, option=option)
    assert str(refused.value).endswith(f"Check the path after {option}")


def test_labels_that_are_not_there_name_their_option(tmp_path):
    """A kind that is unknown does, too."""
    with pytest.raises(TruthError, match=r"path after --refit KIND=$"):
        load(f"table={tmp_path / 'none.csv'}", option="--refit")
    with pytest.raises(UnknownName, match=r"^--calibrate: "):
        load("tabel=x.csv", option="--calibrate")


@pytest.mark.parametrize(
    ("option", "picks"),
    [("--reference", "--split"), ("--calibrate", "--calibrate-split"), ("--refit", "--refit-split")],
)
def test_a_split_that_is_not_there_names_the_option_that_picks_it(sheet, option, picks):
    """An audit has one for each of its files."""
    path = sheet("image_id,finding,present\na,Mass,1\nb,Mass,0\n")
    with pytest.raises(TruthError, match=rf"Type: {picks} all$"):
        load(f"table={path}", split="val", option=option)
    with pytest.raises(UnknownName, match=rf"^{picks}: .*'vall'"):
        load(f"table={path}", split="vall", option=option)


def test_unreadable_verdicts_settle_nothing(sheet):
    """They are counted, as hedges are."""
    path = sheet("image_id,finding,verdict\na,Mass,YES\nb,Mass,NO\nc,Mass,unreadable\n")
    reference = load(f"table={path}")
    assert counted(reference) == {"unreadable_verdicts": 1}
    assert truth(reference) == {("a", "Mass"): True, ("b", "Mass"): False}


def test_reads_of_unknown_films_are_counted_and_none_at_all_is_refused(sheet):
    """The first unknown film is named."""
    reads = verdicts_module.load_reads(sheet(LONG + "a,Mass,5,YES,\nz,Mass,5,NO,\nz,Edema,5,NO,\n"), vocabulary=NIH)
    kept = verdicts_module.keep_known_images(reads, pl.DataFrame({"image_id": ["a", "b"]}))
    assert kept.table["image_id"].to_list() == ["a"]
    (notice,) = kept.notices
    assert (notice.code, notice.count) == ("unknown_images", 2)
    assert mentions(notice.message, "2 verdicts", "1 film", "z")
    with pytest.raises(TruthError, match="no read is about"):
        verdicts_module.keep_known_images(reads, pl.DataFrame({"image_id": ["q"]}))


def test_reads_need_readers(sheet):
    """A file for all readers at once is no file of reads."""
    with pytest.raises(TruthError, match="no column 'reader'"):
        verdicts_module.load_reads(sheet(FOUR + "a,1,NO,NO,NO,NO,val\n"), vocabulary=NIH)


def test_the_published_four_findings_are_read_whole(expert_folder):
    """2,414 and 1,962 images; the counts of the validation images are those of the file."""
    reference = load(f"four-findings={expert_folder}")
    sizes = dict(reference.truth.group_by("split").agg(pl.col("image_id").n_unique()).rows())
    assert sizes == {"val": 2414, "test": 1962}
    val = load(f"four-findings={expert_folder}", split="val")
    present = dict(val.truth.group_by("finding").agg(pl.col("present").sum()).rows())
    assert present == {"Pneumothorax": 43, "Airspace opacity": 1031, "Nodule or mass": 310}
    assert counted(val) == {"unaudited": 114}


def test_the_published_reads_are_read_whole(expert_folder):
    """13,081 rows of 22 readers; four times a reader contradicts himself about opacity."""
    reads = verdicts_module.load_reads(expert_folder, vocabulary=NIH)
    assert reads.table["reader"].n_unique() == 22
    assert reads.table["image_id"].n_unique() == 4376
    assert reads.table.height == 13_081 * 3 - 2 * 4 - 2 * 4
    assert (reads.table["verdict"] == "uncertain").sum() == 165 + 261 - duplicates_that_hedge(expert_folder)
    assert {notice.code: notice.count for notice in reads.notices}["reader_contradicts"] == 4


def duplicates_that_hedge(folder):
    """How many hedges stand twice for one reader and film in the published file."""
    table = pl.read_csv(folder / "four_findings_readers.csv", infer_schema=False)
    again = table.filter(table.select("Image ID", "Reader ID").is_duplicated())
    return sum((again[column] == "HEDGE").sum() for column in ("Pneumothorax", "Nodule/mass")) // 2


GOOD = "Image ID,Mass\na.png, YES \nb.png,NO\n"


def refusal(path):
    """The one line with which a file is refused."""
    with pytest.raises(TruthError) as caught:
        verdicts.read_sheet(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "content",
    [GOOD, "\ufeff" + GOOD, GOOD.replace("\n", "\r\n"), GOOD.replace(",", ";"), "\n" + GOOD + "\n\n", GOOD.rstrip()],
    ids=["plain", "bom", "crlf", "semicolons", "blank lines", "no last newline"],
)
def test_a_sheet_is_read_as_written(sheet, content):
    """A byte order mark, CRLF, semicolons and blank lines do not matter; blanks around a cell go."""
    read = verdicts.read_sheet(sheet(content))
    assert read.cells.select("image id", "mass").rows() == [("a.png", "YES"), ("b.png", "NO")]
    assert read.titles == {"image id": "Image ID", "mass": "Mass"}


def test_a_row_knows_its_line(sheet):
    """So that an error can name it, blank lines counted."""
    read = verdicts.read_sheet(sheet("Image ID,Mass\na.png,YES\n\nb.png,NO\n"))
    assert read.cells[verdicts.LINE].to_list() == [2, 4]
    assert read.where(4).endswith("truth.csv, line 4")


def test_gzip_and_parquet_are_read_too(sheet, tmp_path):
    """The same rows from three kinds of file."""
    pl.DataFrame({"Image ID": ["a.png", "b.png"], "Mass": ["YES", "NO"]}).write_parquet(tmp_path / "t.parquet")
    rows = [("a.png", "YES"), ("b.png", "NO")]
    assert (
        verdicts.read_sheet(sheet(gzip.compress(GOOD.encode()), "t.csv.gz")).cells.select("image id", "mass").rows()
        == rows
    )
    assert verdicts.read_sheet(tmp_path / "t.parquet").cells.select("image id", "mass").rows() == rows


@pytest.mark.parametrize("header", ["a[x,y],b", '"a[x,y]",b'], ids=["unquoted", "quoted"])
def test_a_bracketed_header_names_a_column_a_word(sheet, header):
    """NIH writes `OriginalImage[Width,Height]` over two values, without quotes."""
    read = verdicts.read_sheet(sheet(f"{header}\n1,2,3\n"))
    assert read.cells["b"].to_list() == ["3"]


def test_a_missing_file_is_named(tmp_path):
    """With where to look."""
    assert mentions(refusal(tmp_path / "nowhere.csv"), "nowhere.csv", "does not exist")


@pytest.mark.parametrize("content", ["", " \n\n"])
def test_an_empty_file_is_refused(sheet, content):
    """Nothing at all, or nothing but blanks."""
    assert "is empty" in refusal(sheet(content))


def test_a_header_without_rows_is_refused(sheet):
    """It says nothing about any film."""
    assert "no row" in refusal(sheet("Image ID,Mass\n"))


@pytest.mark.parametrize("keep", [12, 25, 40])
def test_a_truncated_gzip_is_refused(sheet, keep):
    """Cut in its header or in the middle."""
    packed = gzip.compress((GOOD + "c.png,NO\n" * 50).encode())
    assert "cut off or damaged" in refusal(sheet(packed[:keep], "truth.csv.gz"))


def test_a_truncated_parquet_is_refused(sheet, tmp_path):
    """Cut in the middle, it has no footer."""
    whole = tmp_path / "whole.parquet"
    pl.DataFrame({"Image ID": ["a.png"] * 50}).write_parquet(whole)
    assert "no whole Parquet" in refusal(sheet(whole.read_bytes()[:60], "cut.parquet"))


def test_a_file_in_latin_1_is_refused_with_its_line(sheet):
    """And with the command that mends it."""
    message = refusal(sheet("Image ID,Reader\na.png,Ann\nb.png,J\xfcrgen\n".encode("latin-1")))
    assert mentions(message, "line 3", "0xfc", "iconv")


@pytest.mark.parametrize(
    ("row", "fields"), [("b.png", "1 field"), ("b.png,NO,NO", "3 fields")], ids=["cut off", "too long"]
)
def test_a_row_of_another_length_is_refused_with_its_line(sheet, row, fields):
    """A value in the wrong column would be a wrong truth."""
    message = refusal(sheet(f"Image ID,Mass\na.png,YES\n{row}\n"))
    assert mentions(message, f"line 3: {fields}", "2")


def test_a_doubled_column_is_refused(sheet):
    """Which of the two would count? Case and underscores make no other column."""
    message = refusal(sheet("Image ID,Pleural_Thickening,Pleural thickening\na,1,0\n"))
    assert mentions(message, "line 1", "'pleural thickening'", "twice")


def test_a_field_of_ten_megabytes_is_refused(sheet):
    """It is damage, such as a quote that never closes."""
    assert "line 2" in refusal(sheet(f'Image ID,Mass\n"{"x" * 10_000_000}",YES\n'))


def test_a_folder_instead_of_a_file_is_refused(tmp_path):
    """Reading a folder is the reference's business."""
    assert "cannot be read" in refusal(tmp_path)


def test_columns_are_found_without_reading_on(sheet):
    """A folder is sorted by columns; what cannot be read has none."""
    assert verdicts.sheet_columns(sheet(GOOD)) == ["image id", "mass"]
    assert verdicts.sheet_columns(sheet(b"\x1f\x8bnonsense", "x.csv.gz")) == []


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


KNOWN = spellings(NIH, ())
ROW = {
    "image_id": "a.png", "finding": "Pleural_Thickening", "reader": "ann", "verdict": "present", "phase": "blind",
    "saw_signal": 0, "repeat": 0, "stands": 1, "external_id": "x", "truth": None, "truth_by": None, "truth_round": None,
}  # fmt: skip


@pytest.fixture
def exported(tmp_path):
    """Write rows as an export, and read it as a sheet."""

    def make(*rows, kind="csv", drop=()):
        table = pl.DataFrame([ROW | row for row in rows], infer_schema_length=None).drop(drop)
        path = tmp_path / f"reads.{kind}"
        table.write_csv(path) if kind == "csv" else table.write_parquet(path)
        return verdicts.read_sheet(path)

    return make


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_only_what_was_said_blind_votes(exported, kind):
    """Not a second read, a round, a repeat, or what no longer stands."""
    others = ({"phase": "second", "saw_signal": 1}, {"phase": "round"}, {"repeat": 1}, {"stands": 0})
    rows = ({}, {"phase": "amended", "reader": "ben"}, {"phase": "imported", "reader": "cay"}, *others)
    assert voting(exported(*rows, kind=kind)).cells["reader"].to_list() == ["ann", "ben", "cay"]


def test_a_sheet_that_is_no_export_is_left_as_it_is(exported):
    """A column `phase` of somebody's own means nothing here."""
    own = exported({"phase": "arterial"}, drop=["external_id"])
    assert voting(own) is own
    assert adjudicated_in_export(own, KNOWN).is_empty()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_what_people_settled_is_known(exported, kind):
    """By an adjudicator or in a round; a majority of blind reads, a hedge, and a finding nobody audits are not."""
    rows = (
        {"truth": "absent", "truth_by": "dee", "truth_round": 0},
        {"truth": "present", "finding": "Mass", "truth_round": 2},
        {"truth": "present", "finding": "Nodule", "truth_round": 0},
        {"truth": "uncertain", "finding": "Edema", "truth_by": "dee", "truth_round": 0},
        {"truth": "present", "finding": "Fracture", "truth_by": "dee", "truth_round": 0},
    )
    told = adjudicated_in_export(exported(*rows, kind=kind), KNOWN)
    assert told.rows() == [("a.png", "Pleural_Thickening", 0.0), ("a.png", "Mass", 1.0)]


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
