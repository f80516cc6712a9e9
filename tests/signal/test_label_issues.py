"""Label issues of arrays: cleanlab's own indices in its order, and the same with patients kept apart."""

import numpy as np
import pytest

from bpals.errors import UsageError
from bpals.metrics import Curve
from bpals.signal.label_issues import find_label_issues, get_label_quality_scores

FUNCTIONS = [find_label_issues, get_label_quality_scores]
PROBS = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])


@pytest.fixture(scope="module")
def cleanlab():
    """The real package."""
    pytest.importorskip("cleanlab", reason="cleanlab is in the extra bpals[peers]")
    from cleanlab import filter as issues
    from cleanlab import multilabel_classification, rank

    return issues, rank, multilabel_classification


def classes(seed):
    """Labels of one class per image: sizes, noise, ties, missing classes and float32 differ from seed to seed."""
    draw = np.random.default_rng(seed)
    n, k = int(draw.choice([8, 30, 100, 500, 2000])), int(draw.choice([2, 3, 5, 14, 40]))
    odds = np.exp(draw.normal(size=(n, k)) * draw.choice([0.3, 1, 3]))
    probs = odds / odds.sum(axis=1, keepdims=True)
    if seed % 4 == 1:
        rounded = np.round(probs, 2) + 1e-3
        probs = rounded / rounded.sum(axis=1, keepdims=True)
    truth = (draw.random((n, 1)) > probs.cumsum(axis=1)).sum(axis=1).clip(max=k - 1)
    labels = np.where(draw.random(n) < 0.2, draw.integers(0, k, n), truth)
    if seed % 3 == 0:
        labels[labels == k - 1] = 0
    return labels, probs.astype(np.float32) if seed % 5 == 0 else probs


def findings(seed):
    """Labels of several findings per image: a 0/1 table and probabilities; a finding may be nowhere present."""
    draw = np.random.default_rng(seed)
    n, k = int(draw.choice([30, 100, 500, 2000])), int(draw.choice([2, 3, 5, 14]))
    probs = 1 / (1 + np.exp(-draw.normal(size=(n, k)) * draw.choice([0.3, 1, 3]) - draw.normal(size=k)))
    if seed % 4 == 1:
        probs = np.round(probs, 2)
    table = (draw.random((n, k)) < probs) ^ (draw.random((n, k)) < 0.05)
    if seed % 3 == 0:
        table[:, 0] = False
    return table.astype(int), probs.astype(np.float32) if seed % 5 == 0 else probs


def as_lists(table):
    """The classes of each image by their numbers, as cleanlab takes them."""
    return [np.flatnonzero(row).tolist() for row in table]


@pytest.mark.filterwarnings("ignore:May not flag all label issues")
@pytest.mark.parametrize("seed", range(40))
def test_one_class_per_image_gives_cleanlabs_indices_in_its_order(cleanlab, seed):
    """The same indices, the same mask, the same scores, to the bit."""
    issues, rank, _ = cleanlab
    labels, probs = classes(seed)
    theirs = issues.find_label_issues(labels, probs, return_indices_ranked_by="self_confidence", n_jobs=1)
    np.testing.assert_array_equal(find_label_issues(labels, probs), theirs)
    found = find_label_issues(labels, probs, return_indices_ranked_by=None)
    np.testing.assert_array_equal(found, issues.find_label_issues(labels, probs, n_jobs=1))
    scores = get_label_quality_scores(labels, probs)
    np.testing.assert_array_equal(scores, rank.get_label_quality_scores(labels, probs))


@pytest.mark.filterwarnings("ignore:May not flag all label issues")
@pytest.mark.parametrize("seed", range(40))
def test_several_findings_per_image_give_cleanlabs_indices_in_its_order(cleanlab, seed):
    """Whether they come as lists of classes or as a 0/1 table."""
    _, _, several = cleanlab
    table, probs = findings(seed)
    lists = as_lists(table)
    theirs = several.filter.find_label_issues(lists, probs, return_indices_ranked_by="self_confidence", n_jobs=1)
    np.testing.assert_array_equal(find_label_issues(lists, probs), theirs)
    np.testing.assert_array_equal(find_label_issues(table, probs), theirs)
    scores = several.get_label_quality_scores(lists, probs)
    np.testing.assert_array_equal(get_label_quality_scores(table, probs), scores)


