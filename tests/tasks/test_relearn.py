"""Relearning: reads become trust from sealed answers alone, as an audit with the same reads would have made it."""

import json
import shutil
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import bpals
from bpals.errors import WorkspaceError
from bpals.findings import Vocabulary
from bpals.reviews import verdicts
from bpals.reviews.ledger_reads import ADJUDICATIONS, LEDGER, blind_reads, voting
from bpals.room.desk.study import default_study
from bpals.store.files import sha256
from bpals.store.ledger.review_rows import CONSENSUS, REVIEW_COLUMNS
from bpals.store.workspace import RUN, Workspace
from bpals.tasks.datasets import load_source
from bpals.tasks.expert_labels import load_experts
from bpals.tasks.reading_list import CASES
from bpals.tasks.relearn import lessons_of, relearn, teach, version
from bpals.tasks.review_files import import_reviews
from bpals.types import REVIEWS, Reviews
from world import datasets
from world.datasets import EXAMPLES

FINDINGS = ("Nodule", "Mass", "Effusion")
WORDS = Vocabulary(name="films", findings=FINDINGS)
FILMS = 300


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where a small dataset with a nodule, a mass and an effusion lies, with its truth."""
    folder = tmp_path_factory.mktemp("relearning")
    named = {"Cardiomegaly": "Nodule", "Pneumothorax": "Mass"}
    films = pl.read_csv(datasets.FILMS).head(FILMS).rename(named)
    # Enough errors to learn from: every sixth film says the opposite of what it shows.
    for finding in ("Effusion", "Nodule"):
        flipped = pl.when(pl.int_range(pl.len()) % 6 == 0).then((pl.col(finding) == 0).cast(pl.Int64))
        films = films.with_columns(flipped.otherwise(finding).alias(finding))
    films.write_csv(folder / "films.csv")
    mapping = (EXAMPLES / "films.toml").read_text(encoding="utf-8")
    audited = json.dumps(list(FINDINGS))
    mapping = mapping.replace('["Cardiomegaly", "Effusion", "Pneumothorax"]', audited)
    (folder / "films.toml").write_text(mapping, encoding="utf-8")
    pl.read_csv(EXAMPLES / "experts.csv").head(FILMS).rename(named).write_csv(folder / "truth.csv")
    return folder


def words(place):
    """How the small dataset is named to an audit."""
    return {"source": f"table:{place / 'films.csv'}", "mapping": str(place / "films.toml")}


def read_sheet(place, name, *findings):
    """Two readers who each err on one film in ten: a sheet of what they say of these findings."""
    dice = np.random.default_rng(3)
    truth = pl.read_csv(place / "truth.csv").with_columns(both=pl.max_horizontal("Nodule", "Mass"))
    lines = ["image_id,finding,reader,verdict"]
    for finding in findings:
        for film, present in truth.select("image_id", "both" if finding == "Nodule or mass" else finding).iter_rows():
            for reader in ("Ann", "Ben"):
                said = present if dice.random() < 0.9 else 1 - present
                lines.append(f"{film},{finding},{reader},{'YES' if said else 'NO'}")
    (place / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return place / name


@pytest.fixture(scope="module")
def plain(place):
    """An audit that no expert was heard in."""
    return bpals.audit(**words(place), workspace=place / "plain").workspace


@pytest.fixture(scope="module")
def sheet(place):
    """What was read of effusions, and of nodules and masses together."""
    return read_sheet(place, "reads.csv", "Effusion", "Nodule or mass")


@pytest.fixture(scope="module")
def both(sheet):
    """The same as the ledger's reads would be handed in."""
    return verdicts.load_reads(sheet, vocabulary=WORDS)


@pytest.fixture(scope="module")
def reads(both):
    """Those of effusions alone."""
    return replace(both, table=both.table.filter(pl.col("finding") == "Effusion"), groups=())


@pytest.fixture(scope="module")
def audited(place, sheet):
    """An audit with these reads, which asks the record judge about the group."""
    return bpals.audit(**words(place), workspace=place / "with-reads", reviews=sheet)


@pytest.fixture
def home(plain, tmp_path):
    """The plain audit in a folder of the test's own."""
    return shutil.copytree(plain, tmp_path / "audit")


