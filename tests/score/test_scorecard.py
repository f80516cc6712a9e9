"""The scorecard's rows, on pairs whose figures can be worked out by hand."""

import json

import numpy as np
import polars as pl
import pytest

from bpals.errors import TruthError
from bpals.score.intervals import Resampling
from bpals.score.opinions import Audited
from bpals.score.scorecard import FIGURES, METHODS, boxed_trust, scorecard
from bpals.store.workspace import Workspace

FEW = Resampling(draws=60, seed=0)


def pairs(rows):
    """Rows `(patient, finding, claimed, present, trust, p_judge)`, as `opinions.about` gives them."""
    schema = {
        "patient": pl.Int64, "finding": pl.String, "claimed": pl.Boolean, "present": pl.Boolean, "trust": pl.Float64,
        "p_judge": pl.Float64,
    }  # fmt: skip
    frame = pl.DataFrame(rows, schema, orient="row")
    return frame.with_columns(prevalence=pl.lit(0.2), cleanlab=1 - pl.col("trust"))


TEN = [
    # The claims are ranked by trust: wrong, right, wrong, then seven right ones.
    (1, "Mass", True, False, 0.1, 0.30),
    (2, "Mass", True, True, 0.2, 0.20),
    (3, "Mass", False, True, 0.3, 0.90),
    *[(4 + place, "Mass", False, False, 0.4 + place / 20, 0.10 + place / 20) for place in range(7)],
]


@pytest.fixture(scope="module")
def ten():
    """The rows of ten pairs with two errors."""
    return scorecard(pairs(TEN), FEW)[0]


def row(rows, method="bpals", finding="Mass", given="all"):
    """One row of a scorecard."""
    (only,) = [r for r in rows if (r["method"], r["finding"], r["given"]) == (method, finding, given)]
    return only


@pytest.mark.quick
def test_the_trust_ranks_the_claims(ten):
    """Errors at ranks 1 and 3: AP is the mean of 1/1 and 2/3, AUROC 15 of 16 comparisons."""
    ours = row(ten)
    assert (ours["n"], ours["errors"]) == (10, 2)
    assert ours["error_ap"] == pytest.approx((1 + 2 / 3) / 2)
    assert ours["error_auroc"] == pytest.approx(15 / 16)
    assert ours["found_10"] == pytest.approx(0.5)
    assert ours["found_20"] == pytest.approx(0.5)
    assert ours["found_05"] == pytest.approx(0.25)


@pytest.mark.quick
def test_self_confidence_is_the_judge_before_calibration(ten):
    """The judge finds the missed presence at .9 and the false presence at .7 below one right presence at .8."""
    judged = row(ten, "self_confidence")
    assert judged["error_ap"] == pytest.approx((1 + 2 / 3) / 2)
    assert judged["found_10"] == pytest.approx(0.5)


@pytest.mark.quick
def test_label_only_puts_presences_first(ten):
    """One of two presences is wrong, and one of eight absences."""
    assert row(ten, "label_only")["error_ap"] == pytest.approx(0.5 * 1 / 2 + 0.5 * 2 / 10)
    assert row(ten, "label_only")["error_auroc"] == pytest.approx((7.5 + 3.5) / 16)


@pytest.mark.quick
def test_the_prevalence_orders_a_rare_finding_like_the_label(ten):
    """Within one finding it cannot do more; pooled it can."""
    assert row(ten, "prevalence")["error_ap"] == row(ten, "label_only")["error_ap"]


@pytest.mark.quick
def test_random_and_oracle_are_the_floor_and_the_ceiling(ten):
    """Random finds what is reviewed; the oracle finds all as soon as there is room."""
    blind, sighted = row(ten, "random"), row(ten, "oracle")
    assert [blind[figure] for figure in FIGURES] == pytest.approx([0.5, 0.2, 0.05, 0.1, 0.2])
    assert [sighted[figure] for figure in FIGURES] == pytest.approx([1, 1, 0.25, 0.5, 1])


@pytest.mark.quick
def test_given_presences_and_absences_are_scored_apart(ten):
    """Two presences with one error, eight absences with one."""
    presences, absences = row(ten, given="present"), row(ten, given="absent")
    assert (presences["n"], presences["errors"], presences["error_ap"]) == (2, 1, 1.0)
    assert (absences["n"], absences["errors"], absences["error_ap"]) == (8, 1, 1.0)
    assert row(ten, "label_only", given="absent")["error_auroc"] == 0.5


