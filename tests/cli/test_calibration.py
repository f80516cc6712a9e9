"""`bpals calibration` at the command line: what ships is shown, what is made is used, what is broken is one line."""

import json
import shutil

import polars as pl
import pytest

from bpals.cli.main import obey
from world import datasets
from world.datasets import EXAMPLES
from world.made_judges import EXPERTS
from world.words import mentions

FILMS = ["--source", datasets.SOURCE, "--mapping", datasets.MAPPING]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A calibration of the made-up films, from their experts."""
    path = tmp_path_factory.mktemp("calibration") / "made-up-1.json"
    words = ["--reference", EXPERTS, "--terms", "made up", "--name", "made-up-1", "--out", str(path)]
    assert obey(["calibration", "fit", *words, *FILMS]) == 0
    return path


@pytest.mark.quick
def test_what_ships_is_shown_in_80_columns(capsys):
    """What it was fitted on, whose truth it is and under which terms; never an expert's label."""
    assert obey(["calibration", "show", "nih-experts-1"]) == 0
    told = capsys.readouterr().out
    assert mentions(told, "expert labels of", "Pleural_Thickening", "Airspace opacity")
    assert mentions(told, "what most radiologists who see this image alone would say, not what the patient has")
    assert mentions(told, "research and education", "Commercial use: no", "Cite:")
    assert max(len(line) for line in told.splitlines() if set(line) & set("│┃┡└┏")) <= 80


@pytest.mark.quick
def test_what_ships_is_sound_and_for_nih(capsys):
    """As its hash says; the JSON counts labels, presences and views per finding."""
    assert obey(["calibration", "check", "nih-experts-1"]) == 0
    assert mentions(capsys.readouterr().out, "nih-experts-1: sound")
    assert obey(["calibration", "show", "nih-experts-1", "--json"]) == 0
    entry = json.loads(capsys.readouterr().out)
    assert entry["findings"]["Hernia"]["presences"] < entry["findings"]["Hernia"]["labels"]
    assert sum(entry["findings"]["Mass"]["views"].values()) == entry["findings"]["Mass"]["labels"]


