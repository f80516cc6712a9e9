"""What readers came to goes out in every format with who settled it, and comes back from none as a read."""

import json
import shutil

import polars as pl
import pytest

from bpals.findings import Vocabulary
from bpals.reviews import coco, verdicts
from bpals.reviews.exchange import TRUTH, Films
from bpals.reviews.ledger_reads import reads_of
from bpals.room.desk.desk import Desk
from bpals.room.desk.readings import Answer
from bpals.room.desk.study import Account
from bpals.store.ledger import Ledger
from bpals.store.ledger.schema import ACCOUNT
from bpals.store.workspace import LEDGER
from bpals.tasks.review_files import export_reviews, import_reviews, load_reviews
from world import desks, review_tables, workspaces

FINDINGS = ("Cardiomegaly", "Effusion", "Pneumothorax")
WHO = (ACCOUNT.c.account_id, ACCOUNT.c.name)
PRESENT = {"ann": ("Effusion", "Pneumothorax"), "ben": ("Pneumothorax",)}


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """A workspace without a ledger; copy it."""
    return workspaces.seal_small(tmp_path_factory.mktemp("truth") / "empty")


@pytest.fixture(scope="module")
def home(empty, tmp_path_factory):
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
def amended(home, settled, tmp_path_factory):
    """The same study, after one reader amended the film that was settled."""
    folder = shutil.copytree(home, tmp_path_factory.mktemp("truth") / "audit")
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
def settled(home):
    """The film whose effusion was settled."""
    return load_reviews(home).filter(pl.col("truth_how") == "adjudicator")["image_id"][0]


def test_every_review_has_what_its_readers_came_to(home, settled):
    """How, by whom, when, and the note; what is still open has no truth and says so."""
    told = load_reviews(home)
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


def test_a_read_from_a_file_has_what_a_study_came_to_about_its_pair(home, settled, tmp_path):
    """A study of readers wants one truth a case, whoever read it."""
    folder = shutil.copytree(home, tmp_path / "audit")
    (tmp_path / "sheet.csv").write_text(f"image_id,reader,Effusion\n{settled},dee,YES\n")
    import_reviews(folder, tmp_path / "sheet.csv")
    assert load_reviews(folder).filter(reader="dee")["truth"].to_list() == ["absent"]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_tables_carry_it(home, settled, tmp_path, form):
    """Seven columns; a note that a spreadsheet would run is quoted as any other."""
    export_reviews(home, tmp_path / f"out.{form}")
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


def test_label_studio_has_it_as_ground_truth(home, settled, tmp_path):
    """An annotation of its own beside those of the two readers."""
    export_reviews(home, tmp_path / "tasks.json", format="label-studio")
    task = next(each for each in json.loads((tmp_path / "tasks.json").read_bytes()) if each["data"]["image"] == settled)
    assert [each["ground_truth"] for each in task["annotations"]] == [False, False, True]
    choices = {each["from_name"]: each["value"]["choices"] for each in task["annotations"][2]["result"]}
    assert choices == {"Cardiomegaly": ["absent"], "Effusion": ["absent"], "Pneumothorax": ["present"]}
    meta = next(each["meta"] for each in task["annotations"][2]["result"] if each["from_name"] == "Effusion")
    assert meta["bpals_truth"]["truth_by"] == "cay"


def test_a_consensus_that_somebody_changed_in_label_studio_is_their_read(home, empty, settled, tmp_path):
    """What was left as it was is still none."""
    export_reviews(home, tmp_path / "tasks.json", format="label-studio")
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


def test_fiftyone_has_it_in_fields_of_its_own(home, settled, tmp_path):
    """Called after the verdict, with who settled it and how."""
    export_reviews(home, tmp_path / "samples.json", format="fiftyone")
    samples = json.loads((tmp_path / "samples.json").read_bytes())["samples"]
    sample = next(each for each in samples if each["filepath"] == settled)
    assert [each["label"] for each in sample["consensus_present"]["classifications"]] == ["Pneumothorax"]
    absent = {each["label"]: each for each in sample["consensus_absent"]["classifications"]}
    assert (absent["Effusion"]["how"], absent["Effusion"]["by"]) == ("adjudicator", "cay")


