"""The network: its derivatives, what it learns, and what it must not."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest

from bpals.judges import record
from bpals.judges.record import Films, Network, Training
from bpals.numeric import sigmoid

FINDINGS, FEATURES = 3, 4


def make_films(count=64, *, seed=0, silent=0.0):
    """Films with random evidence and claims, half of them of patients with one film."""
    draw = np.random.default_rng(seed)
    states = (draw.random((count, FINDINGS)) < 0.4).astype(np.float32)
    states[draw.random(states.shape) < 0.1] = 0.5
    states[draw.random(states.shape) < silent] = np.nan
    evidence = draw.standard_normal((count, FEATURES)).astype(np.float32)
    return Films(evidence=evidence, states=states, single=draw.random(count) < 0.5)


def make_network(seed=1):
    """A network in double precision with every weight away from zero."""
    draw = np.random.default_rng(seed)
    widths = [FEATURES, 5, 6, FINDINGS]
    colabels = draw.normal(size=(FINDINGS, FINDINGS))
    np.fill_diagonal(colabels, 0)
    return Network(
        centre=np.zeros(FEATURES),
        scale=np.ones(FEATURES),
        layers=[draw.normal(size=pair) for pair in pairwise(widths)],
        offsets=[draw.normal(size=width) for width in widths[1:]],
        colabels=colabels,
        alone=draw.normal(size=FINDINGS),
    )


def loss(fitted, films, weights, training):
    """The weighted log-loss with its penalties, written down a second time."""
    z = fitted.logits(films)
    sign = np.where(films.states == 1, -1, 1)
    each = np.where(films.known, np.logaddexp(0, sign * z), 0)
    held = (fitted.colabels**2).sum() + (fitted.alone**2).sum()
    return (each * weights[:, None]).sum() / len(films) + 0.5 * training.colabel_penalty * held


def test_the_gradients_are_the_slopes_of_the_loss():
    """Each parameter's derivative is what a small step up and a small step down differ by."""
    films, fitted, training = make_films(silent=0.1), make_network(), Training(dropout=0.0, colabel_penalty=0.05)
    films = dataclasses.replace(films, evidence=films.evidence.astype(np.float64))
    weights = np.random.default_rng(2).exponential(size=len(films))
    given = record._gradients(fitted, films, weights, training, np.random.default_rng(3))
    step = 1e-5
    for parameter, gradient in zip(record._parameters(fitted), given, strict=True):
        for place in np.ndindex(parameter.shape):
            if parameter is fitted.colabels and place[0] == place[1]:
                assert gradient[place] == 0
                continue
            held = parameter[place]
            sides = []
            for side in (held + step, held - step):
                parameter[place] = side
                sides.append(loss(fitted, films, weights, training))
            parameter[place] = held
            assert gradient[place] == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-3, abs=1e-6)


def test_no_claim_speaks_to_itself():
    """After a fit the diagonal of the co-labels is zero to the last bit, and the rest is not."""
    fitted = record.fit(make_films(256), np.ones(256, np.float32), Training(steps=50), seed=0)
    assert (np.diag(fitted.colabels) == 0).all()
    assert (fitted.colabels[~np.eye(FINDINGS, dtype=bool)] != 0).all()


def test_flipping_a_claim_leaves_its_own_logit_and_moves_the_others():
    """On the film of a patient with one film; where there are several, no claim of the film speaks at all."""
    films = make_films(32)
    fitted = record.fit(make_films(256, seed=9), np.ones(256, np.float32), Training(steps=50), seed=0)
    turned = dataclasses.replace(films, states=films.states.copy())
    turned.states[:, 1] = 1 - turned.states[:, 1]
    certain = films.single & (films.states[:, 1] != 0.5)
    before, after = fitted.logits(films), fitted.logits(turned)
    assert (before[:, 1] == after[:, 1]).all()
    assert (before[certain][:, [0, 2]] != after[certain][:, [0, 2]]).all()
    assert (before[~films.single] == after[~films.single]).all()


def planted(count, seed):
    """Finding 0 follows the first feature; on single films finding 2 goes with finding 1."""
    films = make_films(count, seed=seed)
    draw = np.random.default_rng(seed + 100)
    states = (draw.random((count, FINDINGS)) < 0.3).astype(np.float32)
    states[:, 0] = draw.random(count) < 1 / (1 + np.exp(-3 * films.evidence[:, 0]))
    states[films.single, 2] = states[films.single, 1]
    return dataclasses.replace(films, states=states)


