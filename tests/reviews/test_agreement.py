"""Agreement: published examples, scikit-learn, and how readers are set side by side."""

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import cohen_kappa_score

from bpals.reviews.agreement import (
    MAJORITY,
    MEAN,
    OTHERS,
    Bootstrap,
    against_the_others,
    among,
    between,
    cohen,
    fleiss,
    gwet,
    krippendorff,
    majority_reader,
    side_by_side,
    specific,
)

FEW = Bootstrap(draws=200)
WORDS = {"Y": "present", "N": "absent", "H": "uncertain", "U": "unreadable"}


def reads(films, finding="Mass"):
    """One letter a reader: `{"a": "YYN"}`; a blank is no read."""
    rows = [
        (film, finding, f"r{place}", WORDS[letter])
        for film, letters in films.items()
        for place, letter in enumerate(letters)
        if letter != " "
    ]
    return pl.DataFrame(rows, ["image_id", "finding", "reader", "verdict"], orient="row")


def films_of(table, patients=None):
    """Films, each of a patient of its own unless told."""
    films = table.select("image_id").unique(maintain_order=True)
    return films.with_columns(patient_id=pl.Series(patients or [None] * films.height, dtype=pl.String))


@pytest.fixture
def many():
    """Three readers of 300 films, who see what is there nine times in ten."""
    draw = np.random.default_rng(2)
    there = draw.random(300) < 0.3
    said = there[:, None] ^ (draw.random((300, 3)) < 0.1)
    return reads({f"f{film}": "".join("Y" if yes else "N" for yes in row) for film, row in enumerate(said)})


def counted(table, categories):
    """Turn a table of counts into shares, agreement and coincidences."""
    counts = np.asarray(table, dtype=float)
    n = counts.sum(axis=1, keepdims=True)
    alike = ((counts**2).sum(axis=1) - n[:, 0]) / (n[:, 0] * (n[:, 0] - 1))
    together = counts[:, :, None] * counts[:, None, :] - counts[:, :, None] * np.eye(categories)
    return alike.mean(), (counts / n).mean(axis=0), (together / (n - 1)[:, :, None]).sum(axis=0)


def test_cohen_is_that_of_scikit_learn():
    """On random reads in three categories."""
    draw = np.random.default_rng(1)
    first = draw.integers(0, 3, 200)
    second = np.where(draw.random(200) < 0.6, first, draw.integers(0, 3, 200))
    cells = np.zeros((3, 3))
    np.add.at(cells, (first, second), 1)
    assert cohen(cells) == pytest.approx(cohen_kappa_score(first, second))


def test_cohen_of_a_textbook_table():
    """20 and 15 of 50 agree, 5 and 10 do not: .7 against .5 by chance."""
    assert cohen(np.array([[20.0, 5.0], [10.0, 15.0]])) == pytest.approx(0.4)


FLEISS_1971 = [
    (0, 0, 0, 0, 14), (0, 2, 6, 4, 2), (0, 0, 3, 5, 6), (0, 3, 9, 2, 0), (2, 2, 8, 1, 1),
    (7, 7, 0, 0, 0), (3, 2, 6, 3, 0), (2, 5, 3, 2, 2), (6, 5, 2, 1, 0), (0, 2, 2, 3, 7),
]  # fmt: skip


def test_fleiss_of_the_ten_subjects_and_fourteen_raters():
    """The example that encyclopaedias print: .210."""
    alike, shares, _ = counted(FLEISS_1971, 5)
    assert fleiss(alike, shares) == pytest.approx(0.210, abs=5e-4)


KRIPPENDORFF_2011 = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, None, None, None],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, None, 3],
    [None, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, None],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, None],
]


def test_krippendorff_of_four_observers_with_missing_reads():
    """Krippendorff's own example C: nominal .743, ordinal .815."""
    units = [[said for said in unit if said] for unit in zip(*KRIPPENDORFF_2011, strict=True)]
    counts = [[unit.count(value) for value in range(1, 6)] for unit in units if len(unit) > 1]
    _, _, coincidences = counted(counts, 5)
    assert krippendorff(coincidences) == pytest.approx(0.743, abs=5e-4)
    assert krippendorff(coincidences, ordinal=True) == pytest.approx(0.815, abs=5e-4)


def test_gwet_where_a_finding_is_rare():
    """118 and 5 of 125 agree, 2 do not: kappa falls with the prevalence, AC1 stays near the agreement."""
    cells = np.array([[118.0, 5.0], [2.0, 0.0]])
    coincidences = cells + cells.T
    alike = np.trace(cells) / cells.sum()
    shares = coincidences.sum(axis=1) / coincidences.sum()
    assert cohen(cells) == pytest.approx(-0.0234, abs=5e-4)
    assert gwet(alike, shares) == pytest.approx(0.9408, abs=5e-4)
    assert specific(coincidences) == pytest.approx([2 * 118 / (2 * 118 + 7), 0])


def test_readers_who_always_agree_agree_wholly():
    """Every figure is 1, with an interval of no width."""
    table = reads({"a": "YYY", "b": "NNN", "c": "NNN", "d": "YY "})
    (row,) = among(table, films_of(table), FEW)
    for name in ("agreement", "fleiss", "alpha", "alpha_ordinal", "ac1", "positive", "negative"):
        assert (row[name], row[f"{name}_low"], row[f"{name}_high"]) == pytest.approx((1, 1, 1)), name
    assert (row["n"], row["reads"], row["readers"]) == (4, 11, 3)


