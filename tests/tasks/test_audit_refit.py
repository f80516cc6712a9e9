"""A random sample in an audit: what it shifts is written down, and where it shifts nothing the audit says so."""

import hashlib

import numpy as np
import polars as pl
import pytest

import bpals
from bpals.cli.main import obey
from bpals.errors import UsageError
from world.datasets import EXAMPLES, MAPPING, SOURCE
from world.words import mentions

WORDS = {"source": SOURCE, "mapping": MAPPING}
LINE = ["audit", "--source", WORDS["source"], "--mapping", WORDS["mapping"]]
TRUTH = pl.read_csv(EXAMPLES / "experts.csv")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Labels to fit on, and a random tenth of the films that is not among them."""
    folder = tmp_path_factory.mktemp("labels")
    drawn = np.random.default_rng(0).random(TRUTH.height) < 0.1
    TRUTH.filter(~drawn).write_csv(folder / "experts.csv")
    TRUTH.filter(drawn).write_csv(folder / "sample.csv")
    return folder


@pytest.fixture(scope="module")
def refitted(files, tmp_path_factory):
    """An audit with both."""
    home = tmp_path_factory.mktemp("refitted") / "audit"
    labels = f"table={files / 'experts.csv'}"
    return bpals.audit(**WORDS, workspace=home, calibrate=labels, refit=f"table={files / 'sample.csv'}")


def codes(run):
    """The codes and counts of what was noticed."""
    return {notice["code"]: notice["count"] for notice in run.record["notices"]}


def test_the_sample_is_written_down(files, refitted):
    """Its hash, its films, and what it added to the logits of presences and absences."""
    told = refitted.record["refit"]
    assert told["inputs"] == {"sample.csv": f"sha256:{hashlib.sha256((files / 'sample.csv').read_bytes()).hexdigest()}"}
    assert (told["reference"], told["split"]) == ("table", "all")
    assert told["films"] == pl.read_csv(files / "sample.csv").height
    assert set(told["shifts"]) == set(refitted.record["calibration"]["findings"])
    assert all(set(by) == {"present", "absent"} for by in told["shifts"].values())
    assert "refit_overlap" not in codes(refitted)
    assert "sample.csv" not in refitted.record["calibration"]["inputs"]


def test_films_that_also_teach_are_counted_and_what_was_shifted_is_said(files, tmp_path, capsys):
    """They would count twice; screen and report have the shifts in logits, presences and absences apart."""
    labels = f"table={files / 'experts.csv'}"
    assert obey([*LINE, "--workspace", str(tmp_path / "audit"), "--calibrate", labels, "--refit", labels]) == 0
    shown = capsys.readouterr()
    films = pl.read_csv(files / "experts.csv").height
    assert mentions(shown.err, "--refit:", f"{films:,} of its {films:,} images")
    assert mentions(shown.out, f"refitted on {films:,}")
    report = (tmp_path / "audit" / "report.html").read_text(encoding="utf-8")
    assert "refitted on" in report


def test_a_sample_shifts_every_finding_that_it_speaks_of(files, tmp_path):
    """Also one of which no other label was given: the others have taught what all findings share."""
    only = TRUTH.select("image_id", "Cardiomegaly").filter(~pl.Series(np.arange(TRUTH.height) % 10 == 0))
    only.write_csv(tmp_path / "one.csv")
    labels = f"table={tmp_path / 'one.csv'}"
    bare = bpals.audit(**WORDS, workspace=tmp_path / "bare", calibrate=labels)
    run = bpals.audit(**WORDS, workspace=tmp_path / "run", calibrate=labels, refit=f"table={files / 'sample.csv'}")
    assert set(run.record["refit"]["shifts"]) == {"Cardiomegaly", "Effusion", "Pneumothorax"}
    others = pl.col("finding") != "Cardiomegaly"
    told, before = (each.signal.filter(others) for each in (run, bare))
    assert not told["trust"].equals(before["trust"])
    # The sample was read by experts, so its labels are settled all the same.
    assert before["verdict"].is_null().all()
    assert set(told["verdict_by"]) == {"adjudicated", None}
    assert run.record["verdicts"]["adjudicated"] > bare.record["verdicts"]["adjudicated"] > 0
    assert not run.signal.filter(~others).equals(bare.signal.filter(~others))
    assert not [note for note in run.record["notices"] if note["code"] == "unshifted"]


def test_a_sample_with_nothing_to_shift_is_refused(files, tmp_path):
    """Before anything is made."""
    with pytest.raises(UsageError, match="only shifts"):
        bpals.audit(**WORDS, workspace=tmp_path / "audit", refit=f"table={files / 'sample.csv'}")
