"""Single reads in an audit: they are counted, written down and used; and what is wrong with any input is printed."""

import contextlib
import io
import json

import numpy as np
import polars as pl
import pytest

import bpals
from bpals.cli.main import obey
from bpals.errors import TruthError
from bpals.store.workspace import Workspace
from bpals.tasks.datasets import load_source
from bpals.types import KIND, OUTCOME, answers_schema
from world.datasets import EXAMPLES, MAPPING, SOURCE
from world.words import mentions

WORDS = {"source": SOURCE, "mapping": MAPPING}
LINE = ["audit", "--source", WORDS["source"], "--mapping", WORDS["mapping"]]
FINDING = "Effusion"


def write_reads(path, *, films=slice(None), seed=0, extra=()):
    """Two readers of effusion on the example's films, who split on a third of them; and lines of one's own."""
    draw = np.random.default_rng(seed)
    truth = pl.read_csv(EXAMPLES / "experts.csv")[films]
    lines = ["image_id,finding,reader,verdict,split"]
    for film, present in truth.select("image_id", FINDING).iter_rows():
        split = "val" if draw.random() < 0.5 else "test"
        said, other = ("YES", "NO") if present else ("NO", "HEDGE")
        second = other if draw.random() < 1 / 3 else said
        lines += [f"{film},{FINDING},a,{said},{split}", f"{film},{FINDING},b,{second},{split}"]
    path.write_text("\n".join([*lines, *extra]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """An audit of the example with reads and nothing else of experts."""
    folder = tmp_path_factory.mktemp("reads")
    reads = write_reads(folder / "reads.csv")
    return bpals.audit(**WORDS, workspace=folder / "audit", reviews=reads, reviews_split="val")


def test_reads_are_written_down_with_what_they_taught(audited):
    """How many, by whom, from which file, and how the chance of a split was learnt."""
    told = audited.record["reviews"]
    assert told["split"] == "val"
    assert told["readers"] == 2
    assert told["reads"] == 2 * told["pairs"]
    assert 200 < told["pairs"] < 400
    assert list(told["inputs"]) == ["reads.csv"]
    assert told["hardness"]["findings"][FINDING]["pairs"] == told["pairs"]
    assert audited.record["values"]["reviews"]["given"] == "passed"
    assert audited.record["calibration"]["findings"][FINDING]["n"] == told["pairs"]


def test_flags_and_reasons_say_which_it_is(audited):
    """Of the finding that was read, every flagged claim says whether readers would split over it."""
    flagged = audited.signal.filter(
        pl.col("finding") == FINDING, pl.col("flag").is_in(["likely_mislabelled", "suspect", "hard"])
    )
    begins = flagged.select(
        hard=pl.col("flag") == "hard", code=pl.col("reasons").list.first().str.split(": ").list.first()
    )
    assert set(begins.unique().rows()) == {(False, "clear"), (True, "hard")}
    others = audited.signal.filter(pl.col("finding") != FINDING)
    assert not others["reasons"].list.join("|").str.contains("readers would split").any()


def test_few_reads_change_nothing_and_say_so(tmp_path):
    """Twenty films teach nobody where readers split."""
    reads = write_reads(tmp_path / "reads.csv", films=slice(20))
    run = bpals.audit(**WORDS, workspace=tmp_path / "audit", reviews=reads)
    assert mentions(run.record["reviews"]["hardness"]["words"], "too few reads", "20 pairs")
    assert "too_few_reads" in {notice["code"] for notice in run.record["notices"]}


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What the command prints, and its notices, when nearly everything that is given to it is flawed."""
    folder = tmp_path_factory.mktemp("bad")
    seal_flawed(Workspace(folder / "audit"), load_source(*WORDS.values()))
    film = pl.read_csv(EXAMPLES / "experts.csv")["image_id"][0]
    strange = [f"{film},Pneumothorax,a,YES,val", f"{film},Pneumothorax,a,NO,val", f"nowhere.png,{FINDING},a,YES,val"]
    reads = write_reads(folder / "reads.csv", extra=strange)
    experts = pl.read_csv(EXAMPLES / "experts.csv").with_columns(Cardiomegaly=pl.lit(1))
    elsewhere = experts.head(2).with_columns(image_id=pl.Series(["x.png", "y.png"]))
    pl.concat([experts, elsewhere]).write_csv(folder / "experts.csv")
    options = ["--reviews", str(reads), "--calibrate", f"table={folder / 'experts.csv'}"]
    with contextlib.redirect_stderr(io.StringIO()) as stream:
        assert obey([*LINE, "--workspace", str(folder / "audit"), *options]) == 0
    notices = Workspace(folder / "audit").run["notices"]
    return stream.getvalue(), {notice["code"]: notice["count"] for notice in notices}


def seal_flawed(home, dataset):
    """Seal a judge's table with every flaw that a table from elsewhere may have."""
    schema = answers_schema(dataset.vocabulary)
    claims = dataset.claims
    draw = np.random.default_rng(1)
    lean = 2.0 * (claims["says"] == "present").to_numpy() + draw.normal(size=claims.height)
    table = claims.select(
        "image_id", pl.col("finding").cast(pl.String), judge=pl.lit("eye"), kind=pl.lit("image", dtype=KIND),
        outcome=pl.lit("answered", dtype=OUTCOME), p_present=pl.Series(1 / (1 + np.exp(-lean))),
    ).with_columns(pl.lit(None, schema[name]).alias(name) for name in schema.names()[6:])  # fmt: skip
    beyond = pl.when(pl.int_range(pl.len()) < 3).then(1.5).when(pl.int_range(pl.len()) < 5).then(float("nan"))
    flawed = pl.concat([
        table.with_columns(p_present=beyond.otherwise("p_present")),
        table[10:17].with_columns(pl.col("p_present") / 2),
        table[30:41],
        table[50:54].with_columns(finding=pl.lit("Gout")),
        table[60:62].with_columns(image_id=pl.lit("elsewhere.png")),
    ])  # fmt: skip
    home.write_judge("eye", {"judge": "eye"}, flawed)


@pytest.mark.parametrize(
    ("code", "count", "says"),
    [
        ("no_probability", 5, "eye: of its 1,818 answers 5 give no probability from 0 to 1"),
        ("answers_contradict", 7, "eye: about 7 pairs it gives two different answers"),
        ("answers_again", 11, "eye: about 11 pairs it gives the same answer again"),
        ("foreign_findings", 4, "eye: 4 of its 1,824 answers left out, about findings"),
        ("foreign_answers", 2, "eye: 2 of its 1,824 answers left out, about images"),
        ("reader_contradicts", 1, "1 time one reader said two things about a pair"),
        ("unknown_images", 1, "1 verdict is about 1 film that is not in this dataset (first: nowhere.png)"),
    ],
)
def test_every_flaw_is_counted_and_printed(printed, code, count, says):
    """The audit goes on with the rest, and says what it left out."""
    words, notices = printed
    assert "note: " in words
    assert says in words
    assert notices[code] == count


def test_labels_of_unknown_films_are_counted_too(printed):
    """The expert labels name two films, with three findings each, that are not in the dataset."""
    assert mentions(printed[0], "table: 6 verdicts", "2 films", "x.png")


def test_reads_of_other_films_only_are_refused_in_one_line(tmp_path, capsys):
    """The wrong file, most likely."""
    reads = tmp_path / "reads.csv"
    reads.write_text(f"image_id,finding,reader,verdict\nq.png,{FINDING},a,YES\n", encoding="utf-8")
    with pytest.raises(TruthError, match="no read is about"):
        bpals.audit(**WORDS, workspace=tmp_path / "audit", reviews=reads)
    assert obey([*LINE, "--workspace", str(tmp_path / "audit"), "--reviews", str(reads)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_reference_without_a_negative_is_refused_in_one_line(tmp_path, capsys):
    """A missed finding could not be told from a right absence."""
    experts = pl.read_csv(EXAMPLES / "experts.csv").select("image_id", Effusion=pl.lit(1))
    experts.write_csv(tmp_path / "experts.csv")
    options = ["--workspace", str(tmp_path / "audit"), "--calibrate", f"table={tmp_path / 'experts.csv'}"]
    assert obey([*LINE, *options]) == 2
    assert mentions(capsys.readouterr().err, "no negatives", "600")


def test_a_judge_without_its_columns_is_refused(tmp_path, capsys):
    """A table that only looks like a judge's."""
    home = Workspace(tmp_path / "audit")
    home.write_judge("eye", {"judge": "eye"}, pl.DataFrame({"image_id": ["a"], "outcome": ["answered"]}))
    assert obey([*LINE, "--workspace", str(home.path)]) == 2
    printed = capsys.readouterr().err
    assert "has no column 'finding', 'p_present'" in printed
    assert printed.count("\n") == 1


def test_the_report_says_what_the_reads_taught(audited):
    """How many reads, by whom, and how often they split."""
    page = " ".join(audited.report.read_text(encoding="utf-8").split())
    told = audited.record["reviews"]
    assert mentions(page, f"{told['reads']:,} single reads", "2 readers", "split: val")
    assert f"of {told['pairs']:,} pairs" in page


# What the readers settled leaves the audit by every door.


@pytest.fixture(scope="module")
def settled(audited):
    """The labels whose two readers say the same, and that verdict."""
    reads = pl.read_csv(audited.workspace.parent / "reads.csv").filter(pl.col("split") == "val")
    words = reads.group_by("image_id").agg(pl.col("verdict").unique())
    agreed = words.filter(pl.col("verdict").list.len() == 1).select("image_id", told=pl.col("verdict").list.first())
    told = agreed.with_columns(told=pl.col("told").replace({"YES": "present", "NO": "absent"}))
    return audited.signal.filter(pl.col("finding") == FINDING).join(told, on="image_id", maintain_order="left")


def test_two_readers_who_agree_settle_the_label(audited, settled):
    """And no other: not one who hedges beside, nor two who differ; the record, the report and no rank forget it."""
    known = audited.signal.filter(pl.col("verdict").is_not_null())
    assert known.select("image_id", "finding").equals(settled.select("image_id", "finding"))
    assert settled["verdict"].cast(pl.String).equals(settled["told"], check_names=False)
    assert set(settled["verdict_by"]) == {"readers"}
    assert settled.select("readers_present", "readers_absent").sum_horizontal().unique().to_list() == [2]
    counts = dict(settled["flag"].cast(pl.String).value_counts().iter_rows())
    # An uncertain label has a verdict too, and nothing that could be confirmed.
    assert counts.pop("unjudged") == (settled["says"] == "uncertain").sum() > 0
    assert set(counts) == {"confirmed", "rejected"}
    assert audited.record["verdicts"] == {"readers": settled.height, "adjudicated": 0, **counts}
    assert known["review_rank"].min() == audited.signal.height - known.height + 1
    page = " ".join(audited.report.read_text(encoding="utf-8").split())
    assert mentions(page, f"They reject {counts['rejected']:,} and confirm {counts['confirmed']:,}")
    assert "tone-rejected" in page


def test_a_settled_label_is_not_sent_to_be_read_again(audited, settled):
    """However many pairs are asked for, and though no file of reads is named."""
    listed = bpals.next_reviews(audited.workspace, n=100_000, draw=bpals.Draw(one_per_patient=False))
    left = audited.signal.join(settled, on=["image_id", "finding"], how="anti")
    assert listed.height == left.filter(pl.col("says") != "uncertain").height
    assert listed.join(settled.cast({"finding": pl.String}), on=["image_id", "finding"], how="semi").is_empty()


def test_a_model_learns_the_verdict(audited, settled):
    """Targets are the verdicts; a rejected label is open and weighs nothing; a confirmed one stays."""
    soft, open_, heavy = (make(audited.signal) for make in (bpals.targets, bpals.mask, bpals.weights))
    column = soft.findings.index(FINDING)
    rows = [soft.image_ids.index(image) for image in settled["image_id"]]
    assert soft.values[rows, column].tolist() == (settled["told"] == "present").cast(pl.Float64).to_list()
    settled = settled.filter(pl.col("says") != "uncertain")
    rows = [soft.image_ids.index(image) for image in settled["image_id"]]
    rejected = (settled["flag"] == "rejected").to_numpy()
    assert (np.isnan(open_.values[rows, column]) == rejected).all()
    assert ((heavy[FINDING].to_numpy()[rows] == 0) == rejected).all()


def test_a_verdict_leaves_in_every_format(audited, settled, tmp_path):
    """CSV has the columns, FiftyOne is certain, and Label Studio suggests what people say."""
    flags = {"flags": ["rejected"], "findings": [FINDING]}
    rejected = settled.filter(pl.col("flag") == "rejected")
    told = dict(rejected.select("image_id", "told").rows())
    bpals.export_signal(audited.workspace, tmp_path / "signal.csv", **flags)
    table = pl.read_csv(tmp_path / "signal.csv")
    assert dict(table.select("image_id", "verdict").rows()) == told
    bpals.export_signal(audited.workspace, tmp_path / "samples.json", format="fiftyone", **flags)
    samples = json.loads((tmp_path / "samples.json").read_text())["samples"]
    labels = {sample["filepath"]: sample["signal"]["classifications"][0] for sample in samples}
    assert {image: label["confidence"] for image, label in labels.items()} == {
        image: float(word == "present") for image, word in told.items()
    }
    kept = {image: (label["verdict"], label["p_present"]) for image, label in labels.items()}
    assert kept == {image: (word, p) for image, word, p in rejected.select("image_id", "told", "p_present").rows()}
    bpals.export_signal(audited.workspace, tmp_path / "tasks.json", format="label-studio", **flags)
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    choices = {task["data"]["image_id"]: task["predictions"][0]["result"][0] for task in tasks}
    assert {image: each["value"]["choices"][0] for image, each in choices.items()} == told
    assert {each["meta"]["bpals_signal"]["verdict_by"] for each in choices.values()} == {"readers"}
    # Nothing here is left to read, so nothing is the least trusted.
    assert {task["predictions"][0]["score"] for task in tasks} == {None}