def test_it_gives_what_an_audit_with_the_same_reads_gives(home, audited, both):
    """Bit by bit: trust, flags, reasons and the order of reading, where the same answers are sealed."""
    name = "group-judgments.parquet"
    shutil.copy(audited.workspace / name, home / name)
    run = json.loads((home / RUN).read_bytes())
    run["files"][name] = audited.record["files"][name]
    (home / RUN).write_text(json.dumps(run), encoding="utf-8")
    learned = relearn(home, both)
    assert learned.version == audited.record["files"]["signal.parquet"]["sha256"]
    assert learned.version == version(home) != learned.before
    assert set(learned.fitted) == {"Effusion", "Nodule or mass"}
    assert "groups_unasked" not in {notice.code for notice in learned.notices}
    for table in ("signal.parquet", "groups.parquet", "calibration.parquet"):
        assert (home / table).read_bytes() == (audited.workspace / table).read_bytes()


def test_a_group_nobody_was_asked_about_is_said(home, audited, both):
    """What the record judge says of its members adds up instead, and the reads still teach."""
    learned = relearn(home, both)
    assert "groups_unasked" in {notice.code for notice in learned.notices}
    assert "Nodule or mass" in learned.fitted
    assert learned.version != audited.record["files"]["signal.parquet"]["sha256"]


def test_no_judge_is_asked_again(home, reads):
    """The record judge's answers, the films and the claims are the files that were there."""
    kept = ("judgments/record.parquet", "images.parquet", "claims.parquet")
    before = {name: (home / name).stat() for name in kept}
    relearn(home, reads)
    assert {name: (home / name).stat().st_mtime_ns for name in kept} == {n: s.st_mtime_ns for n, s in before.items()}
    assert {name: (home / name).stat().st_ino for name in kept} == {n: s.st_ino for n, s in before.items()}


def test_it_says_what_changed_and_names_the_version_before(home, reads):
    """How many trusts, flags and places; which reads by number and hash; and what was there before."""
    before = version(home)
    learned = relearn(home, reads)
    run = Workspace(home).run
    assert learned.before == before != learned.version
    assert learned.changed["claims"] == pl.read_parquet(home / "signal.parquet").height
    assert 0 < learned.changed["flag"] < learned.changed["trust"]
    assert learned.changed["first"] > 0
    assert run["reviews"]["reads"] == learned.reads == reads.table.height
    assert run["reviews"]["inputs"] == dict(reads.inputs)
    assert [entry["version"] for entry in run["history"]] == [before]
    relearn(home, reads)
    assert [entry["version"] for entry in Workspace(home).run["history"]] == [before, learned.version]


def test_each_lesson_is_written_down(home, reads):
    """When, what it heard, and how many trusts and flags of which finding it changed; the next one keeps it."""
    few = relearn(home, replace(reads, table=reads.table.head(300)))
    learned = relearn(home, reads)
    told = lessons_of(Workspace(home).run)
    assert [lesson["version"] for lesson in told] == [few.version, learned.version]
    assert told[0]["at"] <= told[1]["at"]
    assert told[1]["reads"] == reads.table.height
    assert told[1]["readings"] == reads.table.unique(["image_id", "reader"]).height
    assert told[1]["changed"] == dict(learned.changed)
    for name in ("trust", "flag"):
        assert sum(changes[name] for changes in told[1]["findings"].values()) == learned.changed[name] > 0


def test_every_step_can_be_made_again(home, reads, tmp_path):
    """The same reads give the same signal, also after others were learned from in between."""
    other = shutil.copytree(home, tmp_path / "other")
    few = replace(reads, table=reads.table.head(300))
    assert relearn(home, few).version != relearn(other, reads).version
    assert relearn(home, reads).version == version(other)


def test_few_reads_teach_a_little(home, reads):
    """Learning begins with the first reads: every trust may move, and none far."""
    before = bpals.load_signal(home)["trust"]
    learned = relearn(home, replace(reads, table=reads.table.head(60)))
    assert learned.fitted["Effusion"]["n"] > 0
    assert learned.changed["trust"] > 0
    assert float((bpals.load_signal(home)["trust"] - before).abs().mean()) < 0.2


def test_no_reads_at_all_give_the_audit_back(home, reads):
    """A room whose first reads were all withdrawn is where it began."""
    before = version(home)
    learned = relearn(home, replace(reads, table=reads.table.clear()))
    assert learned.version == before
    assert learned.reads == 0


def test_reads_of_the_file_stay_heard(audited, sheet, both, tmp_path):
    """An audit's own --reviews and the ledger's reads are heard together, and what is in both counts once."""
    home = shutil.copytree(audited.workspace, tmp_path / "audit")
    third = both.table.filter(pl.col("reader") == "Ann").with_columns(reader=pl.lit("Cay"))
    mine = Reviews(table=pl.concat([both.table.head(100), third]), inputs={LEDGER: "sha256:0"})
    learned = relearn(home, mine)
    assert learned.reads == both.table.height + third.height
    assert set(Workspace(home).run["reviews"]["inputs"]) == {sheet.name, LEDGER}


