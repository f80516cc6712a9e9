"""The words of each command, in tests/snapshots: whoever writes a better sentence sees it there, and nowhere else."""

import shutil

import polars as pl
import pytest

import bpals
import shape
from bpals.cli.main import obey
from world import datasets, made_judges, workspaces
from world.made_judges import EXPERTS
from world.snapshots import assert_snapshot

pytestmark = pytest.mark.quick
HELP = (
    [], ["audit"], ["calibration"], ["calibration", "fit"], ["calibration", "show"], ["calibration", "check"],
    ["score"], ["doctor"], ["rate"], ["rate", "plan"],
    ["judge"], ["judge", "run"], ["judge", "list"], ["judge", "status"], ["judge", "card"], ["judge", "compare"],
    ["judge", "merge"], ["probe"], ["probe", "build"], ["review"], ["review", "next"], ["review", "progress"],
    ["review", "export"], ["review", "import"], ["review", "serve"], ["review", "verify-log"], ["review", "account"],
)  # fmt: skip


@pytest.fixture
def words(capsys, monkeypatch):
    """Type commands one after another: what each prints, in a terminal of 100 columns, with what it notes."""
    monkeypatch.setenv("COLUMNS", "100")

    def typed(*lines):
        shown = []
        for line in lines:
            code = obey([str(word) for word in line])
            out, err = capsys.readouterr()
            shown.append(f"$ bpals {' '.join(map(str, line))}\n{out}")
            shown += [f"--- on stderr\n{err}"] * bool(err) + [f"--- exit code {code}\n"] * bool(code)
        return "\n".join(shown)

    return typed


@pytest.fixture
def audit(films_audit, tmp_path, monkeypatch):
    """A copy of an audit of the made-up films in `audit`, and the shell is in the folder above."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(films_audit, tmp_path / "audit")


@pytest.fixture
def judged(tmp_path, monkeypatch):
    """Judges of the made-up films, sealed in `audit`."""
    monkeypatch.chdir(tmp_path)
    folder = made_judges.make_workspace(tmp_path / "audit")
    made_judges.seal_stub(folder)
    return folder


def test_the_help_of_every_command(words):
    """Each option with its sentence."""
    assert_snapshot(words(*([*line, "--help"] for line in HELP)), "help")


def test_audit(words, tmp_path, monkeypatch):
    """600 made-up films, and what cannot be."""
    monkeypatch.chdir(tmp_path)
    audit = ["audit", "--source", datasets.SOURCE, "--mapping", datasets.MAPPING]
    assert_snapshot(words(audit, ["audit", "--source", "nhi"], [*audit, "--calibrate", "boxes"]), "audit")


@pytest.mark.usefixtures("audit")
def test_score(words):
    """Against the experts of the made-up films, beside the peers that need an extra."""
    pytest.importorskip("cleanlab", reason="needs the extra peers")
    assert_snapshot(words(["score", "--reference", EXPERTS, "--bootstrap", "50"], ["score"]), "score")


def test_rate(words, audit):
    """From a plan to a rate; the reader is always right."""
    plan = words(["rate", "plan", "--findings", "Effusion", "--reads", "60", "--out", "reads.csv"])
    assert_snapshot(plan, "rate-plan")
    file = audit.parent / "reads.csv"
    listed = pl.read_csv(file, schema_overrides={"verdict": pl.String, "reader": pl.String})
    truth = pl.read_csv(shape.ROOT / "examples" / "experts.csv").unpivot(index="image_id", variable_name="finding")
    known = listed.join(truth, on=["image_id", "finding"], maintain_order="left")
    word = pl.when(pl.col("value") == 1).then(pl.lit("present")).otherwise(pl.lit("absent"))
    known.select("image_id", "finding", verdict=word, reader=pl.lit("Ann")).write_csv(file)
    assert_snapshot(words(["rate", "--reviews", "reads.csv", "--group-by", "sex"]), "rate")


def test_review_next(words, tmp_path, monkeypatch):
    """A list on the terminal, and a sheet."""
    monkeypatch.chdir(tmp_path)
    workspaces.write_signal(tmp_path / "audit")
    draw = ["review", "next", "--n", "4"]
    assert_snapshot(words(draw, [*draw, "--out", "list.csv"], [*draw, "--out", "list.csv"]), "review-next")


def test_review_import_export_and_progress(words, audit):
    """Reads go in and out; a study that nobody began has no progress."""
    films = bpals.load_signal(audit)["image_id"].unique(maintain_order=True)
    sheet = "image_id,reader,Effusion,Fracture\n{0},ann,YES,NO\n{1},ann,NO,YES\n{0},bob,HEDGE,\n".format(*films)
    (audit.parent / "sheet.csv").write_text(sheet)
    line = ["review", "import", "sheet.csv"]
    assert_snapshot(words(line, line, ["review", "import", "nowhere.csv"]), "review-import")
    export = ["review", "export", "--out", "out.csv"]
    assert_snapshot(words(export, export), "review-export")
    assert_snapshot(words(["review", "progress"]), "review-progress")


def test_judge_run_status_and_merge(words, tmp_path, monkeypatch):
    """Two halves of a dozen films, asked by the stub; what is put together; and a kind that there is not."""
    monkeypatch.chdir(tmp_path)
    small = datasets.write(tmp_path, 12)
    run = ["judge", "run", "stub:5", *small.words]
    parts = [[*run, "--shard", f"{part}/2", "--workspace", f"w{part}"] for part in (1, 2)]
    assert_snapshot(words(*parts, ["judge", "run", "stubb:5", *small.words]), "judge-run", tmp=tmp_path)
    assert_snapshot(words(["judge", "status", "--workspace", "w1"]), "judge-status")
    assert_snapshot(words(["judge", "merge", "w1", "w2", "--workspace", "all"]), "judge-merge")


@pytest.mark.usefixtures("judged")
def test_judge_list_card_and_compare(words):
    """What there is, who one of them is, and how two of them differ."""
    listed = [line for line in words(["judge", "list"]).splitlines() if "pip install" not in line]
    assert_snapshot("\n".join(listed), "judge-list")
    assert_snapshot(words(["judge", "card", "sharp", "--reference", EXPERTS], ["judge", "card", "blind"]), "judge-card")
    line = ["judge", "compare", "sharp", "blunt", "--reference", EXPERTS, "--bootstrap", "50"]
    assert_snapshot(words(line, ["judge", "compare", "sharp", "shrap"]), "judge-compare")


def test_doctor(words):
    """What each extra is for; the rest depends on the machine."""
    extras = words(["doctor"]).partition("\nextras\n")[2].splitlines()
    told = [line.partition(" ")[2].strip() for line in extras if line and not line.startswith((" ", "-"))]
    assert_snapshot("\n".join(told), "doctor")
