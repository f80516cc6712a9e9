"""Tests of signal.pool."""

import dataclasses
from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpals.judges.record import RecordJudge, Training, fold_of
from bpals.numeric import logit, patients, reports_of_films, sigmoid
from bpals.signal.correlated import FURTHEST, PARTS, Cells
from bpals.signal.layout import lay_pairs
from bpals.signal.pool import CAREFUL, MISSING_SHARE, Recorded, combine, omissions, pool
from bpals.signal.rows import JUDGES_METHOD, METHOD
from bpals.testing import check_signal, flipped, tiny_dataset
from bpals.types import IMAGES, OUTCOME, judgments_schema
from world.estimating import estimate, used_judges

# Labels that are missing: counted between two reports that have them, and never from a patient's own fold.


def films(patients, *, studies=None, at=None):
    """Films of patients in the order of time."""
    known = {
        "image_id": [f"{row:04}.png" for row in range(len(patients))],
        "patient_id": patients,
        "study_id": studies or [None] * len(patients),
        "follow_up": at or list(range(len(patients))),
    }
    return pl.DataFrame(known, schema_overrides={"patient_id": pl.String, "study_id": pl.String}).with_columns(
        pl.lit(None, kind).alias(name) for name, kind in IMAGES.items() if name not in known
    )


def sandwiches(count, hits, folds=2):
    """Patients of three films: present, then `hits` times present and else absent, then present; half in each fold."""
    states = np.array([[1, float(number < hits), 1] for number in range(count)]).reshape(-1, 1)
    patients = np.repeat([f"p{number:04}" for number in range(count)], 3)
    return states, reports_of_films(films(patients.tolist())), np.repeat(np.arange(count) % folds, 3)


@pytest.mark.quick
def test_a_known_share_of_gaps_comes_back():
    """Of 200 middles 120 have the label: each fold is raised by half the log of the other fold's share."""
    states, reports, fold = sandwiches(200, 120)
    shift = omissions(states, reports, fold)
    assert shift == pytest.approx(-MISSING_SHARE * np.log((60 + CAREFUL) / (100 + CAREFUL)))


@pytest.mark.quick
def test_few_gaps_say_little_and_none_nothing():
    """One miss in two gaps is not half of all labels."""
    assert 0 < omissions(*sandwiches(4, 2)).max() < 0.1
    assert (omissions(*sandwiches(200, 200)) == 0).all()
    empty = omissions(np.zeros((0, 3)), reports_of_films(films([])), np.zeros(0, dtype=np.int64))
    assert empty.shape == (0, 3)


@pytest.mark.quick
@pytest.mark.parametrize("patients", [[None] * 30, [f"p{row}" for row in range(30)], ["a", "a"] * 15])
def test_a_dataset_without_timelines_has_no_such_evidence(patients):
    """Nobody's films, patients with one film, or all in one fold: no logit moves."""
    states = np.random.default_rng(0).integers(0, 2, (30, 4)).astype(float)
    fold = np.zeros(30, dtype=np.int64) if patients[0] == "a" else np.arange(30) % 3
    assert (omissions(states, reports_of_films(films(patients)), fold) == 0).all()


@pytest.mark.quick
def test_films_of_one_study_are_one_report():
    """The loudest film speaks for it: a second film of the middle study that has the label is no gap."""
    studies = ["s1", "s2", "s2", "s3"] * 40
    patients = [f"p{row // 4}" for row in range(160)]
    states = np.tile([1.0, 0.0, 1.0, 1.0], 40)[:, None]
    at = [row % 4 for row in range(160)]
    fold = np.arange(160) // 4 % 2
    whole, single = (reports_of_films(films(patients, studies=named, at=at)) for named in (studies, None))
    assert (omissions(states, whole, fold) == 0).all()
    alone = omissions(states, single, fold)
    assert (alone > 0.1).all()


@pytest.mark.quick
def test_an_open_or_silent_report_is_a_gap_but_no_side_of_one():
    """What is not said to be there is not there; what is open does not enclose anything."""
    states, reports, fold = sandwiches(100, 50)
    silent = np.where(states == 0, np.nan, states)
    assert omissions(silent, reports, fold) == pytest.approx(omissions(states, reports, fold))
    states[::3] = 0.5
    assert (omissions(states, reports, fold) == 0).all()


