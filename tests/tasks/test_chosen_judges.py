"""The panel of an audit: which judges it uses, what it writes down of them, and what it refuses."""

import json
import re
import shutil

import numpy as np
import polars as pl
import pytest

import bpals
from bpals.cli.main import obey
from bpals.errors import UnknownName, UsageError, WorkspaceError
from bpals.judges.stub import StubJudge
from bpals.score.intervals import Resampling
from bpals.store.workspace import Workspace, write_image_checks
from bpals.tasks.chosen_judges import choose
from bpals.tasks.datasets import load_source
from bpals.tasks.score import scorecard
from bpals.testing import check_signal
from bpals.types import FILM_ANSWERS, FILM_CHECKS, KIND, OUTCOME, answers_schema
from world.made_judges import MAPPING, SOURCE
from world.words import mentions

TABLES = ("images.parquet", "claims.parquet", "judgments/record.parquet", "signal.parquet")


@pytest.fixture(scope="module")
def films():
    """600 made-up films: what to hand to an audit, and the dataset that it makes."""
    return {"source": SOURCE, "mapping": MAPPING}, load_source(SOURCE, MAPPING)


@pytest.fixture(scope="module")
def audited(films, tmp_path_factory):
    """An audit with three sealed judges: one that sees, one that guesses, one that failed."""
    words, dataset = films
    home = Workspace(tmp_path_factory.mktemp("panel") / "audit")
    seal_eye(home, dataset)
    guess, broken = StubJudge(name="guess", seed=1), StubJudge(name="broken", shares={"failed": 1.0})
    for stub in (guess, broken):
        home.write_judge(stub.name, stub.card.as_dict(), stub.scores(dataset.images["image_id"], dataset.vocabulary))
    return bpals.audit(**words, workspace=home.path)


def seal_eye(home, dataset, *, name="eye", strange=0):
    """Seal a judge that follows the claims on two films of three, and saw devices on the first ten."""
    draw = np.random.default_rng(9)
    claims = dataset.claims.filter(pl.col("image_id").hash(1) % 3 != 0)
    lean = 2.0 * (claims["says"] == "present").to_numpy() + draw.normal(size=claims.height)
    table = claims.select(
        "image_id", "finding", judge=pl.lit(name), kind=pl.lit("image", dtype=KIND),
        outcome=pl.lit("answered", dtype=OUTCOME), p_present=pl.Series(1 / (1 + np.exp(-lean))),
    )  # fmt: skip
    if strange:
        elsewhere = table.head(strange).with_columns(image_id=pl.lit("elsewhere.png"))
        table = pl.concat([table, elsewhere])
    schema = answers_schema(dataset.vocabulary)
    table = table.with_columns(pl.lit(None).alias(column) for column in schema if column not in table.columns)
    rows = [(film, "devices", "answered", 0.8 if place < 10 else 0.1, None, None, None)
            for place, film in enumerate(dataset.images["image_id"][:30])]  # fmt: skip
    saw = pl.DataFrame(rows, schema=FILM_ANSWERS, orient="row")
    answers = table.select(schema.names()).cast(schema)
    home.write_judge(name, {"judge": name}, answers, saw, {"offsets": {"devices": [0.1, None]}})


@pytest.fixture
def home(audited, tmp_path):
    """A copy of that workspace, to be changed."""
    return Workspace(shutil.copytree(audited.workspace, tmp_path / "audit"))


def test_an_audit_uses_every_sealed_judge_and_names_it_by_hash(audited):
    """run.json has each judge's card, counts, skill and weight; the sealed ones are none of the audit's own files."""
    entries = {entry["judge"]: entry for entry in audited.record["judges"]}
    assert list(entries) == ["record", "broken", "eye", "guess"]
    home = Workspace(audited.workspace)
    for name in ("broken", "eye", "guess"):
        assert entries[name]["sealed"] == home.judge(name).sha256
        assert entries[name]["counts"] == home.judge(name).record["counts"]
        assert entries[name]["kind"] == "image"
        assert f"judgments/{name}.parquet" not in audited.record["files"]
    assert "judgments/record.parquet" in audited.record["files"]
    weights = {name: entry["effective_weight"] for name, entry in entries.items()}
    assert weights["eye"] > 0.3
    assert weights["guess"] < 0.05
    assert weights["broken"] == 0
    assert sum(weights.values()) == pytest.approx(1)
    assert [row["finding"] for row in entries["eye"]["skill"]] == ["Cardiomegaly", "Effusion", "Pneumothorax"]
    assert all(row["signal"] and row["auroc"] > 0.8 and row["against"] == "claims" for row in entries["eye"]["skill"])
    assert not any(row["signal"] for row in entries["broken"]["skill"])
    assert entries["eye"]["trained_on_target"] == "unknown"