def test_a_planted_relation_is_learned():
    """From the evidence and, on single films, from the co-labels; on films that the fit did not see."""
    fitted = record.fit(planted(2000, 0), np.ones(2000, np.float32), Training(), seed=0)
    fresh = planted(2000, 50)
    p = sigmoid(fitted.logits(fresh))
    truth = fresh.states
    by_chance = -np.log(np.where(truth == 1, truth.mean(axis=0), 1 - truth.mean(axis=0)))
    learned = -np.log(np.where(truth == 1, p, 1 - p))
    assert learned[:, 0].mean() < by_chance[:, 0].mean() - 0.2
    assert learned[fresh.single, 2].mean() < by_chance[fresh.single, 2].mean() - 0.05
    with_it, without = p[fresh.single & (truth[:, 1] == 1), 2], p[fresh.single & (truth[:, 1] == 0), 2]
    assert with_it.mean() > without.mean() + 0.1
    assert learned[:, 1].mean() < by_chance[:, 1].mean() + 0.03


def parameters(fitted):
    """All that was fitted, as bytes."""
    return b"".join(parameter.tobytes() for parameter in record._parameters(fitted))


def test_the_same_seed_gives_the_same_bytes():
    """And another seed another network."""
    fits = [record.fit(make_films(128), np.ones(128, np.float32), Training(steps=20), seed) for seed in (7, 7, 8)]
    assert parameters(fits[0]) == parameters(fits[1]) != parameters(fits[2])


def test_an_uncertain_claim_teaches_as_little_as_silence():
    """On films whose claims do not speak to one another the two fits are the same to the last bit."""
    films = dataclasses.replace(make_films(128), single=np.zeros(128, dtype=bool))
    silent = dataclasses.replace(films, states=np.where(films.states == 0.5, np.float32(np.nan), films.states))
    assert np.isnan(silent.states).any()
    fits = [record.fit(given, np.ones(128, np.float32), Training(steps=20), 0) for given in (films, silent)]
    assert parameters(fits[0]) == parameters(fits[1])


def test_a_film_that_weighs_more_is_heeded_more():
    """The weights of the draw reach the loss: what weighs nothing teaches nothing."""
    films = planted(600, 3)
    contrary = dataclasses.replace(films, states=1 - films.states)
    both = Films(
        evidence=np.concatenate([films.evidence] * 2),
        states=np.concatenate([films.states, contrary.states]),
        single=np.concatenate([films.single] * 2),
    )
    weights = np.repeat([1, 0], 600).astype(np.float32)
    fitted = record.fit(both, weights, Training(), seed=0)
    p = sigmoid(fitted.logits(films))[:, 0]
    assert p[films.states[:, 0] == 1].mean() > p[films.states[:, 0] == 0].mean() + 0.2


def test_evidence_that_never_varied_says_nothing_when_it_does():
    """A width that all films of the fit share has taught nothing; a film of another width is answered all the same."""
    films = make_films(300)
    films.evidence[:, 0] = 2992.1
    fitted = record.fit(films, np.ones(300, np.float32), Training(steps=20), seed=0)
    other = dataclasses.replace(films, evidence=films.evidence.copy())
    other.evidence[:, 0] = 224.0
    assert (fitted.logits(other) == fitted.logits(films)).all()


def test_evidence_far_out_speaks_no_louder():
    """A feature of one film in a thousand is many deviations out; beyond FARTHEST nothing changes."""
    films = make_films(300)
    fitted = record.fit(films, np.ones(300, np.float32), Training(steps=20), seed=0)
    side = np.sign(films.evidence)
    far, farther = (dataclasses.replace(films, evidence=side * np.float32(by)) for by in (1e4, 1e6))
    assert (fitted.logits(far) == fitted.logits(farther)).all()
    assert np.abs(fitted.scaled(far.evidence)).max() == record.FARTHEST


@pytest.mark.parametrize(("films", "batch"), [(1, 1), (20, 20), (33, 32), (2_000, 32), (90_000, 1024)])
def test_a_small_record_is_cut_smaller(films, batch):
    """Every record is learned from in at least the steps that Training asks for."""
    training = Training()
    size, epochs = record._schedule(films, training)
    assert size == batch
    assert epochs * (films // size) >= training.steps
    assert epochs >= training.epochs


def test_nih_is_read_as_it_was_tuned():
    """The schedule of a large record is that of Training itself."""
    assert record._schedule(89_000, Training()) == (Training().batch, Training().epochs)


def test_the_smallest_record_can_be_fitted():
    """One film, constant evidence, a finding without a presence, one that nobody speaks of: no warning, no NaN."""
    films = Films(
        evidence=np.ones((1, FEATURES), np.float32),
        states=np.array([[0, np.nan, 1]], np.float32),
        single=np.ones(1, dtype=bool),
    )
    fitted = record.fit(films, np.ones(1, np.float32), Training(steps=10), seed=0)
    assert np.isfinite(fitted.logits(films)).all()


def test_probabilities_do_not_overflow():
    """Logits of any size, no warning."""
    assert sigmoid(np.array([-1e9, 0.0, 1e9])) == pytest.approx([0, 0.5, 1])
