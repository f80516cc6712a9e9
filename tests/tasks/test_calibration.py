"""`bpals calibration` and `bpals audit --prior`: from expert labels to a file, and from the file to trust."""

import json
import shutil

import numpy as np
import polars as pl
import pytest

import bpals
from bpals.errors import UnknownName, UsageError
from bpals.reviews import verdicts
from bpals.signal.experts import as_dict
from bpals.signal.prior import FOLDS, content_hash
from bpals.store.workspace import Workspace
from bpals.tasks import calibration
from bpals.tasks.datasets import choose_calibration, load_calibration, load_source, shipped_calibrations
from bpals.tasks.rate import plan_rate
from bpals.tasks.relearn import relearn
from bpals.types import Experts
from world import datasets
from world.datasets import EXAMPLES

FILMS = 240
FINDINGS = ("Cardiomegaly", "Effusion", "Pneumothorax")
LABELS = 150
"""Films that the calibration was fitted on."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a small dataset, expert labels of most films, and reads of them by two readers."""
    folder = tmp_path_factory.mktemp("calibration")
    films = pl.read_csv(datasets.FILMS).head(FILMS)
    for number, finding in enumerate(FINDINGS):  # every fourth label says the opposite of what the film shows
        wrong = pl.int_range(pl.len()) % 4 == number
        films = films.with_columns(pl.when(wrong).then(1 - pl.col(finding).abs()).otherwise(finding).alias(finding))
    films.write_csv(folder / "films.csv")
    shutil.copy(EXAMPLES / "films.toml", folder / "films.toml")
    truth = pl.read_csv(EXAMPLES / "experts.csv").head(FILMS)
    truth.head(LABELS).write_csv(folder / "experts.csv")
    long = truth.head(LABELS).unpivot(index="image_id", variable_name="finding", value_name="there")
    dice = np.random.default_rng(0)
    reads = []
    for reader in ("Ann", "Ben"):
        said = long["there"].to_numpy() ^ (dice.random(long.height) < 0.1)
        word = pl.Series(np.where(said == 1, "present", "absent"))
        reads.append(long.select("image_id", "finding", reader=pl.lit(reader), verdict=word))
    pl.concat(reads).write_csv(folder / "reads.csv")
    return folder


@pytest.fixture(scope="module")
def source(place):
    """How the dataset is named."""
    return {"source": f"table:{place / 'films.csv'}", "mapping": str(place / "films.toml")}


@pytest.fixture(scope="module")
def made(place, source):
    """A calibration that was fitted on the labels."""
    words = [f"table={place / 'experts.csv'}"]
    return calibration.fit(words, name="made-1", terms="made up", out=place / "made-1.json", **source)


@pytest.fixture(scope="module")
def audited(place, source, made):
    """An audit that starts from it."""
    return bpals.audit(**source, workspace=place / "audit", prior=made.path)


@pytest.fixture(scope="module")
def plain(place, source):
    """One that starts from nothing."""
    return bpals.audit(**source, workspace=place / "plain", prior="none")


def as_edited(made, folder, **changed):
    """Write the file again with other content, its hash made right."""
    whole = json.loads(made.path.read_text()) | changed
    (folder / "edited.json").write_text(json.dumps(whole | {"sha256": content_hash(whole)}))
    return folder / "edited.json"


# Fitting a file.


def test_a_file_says_what_it_was_fitted_on(source, made):
    """Counts, inputs by hash, terms, folds; figures only; and it is the same when it is read again."""
    found = load_calibration(made.path)
    assert as_dict(found) == json.loads(made.path.read_text()) == as_dict(made.calibration)
    (told,) = found.about["sources"]
    assert (told["kind"], told["images"], told["labels"]) == ("table", LABELS, 3 * LABELS)
    assert len(told["inputs"]) == 1
    assert (found.about["terms"], found.about["commercial_use"]) == ("made up", "no")
    assert "not what the patient has" in found.about["truth"]
    assert (found.dataset, found.vocabulary, found.images) == ("films", FINDINGS, FILMS)
    for fit in found.findings.subjects.values():
        assert fit.labels == LABELS
        assert 20 < fit.errors < LABELS
        assert len(fit.means) == 1 + FOLDS
        assert sum(fit.views.values()) == LABELS
    assert ".png" not in made.path.read_text()
    assert len(found.patients) == told["patients"]
    assert calibration.check(made.path, *source.values()).sha256 == found.sha256


