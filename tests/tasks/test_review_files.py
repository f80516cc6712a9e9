"""Reviews as files: what export and import do, and what readers came to in every format."""

import csv
import json
import re
import shutil
import time
from collections import Counter, defaultdict

import polars as pl
import pytest
from sqlalchemy import insert

import bpals
import shape
from bpals.errors import TruthError, UnknownName, UsageError, WorkspaceError
from bpals.findings import Vocabulary
from bpals.numeric import majority
from bpals.registry import EXPORTS
from bpals.reviews import coco, dicom_sr, fiftyone, verdicts
from bpals.reviews.agreement import Bootstrap, among
from bpals.reviews.exchange import KEPT, TRUTH, Films, add_reviews, all_reviews
from bpals.reviews.ledger_reads import reads_of
from bpals.room.desk.desk import Desk
from bpals.room.desk.readings import Answer
from bpals.room.desk.study import Account
from bpals.store.ledger import Ledger, log
from bpals.store.ledger.schema import ACCOUNT, REVIEW
from bpals.store.workspace import LEDGER, Workspace
from bpals.tasks.datasets import load_source
from bpals.tasks.review_files import export_reviews, import_reviews, load_reviews
from world import desks, review_tables, workspaces

COLUMNS = {
    "Fracture": "Fracture",
    "Pneumothorax": "Pneumothorax",
    "Nodule or mass": "Nodule/mass",
    "Airspace opacity": "Airspace opacity",
}
"""Finding -> what the file of reads calls it."""


@pytest.fixture(scope="session")
def nih_record(tmp_path_factory):
    """The films and claims of NIH, sealed; copy it."""
    return workspaces.seal(tmp_path_factory.mktemp("record") / "nih", load_source("nih", None))


@pytest.fixture(scope="session")
def small_record(tmp_path_factory):
    """A dataset of 600 films, sealed; copy it."""
    return workspaces.seal_small(tmp_path_factory.mktemp("record") / "small")


@pytest.fixture
def home(small_record, tmp_path):
    """A workspace of 600 films."""
    return shutil.copytree(small_record, tmp_path / "audit")


@pytest.fixture
def films(home):
    """Its first films."""
    return tuple(pl.read_parquet(home / "images.parquet")["image_id"].head(3))


def keep(home, reviews):
    """Put reviews into a ledger as if they had come from a file."""
    with Ledger.open(home / LEDGER) as ledger, ledger.lock("test"):
        ledger.change(lambda connection: add_reviews(connection, reviews, "test"))


@pytest.fixture
def written(home, films):
    """A workspace with 24 reviews."""
    keep(home, review_tables.reviews(images=films))
    return home


@pytest.fixture(scope="session")
def reads(data_folder):
    """The 13,081 real single reads, as plain rows, and the file."""
    file = data_folder / "expert" / "four_findings_readers.csv"
    with file.open(newline="", encoding="utf-8") as opened:
        return file, list(csv.DictReader(opened))


@pytest.fixture(scope="session")
def brought(nih_record, reads, tmp_path_factory):
    """The real reads in a workspace, what was told, and how long it took."""
    home = shutil.copytree(nih_record, tmp_path_factory.mktemp("brought") / "audit")
    begin = time.process_time()
    told = import_reviews(home, reads[0])
    return home, told, time.process_time() - begin


def adjudicated(data_folder):
    """The adjudicated label of each film, as plain rows."""
    labels = {}
    for name in ("val", "test"):
        with (data_folder / "expert" / f"four_findings_{name}.csv").open(newline="", encoding="utf-8") as opened:
            labels |= {row["Image Index"]: row for row in csv.DictReader(opened)}
    return labels


def votes_of(rows, column):
    """Count YES and NO of each film, by hand."""
    votes = defaultdict(Counter)
    for row in rows:
        votes[row["Image ID"]][row[column]] += 1
    return votes


def test_every_real_read_is_kept(brought, reads):
    """Four verdicts a row: 52,324 reviews by 22 readers, of 4,376 films, HEDGE as uncertain."""
    home, told, _ = brought
    _, rows = reads
    assert (told.read, told.reviews.height, told.already) == (4 * len(rows), 4 * 13_081, 0)
    kept = load_reviews(home)
    words = {"YES": "present", "NO": "absent", "HEDGE": "uncertain"}
    said = Counter((row["Image ID"], finding, row["Reader ID"], words[row[column]])
                   for row in rows for finding, column in COLUMNS.items())  # fmt: skip
    assert Counter(kept.select("image_id", "finding", "reader", "verdict").iter_rows()) == said
    assert set(kept["phase"]) == {"imported"}
    assert sum(kept["saw_signal"]) == 0


