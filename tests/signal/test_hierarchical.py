"""Partial pooling: solved right, gentle with little, firm with much, and blind to who is left out."""

import dataclasses

import numpy as np
import pytest
from scipy import optimize

from bpals.numeric import log_loss, sigmoid
from bpals.signal.hierarchical import (
    BOTH,
    EACH,
    SCALES,
    Coefficients,
    PartialPooling,
    Reviewed,
    Topic,
    _Data,
    _Part,
    averaged,
    own_deviations,
    refit,
    shifts,
    solve,
)
from bpals.signal.prior import DIRECTION, Inputs, united

NOBODY = frozenset()
FINDINGS = ("A", "B", "C")
FRESH = np.arange(1500, 2000)
"""Images that no test has read."""

# The solution: that of the whole, dense problem.


def problem(seed, columns=4, shared=3, subjects=3):
    """Subjects with pairs, one without any, and one whose readers left some open and count unequally."""
    draw = np.random.default_rng(seed)
    parts = []
    for number in range(subjects):
        count = (30, 0, 12)[number % 3]
        root = draw.normal(size=(columns, columns))
        present = (draw.random(count) < 0.4).astype(float)
        data = _Data(
            columns=draw.normal(size=(count, columns)),
            start=draw.normal(size=count),
            present=np.where(draw.random(count) < 0.2, 0.7, present),
            weight=draw.uniform(0.3, 3, count),
        )
        spread_out = (draw.random((columns, shared)) < 0.5).astype(float)
        firm = root @ root.T + np.eye(columns)
        parts.append(_Part(spread_out=spread_out, firm=firm, unread=firm, data=data if count else None))
    return parts, np.diag(draw.uniform(0.5, 2, shared))


@pytest.mark.parametrize("seed", range(4))
def test_the_solution_is_that_of_the_dense_problem(seed):
    """The same coefficients as scipy finds, and the covariance is the inverse of the whole Hessian, turned to them."""
    parts, firm = problem(seed)
    shared, columns = len(firm), len(parts[0].firm)
    size = shared + columns * len(parts)

    def split(theta):
        return theta[:shared], theta[shared:].reshape(len(parts), columns)

    def loss(theta):
        beta, deltas = split(theta)
        total = beta @ firm @ beta / 2
        for part, delta in zip(parts, deltas, strict=True):
            total += delta @ part.firm @ delta / 2
            if part.data is not None:
                z = part.data.start + part.data.columns @ (part.spread_out @ beta + delta)
                total += (part.data.weight * log_loss(z, part.data.present)).sum()
        return total

    best = optimize.minimize(loss, np.zeros(size), method="BFGS", options={"gtol": 1e-7}).x
    beta, deltas = split(best)
    hessian = np.zeros((size, size))
    hessian[:shared, :shared] = firm
    turns = []
    for number, (part, delta) in enumerate(zip(parts, deltas, strict=True)):
        turn = np.zeros((columns, size))
        turn[:, :shared] = part.spread_out
        own = slice(shared + number * columns, shared + (number + 1) * columns)
        turn[:, own] = np.eye(columns)
        hessian[own, own] += part.firm
        if part.data is not None:
            p = sigmoid(part.data.start + part.data.columns @ (part.spread_out @ beta + delta))
            laid = part.data.columns @ turn
            hessian += laid.T @ (laid * (part.data.weight * p * (1 - p))[:, None])
        turns.append(turn)
    done, inverse = solve(parts, firm), np.linalg.inv(hessian)
    for turn, mean, covariance in zip(turns, done.mean, done.covariance, strict=True):
        assert mean == pytest.approx(turn @ best, abs=1e-4)
        assert covariance == pytest.approx(turn @ inverse @ turn.T, rel=1e-3, abs=1e-5)


# Findings that share: nothing without reviews, little with few, and a rare finding borrows from the others.


def world(reviewed, *, bias=None, seed=0, images=2000):
    """Three findings whose true logit is the judges' plus a bias by direction; so many images of each were read."""
    draw = np.random.default_rng(seed)
    z = draw.normal(-1, 1.5, (images, len(FINDINGS)))
    claims = (draw.random(z.shape) < 0.4).astype(float)
    bias = bias or {}
    truth = np.stack(
        [
            sigmoid(z[:, k] + np.where(claims[:, k] == 1, *bias.get(name, (0.0, 0.0))))
            for k, name in enumerate(FINDINGS)
        ],
        axis=1,
    )
    there = (draw.random(z.shape) < truth).astype(float)
    inputs = Inputs(
        subjects=FINDINGS,
        start=lambda place, rows, _without: z[rows, place],
        claims=claims,
        findings=FINDINGS,
        others=z - z.mean(axis=0),
        no_finding=(claims.sum(axis=1) == 0).astype(float),
        typical=(-1.0, -1.0),
    )
    reads = {}
    for name, count in reviewed.items():
        rows = np.arange(count)
        reads[name] = Reviewed(
            rows=rows, present=there[rows, FINDINGS.index(name)], weight=np.ones(count), fold=rows % 5
        )
    return PartialPooling(inputs=inputs, reviewed=reads), z, truth


