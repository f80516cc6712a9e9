"""`bpals doctor`: what is installed, what is missing, what to type."""

import json
import re
import tomllib

import numpy as np
import polars as pl
import pytest

import shape
from bpals.cli.doctor import EXTRAS, _embedded_record, _ledger_place, _sqlite
from bpals.cli.main import obey
from bpals.errors import install_line
from bpals.version import VERSION

pytestmark = pytest.mark.quick

PROJECT = tomllib.loads((shape.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture
def report(capsys):
    """What `bpals doctor --json` prints here."""
    assert obey(["doctor", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_versions_are_those_in_use(report):
    """A report pasted into an issue says what really ran."""
    found = {check["name"]: check["found"] for check in report["checks"]}
    assert (found["bpals"], found["numpy"], found["polars"]) == (VERSION, np.__version__, pl.__version__)


def test_the_embedded_record_is_checked_by_its_hash(report):
    """The record that ships with the package is the one its hash names."""
    assert next(check for check in report["checks"] if check["name"] == "embedded record")["state"] == "ok"


def test_a_damaged_record_is_wrong_and_says_how_to_mend_it(tmp_path):
    """A file whose hash is not the published one is named, with the line that brings it back."""
    (tmp_path / "nih_entries.parquet").write_bytes(b"damaged")
    check = _embedded_record(tmp_path)
    assert check.state == "wrong"
    assert "nih_entries.parquet" in check.found
    assert check.next.startswith("git checkout -- src/bpals/sources/embedded")


def test_everything_that_is_not_well_says_what_to_type(report):
    """A check that is missing or wrong, and an extra that is not installed, has a next step; the others have none."""
    for row in report["checks"] + report["extras"]:
        assert bool(row["next"]) == (row["state"] != "ok"), row


def test_the_extras_are_those_of_the_project():
    """The list in words and the list in pyproject.toml name the same extras and the same packages."""
    declared = {
        extra: {re.split(r"[\[<>=]", line)[0] for line in lines} - {"bpals"}
        for extra, lines in PROJECT["optional-dependencies"].items()
    }
    assert {extra.name: set(extra.packages) for extra in EXTRAS} == declared


def test_the_core_is_that_of_the_project(report):
    """Every package of the core install is looked at."""
    core = {re.split(r"[\[<>=]", line)[0] for line in PROJECT["dependencies"]}
    assert core <= {check["name"] for check in report["checks"]}


def test_a_person_reads_a_table(capsys):
    """Without --json the same is shown as tables, with the line that installs what is missing."""
    assert obey(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "embedded record" in shown
    assert all(extra.name in shown for extra in EXTRAS)
    for extra in EXTRAS:
        assert (install_line(extra.name) in shown) == bool(extra.missing)


def test_a_folder_on_a_network_is_told_before_a_ledger_is_made(tmp_path):
    """R20: on NFS the doctor says why no ledger may lie there, and what to do."""
    mounts = tmp_path / "mounts"
    mounts.write_text(f"server:/share {tmp_path} nfs4 rw 0 0\n", encoding="utf-8")
    check = _ledger_place(tmp_path, mounts)
    assert check.state == "missing"
    assert "nfs4" in check.found
    assert "--workspace DIR" in check.next
    assert _ledger_place(tmp_path, tmp_path / "nothing").state == "ok"


def test_an_old_sqlite_is_told():
    """R23: below 3.51.3 the doctor says that one process writes at a time; from then on it gives the version."""
    assert "refuses a second" in _sqlite((3, 40, 1)).found
    assert _sqlite((3, 40, 1)).found.startswith("3.40.1, fine for a ledger")
    assert _sqlite((3, 51, 3)).found.startswith("3.51.3")
