"""The default audit, on all of NIH, from the command to what lies in the folder."""

import json
import os
import shutil
import subprocess
import sys
import textwrap

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import bpals
import shape
from bpals.errors import WorkspaceError
from bpals.findings import AIRSPACE_OPACITY, NIH, NODULE_OR_MASS
from bpals.judges.record import RecordJudge
from bpals.signal.reasons import CODES
from bpals.store.workspace import Workspace, sha256
from bpals.tasks.audit import DEFAULTS
from bpals.types import signal_schema
from bpals.version import VERSION

CLAIMS = 1_569_680
COLUMNS = [
    "image_id", "finding", "says", "p_present", "trust", "trust_low", "trust_high", "agreement", "answered", "flag",
    "verdict", "verdict_by", "readers_present", "readers_absent",
    "reasons", "review_rank", "devices", "film_checks", "method",
]  # fmt: skip
FILES = {
    "images.parquet", "claims.parquet", "judgments/record.parquet", "signal.parquet", "groups.parquet", "report.html"
}  # fmt: skip


@pytest.fixture(scope="module")
def signal(nih_workspace):
    """The signal of the default audit."""
    return bpals.load_signal(nih_workspace)


def test_the_default_audit_gives_one_row_a_claim(signal):
    """1,569,680 rows, unique by image and finding, in the columns that were promised, with no hole."""
    assert signal.height == CLAIMS
    assert signal.select("image_id", "finding").is_unique().all()
    assert signal.columns == COLUMNS
    assert signal.schema == signal_schema(NIH.findings)
    nobody = ["film_checks", "verdict", "verdict_by"]  # nobody looked at a film, and nobody read one
    assert signal.select(pl.col(nobody).is_null().all()).row(0) == (True,) * len(nobody)
    assert signal.drop(nobody).null_count().row(0) == (0,) * (len(COLUMNS) - len(nobody))
    assert signal.select("readers_present", "readers_absent").unique().rows() == [(0, 0)]
    assert not signal.select(pl.selectors.float().is_nan().any()).row(0).count(True)
    assert signal["says"].value_counts(sort=True).rows() == [("absent", 1_488_504), ("present", 81_176)]


def test_the_trust_is_the_probability_that_the_claim_is_right(signal):
    """Exactly p_present or what is left to one, inside its interval, inside 0 and 1."""
    p = pl.col("p_present")
    right = pl.when(pl.col("says") == "present").then(p).otherwise(1 - p)
    assert signal.select((pl.col("trust") == right).all()).item()
    assert signal.select(pl.col("trust").is_between("trust_low", "trust_high").all()).item()
    assert signal.select(pl.selectors.starts_with("trust", "p_present").is_between(0, 1).all()).row(0) == (True,) * 4
    assert signal["agreement"].unique().sort().to_list() == [0, 1]
    assert signal["answered"].unique().to_list() == [1]


def test_what_is_worth_most_is_read_first(signal):
    """review_rank counts from 1 without a gap, in the order of value: the chance of an error before all."""
    ranked = signal.sort("review_rank")
    assert ranked["review_rank"].equals(pl.Series(range(1, CLAIMS + 1)))
    assert ranked["trust"].head(1000).mean() < 0.2 < ranked["trust"].tail(1000).mean()


def test_every_reason_is_a_code_and_a_sentence(signal):
    """Each claim has at least one, and programs know all the codes."""
    assert signal["reasons"].list.len().min() >= 1
    reasons = signal["reasons"].explode().unique()
    assert reasons.str.contains(r"^[a-z_]+: [a-zA-Z0-9].+[^.]$").all()
    assert set(reasons.str.extract(r"^([a-z_]+):").unique()) <= set(CODES)


def test_the_flags_follow_from_the_calibrated_trust_and_no_share_is_fixed(signal):
    """From the calibration that comes with bpals; the share that is flagged differs from finding to finding."""
    assert not (signal["flag"] == "unjudged").any()
    levels = pl.when(pl.col("says") == "present").then(0.8).otherwise(0.95)
    assert signal.filter(pl.col("flag") == "trusted").select((pl.col("trust") >= levels).all()).item()
    assert signal.filter(pl.col("flag") == "likely_mislabelled").select((pl.col("trust") <= 0.2).all()).item()
    present = signal.filter(pl.col("says") == "present")
    likely = present.group_by("finding").agg(share=(pl.col("flag") == "likely_mislabelled").mean())
    assert likely["share"].min() < 0.25
    assert likely["share"].max() > 0.5
    assert set(signal["method"].unique()) == {"record-1+nih-experts-1", "record-1+nih-experts-1/crossfit"}