def test_the_signal_is_that_of_the_judges(audited, films):
    """Its contract holds, devices are filled, reasons name who spoke, and only what the eye saw has the new method."""
    _, dataset = films
    signal = audited.signal
    check_signal(signal, dataset.claims)
    saw = signal["image_id"].hash(1) % 3 != 0
    assert set(signal.filter(saw)["method"]) == {"judges-2"}
    by_film = signal.unique("image_id", keep="first", maintain_order=True)["devices"].to_list()
    assert by_film[:31] == ["present"] * 10 + ["absent"] * 20 + ["unknown"]
    told = signal["reasons"].list.join("|")
    assert (told.str.contains("judge: eye gives") == saw).all()
    assert not told.str.contains("broken").any()
    assert (told.str.contains("devices: eye sees") == (signal["devices"] == "present")).all()


def test_a_judge_without_a_signal_is_noticed_once(audited):
    """In run.json, not on every row."""
    said = [notice["message"] for notice in audited.record["notices"] if notice["code"] == "no_signal"]
    assert any(mentions(line, "broken has no signal") for line in said)
    assert not [message for message in said if message.startswith(("record", "eye"))]


def test_the_report_lists_every_judge(audited):
    """With its weight, its skill, its licence, and the films with devices."""
    page = audited.report.read_text(encoding="utf-8")
    shown = ("Judge: eye", "Judge: guess", "Judge: broken", "AUROC of eye", "no signal", "Images with devices")
    for words in ('id="judges"', *shown):
        assert words in page, words


def test_without_image_judges_the_tables_are_those_of_the_record_alone(films, home, films_audit):
    """`--judges record` gives the bytes of an audit where no judge was ever sealed, and so does a failed judge."""
    words, _ = films
    beside = bpals.audit(**words, workspace=home.path, judges=["record", "broken"])
    restricted = bpals.audit(**words, workspace=home.path, judges="record")
    fresh = Workspace(films_audit).run
    for name in TABLES:
        assert restricted.record["files"][name] == fresh["files"][name] == beside.record["files"][name], name
    assert [judge.name for judge in home.judges()] == ["broken", "eye", "guess"]
    (entry,) = restricted.record["judges"]
    assert (entry["judge"], entry["effective_weight"]) == ("record", 1.0)
    assert restricted.record["values"]["judges"] == {"value": "record", "given": "passed", "reason": ""}
    assert fresh["values"]["judges"]["given"] == "defaulted"


def test_an_audit_without_the_record_judge(films, home):
    """It asks nobody anew, writes no table of the record, and can be scored; where nobody saw a film nobody can say."""
    words, dataset = films
    run = bpals.audit(**words, workspace=home.path, judges="eye")
    check_signal(run.signal, dataset.claims)
    assert "judgments/record.parquet" not in run.record["files"]
    assert not (home.path / "judgments" / "record.parquet").exists()
    assert set(run.signal["method"]) <= {"judges-2", "record-1"}
    unseen = run.signal.filter(pl.col("image_id").hash(1) % 3 == 0)
    assert unseen["p_present"].is_null().all()
    assert set(unseen["flag"]) == {"unjudged"}
    experts = home.path.parent / "experts.csv"
    claims = dataset.claims.filter(pl.col("finding") == "Effusion")
    pl.DataFrame(
        {"image_id": claims["image_id"], "finding": "Effusion", "present": np.arange(claims.height) % 2}
    ).write_csv(experts)
    card = scorecard(home.path, reference=f"table={experts}", resampling=Resampling(draws=20))
    assert {"bpals", "label_only"} <= set(card.frame["method"])
    assert not {"self_confidence", "cleanlab"} & set(card.frame["method"])


def test_expert_labels_measure_the_judges_too(films, home, tmp_path):
    """With --calibrate the AUROC is against experts where they read enough, and the combination is what is fitted."""
    words, dataset = films
    definite = dataset.claims.filter(pl.col("says") != "uncertain", pl.col("finding") == "Effusion")
    rejected = pl.int_range(pl.len()) % 5 == 0  # nothing is learned from experts who reject nothing
    truth = definite.select(
        "image_id", pl.col("finding").cast(pl.String), present=((pl.col("says") == "present") != rejected).cast(pl.Int8)
    )
    truth.write_csv(tmp_path / "experts.csv")
    run = bpals.audit(**words, workspace=home.path, calibrate=f"table={tmp_path / 'experts.csv'}")
    check_signal(run.signal, dataset.claims)
    (eye,) = [entry for entry in run.record["judges"] if entry["judge"] == "eye"]
    assert {row["finding"]: row["against"] for row in eye["skill"]} == {
        "Cardiomegaly": "claims", "Effusion": "experts", "Pneumothorax": "claims",
    }  # fmt: skip
    effusion = run.signal.filter(pl.col("finding") == "Effusion")
    assert effusion["method"].str.starts_with("judges-2+experts").any()