def test_an_audit_says_which_file_it_starts_from(capsys, fitted, tmp_path):
    """On the terminal, in run.json and in the report; `none` ranks only."""
    capsys.readouterr()
    folder = tmp_path / "audit"
    assert obey(["audit", *FILMS, "--prior", str(fitted), "--workspace", str(folder)]) == 0
    told = capsys.readouterr().out
    assert mentions(told, "Calibrated by made-up-1", "which are enriched")
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    assert run["prior"]["name"] == "made-up-1"
    assert run["stated"]["present"]["confirmed"]["labels"] == 475
    assert {sides["present"]["basis"] for sides in run["flags"].values()} == {"calibrated"}
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert mentions(report, "made-up-1", "readers would confirm", "terms of the labels: made up".capitalize())
    assert obey(["audit", *FILMS, "--prior", "none", "--workspace", str(folder)]) == 0
    assert mentions(capsys.readouterr().out, "ranked only")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 99}, "version 99"),
        ({"terms": "anything goes"}, "damaged or was edited"),
        ({"format": "another"}, "no expert calibration"),
    ],
)
def test_a_file_that_cannot_be_is_one_line(capsys, fitted, tmp_path, change, says):
    """Another version, a broken hash, another format: what, where, and what to do."""
    content = json.loads(fitted.read_text(encoding="utf-8")) | change
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    capsys.readouterr()
    assert obey(["calibration", "check", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert mentions(error, "broken.json", says, "bpals calibration fit")


def test_a_file_of_another_dataset_is_one_line(capsys, fitted, tmp_path):
    """The one for NIH does not suit other films, nor the other way round."""
    capsys.readouterr()
    assert obey(["audit", *FILMS, "--prior", "nih-experts-1", "--workspace", str(tmp_path / "audit")]) == 2
    assert mentions(capsys.readouterr().err, "--prior nih-experts-1", "nih", "--prior none")
    assert obey(["calibration", "check", str(fitted), "--source", "nih"]) == 2
    assert mentions(capsys.readouterr().err, "made-up-1.json", "was fitted for")


@pytest.mark.quick
def test_without_labels_there_is_nothing_to_fit(capsys):
    """One line that names the options."""
    assert obey(["calibration", "fit", "--name", "mine-1", "--terms", "ours", *FILMS]) == 2
    assert mentions(capsys.readouterr().err, "--reference", "--reviews")


COUNT = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A dataset, labels of its films, and a calibration that was fitted on them by the command."""
    place = tmp_path_factory.mktemp("calibrations")
    pl.read_csv(datasets.FILMS).head(COUNT).write_csv(place / "films.csv")
    shutil.copy(EXAMPLES / "films.toml", place / "films.toml")
    pl.read_csv(EXAMPLES / "experts.csv").head(COUNT).write_csv(place / "experts.csv")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert obey([*FIT, "--name", "ours-1"]) == 0
    return place


SOURCE = ["--source", "table:films.csv", "--mapping", "films.toml"]
FIT = ["calibration", "fit", "--reference", "table=experts.csv", "--terms", "our own reads", *SOURCE]


@pytest.fixture
def here(folder, monkeypatch):
    """The shell is in it."""
    monkeypatch.chdir(folder)
    return folder


def test_from_labels_to_a_file_to_an_audit(here, capsys):
    """What was fitted is shown with its terms, and the next line to type works."""
    assert obey([*FIT, "--name", "ours-2", "--commercial-use"]) == 0
    told = capsys.readouterr().out
    for words in ("Effusion", "our own reads", "Commercial use: yes", "not what the patient has", "ours-2.json"):
        assert words in told
    assert f"{3 * COUNT} expert labels of {COUNT} images" in told
    assert "bpals audit --prior ours-2.json" in told
    assert all(len(line) <= 100 for line in told.splitlines() if "│" in line)
    assert obey(["audit", *SOURCE, "--prior", "ours-2.json", "--workspace", "audit"]) == 0
    assert json.loads((here / "audit" / "run.json").read_bytes())["prior"]["name"] == "ours-2"


@pytest.mark.usefixtures("here")
def test_show_and_check(capsys):
    """The shipped one by its name, a file by its path; JSON has what run.json has."""
    assert obey(["calibration", "show", "nih-experts-1"]) == 0
    told = capsys.readouterr().out
    for words in ("nih-experts-1", "Hernia", "Nodule or mass", "Cite: ", "Commercial use: no", "sha256"):
        assert words in told
    assert obey(["calibration", "show", "ours-1.json", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["name"], shown["labels"], shown["images"]) == ("ours-1", 3 * COUNT, COUNT)
    assert shown["findings"]["Effusion"]["labels"] == COUNT
    assert obey(["calibration", "check", "ours-1.json", *SOURCE]) == 0
    assert "ours-1: sound" in capsys.readouterr().out
    assert obey([*FIT, "--name", "ours-3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "ours-3"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (["calibration", "show", "nobody-1"], "nih-experts-1"),
        (["calibration", "check", "torn.json"], "JSON"),
        (["calibration", "check", "forged.json"], "sha256"),
        (["calibration", "check", "nih-experts-1", *SOURCE], "dataset nih"),
        ([*FIT, "--name", "Ours 1"], "small letters"),
        (["calibration", "fit", "--name", "x", "--terms", "t", *SOURCE], "--reference KIND=PATH"),
        (["audit", *SOURCE, "--prior", "nih-experts-1"], "--prior none"),
        (["audit", *SOURCE, "--prior", "torn.json"], "JSON"),
        (["audit", *SOURCE, "--prior", "ours-1.json", "--calibrate", "table=experts.csv"], "twice"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(here, capsys, line, why):
    """What, where, and what to do; no traceback, and nothing is written."""
    whole = (here / "ours-1.json").read_text()
    (here / "torn.json").write_text(whole[:50])
    (here / "forged.json").write_text(whole.replace("our own reads", "anyone may use it"))
    before = {path.name for path in here.iterdir()}
    assert obey(line) != 0
    told = capsys.readouterr().err
    assert why in " ".join(told.split())
    assert "Traceback" not in told
    assert {path.name for path in here.iterdir()} <= before | {"audit"}