def moved(pooling, z, name, rows=FRESH):
    """How far the logits of a finding moved."""
    return pooling.correct(name, rows, NOBODY)[0] - z[rows, FINDINGS.index(name)]


def test_without_a_label_the_judges_answer_stands():
    """To the last bit, with no spread of its own; also where everybody who was read is left out."""
    pooling, z, _ = world({}, bias={"A": (1.0, 1.0)})
    for name in FINDINGS:
        answer, spread = pooling.correct(name, FRESH, NOBODY)
        assert (answer == z[FRESH, FINDINGS.index(name)]).all()
        assert (spread == 0).all()
    read, z, _ = world({"A": 100})
    answer, spread = read.correct("A", FRESH, frozenset(range(5)))
    assert answer == pytest.approx(z[FRESH, 0], abs=1e-12)
    assert (spread > 0.8).all()


def test_few_labels_move_little_and_many_follow_their_readers():
    """Presences that are two too high: five labels move them by less than half of it, 1,500 by nearly all."""
    shift = dict.fromkeys(FINDINGS, (-2.0, 0.5))
    few, many = [], []
    for seed in range(6):
        for count, into in ((5, few), (1500, many)):
            pooling, z, _ = world({"A": count}, bias=shift, seed=seed)
            claimed = pooling.inputs.claims[FRESH, 0] == 1
            by = moved(pooling, z, "A")
            into.append((by[claimed].mean(), by[~claimed].mean()))
    assert np.mean(many, axis=0) == pytest.approx([-2.0, 0.5], abs=0.25)
    assert -1.0 < np.mean(few, axis=0)[0] < 0
    assert np.abs(few).max() < 1.5


def test_a_finding_that_nobody_read_moves_with_what_all_share():
    """In the direction in which the others were wrong, less than they do, and with a wider interval."""
    pooling, z, _ = world({"A": 800, "B": 800}, bias=dict.fromkeys(FINDINGS, (-2.0, 0.0)))
    claimed = pooling.inputs.claims[FRESH, 2] == 1
    own = moved(pooling, z, "A")[pooling.inputs.claims[FRESH, 0] == 1].mean()
    unread = moved(pooling, z, "C")[claimed].mean()
    assert own < unread < 0.15 * own < 0
    assert abs(moved(pooling, z, "C")[~claimed].mean()) < 0.3
    assert (pooling.correct("C", FRESH, NOBODY)[1] > 2 * pooling.correct("A", FRESH, NOBODY)[1].mean()).all()


def test_a_rare_finding_borrows_and_a_common_one_keeps_its_own():
    """Ten labels beside two findings that err alike come nearer than alone; others that err otherwise drag little."""
    alone, beside = [], []
    for seed in range(5):
        for others, into in (({}, alone), ({"A": 500, "B": 500}, beside)):
            pooling, _, truth = world({"C": 10, **others}, bias=dict.fromkeys(FINDINGS, (-2.0, 1.0)), seed=seed)
            into.append(np.abs(sigmoid(pooling.correct("C", FRESH, NOBODY)[0]) - truth[FRESH, 2]).mean())
    assert np.mean(beside) < 0.9 * np.mean(alone)
    pooling, z, _ = world({"A": 1500, "B": 1500, "C": 1500}, bias={"A": (1, 1), "B": (-1, -1), "C": (-1, -1)})
    assert moved(pooling, z, "A").mean() == pytest.approx(1.0, abs=0.25)


def test_a_family_shares_more_than_strangers_do():
    """What readers say of one member moves the other further where both are of one group."""
    by = []
    for families in ((), (("A", "C"),)):
        pooling, z, _ = world({"A": 1500}, bias={"A": (-2.0, -2.0)})
        by.append(moved(dataclasses.replace(pooling, families=families), z, "C").mean())
    assert by[1] < by[0] - 0.03


def test_the_spread_shrinks_with_labels_and_holds_the_truth():
    """It is the standard deviation of the corrected logit: 1.96 of it hold the truth in most places."""
    spreads = [world({"A": count})[0].correct("A", FRESH, NOBODY)[1].mean() for count in (5, 50, 500, 1500)]
    assert spreads == sorted(spreads, reverse=True)
    held = []
    for seed in range(10):
        pooling, z, _ = world({"A": 200}, bias={"A": (-0.8, 0.4)}, seed=seed)
        answer, spread = pooling.correct("A", FRESH, NOBODY)
        wanted = z[FRESH, 0] + np.where(pooling.inputs.claims[FRESH, 0] == 1, -0.8, 0.4)
        held.append((np.abs(answer - wanted) <= 1.96 * spread).mean())
    assert np.mean(held) > 0.9