def test_without_expert_knowledge_labels_are_ranked_only(write_films, tmp_path):
    """No label is trusted or mislabelled where nobody knows how many are wrong."""
    _, source, _, mapping = write_films(tmp_path / "films.csv", seeds=[1])
    run = bpals.audit(source, mapping=mapping, workspace=tmp_path / "audit")
    assert set(run.signal["flag"].unique()) <= {"unverified", "unjudged"}
    assert run.signal.filter(pl.col("flag") == "unverified")["review_rank"].is_unique().all()
    assert run.record["prior"] is None
    assert {rule["basis"] for sides in run.record["flags"].values() for rule in sides.values()} == {"none"}


def test_the_folder_holds_what_run_json_names_and_no_litter(nih_workspace):
    """Six files, run.json, and the lock; each file has the hash that stands there."""
    run = json.loads((nih_workspace / "run.json").read_text())
    lying = {str(path.relative_to(nih_workspace)) for path in nih_workspace.rglob("*") if path.is_file()}
    assert set(run["files"]) == FILES
    assert lying == FILES | {"run.json", ".lock"}
    for name, told in run["files"].items():
        content = (nih_workspace / name).read_bytes()
        assert told == {"sha256": sha256(content), "bytes": len(content)}


def test_run_json_says_what_was_read_and_decided(nih_workspace):
    """Every value with its reason, the inputs with their hashes, the packages, the judge with its settings."""
    run = Workspace(nih_workspace).run
    assert set(run["values"]) == set(DEFAULTS)
    assert run["values"]["workspace"] == {"value": str(nih_workspace), "given": "passed", "reason": ""}
    for name in set(DEFAULTS) - {"workspace"}:
        value, reason = DEFAULTS[name]
        assert run["values"][name] == {"value": value, "given": "defaulted", "reason": reason}
        assert reason
    assert run["source"]["name"] == "nih"
    assert all(told.startswith("sha256:") for told in run["source"]["inputs"].values())
    assert (run["bpals"], run["command"], run["images"], run["claims"]) == (VERSION, "bpals audit", 112_120, CLAIMS)
    assert {"python", "numpy", "polars"} <= set(run["packages"])
    (judge,) = run["judges"]
    assert judge["fingerprint"] == RecordJudge().card.fingerprint
    assert judge["settings"]["seed"] == RecordJudge().seed
    assert {"commit", "dirty", "seconds", "notices", "unaudited"} <= set(run)
    assert run["calibration"] is None
    assert run["prior"]["name"] == "nih-experts-1"
    assert run["prior"]["commercial_use"] == "no"
    assert set(run["flags"]) == {*NIH.findings, NODULE_OR_MASS.name, AIRSPACE_OPACITY.name}


def test_the_report_is_one_page_about_this_audit(nih_workspace):
    """It names the dataset and every finding; how it looks is tested in tests/report."""
    report = Workspace(nih_workspace).open().read("report.html").decode()
    assert report.startswith("<!doctype html>")
    assert "ChestX-ray14" in report
    assert all(name.replace("_", " ") in report.replace("_", " ") for name in NIH.findings)


def test_a_call_in_python_gives_what_the_folder_holds(write_films, tmp_path):
    """run.signal, load_signal and signal.parquet are one table; the run says where the report is."""
    _, source, _, mapping = write_films(tmp_path / "films.csv", seeds=[1])
    told = []
    run = bpals.audit(source, mapping=mapping, workspace=tmp_path / "audit", progress=lambda *step: told.append(step))
    assert_frame_equal(bpals.load_signal(tmp_path / "audit"), run.signal)
    assert_frame_equal(pl.read_parquet(tmp_path / "audit" / "signal.parquet"), run.signal)
    assert run.record == Workspace(tmp_path / "audit").run
    assert run.report.is_file()
    assert run.groups is None
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert (shares[0], told[-1]) == (0.0, ("done", 1.0))


def test_a_damaged_signal_is_not_loaded(films_audit, tmp_path):
    """load_signal checks the whole set: one byte of the report is enough."""
    report = shutil.copytree(films_audit, tmp_path / "audit") / "report.html"
    assert bpals.load_signal(tmp_path / "audit").height == 1_800
    report.write_bytes(report.read_bytes() + b" ")
    with pytest.raises(WorkspaceError, match=r"report\.html .*run\.json"):
        bpals.load_signal(tmp_path / "audit")