def test_what_is_odd_about_the_real_reads_is_told(brought, reads):
    """Fracture is not audited; four readers contradict themselves about opacity, and both of their reads are kept."""
    home, told, _ = brought
    _, rows = reads
    counts = {notice.code: notice.count for notice in told.notices}
    twice = [key for key, count in Counter((r["Image ID"], r["Reader ID"]) for r in rows).items() if count > 1]
    assert len(twice) == 4
    assert counts == {"unaudited": 13_081, "reader_contradicts": 4, "reader_repeats": 12}
    opacity = load_reviews(home).filter(pl.col("finding") == "Airspace opacity")
    for film, reader in twice:
        both = opacity.filter((pl.col("image_id") == film) & (pl.col("reader") == reader))
        assert sorted(both["verdict"]) == ["absent", "present"]


@pytest.mark.parametrize(
    ("finding", "present", "otherwise"),
    [("Pneumothorax", 199, 77), ("Nodule or mass", 426, 247), ("Airspace opacity", 1974, 258)],
)
def test_the_majority_of_the_real_reads(brought, reads, data_folder, finding, present, otherwise):
    """HEDGE is no vote, a tie is not present; and where it differs from the adjudicated label."""
    votes = votes_of(reads[1], COLUMNS[finding])
    wanted = {film: count["YES"] > count["NO"] for film, count in votes.items()}
    labels = adjudicated(data_folder)
    assert sum(wanted.values()) == present
    assert sum(said != (labels[film][finding] == "YES") for film, said in wanted.items()) == otherwise
    ours = majority(load_reviews(brought[0])).filter(pl.col("finding") == finding)
    assert dict(ours.select("image_id", "present").iter_rows()) == wanted
    truth = verdicts.load(f"four-findings={data_folder / 'expert'}", vocabulary=bpals.findings.NIH).truth
    beside = ours.join(truth, on=["image_id", "finding"], suffix="_adjudicated")
    assert beside.filter(pl.col("present") != pl.col("present_adjudicated")).height == otherwise


def agreement_by_hand(votes):
    """Work the statistics of agreement out from counts of YES and NO, in plain Python."""
    films = [(count["YES"], count["NO"]) for count in votes.values() if count["YES"] + count["NO"] > 1]
    alike = sum((y * (y - 1) + n * (n - 1)) / ((y + n) * (y + n - 1)) for y, n in films) / len(films)
    share = sum(y / (y + n) for y, n in films) / len(films)
    fleiss_chance, gwet_chance = share**2 + (1 - share) ** 2, 2 * share * (1 - share)
    both, split, neither = 0.0, 0.0, 0.0
    for y, n in films:
        both += y * (y - 1) / (y + n - 1)
        split += 2 * y * n / (y + n - 1)
        neither += n * (n - 1) / (y + n - 1)
    ones, zeros = both + split / 2, neither + split / 2
    return {
        "agreement": alike,
        "fleiss": (alike - fleiss_chance) / (1 - fleiss_chance),
        "ac1": (alike - gwet_chance) / (1 - gwet_chance),
        "alpha": 1 - split / (2 * ones * zeros / (ones + zeros - 1)),
        "positive": both / ones,
        "negative": neither / zeros,
    }


def test_the_agreement_of_the_real_readers(brought, reads):
    """Kappa, AC1, alpha and the specific agreements are those worked out by hand from the file."""
    told = among(load_reviews(brought[0]), pl.read_parquet(brought[0] / "images.parquet"), Bootstrap(draws=2))
    rows = {row["finding"]: row for row in told}
    for finding, column in COLUMNS.items():
        for figure, value in agreement_by_hand(votes_of(reads[1], column)).items():
            assert rows[finding][figure] == pytest.approx(value, abs=1e-9), (finding, figure)


def test_the_real_reads_brought_in_twice_are_the_same(brought, reads):
    """Nothing new, nothing doubled, and the log holds."""
    home, _, _ = brought
    before = load_reviews(home)
    again = import_reviews(home, reads[0])
    assert (again.reviews.height, again.already) == (0, 52_324)
    assert load_reviews(home).equals(before)
    with Ledger.open(home / LEDGER, readonly=True) as ledger:
        assert log.check(ledger).found == []


def test_the_real_reads_come_in_quickly(brought):
    """A second or so on a free machine; ten of its processor at most here, which a row at a time would not keep."""
    assert brought[2] < 10


def test_the_real_reads_go_out_and_come_back(brought, nih_record, tmp_path):
    """Into a workspace that never saw them, as the same reviews."""
    export_reviews(brought[0], tmp_path / "out.csv")
    other = shutil.copytree(nih_record, tmp_path / "audit")
    assert import_reviews(other, tmp_path / "out.csv").reviews.height == 52_324
    assert review_tables.same(load_reviews(other), load_reviews(brought[0]))


