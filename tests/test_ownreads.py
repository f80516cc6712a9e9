"""A workspace's own reads: all studies and files of its ledger, or a refusal, never silence."""

import shutil

import polars as pl
import pytest

from bpals.errors import WorkspaceError
from bpals.findings import Vocabulary
from bpals.reviews.ledger_reads import LEDGER as READS
from bpals.reviews.ledger_reads import own_reads
from bpals.room.desk.desk import Desk
from bpals.store.ledger import Ledger
from bpals.store.workspace import LEDGER, Workspace
from bpals.tasks.review_files import import_reviews
from world import desks, workspaces

WORDS = Vocabulary(name="films", findings=("Cardiomegaly", "Effusion", "Pneumothorax"))


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """A workspace without a ledger; copy it."""
    return workspaces.seal_small(tmp_path_factory.mktemp("own") / "record")


@pytest.fixture
def home(record, tmp_path):
    """A workspace of the test's own."""
    return shutil.copytree(record, tmp_path / "audit")


def read_one(home, study, reader):
    """Let somebody read one film in a study."""
    film = pl.read_parquet(home / "images.parquet").head(1)
    with Ledger.open(home / LEDGER) as ledger, ledger.lock("test"):
        (account,) = desks.enter(ledger, reader)
        alone = {"readers_per_case": 1, "adjudication": "none", "reveal": True}
        desk = Desk.open(ledger, desks.make_study(name=study, findings=WORDS.findings, **alone))
        drawn = desks.films(1, finding="Effusion").with_columns(film["image_id"], film["patient_id"])
        desk.draw(drawn, desks.SIGNAL)
        desks.read(desk, account, desks.says("Effusion"))
    return film["image_id"][0]


def test_every_study_and_every_file_is_heard(home, tmp_path):
    """Two studies and a sheet: seven blind reads by three readers, and no second one."""
    film = read_one(home, "first", "ann")
    read_one(home, "second", "ben")
    (tmp_path / "sheet.csv").write_text(f"image_id,reader,Effusion\n{film},cay,NO\n")
    import_reviews(home, tmp_path / "sheet.csv")
    reads = own_reads(Workspace(home), WORDS)
    assert reads.table.height == 7
    assert reads.readers == ["ann", "ben", "cay"]
    assert set(reads.inputs) == {READS}


def test_a_workspace_without_a_ledger_keeps_none(home):
    """An audit looks into no database where nobody was asked and nobody read."""
    assert not Workspace(home).keeps_ledger
    read_one(home, "first", "ann")
    assert Workspace(home).keeps_ledger
    (home / LEDGER).unlink()
    Workspace(home).remember(ledger="postgresql://bpals@db.example.org/room")
    assert Workspace(home).keeps_ledger


def test_a_ledger_that_cannot_be_read_stops_an_audit_and_says_how_to_go_on(home):
    """Reads that nobody could look at are not no reads."""
    (home / LEDGER).write_bytes(b"no database at all" * 20)
    with pytest.raises(WorkspaceError, match=r"not a database.*--no-reviews"):
        own_reads(Workspace(home), WORDS)
