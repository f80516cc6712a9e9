"""`bpals.plan_rate` and `bpals.rate`: a plan, a reading list without the claims, the rates, and bad input."""

import shutil

import polars as pl
import pytest

import bpals
import shape
from bpals.errors import BpalsError, TruthError, UnknownName, UsageError, WorkspaceError
from bpals.tasks.rate import PLAN, write_list

FINDINGS = ("Cardiomegaly", "Effusion", "Pneumothorax")


@pytest.fixture
def home(films_audit, tmp_path):
    """A copy of an audit of the made-up films, to plan in."""
    return shutil.copytree(films_audit, tmp_path / "audit")


def filled(listed, reader="Ann"):
    """The list with the experts' word in it."""
    truth = pl.read_csv(shape.ROOT / "examples" / "experts.csv").unpivot(index="image_id", variable_name="finding")
    known = listed.select("image_id", "finding").join(truth, on=["image_id", "finding"], maintain_order="left")
    word = pl.when(pl.col("value") == 1).then(pl.lit("present")).otherwise(pl.lit("absent"))
    return known.select("image_id", "finding", verdict=word, reader=pl.lit(reader))


def codes(told):
    """The codes and counts of what was noticed."""
    return {note.code: note.count for note in told.notes}


def test_a_plan_is_read_and_rated(home, tmp_path):
    """From the list to the rates: the truth lies in the intervals; one in twenty may miss it."""
    plan = bpals.plan_rate(home, reads=120)
    file = tmp_path / "reads.csv"
    filled(plan.reading_list).write_csv(file)
    told = bpals.rate(home, reviews=file, group_by=["sex", "age"])
    assert told.notes == []
    claims = pl.read_parquet(home / "claims.parquet").with_columns(pl.col("finding", "says").cast(pl.String))
    truth = pl.read_csv(shape.ROOT / "examples" / "experts.csv").unpivot(index="image_id", variable_name="finding")
    said = claims.filter(pl.col("says") != "uncertain").join(truth, on=["image_id", "finding"])
    wrong = said.with_columns(wrong=(pl.col("says") == "present") != (pl.col("value") == 1))
    held = []
    for finding in FINDINGS:
        row = told.rates.filter(pl.col("finding") == finding, pl.col("says") == "all", pl.col("group").is_null())
        true = wrong.filter(pl.col("finding") == finding)["wrong"].mean()
        held.append(row["low"][0] <= true <= row["high"][0])
        assert row["read"][0] == 120
    assert sum(held) >= 2
    assert {"18-39", "80+", "F"} <= set(told.rates["group"].drop_nulls())


def test_the_reading_list_says_nothing_about_the_claims(home):
    """Films and findings alone, and the strata do not show in the order."""
    plan = bpals.plan_rate(home, findings=["effusion"], reads=90)
    assert plan.reading_list.columns == ["image_id", "finding", "verdict", "reader"]
    assert plan.reading_list["verdict"].null_count() == 90
    key = pl.read_parquet(home / PLAN)
    places = plan.reading_list.with_row_index().join(key, on=["image_id", "finding"])
    middle = places.group_by("stratum").agg(pl.col("index").mean())["index"]
    assert abs(middle - 44.5).max() < 20


def test_the_reads_come_back_with_their_chances(home):
    """So that an audit can learn from them: what `--out` writes."""
    plan = bpals.plan_rate(home, reads=30)
    reads = filled(plan.reading_list).with_columns(inclusion=pl.lit(None, pl.Float64))
    told = bpals.rate(home, reviews=reads)
    assert told.reviews["inclusion"].null_count() == 0
    assert told.reviews["inclusion"].n_unique() > 3