@pytest.mark.parametrize("form", ["csv", "parquet", "label-studio", "fiftyone"])
def test_whole_formats_give_the_same_reviews(written, small_record, tmp_path, form):
    """Brought into another workspace, and once more: every column, and none twice."""
    file = tmp_path / "out"
    assert export_reviews(written, file, format=form).reviews == 24
    other = shutil.copytree(small_record, tmp_path / "other")
    assert import_reviews(other, file).reviews.height == 24
    assert import_reviews(other, file).reviews.height == 0
    assert review_tables.same(load_reviews(other), load_reviews(written))
    assert import_reviews(written, file).reviews.height == 0


def test_boxes_go_out_as_coco_with_the_size_of_their_films(written, films, tmp_path, small_record):
    """The films are found where the workspace remembers them."""
    pictures = tmp_path / "films"
    pictures.mkdir()
    from PIL import Image

    for film in films:
        Image.new("L", (70, 90), 30).save(pictures / film)
    Workspace(written).remember(images=str(pictures))
    export_reviews(written, tmp_path / "boxes.json", format="coco")
    images = json.loads((tmp_path / "boxes.json").read_bytes())["images"]
    assert {(each["width"], each["height"]) for each in images} == {(70, 90)}
    other = shutil.copytree(small_record, tmp_path / "other")
    assert import_reviews(other, tmp_path / "boxes.json").reviews.height == 6


def test_dicom_sr_goes_out_for_dicom_films_and_comes_back(written, films, tmp_path, small_record):
    """A folder of reports, which is read as one."""
    pytest.importorskip("highdicom")
    pictures = tmp_path / "films"
    pictures.mkdir()
    (pictures / films[0]).with_suffix(".dcm").write_bytes(review_tables.dicom())
    told = export_reviews(written, tmp_path / "reports", format="dicom-sr", images=pictures)
    assert {notice.code for notice in told.notices} == {"no_dicom"}
    other = shutil.copytree(small_record, tmp_path / "other")
    assert import_reviews(other, tmp_path / "reports").reviews.height == 8


def test_nothing_is_overwritten(written, tmp_path):
    """Neither a file nor a link to nowhere."""
    target = tmp_path / "out.csv"
    target.write_text("mine")
    with pytest.raises(UsageError, match=r"out\.csv is there already"):
        export_reviews(written, target)
    assert target.read_text() == "mine"
    (tmp_path / "link.csv").symlink_to(tmp_path / "nowhere.csv")
    with pytest.raises(UsageError, match="there already"):
        export_reviews(written, tmp_path / "link.csv")
    assert not (tmp_path / "nowhere.csv").exists()
    assert not list(tmp_path.glob(".*part*"))


def test_a_read_of_the_room_is_known_by_its_reading(home, films):
    """Exported and brought back, it is the one that is there."""
    row = review_tables.reviews(1, images=films).row(0, named=True)
    with Ledger.open(home / LEDGER) as ledger, ledger.lock("test"), ledger.writing() as connection:
        said = {name: row[name] for name in KEPT.names()} | {"source": "room", "external_id": None}
        connection.execute(insert(REVIEW), [said, said | {"verdict": "absent", "phase": "amended"}])
        ids = all_reviews(connection)["external_id"]
    assert ids.n_unique() == 2
    assert ids.null_count() == 0
    export_reviews(home, home / "out.csv")
    assert import_reviews(home, home / "out.csv").reviews.is_empty()


SHEET = "image_id,finding,reader,verdict\n{0},Effusion,ann,YES\n{0},Fracture,ann,HEDGE\n{1},effusion,ann,NO\n"


def test_a_sheet_with_a_row_a_finding_is_read(home, films, tmp_path):
    """Findings by their folded names, others as they are written."""
    (tmp_path / "sheet.csv").write_text(SHEET.format(*films))
    told = import_reviews(home, tmp_path / "sheet.csv")
    assert sorted(told.reviews.select("finding", "verdict").rows()) == [
        ("Effusion", "absent"),
        ("Effusion", "present"),
        ("Fracture", "uncertain"),
    ]


def test_a_row_that_is_added_to_a_sheet_is_the_only_new_one(home, films, tmp_path):
    """A sheet that grows is brought in again; a verdict that was changed stands beside the first."""
    sheet = tmp_path / "sheet.csv"
    sheet.write_text(SHEET.format(*films))
    import_reviews(home, sheet)
    sheet.write_text(SHEET.format(*films).replace("YES", "NO") + f"{films[2]},Effusion,ann,YES\n")
    told = import_reviews(home, sheet)
    assert (told.already, told.reviews.height) == (2, 2)