@pytest.mark.quick
@given(place=st.integers(0, 299), seed=st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_flipping_a_claim_does_not_move_its_own_logit(place, seed):
    """Not one bit, of its whole fold; others' may."""
    draw = np.random.default_rng(seed)
    who = draw.integers(0, 60, 300)
    reports, fold = reports_of_films(films([f"p{number}" for number in who])), who % 3
    states = draw.integers(0, 2, (300, 2)).astype(float)
    before = omissions(states, reports, fold)
    states[place, 1] = 1 - states[place, 1]
    after = omissions(states, reports, fold)
    assert (after[fold == fold[place]] == before[fold == fold[place]]).all()
    assert (after[:, 0] == before[:, 0]).all()


@pytest.mark.quick
@given(seed=st.integers(0, 100))
@settings(max_examples=25, deadline=None)
def test_the_order_of_the_films_does_not_matter(seed):
    """Where the dataset says when they were made."""
    draw = np.random.default_rng(seed)
    who = draw.integers(0, 30, 200)
    images, fold = films([f"p{number}" for number in who]), who % 3
    states = draw.integers(0, 2, (200, 2)).astype(float)
    order = draw.permutation(200)
    turned = omissions(states[order], reports_of_films(images[order]), fold[order])
    assert turned == pytest.approx(omissions(states, reports_of_films(images), fold)[order])


# The pool: an average that is right on average, whoever answered.


FILMS = 4000


@pytest.fixture
def films_of_pool():
    """Four thousand films with a logit that tells their claims, dealt over two folds."""
    draw = np.random.default_rng(0)
    dealt = Cells.of(draw.integers(0, PARTS, FILMS), draw.integers(0, 2, FILMS))
    z = draw.normal(-1, 1.5, FILMS)
    return z, (draw.random(FILMS) < sigmoid(z)).astype(float), dealt


def says(z, sure=0.1):
    """A witness that says so to everybody."""
    return Recorded(z=z, sure=np.full(len(z), sure))


@pytest.mark.quick
def test_a_witness_alone_that_is_right_is_left_as_it_is(films_of_pool):
    """But for a small shift; its weight is 1 and its spread its own."""
    z, state, dealt = films_of_pool
    done = pool([says(np.full(FILMS, np.nan)), says(z)], state, dealt)
    assert done.done.all()
    assert done.weights == pytest.approx([0, 1])
    assert np.abs(done.z - z).max() < 0.3
    assert done.spread == pytest.approx(0.1)


@pytest.mark.quick
def test_the_weights_are_the_variances(films_of_pool):
    """A witness whose logits vary twice as far weighs four times as much; one that never varies nothing."""
    z, state, dealt = films_of_pool
    done = pool([says(z), says(z / 2), says(np.full(FILMS, 3.0))], state, dealt)
    assert done.weights == pytest.approx([0.8, 0.2, 0])


@pytest.mark.quick
def test_the_pool_is_right_on_average_for_each_set_of_witnesses(films_of_pool):
    """Where one is silent the others are shifted on their own."""
    z, state, dealt = films_of_pool
    silent = np.where(np.arange(FILMS) % 2 == 0, np.nan, z + 2)
    done = pool([says(z - 1), says(silent)], state, dealt)
    for half in (0, 1):
        its = np.arange(FILMS) % 2 == half
        assert sigmoid(done.z[its]).mean() == pytest.approx(state[its].mean(), abs=0.02)


@pytest.mark.quick
def test_witnesses_that_differ_are_less_sure(films_of_pool):
    """Of a film on which they are far apart."""
    z, state, dealt = films_of_pool
    other = z.copy()
    other[:100] += 4
    done = pool([says(z), says(other)], state, dealt)
    assert done.spread[:100].min() > done.spread[100:].max()


@pytest.mark.quick
def test_no_claim_of_a_part_reaches_the_part_s_own_answers(films_of_pool):
    """To the last bit; nor does a claim of another fold."""
    z, state, dealt = films_of_pool
    witnesses = [says(z), says(z[::-1].copy())]
    before = pool(witnesses, state, dealt)
    own, others = dealt.pieces[2][0], dealt.pieces[1][0]
    turned = state.copy()
    turned[own] = 1 - turned[own]
    after = pool(witnesses, turned, dealt)
    assert (after.z[own] == before.z[own]).all()
    assert (after.z[others] != before.z[others]).all()
    for of_part in dealt.pieces:
        assert (after.z[of_part[1]] == before.z[of_part[1]]).all()


@dataclass(frozen=True)
class Mute:
    """A witness that never answers."""

    films: int

    def answer(self, _part):
        """Say nothing."""
        return np.full(self.films, np.nan)

    def spread(self, _part, piece):
        """Say nothing of nothing."""
        return np.zeros(piece.stop - piece.start)


@pytest.mark.quick
def test_a_witness_that_never_answers_is_as_if_it_were_not_there(films_of_pool):
    """To the last bit; and where nobody answers there is no answer."""
    z, state, dealt = films_of_pool
    there, beside = pool([says(z)], state, dealt), pool([says(z), Mute(FILMS)], state, dealt)
    assert (there.z == beside.z).all()
    assert (there.spread == beside.spread).all()
    assert not pool([Mute(FILMS)], state, dealt).done.any()


@pytest.mark.quick
def test_a_whisper_is_not_heard(films_of_pool):
    """A witness with less than a twentieth of the weight moves nothing: the record stands, and nothing was pooled."""
    z, state, dealt = films_of_pool
    whisper = np.random.default_rng(1).normal(0, 0.1, FILMS)
    done = pool([says(z), says(whisper)], state, dealt)
    assert not done.done.any()
    assert done.weights == pytest.approx([0, 0])


@pytest.fixture
def three(films_of_pool):
    """A record and two image judges, of which the last repeats the claims loudly."""
    z, state, dealt = films_of_pool
    draw = np.random.default_rng(3)
    honest, echo = z + draw.normal(0, 1, FILMS), 4 * (2 * state - 1) + draw.normal(0, 1, FILMS)
    return [says(z), says(honest), says(echo)], state, dealt


@pytest.mark.quick
def test_a_witness_that_was_told_weighs_half_of_what_the_others_do_at_most(three):
    """However far its logits vary; unaware of it, the pool would read_answers nobody else."""
    witnesses, state, dealt = three
    plain = pool(witnesses, state, dealt)
    aware = pool(witnesses, state, dealt, np.array([False, False, True]))
    assert plain.weights[2] > 0.5
    assert aware.weights[2] == pytest.approx(aware.weights[:2].max() / 2, rel=0.05)
    assert aware.weights.sum() == pytest.approx(1)
    assert aware.apart[2].std() == pytest.approx(aware.apart[:2].std(axis=1).max(), rel=0.05)


@pytest.mark.quick
def test_a_witness_that_was_told_and_hardly_varies_weighs_half(films_of_pool):
    """Its logits are as they were."""
    z, state, dealt = films_of_pool
    plain = pool([says(z), says(z / 2)], state, dealt)
    aware = pool([says(z), says(z / 2)], state, dealt, np.array([False, True]))
    assert plain.weights == pytest.approx([4 / 5, 1 / 5])
    assert aware.weights == pytest.approx([8 / 9, 1 / 9])
    assert aware.apart[1] == pytest.approx(z / 2)


@pytest.mark.quick
def test_a_witness_that_was_told_and_is_alone_is_all_there_is(films_of_pool):
    """There is nothing to measure it by."""
    z, state, dealt = films_of_pool
    silent = says(np.full(FILMS, np.nan))
    alone = pool([silent, says(z)], state, dealt)
    told = pool([silent, says(z)], state, dealt, np.array([False, True]))
    assert told.weights == pytest.approx([0, 1])
    assert told.z == pytest.approx(alone.z, abs=1e-9)


@pytest.mark.quick
def test_where_nobody_was_told_not_a_bit_changes(three):
    """Saying so of nobody is saying nothing."""
    witnesses, state, dealt = three
    one, other = pool(witnesses, state, dealt), pool(witnesses, state, dealt, np.zeros(3, dtype=bool))
    assert np.array_equal(one.z, other.z)
    assert np.array_equal(one.weights, other.weights)


@pytest.mark.quick
def test_what_each_witness_says_is_kept_apart(films_of_pool):
    """Film by film, in the order of the films; NaN where it is silent."""
    z, state, dealt = films_of_pool
    silent = np.where(np.arange(FILMS) % 2 == 0, np.nan, z + 2)
    done = pool([says(z), says(silent)], state, dealt)
    assert done.apart[0] == pytest.approx(z)
    assert np.array_equal(done.apart[1], silent, equal_nan=True)


# The combination: what image judges may move, and what no judge may.

KEPT = ["p_present", "trust", "trust_low", "trust_high"]
ROUNDING = 1e-6
"""The table has six decimals."""


def folds(dataset):
    """The record judge's folds."""
    return fold_of(patients(dataset.images).to_numpy().astype(np.str_), 3)


def eyes(dataset, seen, seed):
    """Three image judges: two see all films, one of them badly, and one sees some."""
    table = seen(dataset, judge="some", share=0.5, strength=1.5, seed=seed + 2)
    return [seen(dataset, judge="good", seed=seed), seen(dataset, judge="bad", strength=0.5, seed=seed + 1), table]


def apart(one, other, columns=KEPT):
    """The greatest difference of two signals of the same claims, and null where the other is null."""
    both = one.join(other, on=["image_id", "finding"], suffix="_too", validate="1:1")
    assert both.height == one.height == other.height
    assert all(both[name].is_null().equals(both[f"{name}_too"].is_null()) for name in columns)
    return max((both[name] - both[f"{name}_too"]).abs().max() or 0.0 for name in columns)


@pytest.fixture(scope="module")
def dataset():
    """Four hundred patients with one to four films."""
    return tiny_dataset(patients=400, uncertain=0.03, silent=0.02, seed=2)


@pytest.fixture(scope="module")
def judgments(dataset, judged):
    """What the record judge says of them."""
    return judged(dataset)


@pytest.fixture
def combined(dataset, judgments, panel):
    """Combine tables of answers with the record's."""

    def combined(*tables, used=None, record=judgments, data=dataset):
        pairs = lay_pairs(data.images, data.claims, record, data.vocabulary)
        seated = panel(data, *tables, used=used)
        judges = used_judges(data, record, seated)
        return combine(pairs, judges, patients(data.images), seated.fold), pairs

    return combined


def log_loss(p, states):
    """How well probabilities foretell the definite claims."""
    known = ((states == 0) | (states == 1)) & ~np.isnan(p)
    right = np.where(states == 1, p, 1 - p)[known]
    return -np.log(np.clip(right, 1e-9, 1)).mean()


@pytest.fixture(scope="session")
def makers(judged, seen, panel):
    """What makes the record's answers, an image judge's, and a panel."""
    return judged, seen, panel


@pytest.mark.quick
@given(
    size=st.integers(0, 40),
    shares=st.tuples(*[st.sampled_from([0.0, 0.3, 1.0])] * 3),
    judges=st.lists(st.tuples(st.sampled_from([0.0, 0.4, 1.0]), st.sampled_from([0.0, 2.0, 50.0])), max_size=3),
    used=st.sampled_from([(), ("Mass",), ("Effusion", "Nodule", "Mass")]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_every_combination_keeps_the_contract(makers, size, shares, judges, used, seed):
    """One row a claim, trust p or 1 - p, interval around it, null where nobody could say; the same bytes again."""
    judged, seen, panel = makers
    silent, uncertain, failed = shares
    dataset = tiny_dataset(patients=size, silent=silent, uncertain=uncertain, seed=seed)
    tables = [seen(dataset, judge=f"j{number}", share=share, strength=strength, seed=seed + number)
              for number, (share, strength) in enumerate(judges)]  # fmt: skip
    tables = [table for table in tables if not table.is_empty()]
    seated = panel(dataset, *tables, used={f"j{number}": used for number in range(3)})
    signal = estimate(dataset, judged(dataset, seed=seed, failed=failed), panel=seated)
    check_signal(signal.table, dataset.claims)
    assert set(signal.table["method"]) <= {METHOD, JUDGES_METHOD}
    assert signal.table["answered"].max() in {*range(len(tables) + 2), None}
    assert estimate(dataset, judged(dataset, seed=seed, failed=failed), panel=seated).table.equals(signal.table)
    assert sum(signal.weights.values()) == pytest.approx(1) or set(signal.weights.values()) <= {0.0}


@pytest.mark.quick
def test_a_judge_without_a_signal_moves_no_number(dataset, judgments, seen, panel):
    """The trust is the same to the last bit; only the count of answers knows of it."""
    alone = estimate(dataset, judgments).table
    blind = panel(dataset, seen(dataset, strength=0.0), used={"eye": ()})
    beside = estimate(dataset, judgments, panel=blind)
    assert beside.weights == {"record": 1.0, "eye": 0.0}
    changed = [name for name in alone.columns if not alone[name].equals(beside.table[name])]
    assert changed == ["answered"]


@pytest.mark.quick
def test_a_panel_of_nobody_leaves_the_signal_as_it_was(dataset, judgments, panel):
    """Every column, to the last bit."""
    assert estimate(dataset, judgments, panel=panel(dataset)).table.equals(estimate(dataset, judgments).table)


@pytest.mark.quick
def test_where_no_heeded_judge_answered_the_record_stands_to_the_last_bit(combined, dataset, seen):
    """Other films' judges, and other findings' signals, are nothing to this pair."""
    table = seen(dataset, share=0.4)
    done, pairs = combined(table, used={"eye": ("Effusion", "Mass")})
    saw = dataset.images["image_id"].is_in(table["image_id"].unique().implode()).to_numpy()
    touched = np.zeros(pairs.states.shape, dtype=bool)
    touched[np.ix_(saw, [0, 2])] = True
    for name in ("p_present", "spread"):
        before, after = getattr(pairs, name), getattr(done.pairs, name)
        assert np.array_equal(before[~touched], after[~touched], equal_nan=True)
        assert not np.array_equal(before[touched], after[touched], equal_nan=True)
    assert not (done.moved & ~touched).any()


@pytest.mark.quick
def test_a_good_judge_makes_the_answer_better_and_a_better_one_counts_more(combined, dataset, seen):
    """By log-loss against claims that the fit did not see, and by the effective weight."""
    losses, weights = [], []
    for strength in (0.5, 1.0, 2.0):
        done, pairs = combined(seen(dataset, strength=strength))
        losses.append(log_loss(done.pairs.p_present, pairs.states))
        weights.append(done.effective["eye"])
    assert losses == sorted(losses, reverse=True)
    assert losses[0] < log_loss(pairs.p_present, pairs.states) + 0.01
    assert losses[-1] < log_loss(pairs.p_present, pairs.states) - 0.05
    assert weights == sorted(weights)


@given(seed=st.integers(0, 100), order=st.permutations(range(3)))
@settings(max_examples=8, deadline=None)
def test_the_order_of_judges_and_rows_does_not_matter(makers, seed, order):
    """Films, claims, the record's answers, judges, and each judge's answers: all shuffled, to rounding the same."""
    judged, seen, panel = makers
    dataset = tiny_dataset(patients=60, uncertain=0.03, silent=0.02, seed=seed)
    record, tables = judged(dataset, seed=seed, failed=0.1), eyes(dataset, seen, seed)
    before = estimate(dataset, record, panel=panel(dataset, *tables, fold=folds(dataset))).table

    images = dataset.images.sample(fraction=1.0, shuffle=True, seed=seed)
    place = images.with_row_index("place").select("image_id", "place")
    claims = dataset.claims.join(place, on="image_id").sort("place", "finding").drop("place")
    turned = dataclasses.replace(dataset, images=images, claims=claims)
    shuffled = [tables[number].sample(fraction=1.0, shuffle=True, seed=seed) for number in order]
    seated = panel(turned, *shuffled, fold=folds(turned))
    after = estimate(turned, record.sample(fraction=1.0, shuffle=True, seed=seed), panel=seated).table
    assert apart(before, after) <= ROUNDING


@given(seed=st.integers(0, 100), share=st.sampled_from([0.3, 1.0]), strength=st.sampled_from([0.3, 2.0]))
@settings(max_examples=8, deadline=None)
def test_the_same_scores_under_a_second_name_change_no_trust(makers, seed, share, strength):
    """A judge that comes twice, or three times, is one judge; its names share its weight."""
    judged, seen, panel = makers
    dataset = tiny_dataset(patients=60, seed=seed)
    record, others = judged(dataset, seed=seed), eyes(dataset, seen, seed)
    table = seen(dataset, judge="eye", share=share, strength=strength, seed=seed + 7)
    copies = [table.with_columns(judge=pl.lit(name)) for name in ("a copy", "the copy")]
    once = estimate(dataset, record, panel=panel(dataset, *others, table, fold=folds(dataset)))
    many = estimate(dataset, record, panel=panel(dataset, *others, table, *copies, fold=folds(dataset)))
    assert apart(once.table, many.table, (*KEPT, "agreement")) <= ROUNDING
    shared = [many.weights[name] for name in ("eye", "a copy", "the copy")]
    assert shared == pytest.approx([once.weights["eye"] / 3] * 3)


@given(seed=st.integers(0, 100), outcome=st.sampled_from(["failed", "abstained", "refused", "unparsed"]))
@settings(max_examples=8, deadline=None)
def test_a_judge_that_never_answers_equals_an_absent_one(makers, seed, outcome):
    """Though it is used, and though it is of the same model as another: no number knows of it."""
    judged, seen, panel = makers
    dataset = tiny_dataset(patients=60, seed=seed)
    record, others = judged(dataset, seed=seed), eyes(dataset, seen, seed)
    mute = seen(dataset, judge="mute", seed=seed).with_columns(outcome=pl.lit(outcome, dtype=OUTCOME))
    alone = panel(dataset, *others, fold=folds(dataset))
    beside = panel(dataset, *others, mute, fold=folds(dataset))
    alone, kin = (
        dataclasses.replace(each, judges=tuple(dataclasses.replace(judge, model=model) for judge in each.judges))
        for each, model in ((alone, "net"), (beside, "net"))
    )
    related = [estimate(dataset, record, panel=each).table for each in (alone, kin)]
    assert apart(*related, (*KEPT, "agreement")) <= ROUNDING
    strangers = panel(dataset, *others, fold=folds(dataset))
    both = [estimate(dataset, record, panel=each) for each in (strangers, beside)]
    assert apart(both[0].table, both[1].table) <= ROUNDING
    assert both[0].table["answered"].equals(both[1].table["answered"])
    assert both[0].table["agreement"].equals(both[1].table["agreement"])
    assert both[1].weights["mute"] == 0


@pytest.mark.quick
def test_films_on_which_a_judge_abstains_are_as_if_it_had_said_nothing(dataset, judgments, seen, panel):
    """A row that says it abstained is no row at all, to the last bit."""
    table = seen(dataset)
    silent = pl.int_range(pl.len()) % 3 == 0
    abstained = table.with_columns(
        outcome=pl.when(silent).then(pl.lit("abstained")).otherwise(pl.lit("answered")).cast(OUTCOME),
        p_present=pl.when(silent).then(None).otherwise("p_present"),
    )
    one, other = (
        estimate(dataset, judgments, panel=panel(dataset, each)).table for each in (table.filter(~silent), abstained)
    )
    assert one.equals(other)


@given(seed=st.integers(0, 100))
@settings(max_examples=6, deadline=None)
def test_flipping_one_claim_maps_its_trust_to_one_less_it(makers, seed):
    """With what the judges said held fixed: its own probability does not move by one bit, missed labels included."""
    judged, seen, panel = makers
    dataset = tiny_dataset(patients=60, longest=6, seed=seed)
    record, seated = judged(dataset, seed=seed), panel(dataset, *eyes(dataset, seen, seed), fold=folds(dataset))
    pairs = lay_pairs(dataset.images, dataset.claims, record, dataset.vocabulary)
    assert omissions(pairs.states, reports_of_films(dataset.images), seated.fold).any()
    before = estimate(dataset, record, panel=seated).table
    for one in dataset.claims.sample(3, seed=seed).iter_slices(1):
        turned = dataclasses.replace(dataset, claims=flipped(dataset.claims, one))
        after = estimate(turned, record, panel=seated).table
        own = [table.join(one, on=["image_id", "finding"], how="semi") for table in (before, after)]
        assert own[0]["p_present"].equals(own[1]["p_present"])
        assert own[1]["trust"][0] == pytest.approx(1 - own[0]["trust"][0], abs=1.5 * ROUNDING)
        assert own[1]["trust_low"][0] == pytest.approx(1 - own[0]["trust_high"][0], abs=1.5 * ROUNDING)
        assert not before["p_present"].equals(after["p_present"])


@pytest.mark.quick
def test_the_weights_sum_to_one_and_follow_how_far_the_logits_vary(combined, dataset, seen):
    """Of every finding; a judge that can hardly tell hardly varies, and so hardly counts."""
    done, pairs = combined(seen(dataset, judge="good", strength=3.0), seen(dataset, judge="dull", strength=0.2, seed=4))
    for finding in pairs.findings:
        assert sum(done.shares[judge][finding] for judge in done.shares) == pytest.approx(1)
        assert done.shares["good"][finding] > 5 * done.shares["dull"][finding]


@pytest.mark.quick
def test_kin_share_the_weight_of_one(combined, dataset, seen):
    """Two judges that say nearly the same have together about the weight that one of them has."""
    table = seen(dataset)
    noise = np.random.default_rng(3).normal(0, 0.3, table.height)
    near = table.with_columns(
        judge=pl.lit("near"),
        p_present=1 / (1 + (-(pl.col("p_present") / (1 - pl.col("p_present"))).log() + pl.Series(noise)).exp()),
    )
    once, _ = combined(table)
    twice, _ = combined(table, near)
    assert [[judge.name for judge in family] for family in twice.judge_groups.members] == [["eye", "near"]]
    assert twice.judge_groups.effective < 1.2
    assert twice.effective["eye"] + twice.effective["near"] == pytest.approx(once.effective["eye"], abs=0.05)


@pytest.mark.quick
def test_beside_the_record_kin_speak_by_their_mean_however_claims_weigh_them(dataset, judgments, seen, panel):
    """A strong and a weak judge of one family say together what one judge with the mean of their evidence says."""
    pairs = lay_pairs(dataset.images, dataset.claims, judgments, dataset.vocabulary)
    tables = (seen(dataset, judge="strong", strength=2.0, seed=5), seen(dataset, judge="weak", strength=0.6, seed=6))
    seated = panel(dataset, *tables)
    strong, weak = (dataclasses.replace(judge, model="one family") for judge in used_judges(dataset, judgments, seated))
    middle = dataclasses.replace(strong, name="middle", evidence=(strong.evidence + weak.evidence) / 2)
    used = strong.used & weak.used
    judges = [dataclasses.replace(judge, used=used) for judge in (strong, weak, middle)]
    about = (patients(dataset.images), seated.fold)
    (two,), (one,) = (combine(pairs, its, *about, per_group=True).per_group for its in (judges[:2], judges[2:]))
    assert np.isfinite(two).any()
    np.testing.assert_allclose(two, one, rtol=0, atol=1e-9)
    weighed = combine(pairs, judges[:2], *about)
    assert weighed.effective["strong"] > weighed.effective["weak"]


@pytest.mark.quick
def test_flipping_a_claim_does_not_move_its_own_answer(combined, dataset, seen):
    """Given what the judges said: the answer about a pair is the same to the last bit, those about others move."""
    table = seen(dataset)
    before, _ = combined(table)
    chosen = dataset.claims.filter(pl.col("says") != "uncertain").sample(12, seed=5)
    rows = {film: row for row, film in enumerate(dataset.images["image_id"])}
    for one in chosen.iter_slices(1):
        turned = dataclasses.replace(dataset, claims=flipped(dataset.claims, one))
        after, pairs = combined(table, data=turned)
        place = rows[one["image_id"][0]], pairs.column(one["finding"][0])
        assert after.pairs.p_present[place] == before.pairs.p_present[place]
        assert after.pairs.spread[place] == before.pairs.spread[place]
        assert not np.array_equal(after.pairs.p_present, before.pairs.p_present, equal_nan=True)


def test_flipping_a_claim_does_not_move_its_own_answer_though_the_record_is_read_again(seen, panel):
    """From end to end: the record judge is fitted anew on the flipped claims, and so is the combination."""
    dataset = tiny_dataset(patients=120, seed=8)
    judge = RecordJudge(networks=2, folds=3, training=Training(epochs=1, steps=20, hidden=(8, 4)))
    fold = fold_of(patients(dataset.images).to_numpy().astype(np.str_), judge.folds)
    seated = panel(dataset, seen(dataset), fold=fold)

    def answers(claims):
        changed = dataclasses.replace(dataset, claims=claims)
        record = judge.read(changed.images, changed.claims, changed.vocabulary)
        return estimate(changed, record, panel=seated).table.select("image_id", "finding", *KEPT[:1]), record

    before, recorded = answers(dataset.claims)
    assert not before["p_present"].equals(recorded["p_present"])
    moved = 0
    for one in dataset.claims.sample(6, seed=1).iter_slices(1):
        after, _ = answers(flipped(dataset.claims, one))
        both = before.join(after, on=["image_id", "finding"], suffix="_after")
        own = both.join(one, on=["image_id", "finding"], how="semi")
        assert own["p_present"].equals(own["p_present_after"])
        moved += (both["p_present"] != both["p_present_after"]).sum()
    assert moved > 100


@pytest.mark.quick
def test_without_the_record_the_usual_stands_in_its_place(combined, dataset, seen):
    """The mean answer is how often the finding is claimed; where no used judge answered nobody can say."""
    nothing = pl.DataFrame(schema=judgments_schema(dataset.vocabulary))
    done, pairs = combined(seen(dataset, share=0.7), record=nothing, used={"eye": ("Effusion", "Mass")})
    for column in (0, 2):
        its = done.moved[:, column] & np.isin(pairs.states[:, column], [0, 1])
        assert done.pairs.p_present[its, column].mean() == pytest.approx(pairs.states[its, column].mean(), abs=0.02)
    assert np.isnan(done.pairs.p_present[:, 1]).all()
    assert (done.pairs.answered[:, 1] > 0).any()
    assert done.effective == {"eye": 1.0}


@pytest.mark.quick
def test_pairs_on_which_the_record_abstained_are_answered_by_the_others(dataset, seen, panel, judged):
    """And the table says so: the method, the count and no word of the record."""
    silent = judged(dataset, failed=0.3)
    table = estimate(dataset, silent, panel=panel(dataset, seen(dataset))).table
    alone = table.join(silent.filter(pl.col("outcome") == "failed"), on=["image_id", "finding"], how="semi")
    assert alone.height > 100
    assert alone["p_present"].is_not_null().all()
    assert set(alone["method"]) == {JUDGES_METHOD}
    assert set(alone["answered"]) == {1}
    assert not alone["reasons"].list.join("|").str.contains("record:").any()


@pytest.mark.quick
def test_agreement_is_the_share_of_heeded_judges_on_the_claim_s_side(dataset, judgments, seen, panel):
    """Of the record and an eye: 0, one half or 1; a judge that is not used has no vote."""
    eye, blind = seen(dataset, share=0.6), seen(dataset, judge="blind", strength=0.0)
    table = estimate(dataset, judgments, panel=panel(dataset, eye, blind, used={"blind": ()})).table
    definite = table.filter(pl.col("says") != "uncertain")
    votes = definite.join(eye.select("image_id", "finding", eye="p_present"), on=["image_id", "finding"], how="left",
                          maintain_order="left")  # fmt: skip
    usual = {name: eye.filter(pl.col("finding") == name)["p_present"].mean() for name in dataset.vocabulary.findings}
    record = {name: judgments.filter(pl.col("finding") == name)["p_present"].mean() for name in usual}
    given = judgments.select("image_id", "finding", record="p_present")
    for row in votes.join(given, on=["image_id", "finding"], how="left").sample(300, seed=0).iter_rows(named=True):
        sides = [row["record"] >= record[row["finding"]]]
        sides += [] if row["eye"] is None else [row["eye"] >= usual[row["finding"]]]
        assert row["agreement"] == np.mean([side == (row["says"] == "present") for side in sides])


@pytest.mark.quick
def test_a_strange_film_cannot_outvote_the_record(combined, dataset, seen):
    """Evidence a hundred deviations away counts as four."""
    table = seen(dataset, strength=1.0)
    mad = table.with_columns(
        p_present=pl.when(pl.int_range(pl.len()) == 0).then(1 - 1e-12).otherwise(pl.col("p_present") * 0.001 + 0.5)
    )
    done, pairs = combined(mad)
    place = (0, pairs.column(table["finding"][0]))
    pull = abs(logit(done.pairs.p_present)[place] - logit(pairs.p_present)[place])
    assert pull < 2 * FURTHEST


@pytest.mark.quick
def test_the_interval_grows_with_what_the_fit_does_not_know(judged, seen, panel):
    """With few claims to learn from, the combination is less sure than with many."""
    widths = []
    for size in (40, 400):
        dataset = tiny_dataset(patients=size, seed=2)
        table = estimate(dataset, judged(dataset), panel=panel(dataset, seen(dataset))).table
        record = estimate(dataset, judged(dataset)).table
        span = logit(table["trust_high"].to_numpy()) - logit(table["trust_low"].to_numpy())
        own = logit(record["trust_high"].to_numpy()) - logit(record["trust_low"].to_numpy())
        widths.append(np.median(span - own))
    assert widths[0] > widths[1]
    assert widths[0] > 0


def test_the_combined_answer_is_what_reviews_calibrate(dataset, judgments, seen, panel, reviews):
    """With expert labels the fit starts from the combination; the groups read_answers the image judges too."""
    films = dataset.images["image_id"].sample(200, seed=1, shuffle=True)
    truth = np.random.default_rng(2).random(200) < 0.4
    reference = reviews(films, "Effusion", truth)
    plain = estimate(dataset, judgments, reference).table
    seated = panel(dataset, seen(dataset))
    heard = estimate(dataset, judgments, reference, panel=seated).table
    check_signal(heard, dataset.claims)
    effusion = pl.col("finding") == "Effusion"
    assert not heard.filter(effusion)["trust"].equals(plain.filter(effusion)["trust"])
    methods = set(heard.filter(effusion)["method"])
    assert methods == {f"{JUDGES_METHOD}+experts", f"{JUDGES_METHOD}+experts/crossfit"}
    one = dataclasses.replace(reference, truth=reference.truth.with_columns(
        present=pl.when(pl.int_range(pl.len()) == 3).then(~pl.col("present")).otherwise("present")))  # fmt: skip
    again = estimate(dataset, judgments, one, panel=seated).table
    own = (pl.col("image_id") == films[3]) & effusion
    assert heard.filter(own).select(KEPT).equals(again.filter(own).select(KEPT))