AGGREGATE = textwrap.dedent(
    """
    import json, re, resource, sys
    from pathlib import Path
    from bpals.store.files import parquet
    from bpals.findings import AIRSPACE_OPACITY, NIH, NODULE_OR_MASS
    from bpals.report.page import Page, render
    from world.estimating import estimate
    from bpals.types import Dataset
    from bpals.tasks.datasets import load_calibration as load
    from bpals.store.workspace import Workspace

    audit = Workspace(sys.argv[1]).open()
    dataset = Dataset(
        name="nih", title="NIH", vocabulary=NIH, images=audit.table("images.parquet"),
        claims=audit.table("claims.parquet"), attribution="NIH", inputs={},
    )
    found = load(audit.run["prior"]["name"])
    signal = estimate(dataset, audit.table("judgments/record.parquet"), groups=found.groups, prior=found).table
    page = render(Page(dataset=dataset, signal=signal, groups=None, run=audit.run))
    Path(sys.argv[2]).write_bytes(parquet(signal))
    used = resource.getrusage(resource.RUSAGE_SELF)
    status = Path("/proc/self/status")
    peak = re.search(r"VmHWM:\\s+(\\d+) kB", status.read_text())[1] if status.exists() else used.ru_maxrss
    print(json.dumps({"cpu_s": used.ru_utime + used.ru_stime, "peak_kb": int(peak), "page": len(page)}))
    """
)


def test_x01_claims_and_judgments_become_a_signal_and_a_report_in_a_minute(nih_workspace, elsewhere, signal, tmp_path):
    """X01: 1,569,680 pairs from stored tables in under 60 s and 2 GB; elsewhere too it is the signal of the audit."""
    done = subprocess.run(
        [sys.executable, "-c", AGGREGATE, nih_workspace, tmp_path / "signal.parquet"],
        env=os.environ | {"PYTHONPATH": f"{shape.SRC}{os.pathsep}{shape.ROOT / 'tests'}"} | elsewhere,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    used = json.loads(done.stdout)
    assert used["cpu_s"] < 60
    assert used["peak_kb"] * 1024 < 2e9
    assert used["page"] > 50_000
    assert_frame_equal(pl.read_parquet(tmp_path / "signal.parquet"), signal)
    written = (tmp_path / "signal.parquet").read_bytes()
    assert Workspace(nih_workspace).run["files"]["signal.parquet"]["sha256"] == sha256(written)


AGAIN = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from bpals.store.files import parquet
    from bpals.judges.record import RecordJudge
    from bpals.sources import nih

    dataset = nih.load()
    answers = RecordJudge().read(dataset.images, dataset.claims, dataset.vocabulary, only_folds=[3])
    for name, table in (("images", dataset.images), ("claims", dataset.claims), ("answers", answers)):
        Path(sys.argv[1], f"{name}.parquet").write_bytes(parquet(table))
    """
)


def test_all_of_nih_is_read_and_judged_elsewhere_to_the_same_bytes(nih_workspace, elsewhere, tmp_path):
    """Images and claims to the byte; the judge, asked about one patient in five, says of each what it said before."""
    environment = os.environ | {"PYTHONPATH": str(shape.SRC)} | elsewhere
    line = [sys.executable, "-c", AGAIN, tmp_path]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    audit = Workspace(nih_workspace).open()
    for name in ("images.parquet", "claims.parquet"):
        assert audit.run["files"][name]["sha256"] == sha256((tmp_path / name).read_bytes()), name
    answers = pl.read_parquet(tmp_path / "answers.parquet")
    said = audit.table("judgments/record.parquet")
    assert CLAIMS // 6 < answers.height < CLAIMS // 4
    assert_frame_equal(answers, said.join(answers.select("image_id").unique(), on="image_id", how="semi",
                                          maintain_order="left"), check_exact=True)  # fmt: skip


def test_a_second_audit_gives_the_same_bytes(nih_uncalibrated, nih_calibrated):
    """Every table is byte-identical elsewhere; the second was calibrated, and X01 has the bytes of the signal."""
    first, second = Workspace(nih_uncalibrated).open(), Workspace(nih_calibrated).open()
    for name in FILES - {"report.html", "signal.parquet", "groups.parquet"}:
        assert first.run["files"][name] == second.run["files"][name], name


@pytest.mark.sweep
def test_a_second_audit_of_all_of_nih_gives_the_same_bytes(nih_workspace, audit_once, elsewhere):
    """The long form: the whole audit, elsewhere, without any expert label."""
    first, second = (Workspace(home).open() for home in (nih_workspace, audit_once("again", environment=elsewhere)))
    for name in FILES - {"report.html"}:
        assert first.run["files"][name] == second.run["files"][name], name