def test_it_is_fitted_from_reads_too(place, source, made):
    """The majority of two: where both agree it counts, and a tie does not."""
    done = calibration.fit(
        [], reviews=[place / "reads.csv"], name="reads", terms="ours", commercial_use=True,
        out=place / "deeper" / "reads.json", **source,
    )  # fmt: skip
    (told,) = done.calibration.about["sources"]
    assert told["kind"] == "reviews"
    assert 0.7 * 3 * LABELS < told["labels"] < 3 * LABELS
    assert done.calibration.about["commercial_use"] == "yes"
    assert done.path == place / "deeper" / "reads.json"
    one, other = (each.calibration.findings.subjects["Effusion"].means[0] for each in (made, done))
    assert np.corrcoef(one, other)[0, 1] > 0.8
    both = calibration.fit(
        [f"table={place / 'experts.csv'}"], reviews=[place / "reads.csv"], name="both", terms="ours",
        out=place / "both.json", **source,
    )  # fmt: skip
    assert both.calibration.findings.subjects["Effusion"].labels == LABELS
    assert len(both.calibration.inputs) == 2


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"references": []}, "nothing to fit on"),
        ({"references": ["boxes"]}, "presences only"),
        ({"name": "My Readers"}, "small letters"),
        ({"name": ""}, "small letters"),
        ({"name": "../x"}, "small letters"),
    ],
)
def test_what_cannot_be_fitted_is_refused_before_a_file_is_written(place, source, tmp_path, given, why):
    """One line, and nothing lies there afterwards."""
    usual = {"references": [f"table={place / 'experts.csv'}"], "name": "x", "terms": "t", "out": tmp_path / "x.json"}
    with pytest.raises(UsageError, match=why):
        calibration.fit(**usual | given, **source)
    assert not list(tmp_path.iterdir())


def test_labels_of_other_films_are_refused(source, tmp_path):
    """None of them is in the dataset."""
    (tmp_path / "other.csv").write_text("image_id,Effusion\nelsewhere.png,1\nanother.png,0\n")
    with pytest.raises(UsageError, match="no expert label is of an image"):
        calibration.fit([f"table={tmp_path / 'other.csv'}"], name="x", terms="t", out=tmp_path / "x.json", **source)
    assert not (tmp_path / "x.json").exists()


def test_single_reads_make_no_calibration_and_the_error_says_what_does(source, tmp_path, place):
    """One reader per label: two or more must agree."""
    reads = pl.read_csv(place / "reads.csv")
    reads.filter(pl.col("reader") == "Ann").write_csv(tmp_path / "one.csv")
    with pytest.raises(UsageError, match="two or more readers agree"):
        calibration.fit([], reviews=[tmp_path / "one.csv"], name="x", terms="t", out=tmp_path / "x.json", **source)