def test_coco_has_it_beside_each_box(home, settled):
    """A consensus has no box of its own."""
    boxed = load_reviews(home).with_columns(box=pl.lit("[[1, 2, 3, 4]]"))
    whole = json.loads(coco.write(boxed, Films()).files[""])
    film = next(each["id"] for each in whole["images"] if each["file_name"] == settled)
    effusion = next(each["id"] for each in whole["categories"] if each["name"] == "Effusion")
    told = [
        (each["attributes"]["truth"], each["attributes"]["truth_how"])
        for each in whole["annotations"]
        if (each["image_id"], each["category_id"]) == (film, effusion)
    ]
    assert told == [("absent", "adjudicator")] * 2


def test_dicom_sr_has_a_report_by_the_adjudicator_and_one_by_the_device(home, settled, empty, tmp_path):
    """Two of readings, two of what they came to; brought in, only the readings are reads, and the rest is counted."""
    pytest.importorskip("highdicom")
    films = tmp_path / "films"
    films.mkdir()
    (films / settled).with_suffix(".dcm").write_bytes(review_tables.dicom())
    assert export_reviews(home, tmp_path / "reports", format="dicom-sr", images=films).files == 4
    texts = [file.read_bytes() for file in (tmp_path / "reports").iterdir()]
    assert sum(b"consensus pilot" in text for text in texts) == 2
    assert sum(b"adjudicator" in text and b"cay" in text for text in texts) == 1
    told = import_reviews(shutil.copytree(empty, tmp_path / "other"), tmp_path / "reports")
    assert (told.read, sorted(told.reviews["reader"].unique())) == (6, ["ann", "ben"])
    assert [(notice.code, notice.count) for notice in told.notices] == [("settled", 3)]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_an_export_given_to_an_audit_votes_as_its_room_did(home, settled, tmp_path, form):
    """`bpals audit --reviews` hears the blind reads, not the second ones, and what the adjudicator settled."""
    export_reviews(home, tmp_path / f"out.{form}")
    second = load_reviews(home).filter(reader="ann").with_columns(phase=pl.lit("second"), saw_signal=1)
    written = pl.read_csv if form == "csv" else pl.read_parquet
    whole = written(tmp_path / f"out.{form}")
    both = pl.concat([whole, second.with_columns(rating=None).select(whole.columns)], how="vertical_relaxed")
    both.write_csv(tmp_path / "both.csv") if form == "csv" else both.write_parquet(tmp_path / "both.parquet")
    told = verdicts.load_reads(tmp_path / f"both.{form}", vocabulary=Vocabulary(name="films", findings=FINDINGS))
    assert told.table.height == 12
    assert told.settled.rows() == [(settled, "Effusion", 0.0)]
    assert [(notice.code, notice.count) for notice in told.notices] == [("no_votes", 6)]
    with Ledger.open(home / LEDGER, readonly=True) as ledger:
        own = ledger.look(lambda connection: reads_of(connection, Vocabulary(name="films", findings=FINDINGS)))
    assert own.settled.rows() == told.settled.rows()
    order = ["image_id", "finding", "reader"]
    assert own.table.sort(order).equals(told.table.sort(order))


@pytest.mark.parametrize("form", ["csv", "parquet", "label-studio", "fiftyone"])
def test_no_consensus_comes_back_as_a_read(home, empty, tmp_path, form):
    """Twelve reads of two readers go out, and just these come in, here and elsewhere."""
    export_reviews(home, tmp_path / "out", format=form)
    other = shutil.copytree(empty, tmp_path / "other")
    assert import_reviews(other, tmp_path / "out").read == 12
    back = load_reviews(other)
    assert review_tables.same(back, load_reviews(home))
    assert back["truth_how"].is_null().all()
    again = shutil.copytree(home, tmp_path / "again")
    assert import_reviews(again, tmp_path / "out").reviews.is_empty()