def test_a_planted_error_is_found_first():
    """Without cleanlab: 100 images of two classes, one labelled against a sure model."""
    labels = np.repeat([0, 1], 50)
    probs = np.where(labels[:, None] == [0, 1], 0.9, 0.1)
    labels[7] = 1
    assert find_label_issues(labels, probs).tolist() == [7]
    assert get_label_quality_scores(labels, probs)[7] == pytest.approx(0.1)
    assert find_label_issues(labels.tolist(), probs.tolist()).tolist() == [7]


def patients(seed, n_patients=400, images=4):
    """Findings whose model is off by another shift each, several images per patient, 5 % of the labels flipped."""
    draw = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_patients), images)
    shift = np.array([-3.0, -2.0, 0.0, 2.0])
    logits = draw.normal(-1, 2, size=(len(groups), 4))
    truth = draw.random(logits.shape) < 1 / (1 + np.exp(-logits))
    wrong = draw.random(logits.shape) < 0.05
    return (truth ^ wrong).astype(int), 1 / (1 + np.exp(-(1.5 * logits + shift))), groups, wrong, logits


@pytest.mark.parametrize("seed", range(3))
def test_groups_calibrate_the_scores(seed):
    """Scores of single findings mean what they say, though the model is off; and they rank errors better."""
    labels, probs, groups, wrong, _ = patients(seed)
    raw, made = [], []
    for column in range(4):
        alone = labels[:, column : column + 1], probs[:, column : column + 1]
        raw.append(get_label_quality_scores(*alone))
        made.append(get_label_quality_scores(*alone, groups=groups))
    before, after = np.concatenate(raw), np.concatenate(made)
    present = labels.T.ravel() == 1
    assert abs(np.where(present, after, 1 - after).mean() - present.mean()) < 0.01
    assert abs(np.where(present, before, 1 - before).mean() - present.mean()) > 0.05
    errors = wrong.T.ravel()
    found = [float(Curve.of(-scores, errors).average_precision()[0]) for scores in (before, after)]
    assert found[1] > found[0] + 0.03


def test_a_patients_own_labels_do_not_move_its_scores():
    """Its probabilities are calibrated by the other patients alone."""
    labels, probs, groups, _, _ = patients(0)
    other = labels.copy()
    other[groups == 7] = 1 - other[groups == 7]
    # The score of the opposite label is one minus the score, for each finding by itself.
    for column in range(4):
        one, two = (
            get_label_quality_scores(table[:, column : column + 1], probs[:, column : column + 1], groups=groups)
            for table in (labels, other)
        )
        np.testing.assert_allclose(two[groups == 7], 1 - one[groups == 7], atol=1e-12)
        assert not np.array_equal(one[groups != 7], two[groups != 7])


def test_intervals_cover_the_share_that_carries_the_label():
    """Of 95 % intervals about 95 % hold the chance of the label, mean of 20 draws; images of a patient may be alike."""
    inside = []
    for seed in range(20):
        labels, probs, groups, _, logits = patients(seed, n_patients=150)
        one, p, chance = labels[:, :1], probs[:, :1], 1 / (1 + np.exp(-logits[:, :1]))
        labels_alike = np.repeat(one[::4], 4, axis=0)  # the first image's label for all of a patient's images
        p_alike, chance_alike = np.repeat(p[::4], 4, axis=0), np.repeat(chance[::4], 4, axis=0)
        carried = 0.95 * chance_alike + 0.05 * (1 - chance_alike)
        scores, low, high = get_label_quality_scores(labels_alike, p_alike, groups=groups, return_intervals=True)
        assert ((low <= scores) & (scores <= high)).all()
        truth = np.where(labels_alike == 1, carried, 1 - carried)[:, 0]
        inside.append(((low <= truth) & (truth <= high)).mean())
    assert 0.85 < np.mean(inside) <= 1


def test_one_class_per_image_has_intervals_and_issues_by_patient():
    """Calibrated probabilities of an image's classes add up to 1; the planted error is the first."""
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 3, 600)
    odds = np.exp(2.0 * (labels[:, None] == np.arange(3)) + draw.normal(size=(600, 3)))
    probs = odds / odds.sum(axis=1, keepdims=True)
    probs[5] = np.roll([0.0002, 0.9997, 0.0001], labels[5])
    groups = [f"patient {row // 3}" for row in range(600)]
    assert find_label_issues(labels, probs, groups=groups)[0] == 5
    scores, low, high = get_label_quality_scores(labels, probs, groups=groups, return_intervals=True)
    assert ((low <= scores) & (scores <= high) & (low > 0) & (high < 1)).all()
    assert np.median(high - low) < 0.15