def test_a_plain_audit_hears_what_the_workspace_keeps(place, home, audited, sheet):
    """Bit by bit as with --reviews, with a line that says so; what was there before it stays in the history."""
    before = version(home)
    import_reviews(home, sheet)
    run = bpals.audit(**words(place), workspace=home)
    assert version(home) == audited.record["files"]["signal.parquet"]["sha256"] != before
    assert (run.record["reviews"]["reads"], set(run.record["reviews"]["inputs"])) == (4 * FILMS, {LEDGER})
    assert [entry["version"] for entry in run.record["history"]] == [before]
    told = {notice["code"]: notice["message"] for notice in run.record["notices"]}
    assert told["own_reviews"].startswith(f"{4 * FILMS:,} reads")
    assert "bpals audit --no-reviews" in told["own_reviews"]


def test_an_audit_without_reviews_says_so_and_keeps_the_history(place, home, reads, sheet):
    """After a lesson: the signal is the plain one again, the lesson's version is named, and nothing was heard."""
    before = version(home)
    import_reviews(home, sheet)
    learned = relearn(home, reads)
    run = bpals.audit(**words(place), workspace=home, no_reviews=True)
    assert version(home) == before
    assert run.record["reviews"] is None
    assert run.record["values"]["no_reviews"] == {"value": True, "given": "passed", "reason": ""}
    assert [(entry["version"], entry["reads"]) for entry in run.record["history"]] == [
        (before, 0),
        (learned.version, learned.reads),
    ]


def test_reads_of_another_dataset_are_counted_and_not_heard(place, home):
    """A ledger that several workspaces share may hold none of this one's films."""
    foreign = Reviews(
        table=pl.DataFrame({"image_id": ["x.png"], "finding": ["Mass"], "reader": ["Ann"], "verdict": ["present"],
                            "inclusion": [None]}).cast(dict(REVIEWS)),
        inputs={LEDGER: "sha256:0"},
    )  # fmt: skip
    use = {name: entry["value"] for name, entry in Workspace(home).run["values"].items()}
    experts = load_experts(use, load_source(*words(place).values()), foreign)
    assert experts.reviews is None
    assert [(notice.code, notice.count) for notice in experts.notices] == [("unknown_images", 1)]


def test_another_dataset_is_refused(place, home, reads, tmp_path):
    """A table that was changed since the audit is not the one that the judges answered about."""
    shutil.copy(place / "films.toml", tmp_path / "films.toml")
    changed = pl.read_csv(place / "films.csv").head(FILMS - 1)
    changed.write_csv(tmp_path / "films.csv")
    Workspace(home).remember_dataset(f"table:{tmp_path / 'films.csv'}", str(tmp_path / "films.toml"))
    with pytest.raises(WorkspaceError, match="which has changed since then"):
        relearn(home, reads)


def test_what_is_killed_while_it_moves_its_files_is_finished(home, reads, tmp_path):
    """The new signal lies in its place, the old run.json still stands: the next that looks finishes it."""
    new = shutil.copytree(home, tmp_path / "new")
    relearn(new, reads)
    staged = home / ".staging-4242"
    staged.mkdir()
    for name in (RUN, "report.html", "calibration.parquet"):
        shutil.copy(new / name, staged / name)
    shutil.copy(new / "signal.parquet", home / "signal.parquet")
    with pytest.raises(WorkspaceError, match="the set is broken"):
        Workspace(home).open()
    assert Workspace(home).repair()
    assert Workspace(home).open().run["files"]["signal.parquet"]["sha256"] == version(new)
    assert not Workspace(home).repair()
    assert not list(home.glob(".staging-*"))


def test_half_of_a_staged_set_is_not_taken(home, reads, tmp_path):
    """Where a file of the set is missing, what was there before stands."""
    new = shutil.copytree(home, tmp_path / "new")
    relearn(new, reads)
    staged = home / ".staging-4242"
    staged.mkdir()
    shutil.copy(new / RUN, staged / RUN)
    before = version(home)
    assert not Workspace(home).repair()
    assert Workspace(home).open().run["files"]["signal.parquet"]["sha256"] == before