@pytest.mark.quick
def test_a_row_has_the_promised_keys(ten):
    """Programs read them; each figure has its interval."""
    figures = [f"{figure}{end}" for figure in FIGURES for end in ("", "_low", "_high")]
    extra = [f"{name}{end}" for name in ("ap_gain", "ece", "brier") for end in ("", "_low", "_high")]
    for each in ten:
        assert list(each) == ["finding", "given", "method", "n", "errors", *figures, *extra]
    assert {(r["finding"], r["given"], r["method"]) for r in ten} == {
        (finding, given, method)
        for finding in ("Mass", "pooled")
        for given in ("all", "present", "absent")
        for method in METHODS
    }


@pytest.mark.quick
def test_the_gain_is_a_paired_difference(ten):
    """A method with the same ranking gains exactly nothing on every draw; bpals is not compared with itself."""
    same = row(ten, "cleanlab")
    assert (same["ap_gain"], same["ap_gain_low"], same["ap_gain_high"]) == (0, 0, 0)
    assert row(ten, "oracle")["ap_gain"] == pytest.approx(row(ten)["error_ap"] - 1)
    assert row(ten)["ap_gain"] is None


@pytest.mark.quick
def test_the_trust_is_compared_with_what_was_so(ten):
    """Brier: the mean square of the trust of wrong claims and of the distrust of right ones."""
    wrong, right = [0.1, 0.3], [0.2, *(0.4 + place / 20 for place in range(7))]
    expected = (sum(t**2 for t in wrong) + sum((1 - t) ** 2 for t in right)) / 10
    assert row(ten)["brier"] == pytest.approx(expected)
    assert row(ten)["ece"] == pytest.approx((sum(wrong) + sum(1 - t for t in right)) / 10)
    assert row(ten, "oracle")["ece"] is None


@pytest.mark.quick
@pytest.mark.parametrize("present", [True, False], ids=["no errors", "only errors"])
def test_where_nothing_can_be_ranked_the_figures_are_null(present):
    """No errors, or nothing else: null, never NaN; how well the trust is calibrated can still be said."""
    rows, _ = scorecard(pairs([(p, "Mass", True, present, 0.5 + p / 10, 0.5) for p in range(4)]), FEW)
    ours = row(rows)
    assert ours["errors"] == (0 if present else 4)
    assert all(ours[f"{figure}{end}"] is None for figure in FIGURES for end in ("", "_low", "_high"))
    assert ours["brier"] is not None
    empty = row(rows, given="absent")
    assert (empty["n"], empty["brier"]) == (0, None)
    json.dumps(rows, allow_nan=False)


@pytest.mark.quick
def test_pooled_ranks_all_findings_together():
    """A finding with low trusts comes before one with high trusts."""
    rows, _ = scorecard(pairs([*TEN, (1, "Edema", True, False, 0.05, 0.5), (2, "Edema", True, True, 0.9, 0.5)]), FEW)
    assert row(rows, finding="pooled")["n"] == 12
    assert row(rows, finding="pooled")["error_ap"] == pytest.approx((1 + 1 + 3 / 4) / 3)


@pytest.mark.quick
def test_intervals_hold_the_figure_and_narrow_with_patients():
    """Four times the patients, about half the width."""
    rng = np.random.default_rng(5)

    def width(patients):
        trust = rng.random(patients)
        claimed = rng.random(patients) < 0.5
        wrong = rng.random(patients) > trust
        rows, _ = scorecard(
            pairs([(p, "Mass", bool(claimed[p]), bool(claimed[p] ^ wrong[p]), trust[p], 0.5) for p in range(patients)]),
            Resampling(draws=200, seed=1),
        )
        ours = row(rows)
        for figure in (*FIGURES, "brier"):
            assert ours[f"{figure}_low"] <= ours[figure] <= ours[f"{figure}_high"]
        return ours["error_ap_high"] - ours["error_ap_low"]

    assert 0.3 < width(1600) / width(400) < 0.75


@pytest.mark.quick
def test_films_of_one_patient_do_not_narrow_the_interval():
    """Every pair four times under its patient says nothing new."""
    once, again = (scorecard(pairs(TEN * times), Resampling(draws=400, seed=2))[0] for times in (1, 4))
    assert row(again)["error_auroc_low"] == pytest.approx(row(once)["error_auroc_low"])
    assert row(again)["error_auroc_high"] == pytest.approx(row(once)["error_auroc_high"])


@pytest.mark.quick
def test_the_same_seed_gives_the_same_rows():
    """A scorecard can be repeated."""
    one, two = (scorecard(pairs(TEN), Resampling(draws=30, seed=4)) for _ in range(2))
    other = scorecard(pairs(TEN), Resampling(draws=30, seed=5))
    assert one == two
    assert one != other


