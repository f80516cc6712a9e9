"""`bpals judge run openai:...` on real films against a real third-party server, killed and resumed; then an audit."""

import json
import signal
import tarfile

import polars as pl
import pytest

from bpals.store.ledger import Ledger
from bpals.store.workspace import Workspace
from bpals.tasks.judge_status import status_of
from bpals.types import OUTCOME
from world import datasets, llamacpp
from world.waiting import wait_until

IN_FLIGHT = 4
"""As many as the server has slots."""


def stored(home, name):
    """Every reply about a film: (image id, number of the question) -> outcome and logit; the ledger must add up."""
    with Ledger.open(home / "ledger.sqlite", readonly=True) as ledger:
        assert ledger.verify() == []
        rows = ledger.replies(ledger.judge_id(name)).select("image_id", "number", "outcome", "logit").rows()
    found = {row[:2]: row[2:] for row in rows}
    assert len(found) == len(rows)
    return found


def films_done(home):
    """How many films are safely written, in all."""
    return sum(row["films"] for row in status_of(home)) if (home / "ledger.sqlite").exists() else 0


class Asked:
    """A workspace, and the way to ask the real server into it."""

    def __init__(self, start_bpals, home, url, *source):
        """Say where, and about which dataset."""
        self.start_bpals = start_bpals
        self.home = home
        self.words = ("judge", "run", f"openai:{llamacpp.MODEL}", "--base-url", url, "--workspace", home,
                      "--in-flight", IN_FLIGHT, "--json", *source)  # fmt: skip

    def ask(self, *words):
        """Run to the end, and give what it printed."""
        process = self.start_bpals(*self.words, *words)
        out, errors = process.communicate()
        assert process.returncode == 0, errors
        return json.loads(out)

    def kill(self, *words, at):
        """Kill the run when some more films are done, and give what was stored then."""
        process = self.start_bpals(*self.words, *words)
        wanted = films_done(self.home) + at
        wait_until(lambda: process.poll() is not None or films_done(self.home) >= wanted, 600, every=0.05)
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate()
        assert process.returncode == -signal.SIGKILL, errors
        return films_done(self.home)


def check(home, done, *, films, findings, topics=2):
    """All that was asked is stored once; all six outcomes are counted and add up; what is sealed is what is stored."""
    name = done["judge"]
    replies = stored(home, name)
    assert len({image_id for image_id, _ in replies}) == films
    assert len(replies) == films * 2 * (findings + topics)
    assert done["state"] == "done"
    assert list(done["counts"]) == OUTCOME.categories.to_list()
    assert sum(done["counts"].values()) == films * findings
    sealed = Workspace(home).judge(name)
    table = sealed.answers()
    counted = dict(table["outcome"].cast(pl.String).value_counts().iter_rows())
    assert {outcome: count for outcome, count in done["counts"].items() if count} == counted
    assert (table["p_present"].is_not_null() == (table["outcome"] == "answered")).all()
    assert sealed.film_answers().height == films * topics
    tally = sealed.record["tally"]
    assert sum(tally["replies"].values()) == len(replies)
    assert tally["controls"] == 4
    assert table["p_present"].drop_nulls().n_unique() > films
    return replies


@pytest.fixture(scope="module")
def three_findings(data_folder, tmp_path_factory):
    """A table of 600 real films with made-up labels for three findings, so that a film takes 10 questions, not 32."""
    names = [file.name for file in sorted((data_folder / "images" / "originals").glob("*.png"))]
    with tarfile.open(data_folder / "images" / "nih_256_000.tar") as archive:
        others = (f"{name.rpartition('/')[2].rpartition('.')[0]}.png" for name in archive.getnames())
        names += [name for name in others if len(name) > 4 and name not in set(names)]
    table = tmp_path_factory.mktemp("table") / "films.csv"
    films = pl.read_csv(datasets.FILMS)
    films.with_columns(film=pl.Series(names[: films.height])).write_csv(table)
    return ("--source", f"table:{table}", "--mapping", datasets.EXAMPLES / "films.toml")


def test_real_films_and_a_real_server(start_bpals, llamacpp_url, data_folder, three_findings, tmp_path):
    """Killed, resumed, and asked for more out of tars that nobody unpacked: nothing is lost, doubled or changed."""
    home = tmp_path / "audit"
    asked = Asked(start_bpals, home, llamacpp_url, *three_findings)
    originals = ("--images", data_folder / "images" / "originals", "--limit-images", 3)
    assert 1 <= asked.kill(*originals, at=1) <= 3
    before = stored(home, "smollm2-135m-instruct")
    assert status_of(home)[0]["state"] == "killed"
    assert Workspace(home).judge_names() == []
    resumed = asked.ask(*originals)
    replies = check(home, resumed, films=3, findings=3)
    assert {key: replies[key] for key in before} == before
    tarred = asked.ask("--images", data_folder / "images", "--limit-images", 1)
    more = check(home, tarred, films=tarred["films"], findings=3)
    assert tarred["films"] in (3, 4)
    assert {key: more[key] for key in replies} == replies
    assert any("more than once" in notice for notice in tarred["notices"])
    audit_beside_the_record(start_bpals, home, *three_findings)


def audit_beside_the_record(start_bpals, home, *source):
    """Audit with every judge of the workspace: each is named with its weight, and devices are read from the VLM."""
    process = start_bpals("audit", "--workspace", home, *source)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    audit = Workspace(home).open()
    names = Workspace(home).judge_names()
    judges = {entry["judge"]: entry for entry in audit.run["judges"]}
    assert set(judges) == {"record", *names}
    assert judges[names[0]]["counts"] == Workspace(home).judge(names[0]).record["counts"]
    signal_table = audit.table("signal.parquet")
    asked = Workspace(home).judge(names[0]).answers()["image_id"].unique().to_list()
    seen = signal_table.filter(pl.col("image_id").is_in(asked))
    assert seen.filter(pl.col("says") != "uncertain")["answered"].max() >= 1
    assert set(signal_table.filter(~pl.col("image_id").is_in(asked))["devices"]) <= {"unknown", "present", "absent"}
    assert names[0] in (home / "report.html").read_text(encoding="utf-8")
    return judges


@pytest.mark.sweep
def test_thirty_films_twice_and_the_audit_of_nih(start_bpals, llamacpp_url, data_folder, tmp_path):
    """32 questions a film: the originals, killed once and resumed; 30 films out of the tars; the NIH audit beside."""
    home = tmp_path / "audit"
    asked = Asked(start_bpals, home, llamacpp_url)
    originals = ("--images", data_folder / "images" / "originals", "--name", "originals")
    assert asked.kill(*originals, at=8) < 30
    before = stored(home, "originals")
    replies = check(home, asked.ask(*originals), films=30, findings=14)
    assert {key: replies[key] for key in before} == before
    tarred = ("--images", data_folder / "images", "--name", "tarred", "--limit-images", 30)
    assert asked.kill(*tarred, at=8) < 60
    before = stored(home, "tarred")
    replies = check(home, asked.ask(*tarred), films=30, findings=14)
    assert {key: replies[key] for key in before} == before
    judges = audit_beside_the_record(start_bpals, home)
    for name in ("originals", "tarred"):
        assert len(judges[name]["skill"]) == 14
        assert judges[name]["effective_weight"] < 0.05