def test_who_is_left_out_is_left_out_of_every_finding():
    """Flip a fold's verdicts, of all findings: what is fitted without it is the same to the bit, for each of them."""
    before, _, _ = world({"A": 200, "B": 150})
    after, _, _ = world({"A": 200, "B": 150})
    for reviewed in after.reviewed.values():
        its = reviewed.fold == 3
        reviewed.present[its] = 1 - reviewed.present[its]
    for name in FINDINGS:
        first, second = (each.correct(name, FRESH, frozenset({3})) for each in (before, after))
        assert (first[0] == second[0]).all()
        assert (first[1] == second[1]).all()
        assert (before.correct(name, FRESH, NOBODY)[0] != after.correct(name, FRESH, NOBODY)[0]).all()


def test_the_columns_say_what_they_are():
    """A finding's own logit is no column of its own; the logit is centred by direction; no answer, no row."""
    pooling, z, _ = world({})
    laid = pooling.inputs.lay(1, np.arange(50), z[:50, 1])
    columns = pooling.inputs.columns
    assert columns == (*DIRECTION, *FINDINGS)
    assert len(own_deviations(pooling.inputs)) == len(columns)
    claimed = pooling.inputs.claims[:50, 1]
    named = dict(zip(columns, laid.T, strict=True))
    assert (named["present"] == claimed).all()
    assert (named["absent"] == 1 - claimed).all()
    assert named["present x logit"] == pytest.approx(claimed * (z[:50, 1] + 1))
    assert (named["absent, no finding"] == pooling.inputs.no_finding[:50]).all()
    assert (named["B"] == 0).all()
    assert (named["A"] == pooling.inputs.others[:50, 0]).all()
    seen = dataclasses.replace(pooling.inputs, seen=np.ones((2000, 3)), circumstances={"age": np.full(2000, 0.5)})
    start = np.where(np.arange(50) < 3, np.nan, z[:50, 1])
    wide = seen.lay(1, np.arange(50), start)
    assert seen.columns[-3:] == ("seen", "seen x logit", "age")
    assert wide[3:, -2] == pytest.approx(z[3:50, 1] + 1)
    assert (wide[3:, -1] == 0.5).all()
    assert (wide[:3] == 0).all()


def test_a_group_lies_between_the_sum_and_chance():
    """One member alone is itself; two are at least the greater, at most the sum."""
    p = np.array([[0.3, 0.0], [0.3, 0.3], [0.9, 0.8]])
    whole = sigmoid(united(p, p[:, 0]))
    assert whole[0] == pytest.approx(0.3)
    assert whole[1] == pytest.approx((0.6 + 0.51) / 2)
    assert p[2].max() < whole[2] < 1


def test_errors_are_claims_that_the_reviews_contradict():
    """A claim of neither kind is no error; a chance counts as the side on which it lies."""
    said = np.array([1.0, 1.0, 0.0, 0.0, 0.5])
    reviewed = Reviewed(
        rows=np.arange(5), present=np.array([0.9, 0.2, 0.7, 0.1, 1.0]), weight=np.ones(5), fold=np.arange(5)
    )
    asked = Topic(finding="A", judged=said, summed=said, claim=said, by_image=said, reviewed=reviewed)
    assert asked.errors() == 2
    assert asked.errors(frozenset({1})) == 1


# Refitting: a known shift comes back from a small random sample, and the sample is answered by its others.


@pytest.fixture
def sampled():
    """Films whose true logit is shifted by so much, for presences and for absences, and a random sample of them."""

    def sampled(presence, absence, *, films=3000, count=200, seed=0):
        draw = np.random.default_rng(seed)
        z, said = draw.normal(-1, 1.5, films), (draw.random(films) < 0.4).astype(float)
        truth = sigmoid(z + np.where(said == 1, presence, absence))
        rows = draw.choice(films, count, replace=False)
        sample = Reviewed(
            rows=rows,
            present=(draw.random(count) < truth[rows]).astype(float),
            weight=np.ones(count),
            fold=rows % 5,
        )
        return z, said, sample, truth

    return sampled


def test_a_known_shift_comes_back(sampled):
    """From 200 films, on average over twenty samples, but for the hold; and from many films to a tenth."""
    found = np.mean([shifts(*sampled(1.2, 1.2, seed=seed)[:3]) for seed in range(20)], axis=0)
    assert found == pytest.approx([1.2, 1.2], abs=0.2)
    many = shifts(*sampled(-0.8, -0.8, films=60_000, count=40_000)[:3])
    assert many == pytest.approx([-0.8, -0.8], abs=0.1)


