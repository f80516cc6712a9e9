"""Real tables of other datasets, from the command to the report."""

import csv
import gzip
from itertools import islice

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from bpals.judges.record import RecordJudge, fold_of
from bpals.store.workspace import Workspace
from bpals.tasks.datasets import load_source

TABLES = {
    "vindr": ("vinbigdata-train.csv.gz", "Pneumothorax", (58, 14_904, 38, 0)),
    "chexpert": ("chexpert_train.csv.gz", "Pneumothorax", (19_448, 56_341, 3_145, 144_480)),
    "padchest": (
        "PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv.gz", "pneumothorax", (573, 142_234, 0, 18_054),
    ),
}  # fmt: skip
LARGE = ("chexpert", "padchest")


def audit_table(start_bpals, mapping, file, workspace):
    """Audit a real table with a shipped mapping, in a process of its own."""
    process = start_bpals("audit", "--source", f"table:{file}", "--mapping", mapping, "--workspace", workspace)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    return Workspace(workspace).open()


def check_signal(audit):
    """One row a claim; an uncertain claim has no trust but a probability; the page is there."""
    signal, claims = audit.table("signal.parquet"), audit.table("claims.parquet")
    keys = ["image_id", "finding", "says"]
    assert_frame_equal(signal.select(keys), claims.select(keys))
    assert signal["p_present"].is_between(0, 1).all()
    assert signal["p_present"].null_count() == 0
    uncertain = pl.col("says") == "uncertain"
    assert signal.select((pl.col("trust").is_null() == uncertain).all()).item()
    assert signal.select(((pl.col("flag") == "unjudged") == uncertain).all()).item()
    assert audit.run["source"]["title"].split()[0] in audit.read("report.html").decode()


def counts(audit, finding):
    """Films that say present, absent, uncertain, and nothing."""
    says = audit.table("claims.parquet").filter(pl.col("finding").cast(pl.String) == finding)["says"].cast(pl.String)
    spoken = [int((says == word).sum()) for word in ("present", "absent", "uncertain")]
    return (*spoken, audit.run["images"] - sum(spoken))


@pytest.mark.parametrize("mapping", ["vindr", *(pytest.param(name, marks=pytest.mark.sweep) for name in LARGE)])
def test_a_real_table_is_audited_whole(start_bpals, xrv_tables, tmp_path, mapping):
    """The written claims have the known counts. CheXpert and PadChest take more than a minute: `make sweep`."""
    file, finding, expected = TABLES[mapping]
    audit = audit_table(start_bpals, mapping, xrv_tables / file, tmp_path / "audit")
    assert counts(audit, finding) == expected
    check_signal(audit)


@pytest.mark.parametrize("mapping", LARGE)
def test_the_first_rows_of_a_large_real_table_are_audited(start_bpals, xrv_tables, tmp_path, mapping):
    """The same on those of 5,000 rows whose patients are of two folds, so that it runs every time."""
    file, _, _ = TABLES[mapping]
    with gzip.open(xrv_tables / file, "rt", newline="") as whole:
        header, *rows = islice(csv.reader(whole), 5_001)
    write_rows(tmp_path / "first.csv", [header, *rows])
    films = load_source(f"table:{tmp_path / 'first.csv'}", mapping).images
    assert films.height == 5_000
    fold = pl.Series(fold_of(films["patient_id"].to_numpy().astype(str), RecordJudge().folds))
    kept = set(films.filter(fold < 2)["image_id"])
    write_rows(tmp_path / "part.csv", [header, *(row for row in rows if kept & set(row))])
    audit = audit_table(start_bpals, mapping, tmp_path / "part.csv", tmp_path / "audit")
    assert audit.run["images"] == len(kept) > 1_500
    check_signal(audit)


def write_rows(file, rows):
    """Write a CSV file."""
    with file.open("w", newline="") as opened:
        csv.writer(opened).writerows(rows)
