"""Boxed presences against other presences."""

import polars as pl
import pytest

from bpals.errors import TruthError
from bpals.score.intervals import Resampling
from bpals.score.opinions import Audited
from bpals.score.scorecard import boxed_trust
from bpals.store.workspace import Workspace

FEW = Resampling(draws=50, seed=0)


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
    rows, notices = boxed_trust(boxed(("a", "Mass"), ("b", "Mass")), tables, FEW)
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
    rows, notices = boxed_trust(boxed(("a", "Mass"), ("e", "Mass"), ("z", "Mass")), tables, FEW)
    assert rows[0]["n_boxed"] == 1
    assert [(notice.code, notice.count) for notice in notices] == [("boxed_elsewhere", 2)]


def test_a_finding_with_only_boxed_presences_has_no_auroc(tables):
    """There is nothing to compare with: null, and the means still stand."""
    rows, _ = boxed_trust(boxed(("f", "Edema")), tables, FEW)
    assert (rows[0]["n_other"], rows[0]["trust_other_mean"], rows[0]["boxed_auroc"]) == (0, None, None)
    assert rows[0]["trust_boxed_mean"] == pytest.approx(0.2)


def test_boxes_of_another_dataset_are_refused(tables):
    """None of them is a presence here."""
    with pytest.raises(TruthError, match="of 1 boxed pair none"):
        boxed_trust(boxed(("z", "Mass")), tables, FEW)
