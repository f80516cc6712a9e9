"""`bpals signal export` and the pre-annotations of `bpals review next`, typed."""

import json

import polars as pl
import pytest

import bpals
from bpals.cli.main import obey
from bpals.reviews import fiftyone, labelstudio
from world.words import mentions


@pytest.fixture
def typed(capsys, films_audit):
    """Type a command on a finished audit: its exit code, what it printed, and what it said on stderr."""

    def type_(*words):
        code = obey([*map(str, words), "--workspace", str(films_audit)])
        return code, *capsys.readouterr()

    return type_


@pytest.fixture(scope="module")
def signal(films_audit):
    """The signal of the audit."""
    return bpals.load_signal(films_audit)


def test_a_csv_has_every_label(typed, signal, tmp_path):
    """With the columns of the signal; a list is one cell; a file that is there is not overwritten."""
    file = tmp_path / "signal.csv"
    code, printed, _ = typed("signal", "export", "--out", file)
    assert (code, printed) == (0, f"{signal.height:,} labels in {file}\n")
    table = pl.read_csv(file)
    assert table.columns == signal.columns
    assert table["trust"].to_list() == signal["trust"].to_list()
    assert table["reasons"][0] == "; ".join(signal["reasons"][0])
    assert typed("signal", "export", "--out", file)[0] == 2


def test_labels_are_chosen(typed, signal, tmp_path):
    """By finding, by flag, and the first images to read."""
    finding, flag = signal["finding"][0], signal.filter(pl.col("review_rank") == 1)["flag"][0]
    words = ["--findings", finding, "--flags", flag, "--json"]
    code, printed, _ = typed("signal", "export", "--out", tmp_path / "some.parquet", *words)
    assert code == 0
    wanted = signal.filter(pl.col("finding") == finding, pl.col("flag") == flag)
    assert json.loads(printed)["labels"] == wanted.height
    assert pl.read_parquet(tmp_path / "some.parquet").equals(wanted)
    assert typed("signal", "export", "--out", tmp_path / "first.csv", "--n", 3)[0] == 0
    first = pl.read_csv(tmp_path / "first.csv")
    assert first["image_id"].n_unique() == 3
    assert first["review_rank"].min() == 1
    assert first["image_id"][0] == signal.filter(pl.col("review_rank") == 1)["image_id"][0]


def test_label_studio_gets_pre_annotations(typed, signal, tmp_path):
    """One prediction per image, a choice per finding; nothing of it is a read."""
    file = tmp_path / "tasks.json"
    assert typed("signal", "export", "--format", "label-studio", "--n", 2, "--out", file)[0] == 0
    tasks = json.loads(file.read_text())
    assert [task["annotations"] for task in tasks] == [[], []]
    image = tasks[0]["data"]["image_id"]
    rows = signal.filter(pl.col("image_id") == image, pl.col("p_present").is_not_null())
    (prediction,) = tasks[0]["predictions"]
    said = {each["from_name"]: each["value"]["choices"][0] for each in prediction["result"]}
    judged = zip(rows["finding"], rows["p_present"], strict=True)
    assert said == {finding: "present" if p >= 0.5 else "absent" for finding, p in judged}
    assert prediction["score"] == rows["trust"].min()
    assert labelstudio.read(file.read_bytes(), "tasks.json").table.is_empty()


def test_reads_of_pre_annotated_tasks_are_not_blind(typed, tmp_path):
    """`review next` gives the tasks in its order; what a reader answers there comes back as having seen the signal."""
    file = tmp_path / "tasks.json"
    code, printed, _ = typed("review", "next", "--n", 4, "--format", "label-studio", "--out", file)
    assert code == 0
    assert mentions(printed, "4 pairs", str(file), "not blind")
    tasks = json.loads(file.read_text())
    assert sum(len(task["predictions"][0]["result"]) for task in tasks) == 4
    accepted = [{key: value for key, value in each.items() if key != "meta"}
                for each in tasks[0]["predictions"][0]["result"]]  # fmt: skip
    tasks[0]["annotations"] = [{"id": 7, "completed_by": "ann@example.org", "result": accepted}]
    back = labelstudio.read(json.dumps(tasks).encode(), "tasks.json").table
    assert back.select("reader", "saw_signal").rows() == [("ann@example.org", 1)] * len(accepted)


def test_fiftyone_gets_samples(typed, signal, tmp_path):
    """One per image, its labels as Classifications with what the signal says of each; nothing of it is a read."""
    file = tmp_path / "samples.json"
    assert typed("signal", "export", "--format", "fiftyone", "--n", 1, "--out", file)[0] == 0
    (sample,) = json.loads(file.read_text())["samples"]
    labels = sample["signal"]["classifications"]
    rows = signal.filter(pl.col("image_id") == sample["filepath"])
    assert [each["label"] for each in labels] == rows["finding"].to_list()
    assert [each["confidence"] for each in labels] == rows["p_present"].to_list()
    assert [each["flag"] for each in labels] == rows["flag"].to_list()
    assert fiftyone.read(file.read_bytes(), "samples.json").table.is_empty()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["signal", "export", "--format", "coco"], ["coco", "reviews alone", "label-studio"]),
        (["signal", "export", "--flags", "suspekt", "--format", "csv"], ["suspekt", "Did you mean"]),
        (["signal", "export", "--findings", "Efusion", "--format", "csv"], ["Efusion", "Effusion"]),
        (["signal", "export", "--n", "0", "--format", "csv"], ["--n 0"]),
        (["signal", "export"], ["which format", "label-studio"]),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_code_2(typed, tmp_path, words, said):
    """And nothing is written."""
    code, printed, noted = typed(*words, "--out", tmp_path / "out.x")
    assert (code, printed) == (2, "")
    assert mentions(noted, *said)
    assert not (tmp_path / "out.x").exists()


def test_a_reading_list_for_another_tool_needs_a_file(typed):
    """Tasks are not printed."""
    code, _, noted = typed("review", "next", "--format", "label-studio")
    assert code == 2
    assert mentions(noted, "--out")


def test_a_signal_too_large_for_json_is_refused(typed, tmp_path, monkeypatch):
    """With what to do."""
    monkeypatch.setattr("bpals.tasks.review_files.MOST_AS_JSON", 10)
    code, _, noted = typed("signal", "export", "--format", "fiftyone", "--out", tmp_path / "all.json")
    assert code == 2
    assert mentions(noted, "--n", ".csv")
