"""Training with trust: weights and labels in the convention of TorchXRayVision."""

import numpy as np
import polars as pl
import pytest

from bpals.errors import UnknownName, UsageError
from bpals.signal.training import DISTRUSTED, mask, weights
from bpals.types import FLAG, SAYS

FINDINGS = ("Mass", "Pleural_Thickening")
ROWS = [
    ("b.png", "Mass", "present", 0.9, "trusted"),
    ("b.png", "Pleural_Thickening", "absent", 0.02, "likely_mislabelled"),
    ("a.png", "Mass", "uncertain", None, "unjudged"),
    ("a.png", "Pleural_Thickening", "absent", 0.4, "suspect"),
    ("c.png", "Mass", "absent", 0.3, "hard"),
]
COLUMNS = {"image_id": pl.String, "finding": pl.Enum(FINDINGS), "says": SAYS, "trust": pl.Float64, "flag": FLAG}


@pytest.fixture
def signal():
    """Three films and two findings; the last film is silent about one."""
    return pl.DataFrame(ROWS, schema=COLUMNS, orient="row")


def test_a_weight_is_the_trust(signal):
    """One row a film in the order of the signal, one column a finding; no claim or no trust weighs nothing."""
    assert weights(signal).to_dict(as_series=False) == {
        "image_id": ["b.png", "a.png", "c.png"],
        "Mass": [0.9, 0.0, 0.3],
        "Pleural_Thickening": [0.02, 0.4, 0.0],
    }


def test_a_floor_lifts_the_smallest_weights_and_nothing_that_has_none(signal):
    """What nobody could trust or distrust stays at zero."""
    lifted = weights(signal, floor=0.35)
    assert lifted["Mass"].to_list() == [0.9, 0.0, 0.35]
    assert lifted["Pleural_Thickening"].to_list() == [0.35, 0.4, 0.0]


@pytest.mark.parametrize("floor", [-0.1, 1.1, float("nan")])
def test_a_floor_outside_the_unit_is_refused(signal, floor):
    """A weight lies between 0 and 1."""
    with pytest.raises(UsageError, match="a weight lies between 0 and 1"):
        weights(signal, floor=floor)


def test_masked_labels_are_one_zero_or_nan(signal):
    """NaN is `no information`: distrusted, uncertain or not claimed; float32, a row a film."""
    labels = mask(signal)
    assert labels.image_ids == ["b.png", "a.png", "c.png"]
    assert labels.findings == list(FINDINGS)
    assert labels.values.dtype == np.float32
    assert labels.values.tolist() == [
        [1.0, pytest.approx(np.nan, nan_ok=True)],
        [pytest.approx(np.nan, nan_ok=True)] * 2,
        [0.0, pytest.approx(np.nan, nan_ok=True)],
    ]


def test_the_flags_to_mask_are_chosen(signal):
    """None: every certain claim stays; `hard` too: fewer do."""
    assert np.isnan(mask(signal, flags=()).values).sum() == 2
    assert np.isnan(mask(signal).values).sum() == 4
    assert np.isnan(mask(signal, flags=[*DISTRUSTED, "hard"]).values).sum() == 5


def test_an_unknown_flag_is_answered_with_the_nearest(signal):
    """And nothing is masked by a word that nobody knows."""
    with pytest.raises(UnknownName, match="Did you mean 'suspect'"):
        mask(signal, flags=["suspekt"])


def test_pathologies_pick_and_order_the_columns(signal):
    """As TorchXRayVision's relabel_dataset: what the signal does not have is all NaN, spelled as it was asked for."""
    labels = mask(signal, flags=(), pathologies=["Hernia", "pleural thickening", "Mass"])
    assert labels.findings == ["Hernia", "pleural thickening", "Mass"]
    assert np.isnan(labels.values[:, 0]).all()
    assert labels.values[:2, 1].tolist() == [0.0, 0.0]
    assert labels.values[[0, 2], 2].tolist() == [1.0, 0.0]


def test_a_pathology_asked_for_twice_is_refused(signal):
    """Two columns of one name would be one."""
    with pytest.raises(UsageError, match="Mass is asked for twice"):
        mask(signal, pathologies=["Mass", "Mass"])


def test_a_signal_without_a_vocabulary_is_served(signal):
    """Findings as mere words, say from a CSV: columns in the order of their first appearance."""
    words = signal.with_columns(pl.col("finding").cast(pl.String))
    assert weights(words).equals(weights(signal))
    assert mask(words).findings == mask(signal).findings


def test_an_empty_signal_has_no_rows(signal):
    """And all its columns."""
    assert weights(signal.clear()).columns == ["image_id", *FINDINGS]
    assert mask(signal.clear()).values.shape == (0, 2)
