"""Audits that are fitted on expert labels, cross-fitted by patient. Only the validation images are used here."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import bpals
import shape
from bpals.errors import UnknownName, UsageError, WorkspaceError
from bpals.findings import NIH
from bpals.reviews import verdicts
from bpals.score.intervals import Resampling
from bpals.store.workspace import Workspace
from bpals.tasks.run_record import left_out
from bpals.types import signal_schema
from world import made_judges

FEW = Resampling(draws=20, seed=0)
CROSSFIT = pl.col("method").str.ends_with("/crossfit")


@pytest.fixture(scope="module")
def calibrated(nih_calibrated):
    """The audit that was fitted on the adjudicated validation images, of their patients."""
    return Workspace(nih_calibrated).open()


@pytest.fixture(scope="module")
def reviewed(data_folder):
    """The pairs that it was fitted on."""
    return verdicts.load(f"four-findings={data_folder / 'expert'}", vocabulary=NIH, split="val").truth


def test_calibration_adds_groups_and_keeps_the_signal_whole(calibrated, reviewed):
    """The signal keeps its rows; each group has a row a film, in the same columns; the pairs used are written down."""
    check_whole(calibrated, reviewed, films=6_913)


@pytest.mark.sweep
def test_calibration_keeps_the_signal_of_all_of_nih_whole(audit_once, data_folder, reviewed, nih_workspace):
    """The long form: every film of NIH, of which most were never reviewed."""
    words = ("--calibrate", f"four-findings={data_folder / 'expert'}", "--calibrate-split", "val")
    calibrated = Workspace(audit_once("all-calibrated", *words)).open()
    check_whole(calibrated, reviewed, films=112_120)
    check_kept(calibrated, Workspace(nih_workspace).open())


def check_whole(calibrated, reviewed, films):
    """Look at the tables of a calibrated audit of so many films."""
    signal, groups = calibrated.table("signal.parquet"), calibrated.table("groups.parquet")
    assert signal.height == 14 * films
    assert signal["trust"].is_between(0, 1).all()
    assert groups.columns == signal_schema(("any",)).names()
    rows = groups.group_by("finding").len()
    assert sorted(rows.rows()) == [("Airspace opacity", films), ("Nodule or mass", films)]
    assert groups.select("image_id", "finding").is_unique().all()
    assert groups["trust"].is_between(0, 1).all()
    used = calibrated.table("calibration.parquet")
    pairs = ["image_id", "finding", "present"]
    assert_frame_equal(used.select(pairs), reviewed.select(pairs), check_row_order=False)
    assert used.height == 3 * 2_414
    told = calibrated.run["calibration"]
    assert (told["reference"], told["split"], told["pairs"]) == ("four-findings", "val", used.height)
    assert {name: fit["n"] for name, fit in told["findings"].items()} == dict.fromkeys(used["finding"].unique(), 2_414)


def test_every_label_of_a_patient_who_was_read_is_crossfitted_and_no_other(calibrated):
    """What was read of one finding teaches all: so no label of any of the patient's images may rest on those reads."""
    images = calibrated.table("images.parquet", "image_id", "patient_id")
    listed = calibrated.table("calibration.parquet", "image_id")["image_id"].unique()
    patients = images.filter(pl.col("image_id").is_in(listed.implode()))["patient_id"].unique()
    read = set(images.filter(pl.col("patient_id").is_in(patients.implode()))["image_id"])
    assert len(read) > len(listed)
    for name in ("signal.parquet", "groups.parquet"):
        table = calibrated.table(name, "image_id", "method")
        assert set(table.filter(CROSSFIT)["image_id"]) == read
        assert not table.filter(~CROSSFIT)["image_id"].is_in(list(read)).any()