def test_groups_of_any_kind_are_the_same_groups():
    """Numbers, words or a Series."""
    labels, probs, groups, _, _ = patients(0, n_patients=30)
    words = [f"p{each:03}" for each in groups]
    assert find_label_issues(labels, probs, groups=groups + 100).tolist() == (
        find_label_issues(labels, probs, groups=words).tolist()
    )


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    ("labels", "probs", "groups", "said"),
    [
        ([0, 1], PROBS, None, "2 labels for 3 rows"),
        ([0, 1, 2], PROBS, None, r"labels\[2\] is 2.0. Give whole numbers from 0 to 1"),
        ([0, 1, 0.5], PROBS, None, r"labels\[2\] is 0.5"),
        ([0, 1, np.nan], PROBS, None, r"labels\[2\] is nan"),
        ([0, 1, "x"], PROBS, None, "labels holds what is no number"),
        ([[0], [1], [2]], PROBS, None, r"labels\[2\] has the class 2.0"),
        ([[0], [], [np.nan]], PROBS, None, r"labels\[2\] has the class nan"),
        (np.array([[0, 1], [1, 1], [1, np.nan]]), PROBS, None, r"labels\[2, 1\] is nan. Give 0 or 1"),
        (np.array([[0, 1], [1, 2], [1, 0]]), PROBS, None, r"labels\[1, 1\] is 2.0"),
        (np.ones((3, 3)), PROBS, None, r"labels has shape \(3, 3\)"),
        (5, PROBS, None, "labels is a int"),
        ([0, 1, 1], PROBS[:, 0], None, r"pred_probs has shape \(3,\)"),
        ([0, 1, 1], PROBS[:, :1], None, "from 0 to 0"),
        ([0, 0, 0], PROBS[:, :1], None, "at least 2 columns"),
        ([0, 1, 1], np.where(PROBS == 0.8, np.nan, PROBS), None, r"pred_probs\[1, 1\] is nan"),
        ([0, 1, 1], np.where(PROBS == 0.8, 1.2, PROBS), None, r"pred_probs\[1, 1\] is 1.2"),
        ([0, 1, 1], -PROBS, None, r"pred_probs\[0, 0\] is -0.9"),
        ([0, 1, 1], [["a", "b"]] * 3, None, "pred_probs holds what is no number"),
        ([0, 1, 1], PROBS, ["a", "b"], r"groups has shape \(2,\) for 3 images"),
        ([0, 1, 1], PROBS, ["a", None, "b"], r"groups\[1\] is missing"),
        ([0, 1, 1], PROBS, ["a", "", "b"], r"groups\[1\] is missing"),
        ([0, 1, 1], PROBS, [1.0, 2.0, np.nan], r"groups\[2\] is missing"),
        ([0, 1, 1], PROBS, ["a", "a", "a"], "one patient only"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(function, labels, probs, groups, said):
    """In one line: which array, where in it, what to give."""
    with pytest.raises(UsageError, match=said) as error:
        function(labels, probs, groups=groups)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(function.__name__)


def test_an_interval_needs_patients_and_a_ranking_is_known():
    """What is not there is not made up."""
    with pytest.raises(UsageError, match="groups=PATIENTS"):
        get_label_quality_scores([0, 1, 1], PROBS, return_intervals=True)
    with pytest.raises(UsageError, match="self_confidence"):
        find_label_issues([0, 1, 1], PROBS, return_indices_ranked_by="margin")


def test_no_image_has_no_issue():
    """An empty table is no error."""
    assert find_label_issues([], np.zeros((0, 2))).tolist() == []
    assert find_label_issues([], np.zeros((0, 2)), groups=[]).tolist() == []
    assert get_label_quality_scores(np.zeros((0, 2)), np.zeros((0, 2))).tolist() == []


def test_rows_of_zeros_and_ones_in_a_list_are_refused():
    """A list of lists has class numbers, as cleanlab takes it: 0/1 rows would be misread without a word."""
    with pytest.raises(UsageError, match=r"labels\[0\] names class 0 twice"):
        find_label_issues([[0, 1, 0], [1, 0, 0]], np.full((2, 3), 0.3))