def test_a_second_plan_adds_to_the_first(home):
    """Earlier reads stay good; only what is missing is listed, and the audit may have changed its mind in between."""
    first = bpals.plan_rate(home, findings=["Effusion"], reads=60)
    second = bpals.plan_rate(home, findings=["Effusion"], reads=100)
    assert (first.batch, second.batch) == (1, 2)
    assert second.reading_list.height == 40
    assert first.reading_list.join(second.reading_list, on="image_id", how="semi").is_empty()
    again = bpals.plan_rate(home, findings=["Effusion"], reads=100)
    assert again.reading_list.is_empty()
    both = pl.concat([filled(first.reading_list), filled(second.reading_list)])
    told = bpals.rate(home, reviews=both.with_columns(inclusion=pl.lit(None, pl.Float64)))
    assert told.rates["read"][0] == 100
    assert told.rates["anytime_low"][0] is not None


def test_a_plan_of_another_finding_has_a_list_of_its_own(home):
    """Also after several draws of the first one; a list of both holds what is new of each."""
    bpals.plan_rate(home, findings=["Effusion"], reads=40)
    bpals.plan_rate(home, findings=["Effusion"], reads=60)
    other = bpals.plan_rate(home, findings=["Cardiomegaly"], reads=50)
    assert other.reading_list["finding"].unique().to_list() == ["Cardiomegaly"]
    assert other.reading_list.height == 50
    both = bpals.plan_rate(home, findings=["Effusion", "Cardiomegaly"], reads=70).reading_list
    assert dict(both.group_by("finding").len().iter_rows()) == {"Effusion": 10, "Cardiomegaly": 20}
    assert both.join(other.reading_list, on=["image_id", "finding"], how="semi").is_empty()


def test_a_width_is_planned_for(home):
    """A narrower interval takes more reads."""
    wide, narrow = (bpals.plan_rate(home, findings=["Effusion"], width=w, seed=0).reads for w in (0.2, 0.1))
    assert 9 < wide < narrow < 583