def test_a_hedge_lies_between_present_and_absent():
    """It is left out of the figures for present and absent, and is half way in the ordinal one."""
    whole = reads({"a": "YY", "b": "NN", "c": "YN"})
    hedged = reads({"a": "YY", "b": "NN", "c": "YH"})
    (split,), (soft,) = (among(table, films_of(table), FEW) for table in (whole, hedged))
    assert soft["n"] == 2
    assert soft["alpha"] == 1
    assert split["alpha_ordinal"] < soft["alpha_ordinal"] < 1


def test_one_read_or_an_unreadable_film_says_nothing():
    """Neither counts as agreement."""
    table = reads({"a": "YY", "b": "NN", "c": "Y ", "d": "YU"})
    (row,) = among(table, films_of(table), FEW)
    assert row["n"] == 2


def test_the_figures_of_the_table_are_those_of_the_formulas(many):
    """Through counts and sums the same comes out as from the counts of each film."""
    counts = many.group_by("image_id").agg(
        no=(pl.col("verdict") == "absent").sum(), yes=(pl.col("verdict") == "present").sum()
    )
    alike, shares, coincidences = counted(counts.select("no", "yes").to_numpy(), 2)
    (row,) = among(many, films_of(many), FEW)
    assert row["agreement"] == pytest.approx(alike)
    assert row["fleiss"] == pytest.approx(float(fleiss(alike, shares)))
    assert row["ac1"] == pytest.approx(float(gwet(alike, shares)))
    assert row["alpha"] == pytest.approx(float(krippendorff(coincidences)))
    assert row["fleiss_low"] < row["fleiss"] < row["fleiss_high"]


def test_several_findings_have_a_mean(many):
    """A row each, and one for the mean of their figures."""
    table = pl.concat([many, reads({"a": "YY", "b": "NN", "c": "YN", "d": "NN"}, finding="Nodule")])
    *each, mean = among(table, films_of(table), FEW)
    assert [row["finding"] for row in each] == ["Mass", "Nodule"]
    assert mean["finding"] == MEAN
    assert mean["alpha"] == pytest.approx(np.mean([row["alpha"] for row in each]))


def test_patients_are_drawn_whole(many):
    """Three hundred films of five patients leave a wider interval than of three hundred."""
    (alone,) = among(many, films_of(many), FEW)
    (few,) = among(many, films_of(many, [f"p{place // 60}" for place in range(300)]), FEW)
    assert few["fleiss"] == pytest.approx(alone["fleiss"])
    draws = [among(many, films_of(many), Bootstrap(draws=50, seed=seed))[0]["fleiss_low"] for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    assert (few["fleiss_low"], few["fleiss_high"]) != (alone["fleiss_low"], alone["fleiss_high"])


def test_a_reader_is_set_beside_the_majority_of_the_others():
    """Two others that split have none; a reader's own word has no part in it."""
    pairs = against_the_others(reads({"a": "YNN", "b": "YYN", "c": "YHY", "d": "Y  "}))
    rows = {(film, who): (says, other) for film, _, who, _, says, other in pairs.iter_rows()}
    assert rows == {
        ("a", "r0"): (True, False),
        ("b", "r2"): (False, True),
        ("c", "r0"): (True, True),
        ("c", "r2"): (True, True),
    }
    assert pairs["second"].unique().to_list() == [OTHERS]


def test_the_majority_is_a_reader_too():
    """Where as many say yes as no it says nothing."""
    table = majority_reader(reads({"a": "YYN", "b": "YN", "c": "NNN", "d": "HH"}))
    assert table.rows() == [("a", "Mass", MAJORITY, "present"), ("c", "Mass", MAJORITY, "absent")]


def test_two_readers_are_compared_on_what_both_read(many):
    """Cohen's kappa of the pair, as scikit-learn has it; pairs that one of them hedged on are left out."""
    first, second = (many.filter(pl.col("reader") == name) for name in ("r0", "r1"))
    hedged = first.with_columns(
        verdict=pl.when(pl.col("image_id") == "f0").then(pl.lit("uncertain")).otherwise("verdict")
    )
    (row,) = between(side_by_side(hedged, second), films_of(many), FEW)
    assert (row["first"], row["second"], row["finding"], row["n"]) == ("r0", "r1", "Mass", 299)
    assert row["kappa"] == pytest.approx(cohen_kappa_score(first["verdict"][1:], second["verdict"][1:]))
    assert row["kappa_low"] < row["kappa"] < row["kappa_high"]


def test_where_nobody_ever_says_it_the_figure_is_not_defined():
    """Two readers who never call agree always; kappa and positive agreement have nothing to say."""
    table = reads({"a": "NN", "b": "NN"})
    (row,) = between(
        side_by_side(*(table.filter(pl.col("reader") == who) for who in ("r0", "r1"))), films_of(table), FEW
    )
    assert (row["agreement"], row["negative"], row["kappa"], row["positive"]) == (1, 1, None, None)


def test_nothing_to_compare_makes_no_row():
    """Readers of different films share no pair."""
    table = reads({"a": "Y ", "b": " N"})
    empty = side_by_side(table.filter(pl.col("reader") == "r0"), table.filter(pl.col("reader") == "r1"))
    assert between(empty, films_of(table), FEW) == []
    assert among(table, films_of(table), FEW) == []