def test_the_directions_have_a_little_of_their_own(sampled):
    """Opposite shifts are found with many films, and held together with few."""
    few = np.mean([shifts(*sampled(0.6, -0.6, seed=seed)[:3]) for seed in range(20)], axis=0)
    many = shifts(*sampled(0.6, -0.6, films=60_000, count=40_000)[:3])
    assert many == pytest.approx([0.6, -0.6], abs=0.1)
    assert few[0] - few[1] < 1.1
    assert few[0] > 0.1 > -0.1 > few[1]
    assert EACH < BOTH


def test_a_sample_of_nobody_moves_nothing(sampled):
    """To the last bit."""
    z, said, sample, _ = sampled(1.0, 1.0)
    assert (refit(z, said, sample.without(frozenset(range(5)))) == z).all()


def test_films_without_a_definite_claim_move_by_the_mean(sampled):
    """Between what presences and absences do."""
    z, said, sample, _ = sampled(1.0, 1.0)
    said[:10] = 0.5
    outside = np.setdiff1d(np.arange(3000), sample.rows)
    presence, absence = shifts(z, said, sample)
    moved = (refit(z, said, sample) - z)[outside]
    claimed = said[outside]
    assert moved[claimed == 1] == pytest.approx(presence)
    assert moved[claimed == 0] == pytest.approx(absence)
    assert moved[claimed == 0.5] == pytest.approx((presence + absence) / 2)


def test_the_films_of_the_sample_are_cross_fitted(sampled):
    """Flip one verdict: the logits of its own patients' fold are the same to the last bit, all others move."""
    z, said, sample, _ = sampled(1.0, 0.5)
    before = refit(z, said, sample)
    for place in (0, 57, 133):
        present = sample.present.copy()
        present[place] = 1 - present[place]
        after = refit(z, said, Reviewed(rows=sample.rows, present=present, weight=sample.weight, fold=sample.fold))
        own = sample.rows[sample.fold == sample.fold[place]]
        assert (after[own] == before[own]).all()
        assert (np.delete(after, own) != np.delete(before, own)).all()


def test_where_nothing_shifted_the_refit_costs_little(sampled):
    """The mean probability moves by hundredths, and where something did it comes nearer."""
    still, shifted = [], []
    for seed in range(20):
        z, said, sample, truth = sampled(0.0, 0.0, seed=seed)
        still.append(np.abs(sigmoid(refit(z, said, sample)) - truth).mean())
        z, said, sample, truth = sampled(1.0, 1.0, seed=seed)
        shifted.append(np.abs(sigmoid(refit(z, said, sample)) - truth).mean() / np.abs(sigmoid(z) - truth).mean())
    assert np.mean(still) < 0.03
    assert np.mean(shifted) < 0.3


def test_columns_that_say_nothing_get_a_small_scale_and_columns_that_matter_the_whole():
    """The evidence weighs the scales: with idle columns the fit is nearly one of intercepts, else it uses them."""
    pooling, z, _ = world({"A": 1500, "B": 1500, "C": 1500}, bias=dict.fromkeys(FINDINGS, (-1.0, 0.5)))
    data = [pooling._data(place, NOBODY) for place in range(3)]
    small, _, whole = (pooling._solve(data, scale).evidence for scale in SCALES)
    assert small > whole + 3
    idle = np.abs(pooling.fit(NOBODY).mean[:, len(DIRECTION) :]).max()
    other = z[:, 1] - z[:, 1].mean()
    draw = np.random.default_rng(1)
    told = {
        name: dataclasses.replace(
            its, present=(draw.random(1500) < sigmoid(z[:1500, k] + 0.8 * other[:1500])).astype(float)
        )
        for k, (name, its) in enumerate(pooling.reviewed.items())
    }
    matters = dataclasses.replace(pooling, reviewed=told, fits={}, whole={})
    data = [matters._data(place, NOBODY) for place in range(3)]
    small, _, whole = (matters._solve(data, scale).evidence for scale in SCALES)
    assert whole > small + 3
    used = matters.fit(NOBODY).mean[0, len(DIRECTION) + FINDINGS.index("B")]
    assert used > 0.4 > 4 * idle


def test_the_average_of_fits_is_less_sure_where_they_differ():
    """Means by the weights of their evidence; the covariance grows by how far apart they are."""
    fits = [
        Coefficients(mean=np.full((1, 2), each), covariance=np.eye(2)[None], evidence=evidence)
        for each, evidence in ((0.0, np.log(1.0)), (1.0, np.log(3.0)))
    ]
    both = averaged(fits)
    assert both.mean[0] == pytest.approx([0.75, 0.75])
    assert both.covariance[0] == pytest.approx(np.eye(2) + 0.75 * 0.25 * np.ones((2, 2)))
