"""Single reads in an audit: they are counted, written down and used; and what is wrong with any input is printed."""

import contextlib
import io

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
    assert audited.record["calibration"] is None


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
        ("unfitted", 602, "nothing was fitted for Cardiomegaly: of its 602 expert labels none is absent"),
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