def test_the_labels_of_the_split_that_was_given_are_verdicts_and_no_others(calibrated, reviewed):
    """Of the finding and of the two groups; what was said of a group settles none of its members."""
    tables = [calibrated.table(name, "image_id", "finding", "says", "flag", "verdict", "verdict_by")
              for name in ("signal.parquet", "groups.parquet")]  # fmt: skip
    every = pl.concat([table.with_columns(pl.col("finding").cast(pl.String)) for table in tables])
    settled = every.filter(pl.col("verdict").is_not_null())
    found = settled.select("image_id", "finding", present=pl.col("verdict") == "present")
    assert_frame_equal(found, reviewed.select("image_id", "finding", "present"), check_row_order=False)
    assert set(settled["verdict_by"]) == {"adjudicated"}
    right = settled["says"].cast(pl.String) == settled["verdict"].cast(pl.String)
    words = pl.select(pl.when(right).then(pl.lit("confirmed")).otherwise(pl.lit("rejected"))).to_series()
    assert settled["flag"].cast(pl.String).equals(words, check_names=False)


def test_the_folds_of_a_calibration_keep_patients_together(calibrated):
    """No patient's review helps to fit the trust of another of their films."""
    used = calibrated.table("calibration.parquet").join(calibrated.table("images.parquet"), on="image_id")
    assert used.group_by("patient_id").agg(pl.col("fold").n_unique())["fold"].max() == 1
    assert used["fold"].n_unique() == 5


def test_what_was_not_reviewed_is_judged_as_before(calibrated, nih_uncalibrated):
    """The judge never sees a review: its answers are the same bytes; findings without a review keep their order."""
    check_kept(calibrated, Workspace(nih_uncalibrated).open())


def check_kept(calibrated, plain):
    """Compare a calibrated audit with one of the same films without any expert label."""
    name = "judgments/record.parquet"
    assert calibrated.run["files"][name] == plain.run["files"][name]
    for finding in ("Hernia", "Effusion"):
        before, after = (
            audit.table("signal.parquet", "image_id", "finding", "says", "trust").filter(finding=finding, says="absent")
            for audit in (plain, calibrated)
        )
        assert (
            pl.DataFrame({"a": before["trust"], "b": after["trust"]})
            .select(pl.corr("a", "b", method="spearman"))
            .item()
            > 0.9
        )


def test_the_scorecard_accepts_the_images_it_was_calibrated_on(calibrated, data_folder):
    """Because their trust is cross-fitted; every finding of the reference has its row."""
    reference = f"four-findings={data_folder / 'expert'}"
    card = bpals.scorecard(calibrated.path, reference=reference, split="val", resampling=FEW)
    rows = card.frame.filter(pl.col("method") == "bpals", pl.col("given") == "all")
    assert {"Pneumothorax", "Nodule or mass", "Airspace opacity"} <= set(rows["finding"])
    assert set(rows.filter(pl.col("finding") == "Pneumothorax")["n"]) == {2_414}


@pytest.fixture(scope="module")
def nih_part(tmp_path_factory):
    """A copy of NIH's CSV with two in a hundred patients."""
    folder = tmp_path_factory.mktemp("part")
    line = [sys.executable, shape.ROOT / "benchmarks" / "part.py", folder, "2", "--without-features"]
    subprocess.run(line, env=os.environ | {"PYTHONPATH": str(shape.SRC)}, check=True, capture_output=True)
    return folder / "part.csv"