def test_who_read_may_be_said_with_the_command(home, films, tmp_path):
    """Where a file names nobody; without it the read is refused."""
    (tmp_path / "sheet.csv").write_text(f"image_id,Effusion\n{films[0]},YES\n")
    with pytest.raises(TruthError, match=r"sheet\.csv, read 1: .*--reader"):
        import_reviews(home, tmp_path / "sheet.csv")
    assert import_reviews(home, tmp_path / "sheet.csv", reader="ann").reviews["reader"].to_list() == ["ann"]


def test_a_film_may_be_called_by_its_address(home, films, tmp_path):
    """As other tools write it: a folder before it, or eight signs."""
    rows = [f"/data/upload/3/0a1b2c3d-{films[0]},ann,YES", f"s3://x/{films[1]}?v=1,ann,NO", "strange.png,ann,NO"]
    (tmp_path / "sheet.csv").write_text("image_id,reader,Effusion\n" + "\n".join(rows) + "\n")
    told = import_reviews(home, tmp_path / "sheet.csv")
    assert told.reviews["image_id"].to_list() == list(films[:2])
    assert [(notice.code, notice.count) for notice in told.notices] == [("unknown_images", 1)]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("image_id,finding,reader,verdict\nnowhere.png,Effusion,a,YES\n", TruthError, "no read is about a film"),
        ("image_id,finding,reader,verdict\n{0},Effusoin,a,YES\n", UnknownName, "Did you mean 'Effusion'"),
        ("image_id,finding,reader,verdict\n{0},Effusion,a,PERHAPS\n", TruthError, "'PERHAPS' under 'Effusion'"),
        ("image_id,reader\n{0},a\n", TruthError, "no column holds verdicts"),
        ('{{"a": 1}}', TruthError, "is JSON.*label-studio"),
        ("image_id,finding,reader,verdict,phase,external_id\n{0},Effusion,a,present,asleep,1\n", TruthError,
         r"read 1: 'asleep' is no phase\. Write blind"),
        ("image_id,finding,reader,verdict,phase,external_id,box\n{0},Effusion,a,present,blind,1,[[1]]\n", TruthError,
         r"'\[\[1\]\]' is no list of boxes"),
        ("image_id,finding,reader,verdict,phase,external_id,inclusion\n{0},Effusion,a,present,blind,1,2\n", TruthError,
         r"2\.0 is no chance of being drawn"),
        ("image_id,finding,reader,verdict,phase,external_id,confidence\n{0},Effusion,a,present,blind,1,101\n",
         TruthError, r"101 is no confidence: it goes from 0 to 100"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_is_refused_in_one_line(home, films, tmp_path, text, error, message):
    """And nothing of it is kept."""
    (tmp_path / "sheet.csv").write_text(text.format(*films))
    with pytest.raises(error, match=message):
        import_reviews(home, tmp_path / "sheet.csv")
    assert not (home / LEDGER).exists()


def test_names_and_places_that_are_wrong_are_told(home, tmp_path):
    """An unknown format, a missing file, an ending that tells nothing, a workspace without reviews."""
    with pytest.raises(UnknownName, match="Did you mean 'label-studio'"):
        import_reviews(home, tmp_path / "x.json", format="labelstudio")
    with pytest.raises(TruthError, match=r"x\.csv .*bpals review import"):
        import_reviews(home, tmp_path / "x.csv")
    with pytest.raises(UsageError, match=f"--format {EXPORTS.names()[0]}"):
        export_reviews(home, tmp_path / "out.txt")
    with pytest.raises(UsageError, match="holds no review yet"):
        export_reviews(home, tmp_path / "out.csv")


def test_while_another_writes_nothing_is_brought_in(home, films, tmp_path):
    """And it is told who writes."""
    (tmp_path / "sheet.csv").write_text(SHEET.format(*films))
    with Ledger.open(home / LEDGER) as ledger, ledger.lock("bpals review serve"):
        with pytest.raises(WorkspaceError, match=r"bpals review serve \(process \d+"):
            import_reviews(home, tmp_path / "sheet.csv")
        assert load_reviews(home).is_empty()


def test_on_postgresql_it_is_the_same(postgres_url, written, small_record, tmp_path):
    """X06: an export of SQLite, brought into PostgreSQL twice, out of it again and back."""
    other = shutil.copytree(small_record, tmp_path / "other")
    export_reviews(written, tmp_path / "out.csv")
    for new in (24, 0):
        assert import_reviews(other, tmp_path / "out.csv", ledger=postgres_url).reviews.height == new
    assert review_tables.same(load_reviews(other, ledger=postgres_url), load_reviews(written))
    export_reviews(other, tmp_path / "again.parquet", ledger=postgres_url)
    assert import_reviews(written, tmp_path / "again.parquet").reviews.is_empty()
    with Ledger.open(postgres_url) as ledger:
        assert log.check(ledger).found == []


def test_the_docs_list_what_comes_back():
    """Every column that a file gives back stands in docs/review-files.md, for each format under its own heading."""
    page = (shape.ROOT / "docs" / "review-files.md").read_text(encoding="utf-8")
    parts = dict(part.partition("\n")[::2] for part in page.split("\n## ")[1:])
    table = [line.split("|") for line in parts["CSV and Parquet"].splitlines() if line.startswith("|`")]
    kept = {name for line in table if line[3].strip() == "yes" for name in re.findall(r"`(\w+)`", line[1])}
    assert kept == set(KEPT.names())
    for heading, columns in (("COCO", coco.GIVEN_BACK), ("DICOM SR", dicom_sr.GIVEN_BACK)):
        listed = re.search(r"Come back: (.*?)[;.]", parts[heading].replace("\n", " "))
        assert tuple(re.findall(r"`(\w+)`", listed[1])) == columns
    assert tuple(KEPT.names()) == fiftyone.GIVEN_BACK


def test_what_was_undone_or_amended_does_not_come_back(home, small_record, tmp_path):
    """It goes out as what no longer stands, as the desk sees it, and votes nowhere else."""
    films = pl.read_parquet(home / "images.parquet").head(2)
    with Ledger.open(home / LEDGER) as ledger, ledger.lock("test"):
        (ann,) = desks.enter(ledger, "ann")
        study = desks.make_study(name="one", findings=("Effusion",), readers_per_case=1, adjudication="none")
        desk = Desk.open(ledger, study)
        drawn = desks.films(2, finding="Effusion").with_columns(films["image_id"], films["patient_id"])
        desk.draw(drawn, desks.SIGNAL)
        for after in ("undo", "amend"):
            view = desk.next(ann).current
            said = {"answer": desks.says("Effusion"), "key": f"{after}-lock"}
            locked = desk.lock(ann, view.reading_id, version=view.version, spent=desks.SPENT, **said)
            if after == "undo":
                back = desk.undo(ann, view.reading_id, version=locked.version, key="undo")
                said |= {"version": back.version, "key": "lock-again", "answer": desks.says()}
                desk.lock(ann, view.reading_id, spent=desks.SPENT, **said)
            else:
                said |= {"version": locked.version, "key": "amend", "answer": desks.says(), "reason": "a slip"}
                desk.amend(ann, view.reading_id, **said)
        stands = desk.reviews().sort("review_id")["stands"].cast(pl.Int64).to_list()
    assert load_reviews(home)["stands"].to_list() == stands == [0, 1, 0, 1]
    export_reviews(home, tmp_path / "out.csv")
    other = shutil.copytree(small_record, tmp_path / "other")
    told = import_reviews(other, tmp_path / "out.csv")
    assert [(notice.code, notice.count) for notice in told.notices] == [("replaced_reads", 2)]
    assert (told.read, told.already) == (4, 0)
    assert told.reviews.select("phase", "verdict").rows() == [("blind", "absent"), ("amended", "absent")]
    assert import_reviews(home, tmp_path / "out.csv").reviews.is_empty()


FINDINGS = ("Cardiomegaly", "Effusion", "Pneumothorax")
WHO = (ACCOUNT.c.account_id, ACCOUNT.c.name)
PRESENT = {"ann": ("Effusion", "Pneumothorax"), "ben": ("Pneumothorax",)}


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """A workspace without a ledger; copy it."""
    return workspaces.seal_small(tmp_path_factory.mktemp("truth") / "empty")


@pytest.fixture(scope="module")
def settled_home(empty, tmp_path_factory):
    """A study of two films: two readers differ about effusion, an adjudicator settles it on one film, not the other."""
    folder = shutil.copytree(empty, tmp_path_factory.mktemp("truth") / "audit")
    films = pl.read_parquet(folder / "images.parquet").head(2)
    with Ledger.open(folder / LEDGER) as ledger, ledger.lock("test"):
        readers = desks.enter(ledger, *PRESENT)
        (judge,) = desks.enter(ledger, "cay", role="adjudicator")
        desk = Desk.open(ledger, desks.make_study(name="pilot", findings=FINDINGS, adjudication="adjudicator"))
        drawn = desks.films(2, finding="Effusion").with_columns(films["image_id"], films["patient_id"])
        desk.draw(drawn, desks.SIGNAL)
        for reader in readers:
            desks.read_all(desk, reader, desks.says(*PRESENT[reader.name]))
        desks.let_leases_end(ledger)
        for reader in readers:
            desk.next(reader)
        shown = desk.adjudication_next(judge)
        said = {"Effusion": ("absent", "adjudicator")}
        words = {"pinned": shown.pinned, "key": desks.fresh_key(), "note": "=a skin fold"}
        desk.adjudicate(judge, shown.case_id, verdicts=said, **words)
    return folder


@pytest.fixture(scope="module")
def amended(settled_home, settled, tmp_path_factory):
    """The same study, after one reader amended the film that was settled."""
    folder = shutil.copytree(settled_home, tmp_path_factory.mktemp("truth") / "audit")
    reading = load_reviews(folder).filter(image_id=settled, reader="ann")["reading_id"][0]
    with Ledger.open(folder / LEDGER) as ledger, ledger.lock("test"):
        desk = Desk.open(ledger, desks.make_study(name="pilot", findings=FINDINGS, adjudication="adjudicator"))
        ann = next(
            Account(account_id=row.account_id, name=row.name)
            for row in desks.rows(ledger, ACCOUNT, *WHO)
            if row.name == "ann"
        )
        words = {"version": desk.reading(ann, reading).version, "key": desks.fresh_key()}
        desk.amend(ann, reading, **words, answer=Answer(), reason="=slipped a line")
    return folder


@pytest.fixture(scope="module")
def settled(settled_home):
    """The film whose effusion was settled."""
    return load_reviews(settled_home).filter(pl.col("truth_how") == "adjudicator")["image_id"][0]


def test_every_review_has_what_its_readers_came_to(settled_home, settled):
    """How, by whom, when, and the note; what is still open has no truth and says so."""
    told = load_reviews(settled_home)
    adjudicated = told.filter(image_id=settled, finding="Effusion")
    assert adjudicated.select("truth", "truth_how", "truth_by", "truth_note").unique().rows() == [
        ("absent", "adjudicator", "cay", "=a skin fold")
    ]
    assert adjudicated["reader"].to_list() == ["ann", "ben"]
    agreed = told.filter(image_id=settled, finding="Pneumothorax")
    assert agreed.select("truth", "truth_how", "truth_by").unique().rows() == [("present", "consensus", None)]
    assert agreed["truth_at"].to_list() == [agreed["at"].max()] * 2
    left = told.filter(pl.col("image_id") != settled, pl.col("finding") == "Effusion")
    assert left.select("truth", "truth_how").unique().rows() == [(None, "open")]


def test_one_reader_alone_is_no_truth(empty, tmp_path):
    """His own word beside him would make him perfect."""
    folder = shutil.copytree(empty, tmp_path / "audit")
    film = pl.read_parquet(folder / "images.parquet").head(1)
    with Ledger.open(folder / LEDGER) as ledger, ledger.lock("test"):
        (ann,) = desks.enter(ledger, "ann")
        alone = {"readers_per_case": 1, "adjudication": "none", "reveal": True}
        desk = Desk.open(ledger, desks.make_study(findings=FINDINGS, **alone))
        drawn = desks.films(1, finding="Effusion").with_columns(film["image_id"], film["patient_id"])
        desk.draw(drawn, desks.SIGNAL)
        desks.read(desk, ann)
        assert desk.consensus()["how"].unique().to_list() == ["single"]
    assert load_reviews(folder).select("truth", "truth_how").unique().rows() == [(None, "single")]


def test_a_read_from_a_file_has_what_a_study_came_to_about_its_pair(settled_home, settled, tmp_path):
    """A study of readers wants one truth a case, whoever read it."""
    folder = shutil.copytree(settled_home, tmp_path / "audit")
    (tmp_path / "sheet.csv").write_text(f"image_id,reader,Effusion\n{settled},dee,YES\n")
    import_reviews(folder, tmp_path / "sheet.csv")
    assert load_reviews(folder).filter(reader="dee")["truth"].to_list() == ["absent"]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_tables_carry_it(settled_home, settled, tmp_path, form):
    """Seven columns; a note that a spreadsheet would run is quoted as any other."""
    export_reviews(settled_home, tmp_path / f"out.{form}")
    table = pl.read_csv(tmp_path / "out.csv") if form == "csv" else pl.read_parquet(tmp_path / "out.parquet")
    row = table.filter(image_id=settled, finding="Effusion", reader="ann").row(0, named=True)
    note = "'=a skin fold" if form == "csv" else "=a skin fold"
    assert [row[name] for name in TRUTH.names() if name != "truth_at"] == ["absent", "adjudicator", 0, "cay", note, 0]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_tables_say_why_a_read_was_amended_and_what_was_settled_before(amended, settled, tmp_path, form):
    """The rows of the amendment have its reason and no other row has one; only the adjudicated pair is marked."""
    export_reviews(amended, tmp_path / f"out.{form}")
    table = pl.read_csv(tmp_path / "out.csv") if form == "csv" else pl.read_parquet(tmp_path / "out.parquet")
    reason = "'=slipped a line" if form == "csv" else "=slipped a line"
    told = table.filter(phase="amended")
    assert told.select("image_id", "reader", "reason").rows() == [(settled, "ann", reason)] * 3
    assert table.filter(pl.col("phase") != "amended")["reason"].is_null().all()
    since = table.filter(amended_since=1)
    assert since.select("image_id", "finding", "truth").unique().rows() == [(settled, "Effusion", "absent")]
    assert since["phase"].to_list() == ["blind", "blind", "amended"]


def test_label_studio_and_fiftyone_say_it_too(amended, settled, tmp_path):
    """The reason under `meta` of each choice of the amendment, and as an attribute of each classification."""
    export_reviews(amended, tmp_path / "tasks.json", format="label-studio")
    task = next(each for each in json.loads((tmp_path / "tasks.json").read_bytes()) if each["data"]["image"] == settled)
    *reads, truth = task["annotations"]
    reasons = [{each["meta"]["bpals"]["reason"] for each in annotation["result"]} for annotation in reads]
    assert reasons == [{None}, {None}, {"=slipped a line"}]
    since = {each["from_name"]: each["meta"]["bpals_truth"]["amended_since"] for each in truth["result"]}
    assert since == {"Cardiomegaly": 0, "Effusion": 1}
    export_reviews(amended, tmp_path / "samples.json", format="fiftyone")
    samples = json.loads((tmp_path / "samples.json").read_bytes())["samples"]
    sample = next(each for each in samples if each["filepath"] == settled)
    said = sample["absent"]["classifications"]
    assert {each["reason"] for each in said if each["phase"] == "amended"} == {"=slipped a line"}
    assert {each["reason"] for each in said if each["phase"] == "blind"} == {None}
    since = {each["label"]: each["amended_since"] for each in sample["consensus_absent"]["classifications"]}
    assert since == {"Cardiomegaly": 0, "Effusion": 1}


@pytest.mark.parametrize("form", ["csv", "parquet", "label-studio", "fiftyone"])
def test_a_reason_does_not_come_back(amended, empty, tmp_path, form):
    """It is the log's of the ledger in which the reader amended; the read that it explains comes back."""
    export_reviews(amended, tmp_path / "out", format=form)
    other = shutil.copytree(empty, tmp_path / "other")
    import_reviews(other, tmp_path / "out")
    back = load_reviews(other)
    assert back.filter(phase="amended").height == 3
    assert back["reason"].is_null().all()
    assert back["amended_since"].is_null().all()


def test_label_studio_has_it_as_ground_truth(settled_home, settled, tmp_path):
    """An annotation of its own beside those of the two readers."""
    export_reviews(settled_home, tmp_path / "tasks.json", format="label-studio")
    task = next(each for each in json.loads((tmp_path / "tasks.json").read_bytes()) if each["data"]["image"] == settled)
    assert [each["ground_truth"] for each in task["annotations"]] == [False, False, True]
    choices = {each["from_name"]: each["value"]["choices"] for each in task["annotations"][2]["result"]}
    assert choices == {"Cardiomegaly": ["absent"], "Effusion": ["absent"], "Pneumothorax": ["present"]}
    meta = next(each["meta"] for each in task["annotations"][2]["result"] if each["from_name"] == "Effusion")
    assert meta["bpals_truth"]["truth_by"] == "cay"


def test_a_consensus_that_somebody_changed_in_label_studio_is_their_read(settled_home, empty, settled, tmp_path):
    """What was left as it was is still none."""
    export_reviews(settled_home, tmp_path / "tasks.json", format="label-studio")
    tasks = json.loads((tmp_path / "tasks.json").read_bytes())
    task = next(each for each in tasks if each["data"]["image"] == settled)
    truth = task["annotations"][2] | {"id": 7, "completed_by": {"email": "dee@example.org"}}
    truth["result"][1]["value"]["choices"] = ["uncertain"]
    task["annotations"] = [truth]
    (tmp_path / "changed.json").write_text(json.dumps([task]))
    told = import_reviews(shutil.copytree(empty, tmp_path / "other"), tmp_path / "changed.json")
    assert told.reviews.select("finding", "reader", "verdict").rows() == [
        (truth["result"][1]["from_name"], "dee@example.org", "uncertain")
    ]
    assert [(notice.code, notice.count) for notice in told.notices] == [("settled", 2)]


def test_fiftyone_has_it_in_fields_of_its_own(settled_home, settled, tmp_path):
    """Called after the verdict, with who settled it and how."""
    export_reviews(settled_home, tmp_path / "samples.json", format="fiftyone")
    samples = json.loads((tmp_path / "samples.json").read_bytes())["samples"]
    sample = next(each for each in samples if each["filepath"] == settled)
    assert [each["label"] for each in sample["consensus_present"]["classifications"]] == ["Pneumothorax"]
    absent = {each["label"]: each for each in sample["consensus_absent"]["classifications"]}
    assert (absent["Effusion"]["how"], absent["Effusion"]["by"]) == ("adjudicator", "cay")


def test_coco_has_it_beside_each_box(settled_home, settled):
    """A consensus has no box of its own."""
    boxed = load_reviews(settled_home).with_columns(box=pl.lit("[[1, 2, 3, 4]]"))
    whole = json.loads(coco.write(boxed, Films()).files[""])
    film = next(each["id"] for each in whole["images"] if each["file_name"] == settled)
    effusion = next(each["id"] for each in whole["categories"] if each["name"] == "Effusion")
    told = [
        (each["attributes"]["truth"], each["attributes"]["truth_how"])
        for each in whole["annotations"]
        if (each["image_id"], each["category_id"]) == (film, effusion)
    ]
    assert told == [("absent", "adjudicator")] * 2


def test_dicom_sr_has_a_report_by_the_adjudicator_and_one_by_the_device(settled_home, settled, empty, tmp_path):
    """Two of readings, two of what they came to; brought in, only the readings are reads, and the rest is counted."""
    pytest.importorskip("highdicom")
    films = tmp_path / "films"
    films.mkdir()
    (films / settled).with_suffix(".dcm").write_bytes(review_tables.dicom())
    assert export_reviews(settled_home, tmp_path / "reports", format="dicom-sr", images=films).files == 4
    texts = [file.read_bytes() for file in (tmp_path / "reports").iterdir()]
    assert sum(b"consensus pilot" in text for text in texts) == 2
    assert sum(b"adjudicator" in text and b"cay" in text for text in texts) == 1
    told = import_reviews(shutil.copytree(empty, tmp_path / "other"), tmp_path / "reports")
    assert (told.read, sorted(told.reviews["reader"].unique())) == (6, ["ann", "ben"])
    assert [(notice.code, notice.count) for notice in told.notices] == [("settled", 3)]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_an_export_given_to_an_audit_votes_as_its_room_did(settled_home, settled, tmp_path, form):
    """`bpals audit --reviews` hears the blind reads, not the second ones, and what the adjudicator settled."""
    export_reviews(settled_home, tmp_path / f"out.{form}")
    second = load_reviews(settled_home).filter(reader="ann").with_columns(phase=pl.lit("second"), saw_signal=1)
    written = pl.read_csv if form == "csv" else pl.read_parquet
    whole = written(tmp_path / f"out.{form}")
    both = pl.concat([whole, second.with_columns(rating=None).select(whole.columns)], how="vertical_relaxed")
    both.write_csv(tmp_path / "both.csv") if form == "csv" else both.write_parquet(tmp_path / "both.parquet")
    told = verdicts.load_reads(tmp_path / f"both.{form}", vocabulary=Vocabulary(name="films", findings=FINDINGS))
    assert told.table.height == 12
    assert told.settled.rows() == [(settled, "Effusion", 0.0)]
    assert [(notice.code, notice.count) for notice in told.notices] == [("no_votes", 6)]
    with Ledger.open(settled_home / LEDGER, readonly=True) as ledger:
        own = ledger.look(lambda connection: reads_of(connection, Vocabulary(name="films", findings=FINDINGS)))
    assert own.settled.rows() == told.settled.rows()
    order = ["image_id", "finding", "reader"]
    assert own.table.sort(order).equals(told.table.sort(order))


@pytest.mark.parametrize("form", ["csv", "parquet", "label-studio", "fiftyone"])
def test_no_consensus_comes_back_as_a_read(settled_home, empty, tmp_path, form):
    """Twelve reads of two readers go out, and just these come in, here and elsewhere."""
    export_reviews(settled_home, tmp_path / "out", format=form)
    other = shutil.copytree(empty, tmp_path / "other")
    assert import_reviews(other, tmp_path / "out").read == 12
    back = load_reviews(other)
    assert review_tables.same(back, load_reviews(settled_home))
    assert back["truth_how"].is_null().all()
    again = shutil.copytree(settled_home, tmp_path / "again")
    assert import_reviews(again, tmp_path / "out").reviews.is_empty()