@pytest.mark.parametrize("wanted", ["eyes", "record,eyes", ["eye", "eyes"]])
def test_an_unknown_judge_is_answered_with_the_nearest(home, wanted):
    """Before anything is read."""
    with pytest.raises(UnknownName, match=r"--judges, .*'eyes'.*'eye'"):
        choose(home, wanted)


@pytest.mark.parametrize("wanted", ["", " , ", []])
def test_no_judge_at_all_is_refused(home, wanted):
    """An audit needs at least one."""
    with pytest.raises(UsageError, match="--judges names no judge"):
        choose(home, wanted)


def test_blanks_and_doubles_do_not_matter(home):
    """As people type lists."""
    chosen = choose(home, " eye, record ,eye")
    assert [judge.name for judge in chosen.finished] == ["eye"]
    assert chosen.record is not None


def test_a_damaged_judge_stops_the_audit_and_leaves_the_old_one(films, home):
    """The message says how to go on without it, and that works."""
    words, _ = films
    (home.path / "judgments" / "eye.parquet").write_bytes(b"damaged")
    with pytest.raises(WorkspaceError, match=r"eye\.parquet .*eye\.json.*--judges"):
        bpals.audit(**words, workspace=home.path)
    assert len(home.open().run["judges"]) == 4
    assert len(bpals.audit(**words, workspace=home.path, judges="broken,guess").record["judges"]) == 2


def test_an_unsealed_judge_and_answers_about_other_films_are_counted(films, home, capsys):
    """Both are printed, and the audit goes on."""
    words, dataset = films
    (home.path / "judgments" / "guess.json").unlink()
    seal_eye(home, dataset, strange=5)
    line = ["audit", "--source", words["source"], "--mapping", words["mapping"], "--workspace", str(home.path)]
    assert obey(line) == 0
    printed = capsys.readouterr().err
    assert "guess was left out" in printed
    assert re.search(r"eye: 5 of its [\d,]+ .*elsewhere\.png", printed)
    run = home.run
    codes = {notice["code"]: notice["count"] for notice in run["notices"]}
    assert (codes["unsealed_judge"], codes["foreign_answers"]) == (1, 5)
    assert [entry["judge"] for entry in run["judges"]] == ["record", "broken", "eye"]


def test_a_judge_sealed_anew_breaks_no_audit(films, home):
    """The audit stays whole, and still says which answers it used."""
    _, dataset = films
    before = home.open().run["judges"]
    seal_eye(home, dataset, strange=1)
    assert home.open().run["judges"] == before
    used = {entry["judge"]: entry["sealed"] for entry in before if entry["kind"] == "image"}
    assert used["eye"] != home.judge("eye").sha256


def test_the_command_restricts_the_judges(films, home, capsys):
    """`--judges a,b`; the run record says which were used."""
    words, _ = films
    line = ["audit", "--source", words["source"], "--mapping", words["mapping"], "--workspace", str(home.path)]
    assert obey([*line, "--judges", "guess,eye", "--json"]) == 0
    run = json.loads(capsys.readouterr().out)
    assert [entry["judge"] for entry in run["judges"]] == ["guess", "eye"]
    assert obey([*line, "--judges", "nobody"]) == 2
    assert "no judge is called 'nobody'" in capsys.readouterr().err


def test_what_is_said_of_a_blank_film_counts_for_nothing(films, home):
    """Who answers about a film that shows nothing is not heard there, and that is counted."""
    _, dataset = films
    saw = (dataset.images["image_id"].hash(1) % 3 != 0).arg_true()
    blank, other = (dataset.images["image_id"][place] for place in (saw[0], saw[1]))
    rows = [{"image_id": blank, "blank": True, "checks": ["blank"]}, {"image_id": other, "blank": False, "checks": []}]
    table = pl.DataFrame([dict.fromkeys(FILM_CHECKS) | row for row in rows], schema=FILM_CHECKS)
    write_image_checks(home.path, table, {})
    panel, notices = choose(home, "eye").answers_about(dataset)
    answered = panel.judges[0].answered
    assert not answered[saw[0]].any()
    assert answered[saw[1]].all()
    assert panel.checks.column.to_list()[saw[0]] == ["blank"]
    assert [(notice.code, notice.count) for notice in notices] == [("blank_films", 3)]