def test_a_table_of_all_fourteen_findings_calibrates_each(nih_part, tmp_path):
    """Made-up experts reject every fifth presence; what they said leaves no trace in the next, uncalibrated audit."""
    films = pl.read_csv(nih_part)
    draw = np.random.default_rng(3)
    said = {name: films["Finding Labels"].str.contains(name).to_numpy() for name in NIH.findings}
    truth = {name: np.where(draw.random(films.height) < 0.2, 0, present) for name, present in said.items()}
    experts = pl.DataFrame({"image_id": films["Image Index"]} | truth).cast({pl.selectors.numeric(): pl.Int64})
    experts.write_csv(tmp_path / "experts.csv")
    run = bpals.audit(f"nih:{nih_part}", workspace=tmp_path / "audit", calibrate=f"table={tmp_path / 'experts.csv'}")
    assert run.groups is None
    fitted = run.record["calibration"]["findings"]
    common = [name for name in NIH.findings if said[name].sum() > 100]
    assert len(common) > 5
    assert set(common) <= set(fitted)
    used = Workspace(run.workspace).open().table("calibration.parquet", "image_id", "finding")
    assert used.height == films.height * len(fitted)
    crossfit = run.signal.filter(CROSSFIT)["finding"].cast(pl.String)
    assert set(crossfit) == set(fitted)
    assert len(crossfit) == films.height * len(fitted)
    again = bpals.audit(f"nih:{nih_part}", workspace=tmp_path / "audit")
    assert not (tmp_path / "audit" / "calibration.parquet").exists()
    assert again.signal.filter(CROSSFIT).is_empty()


@pytest.fixture
def calibrate(write_films, tmp_path):
    """Audit made-up films, calibrated as told."""
    _, source, _, mapping = write_films(tmp_path / "films.csv", seeds=[1])
    return lambda spec: bpals.audit(source, mapping=mapping, workspace=tmp_path / "audit", calibrate=spec)


def test_nine_patients_calibrate_and_nobody_here_does_not(calibrate, tmp_path):
    """Learning begins with the first label; labels of other images are refused, and nothing is written."""
    films = pl.read_csv(tmp_path / "films.csv").filter(
        pl.col("patient").str.head(6).is_in([f"1-P{n:03}" for n in range(9)])
    )
    experts = films.select("film", "Effusion").rename({"film": "image_id"})
    experts.with_columns(image_id="other-" + pl.col("image_id")).write_csv(tmp_path / "experts.csv")
    with pytest.raises(UsageError, match="none of its images is in this dataset"):
        calibrate(f"table={tmp_path / 'experts.csv'}")
    with pytest.raises(WorkspaceError):
        bpals.load_signal(tmp_path / "audit")
    experts.write_csv(tmp_path / "experts.csv")
    run = calibrate(f"table={tmp_path / 'experts.csv'}")
    assert 20 < run.record["calibration"]["findings"]["Effusion"]["n"] <= films.height


def test_boxes_cannot_calibrate(calibrate):
    """They hold presences only."""
    with pytest.raises(UsageError, match="presences only"):
        calibrate("boxes")


def test_an_unknown_kind_of_reviews_is_answered_with_the_nearest(calibrate):
    """Before anything is judged."""
    with pytest.raises(UnknownName, match=r"'four-finding'.*'four-findings'"):
        calibrate("four-finding=expert")


def test_an_audit_that_leaves_the_experts_out_says_so(tmp_path):
    """Once, with what to type: the trust that they taught is gone."""
    home = tmp_path / "audit"
    bpals.audit(made_judges.SOURCE, mapping=made_judges.MAPPING, workspace=home, calibrate=made_judges.EXPERTS)
    told = [
        [notice["message"] for notice in run.record["notices"] if notice["code"] == "experts_left_out"]
        for run in (bpals.audit(workspace=home), bpals.audit(workspace=home))
    ]
    assert [len(each) for each in told] == [1, 0]
    assert told[0][0].endswith(f"add: --calibrate {made_judges.EXPERTS}")


def test_every_file_of_reads_that_is_left_out_is_named(films_audit, tmp_path):
    """As it would be typed."""
    home = Workspace(shutil.copytree(films_audit, tmp_path / "audit"))
    record = json.loads((home.path / "run.json").read_text())
    record["values"]["reviews"]["value"] = ["a.csv", "b.csv"]
    (home.path / "run.json").write_text(json.dumps(record))
    (notice,) = left_out(home, {"calibrate": None, "reviews": None, "refit": None})
    assert notice.message.endswith("add: --reviews a.csv --reviews b.csv")
    assert left_out(home, {"calibrate": None, "reviews": "c.csv", "refit": None}) == []