@pytest.mark.quick
def test_a_method_that_cannot_speak_for_all_pairs_has_no_rows():
    """As cleanlab where it is not installed."""
    rows, _ = scorecard(pairs(TEN).with_columns(cleanlab=pl.lit(None, pl.Float64)), FEW)
    assert {r["method"] for r in rows} == set(METHODS) - {"cleanlab"}


@pytest.mark.quick
def test_the_reliability_curve_has_a_point_a_bin():
    """What was promised and what was so, with its interval, for each finding and pooled."""
    trust = [0.2] * 10 + [0.8] * 10
    right = [False] * 8 + [True] * 2 + [True] * 10
    _, curves = scorecard(
        pairs([(p, "Mass", True, r, t, 0.5) for p, (t, r) in enumerate(zip(trust, right, strict=True))]), FEW
    )
    assert [(curve["finding"], curve["given"]) for curve in curves] == [("Mass", "all"), ("pooled", "all")]
    low, high = curves[0]["bins"]
    assert (low["n"], low["p_mean"], low["rate"]) == (10, pytest.approx(0.2), pytest.approx(0.2))
    assert (high["n"], high["p_mean"], high["rate"]) == (10, pytest.approx(0.8), 1.0)
    assert low["low"] < low["rate"] < low["high"]


@pytest.mark.quick
def test_progress_ends_at_one():
    """And never goes back."""
    shares = []
    scorecard(pairs(TEN), FEW, shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)


FIFTY = Resampling(draws=50, seed=0)


@pytest.fixture
def tables(audit):
    """Four presences of a mass, an absence, and a presence of another finding."""
    home = Workspace(
        audit(
            [
                ("a", "Mass", "present", 0.9),
                ("b", "Mass", "present", 0.6),
                ("c", "Mass", "present", 0.7),
                ("d", "Mass", "present", 0.2),
                ("e", "Mass", "absent", 0.2),
                ("f", "Edema", "present", 0.2),
            ]
        )
    )
    names = ("images", "claims", "judgments/record", "signal")
    images, claims, judgments, signal = (home.open().table(f"{name}.parquet") for name in names)
    return Audited(images=images, claims=claims, judgments=judgments, signal=signal)


def boxed(*pairs):
    """A reference of boxes."""
    return pl.DataFrame(pairs, {"image_id": pl.String, "finding": pl.String}, orient="row")


def test_boxed_presences_are_compared_with_the_other_presences_of_the_finding(tables):
    """Boxed .9 and .6 against .7 and .2: three of four comparisons are won."""
    rows, notices = boxed_trust(boxed(("a", "Mass"), ("b", "Mass")), tables, FIFTY)
    mass, pooled = rows
    assert (mass["finding"], mass["n_boxed"], mass["n_other"]) == ("Mass", 2, 2)
    assert (mass["trust_boxed_mean"], mass["trust_boxed_median"]) == (pytest.approx(0.75), pytest.approx(0.75))
    assert (mass["trust_other_mean"], mass["trust_other_median"]) == (pytest.approx(0.45), pytest.approx(0.45))
    assert mass["boxed_auroc"] == pytest.approx(0.75)
    assert 0 <= mass["boxed_auroc_low"] <= 0.75 <= mass["boxed_auroc_high"] <= 1
    assert {**pooled, "finding": "Mass"} == mass
    assert not notices


def test_a_box_where_no_presence_is_claimed_is_counted(tables):
    """An absence and an unknown film cannot be compared."""
    rows, notices = boxed_trust(boxed(("a", "Mass"), ("e", "Mass"), ("z", "Mass")), tables, FIFTY)
    assert rows[0]["n_boxed"] == 1
    assert [(notice.code, notice.count) for notice in notices] == [("boxed_elsewhere", 2)]


def test_a_finding_with_only_boxed_presences_has_no_auroc(tables):
    """There is nothing to compare with: null, and the means still stand."""
    rows, _ = boxed_trust(boxed(("f", "Edema")), tables, FIFTY)
    assert (rows[0]["n_other"], rows[0]["trust_other_mean"], rows[0]["boxed_auroc"]) == (0, None, None)
    assert rows[0]["trust_boxed_mean"] == pytest.approx(0.2)


def test_boxes_of_another_dataset_are_refused(tables):
    """None of them is a presence here."""
    with pytest.raises(TruthError, match="of 1 boxed pair none"):
        boxed_trust(boxed(("z", "Mass")), tables, FIFTY)