def test_groups_of_findings_need_an_audit_that_has_them(home):
    """The made-up films have no nodules."""
    with pytest.raises(UnknownName, match="'Nodule or mass'"):
        bpals.plan_rate(home, findings=["Nodule or mass"], reads=50)


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        ({}, UsageError, "--reads 300, or --width"),
        ({"reads": 50, "width": 0.1}, UsageError, "--reads 300, or --width"),
        ({"reads": 2}, UsageError, "2 reads are too few"),
        ({"width": 2.0}, UsageError, "no interval has a width of 2"),
        ({"reads": 50, "findings": ["Efusion"]}, UnknownName, "Did you mean 'Effusion'"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(home, asked, error, words):
    """In one line, and no key is left behind."""
    with pytest.raises(error, match=words):
        bpals.plan_rate(home, **asked)
    assert not (home / PLAN).exists()


def test_enriched_reads_are_refused_with_the_reason(films_audit):
    """Reads nobody drew give no rate, unless the user says that every pair had the same chance."""
    reads = pl.read_csv(shape.ROOT / "examples" / "experts.csv").head(40)
    wide = reads.unpivot(index="image_id", variable_name="finding")
    verdict = pl.when(pl.col("value") == 1).then(pl.lit("present")).otherwise(pl.lit("absent"))
    given = wide.with_columns(verdict=verdict, reader=pl.lit("Ann"), inclusion=pl.lit(None, pl.Float64))
    with pytest.raises(TruthError, match="enriched in errors"):
        bpals.rate(films_audit, reviews=given)
    told = bpals.rate(films_audit, reviews=given, simple_random=True)
    assert told.rates["read"][0] > 30


def test_odd_reads_are_counted(home, tmp_path):
    """Films that are not here, a reader who contradicts himself or comes twice, pairs the plan did not draw."""
    plan = bpals.plan_rate(home, findings=["Effusion"], reads=60)
    good = filled(plan.reading_list)
    other = pl.read_parquet(home / PLAN).filter(pl.col("inclusion").is_null()).head(3)
    twice = good.head(2)
    flipped = good[5:7].with_columns(
        verdict=pl.when(pl.col("verdict") == "present").then(pl.lit("absent")).otherwise(pl.lit("present"))
    )
    foreign = good.head(4).with_columns(image_id=pl.lit("nowhere-") + pl.col("image_id"))
    file = tmp_path / "reads.csv"
    pl.concat([good, twice, flipped, foreign, filled(other)]).write_csv(file)
    told = bpals.rate(home, reviews=file)
    counted = codes(told)
    assert counted["unknown_images"] == 4
    assert counted["reader_contradicts"] == 2
    assert counted["reader_repeats"] == 2
    assert counted["unplanned_reads"] == 3
    assert told.rates["read"][0] == 58


def test_unknown_findings_and_words_are_refused(home, tmp_path):
    """With the line at which they stand."""
    plan = bpals.plan_rate(home, findings=["Effusion"], reads=30)
    for column, word, words in (
        ("finding", "Efusion", "Did you mean 'Effusion'"),
        ("verdict", "perhaps", "no verdict"),
    ):
        file = tmp_path / f"{column}.csv"
        filled(plan.reading_list).with_columns(pl.lit(word).alias(column)).write_csv(file)
        with pytest.raises(BpalsError, match=words):
            bpals.rate(home, reviews=file)


def test_an_unknown_group_is_refused(films_audit):
    """The columns that make groups are named."""
    reads = pl.DataFrame({"image_id": ["000_0.png"], "finding": ["Effusion"], "reader": ["Ann"],
                          "verdict": ["present"], "inclusion": [0.1]})  # fmt: skip
    with pytest.raises(UnknownName, match=r"'sexe'.*Did you mean 'sex'"):
        bpals.rate(films_audit, reviews=reads, group_by=["sexe"])
    with pytest.raises(TruthError, match="no column 'inclusion'"):
        bpals.rate(films_audit, reviews=reads.drop("inclusion"))


def test_a_damaged_or_foreign_key_is_refused(home):
    """A key that cannot be read, or of other claims, is never guessed around."""
    plan = bpals.plan_rate(home, findings=["Effusion"], reads=30)
    reads = filled(plan.reading_list).with_columns(inclusion=pl.lit(None, pl.Float64))
    key = pl.read_parquet(home / PLAN)
    key.head(100).write_parquet(home / PLAN)
    with pytest.raises(WorkspaceError, match="not those that"):
        bpals.rate(home, reviews=reads)
    (home / PLAN).write_bytes(b"PAR1 but not whole")
    with pytest.raises(WorkspaceError, match="cannot be read"):
        bpals.rate(home, reviews=reads)
    with pytest.raises(WorkspaceError, match="cannot be read"):
        bpals.plan_rate(home, findings=["Effusion"], reads=30)


def test_a_list_is_never_overwritten(home, tmp_path):
    """It may be filled in."""
    plan = bpals.plan_rate(home, findings=["Effusion"], reads=30)
    write_list(plan, tmp_path / "reads.csv")
    with pytest.raises(UsageError, match="--out"):
        write_list(plan, tmp_path / "reads.csv")
    with pytest.raises(UsageError, match="cannot be written"):
        write_list(plan, tmp_path / "no" / "reads.csv")


def test_a_plan_leaves_the_audit_alone(home):
    """The key lies beside the sealed tables, and the same seed draws the same list."""
    before = {file.name: file.read_bytes() for file in home.iterdir() if file.is_file() and file.name != PLAN}
    one = bpals.plan_rate(home, findings=["Effusion"], reads=30, seed=5)
    assert {file.name: file.read_bytes() for file in home.iterdir() if file.is_file() and file.name != PLAN} == before
    (home / PLAN).unlink()
    assert one.reading_list.equals(bpals.plan_rate(home, findings=["Effusion"], reads=30, seed=5).reading_list)
    assert one.widths["width"].is_between(0, 1).all()