def test_a_lesson_brings_a_queue_of_the_new_signal(home, reads):
    """What was read is not offered again, and only what can be shown is."""
    shown = frozenset(pl.read_parquet(home / "images.parquet")["image_id"].head(90))
    study = replace(default_study(WORDS), queue_size=30)
    taught = teach(home, reads, study, films=shown)
    assert taught.learned.version == version(home)
    assert taught.cases.schema == CASES
    assert set(taught.cases["image_id"]) <= shown
    assert "Effusion" not in taught.cases["finding"].to_list()


def review(review_id, **said):
    """One row of the ledger as a desk gives it."""
    usual = {"phase": "blind", "saw_signal": 0, "repeat": 0, "round": 0, "stands": True, "verdict": "present"}
    return {"review_id": review_id, "image_id": "a.png", "finding": "Mass", "reader": "Ann", **usual, **said}


def table(*rows):
    """Rows of the ledger as a table."""
    return pl.DataFrame(
        [{name: row.get(name) for name in REVIEW_COLUMNS} for row in rows], schema=REVIEW_COLUMNS, orient="row"
    )


def test_only_what_was_said_blind_votes():
    """Second reads, rounds, repeats and what was undone are kept apart; an amendment before the reveal stands."""
    rows = table(
        review(1),
        review(2, phase="second", saw_signal=1, verdict="absent"),
        review(3, phase="round", round=1, verdict="absent"),
        review(4, repeat=1, verdict="absent"),
        review(5, reader="Ben", stands=False),
        review(6, reader="Ben", phase="amended", verdict="uncertain"),
        review(7, reader="Cay", phase="amended", saw_signal=1),
        review(8, reader="Dee", phase="imported", verdict="unreadable"),
    )
    assert voting(rows)["review_id"].to_list() == [1, 6, 8]
    assert blind_reads(rows, WORDS).table["verdict"].to_list() == ["present", "uncertain", "unreadable"]


def test_a_finding_outside_the_vocabulary_is_counted_and_not_audited():
    """It stays in the ledger; a whole group is audited, and its name says so."""
    rows = table(
        review(1, finding="Fracture"), review(2, finding="Nodule or mass"), review(3, finding="Airspace opacity")
    )
    reads = blind_reads(rows, WORDS)
    assert reads.table["finding"].to_list() == ["Nodule or mass"]
    assert [group.name for group in reads.groups] == ["Nodule or mass"]
    assert [(notice.code, notice.count) for notice in reads.notices] == [("unaudited", 1), ("unaudited", 1)]
    assert reads.inputs == {LEDGER: sha256(reads.table.write_csv().encode())}


def settled(finding, verdict, **more):
    """What a desk says a pair came to."""
    usual = {"image_id": "a.png", "how": "adjudicator", "by": "Cay", "round": 0}
    row = {"finding": finding, "verdict": verdict, **usual, **more}
    return pl.DataFrame([{name: row.get(name) for name in CONSENSUS}], schema=CONSENSUS)


def test_what_people_settled_stands_over_the_votes_of_a_pair():
    """An adjudicator's word and a discussion's; a majority of blind reads is these reads, and hedges settle nothing."""
    rows = table(*(review(number, finding=finding) for number, finding in enumerate(FINDINGS)))
    consensus = pl.concat(
        [
            settled("Nodule", "absent"),
            settled("Mass", "present", how="consensus", by=None, round=3),
            settled("Effusion", "absent", how="majority", by=None),
            settled("Fracture", "present"),
        ]
    )
    reads = blind_reads(rows, WORDS, consensus)
    assert reads.settled.rows() == [("a.png", "Mass", 1.0), ("a.png", "Nodule", 0.0)]
    assert reads.inputs[ADJUDICATIONS] == sha256(reads.settled.write_csv().encode())
    assert blind_reads(rows, WORDS, settled("Mass", "uncertain")).settled.is_empty()
    assert set(blind_reads(rows, WORDS, settled("Mass", "uncertain")).inputs) == {LEDGER}


def test_of_one_reader_who_says_two_things_both_reads_vote():
    """They are kept and counted."""
    rows = table(review(1, phase="imported"), review(2, phase="imported", verdict="absent"))
    reads = blind_reads(rows, WORDS)
    assert reads.table.height == 2
    assert [(notice.code, notice.count) for notice in reads.notices] == [("reader_contradicts", 1)]


def test_a_pair_that_was_drawn_twice_keeps_its_first_chance():
    """A rate refuses a pair with two chances."""
    rows = table(review(1), review(2, reader="Ben", inclusion=0.25), review(3, reader="Cay", inclusion=0.5))
    assert blind_reads(rows, WORDS).table["inclusion"].to_list() == [0.25, 0.25, 0.25]