def test_a_split_counts_for_every_kind_of_label(place, source, tmp_path):
    """Of a table that names splits only the rows of one are fitted on; one that names none is used whole."""
    table = pl.read_csv(place / "experts.csv").with_row_index("row")
    table.with_columns(split=pl.when(pl.col("row") % 2 == 0).then(pl.lit("val")).otherwise(pl.lit("test"))).drop(
        "row"
    ).write_csv(tmp_path / "halves.csv")
    half, whole = (
        calibration.fit([f"table={file}"], name="x", terms="t", split="val", out=tmp_path / "x.json", **source)
        for file in (tmp_path / "halves.csv", place / "experts.csv")
    )
    counts = [made.calibration.findings.subjects["Effusion"].labels for made in (half, whole)]
    assert counts == [LABELS // 2, LABELS]
    with pytest.raises(UnknownName):
        calibration.fit([f"table={place / 'experts.csv'}"], name="x", terms="t", split="vall", **source)


# Reading a file.


def test_the_shipped_one_is_sound_and_no_commercial_release_may_use_it():
    """It is found by its name, its terms are stated, and its citations."""
    assert "nih-experts-1" in shipped_calibrations()
    found = load_calibration("nih-experts-1")
    assert (found.name, found.dataset, found.about["commercial_use"]) == ("nih-experts-1", "nih", "no")
    assert len(found.vocabulary) == 14
    assert {"Nodule or mass", "Airspace opacity"} <= {group.name for group in found.groups}
    assert found.about["citations"]
    assert found.labels > 10_000


def test_bad_files_are_refused_with_words(made, source, tmp_path):
    """No file, no JSON, another thing, another version, an edited one; another dataset or other findings."""
    broken = {"torn.json": made.path.read_text()[:100], "list.json": "[]", "other.json": "{}"}
    for name, text in broken.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    edited = json.loads(made.path.read_text()) | {"name": "mine"}
    (tmp_path / "forged.json").write_text(json.dumps(edited))
    for name, why in {
        "torn.json": "cannot be read as JSON",
        "binary.json": "cannot be read as JSON",
        "list.json": "no expert calibration",
        "other.json": "no expert calibration",
        "forged.json": "sha256",
        "missing.json": "nih-experts-1",
    }.items():
        with pytest.raises(UsageError, match=why):
            load_calibration(tmp_path / name)
    with pytest.raises(UsageError, match="version 99"):
        load_calibration(as_edited(made, tmp_path, version=99))
    for changed, why in ({"dataset": "elsewhere"}, "elsewhere"), ({"vocabulary": ["Hernia"]}, "Hernia|Effusion"):
        other = as_edited(made, tmp_path, **changed)
        with pytest.raises(UsageError, match=why):
            calibration.check(other, source["source"], source["mapping"])
        with pytest.raises(UsageError, match=f"--prior .*({why}).*--prior none"):
            bpals.audit(**source, workspace=tmp_path / "audit", prior=other)
    assert not (tmp_path / "audit" / "run.json").exists()


# Auditing with it.


def test_an_audit_starts_from_it_and_says_so(audited, plain, made):
    """run.json, methods and reasons name it; patients it was fitted on are cross-fitted; flags are those of experts."""
    run = audited.record
    assert run["prior"]["name"] == "made-1"
    assert run["prior"]["sha256"] == made.calibration.sha256
    assert run["values"]["prior"]["value"] == str(made.path)
    assert run["calibration"] is None
    signal = bpals.load_signal(audited.workspace)
    assert set(signal["method"].str.strip_suffix("/crossfit")) == {"record-1+made-1"}
    read = set(pl.read_csv(made.path.parent / "experts.csv")["image_id"])
    crossed = signal.filter(pl.col("method").str.ends_with("/crossfit"))["image_id"]
    assert read <= set(crossed)
    assert plain.record["prior"] is None
    untaught = bpals.load_signal(plain.workspace)
    assert set(untaught["method"]) == {"record-1"}
    assert set(untaught["flag"]) <= {"unverified", "hard", "unjudged"}
    rules = [rule for run in (audited, plain) for by in run.record["flags"].values() for rule in by.values()]
    assert [rule["basis"] for rule in rules] == ["calibrated"] * 6 + ["none"] * 6
    counts = signal.group_by("flag").len()
    stated = [flag for rule in rules for flag in rule["stated"].items()]
    for flag, count in counts.filter(pl.col("flag") != "unjudged").iter_rows():
        assert sum(one["labels"] for name, one in stated if name == flag) == count


def test_it_is_calibrated_on_films_that_it_did_not_see(audited, plain):
    """The mean trust of presences is near the share that the experts confirm; without it, it is not."""
    truth = pl.read_csv(EXAMPLES / "experts.csv").head(FILMS).unpivot(index="image_id", variable_name="finding")
    off = []
    for run in (audited, plain):
        signal = bpals.load_signal(run.workspace).with_columns(pl.col("finding", "says").cast(pl.String))
        fresh = signal.join(truth, on=["image_id", "finding"]).filter(pl.col("trust").is_not_null())
        right = (fresh["says"] == "present") == (fresh["value"] == 1)
        off.append(abs(fresh["trust"].mean() - right.mean()))
    assert off[0] < 0.06
    assert off[0] < off[1]


def test_none_is_used_unasked_for_another_dataset(source, tmp_path):
    """Only the dataset that a shipped file was fitted for gets it, and no notice is needed elsewhere."""
    run = bpals.audit(**source, workspace=tmp_path / "audit")
    assert run.record["prior"] is None
    assert run.record["values"]["prior"]["value"] == "auto"
    assert "prior_left_out" not in {notice["code"] for notice in run.record["notices"]}
    with pytest.raises(UsageError, match=r"nih-experts-1: it was fitted for the dataset nih.*--prior none"):
        bpals.audit(**source, workspace=tmp_path / "other", prior="nih-experts-1")
    with pytest.raises(UsageError, match="neither a file nor a calibration"):
        bpals.audit(**source, workspace=tmp_path / "other", prior="nih-experts-0")


def test_the_same_labels_do_not_count_twice(place, source, made, tmp_path):
    """The file it was fitted on is known by its hash, also under another name: an error where it was asked for."""
    shutil.copy(place / "experts.csv", tmp_path / "again.csv")
    with pytest.raises(UsageError, match=r"count twice.*--prior none"):
        bpals.audit(
            **source, workspace=tmp_path / "audit", prior=made.path, calibrate=f"table={tmp_path / 'again.csv'}"
        )


def test_unasked_it_is_left_out_with_a_notice(place, source, made):
    """Where its labels are given here, and where the metadata judge learns from far fewer images than there."""
    shipped = {"films": str(made.path)}
    dataset = load_source(source["source"], source["mapping"])
    found, notices = choose_calibration("auto", dataset, Experts(), shipped=shipped)
    assert found.name == "made-1"
    assert not notices
    same = verdicts.load(f"table={place / 'experts.csv'}", vocabulary=dataset.vocabulary)
    found, notices = choose_calibration("auto", dataset, Experts(reference=same), shipped=shipped)
    assert found is None
    assert [notice.code for notice in notices] == ["prior_left_out"]
    assert "twice" in notices[0].message
    big = as_edited(made, made.path.parent, images=10 * FILMS)
    shipped = {"films": str(big)}
    found, notices = choose_calibration("auto", dataset, Experts(), shipped=shipped)
    assert found is None
    assert [notice.code for notice in notices] == ["prior_left_out"]
    assert f"{10 * FILMS:,}" in notices[0].message
    assert choose_calibration(str(big), dataset, Experts())[0].name == "made-1"
    assert choose_calibration("none", dataset, Experts()) == (None, [])


def test_a_small_part_of_nih_goes_without_it():
    """The shipped file is of 112,120 images; on a few the judge's answers mean something else."""
    nih = load_source("nih")
    few = bpals.types.Dataset(
        name=nih.name, title=nih.title, vocabulary=nih.vocabulary, images=nih.images.head(1000),
        claims=nih.claims.head(14_000), attribution=nih.attribution, inputs={},
    )  # fmt: skip
    found, notices = choose_calibration("auto", few, Experts())
    assert found is None
    assert [notice.code for notice in notices] == ["prior_left_out"]
    assert "1,000 images" in notices[0].message
    assert choose_calibration("auto", nih, Experts())[0].name == "nih-experts-1"


def test_relearning_keeps_it(place, source, audited, tmp_path):
    """The same signal as an audit with the same reads and the same calibration; without reads nothing changes."""
    home = shutil.copytree(audited.workspace, tmp_path / "home")
    dataset = load_source(source["source"], source["mapping"])
    reads = verdicts.load_reads(place / "reads.csv", vocabulary=dataset.vocabulary)
    before = bpals.load_signal(home)
    learned = relearn(home, reads)
    run = Workspace(home).run
    assert run["prior"]["name"] == "made-1"
    assert set(learned.fitted) == set(FINDINGS)
    after = bpals.load_signal(home)
    assert set(after["method"].str.strip_suffix("/crossfit")) == {"record-1+made-1+experts"}
    assert not after["p_present"].equals(before["p_present"])
    whole = bpals.audit(
        **source, workspace=tmp_path / "whole", prior=place / "made-1.json", reviews=place / "reads.csv"
    )
    assert bpals.load_signal(whole.workspace).equals(after)


def test_a_lost_file_is_said_when_relearning(place, source, tmp_path, made):
    """The workspace names a file that is gone: one line says which."""
    copy = shutil.copy(made.path, tmp_path / "gone.json")
    home = bpals.audit(**source, workspace=tmp_path / "home", prior=copy).workspace
    (tmp_path / "gone.json").unlink()
    dataset = load_source(source["source"], source["mapping"])
    with pytest.raises(UsageError, match=r"gone\.json is neither a file"):
        relearn(home, verdicts.load_reads(place / "reads.csv", vocabulary=dataset.vocabulary))


def test_a_plan_of_a_rate_knows_what_stands_behind_the_trust(audited, plain):
    """With a calibration no finding is guessed; without any, each is."""
    assert plan_rate(audited.workspace, reads=30).guessed == ()
    assert set(plan_rate(plain.workspace, reads=30).guessed) == set(FINDINGS)
