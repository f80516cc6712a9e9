"""The probe: what it learns, what it leaves unsaid, and that no claim reaches the answer about its patient."""

import os

import numpy as np
import polars as pl
import pytest

import shape
from bpals.errors import UsageError
from bpals.findings import Vocabulary
from bpals.images.collection import open_index
from bpals.images.stream import FeatureSpec, image_features
from bpals.judges import linear_probe, record
from bpals.judges.linear_probe import (
    CHUNK,
    LEAST_CLAIMS,
    LEAST_FILMS,
    NOTHING_LEARNT,
    Labels,
    Moments,
    ProbeJudge,
    Scale,
    cross_fit,
    fit,
    gather,
    platt,
    without_patients,
)
from bpals.metrics import Curve
from bpals.numeric import patients
from bpals.numeric import sigmoid_by_tanh as sigmoid
from bpals.sources import nih
from bpals.testing import flipped, moved
from bpals.types import IMAGES, OUTCOME, SAYS, Refusal, answers_schema, claims_schema
from world.words import mentions

WORDS = Vocabulary(name="few", findings=("Mass", "Edema", "Hernia"))
WIDTH = 12
FILMS = (shape.ROOT / os.environ.get("BPALS_TEST_DATA", "../shared/data") / "images").resolve()


class Held:
    """Features in memory."""

    def __init__(self, image_ids, numbers):
        """Take them."""
        self.image_ids, self.numbers, self.width = list(image_ids), numbers, numbers.shape[1]

    def rows(self, start, stop):
        """Give some."""
        return self.numbers[start:stop]


@pytest.fixture(scope="module")
def seen():
    """600 films of 250 patients whose features tell of two findings; the third is rare. Some claims are no lesson."""
    dice = np.random.default_rng(3)
    count = 600
    patient = dice.integers(0, 250, count)
    truth = np.stack([dice.random(count) < share for share in (0.3, 0.2, 0.005)], axis=1)
    numbers = dice.normal(size=(count, WIDTH)).astype(np.float32)
    numbers[:, :3] += 1.5 * truth
    numbers[:, 4] = 7.0
    says = np.where(truth, "present", "absent").astype(object)
    says[dice.random(says.shape) < 0.05] = "uncertain"
    names = [f"{number:04}.png" for number in range(count)]
    images = pl.DataFrame({"image_id": names, "patient_id": [f"p{each}" for each in patient]})
    missing = [pl.lit(None, dtype=kind).alias(name) for name, kind in IMAGES.items() if name not in images.columns]
    table = pl.DataFrame(
        {
            "image_id": np.repeat(names, 3),
            "finding": pl.Series(list(WORDS.findings) * count, dtype=WORDS.enum),
            "says": pl.Series(says.reshape(-1).tolist(), dtype=SAYS),
        }
    )
    silent = pl.Series(dice.random(table.height) < 0.04)
    claims = table.filter(~silent).cast(dict(claims_schema(WORDS)))
    return images.with_columns(missing).select(IMAGES.names()), claims, Held(names, numbers), truth


@pytest.fixture(scope="module")
def answers(seen):
    """What the probe says of them."""
    images, claims, features, _ = seen
    return ProbeJudge().read(images, claims, WORDS, features)


def auroc(answers, truth, finding):
    """How well the answers tell films with a finding from films without."""
    column = WORDS.findings.index(finding)
    scores = answers.filter(pl.col("finding") == finding)["p_present"].to_numpy()
    return float(Curve.of(scores, truth[:, column]).auroc()[0])


def test_every_film_is_answered_whatever_the_dataset_says_of_it(seen, answers):
    """A row a film and finding, as the table of an image judge; a probability exactly where it answered."""
    images, claims, _, _ = seen
    assert answers.schema == answers_schema(WORDS)
    assert answers.height == images.height * 3 > claims.height
    assert (answers["kind"] == "image").all()
    assert ((answers["outcome"] == "answered") == answers["p_present"].is_not_null()).all()
    assert (answers["why"].is_null() == answers["p_present"].is_not_null()).all()
    answered = answers.filter(pl.col("p_present").is_not_null())
    assert answered.filter(pl.col("p_present").is_between("p_low", "p_high")).height == answered.height
    assert (answered["p_low"] < answered["p_high"]).all()


def test_it_learns_what_the_features_tell(seen, answers):
    """And its probabilities are about as large as the findings are common."""
    truth = seen[3]
    assert auroc(answers, truth, "Mass") > 0.8
    assert auroc(answers, truth, "Edema") > 0.8
    for column, finding in ((0, "Mass"), (1, "Edema")):
        mean = answers.filter(pl.col("finding") == finding)["p_present"].mean()
        assert mean == pytest.approx(truth[:, column].mean(), abs=0.03)


def test_labels_dealt_out_anew_teach_nothing(seen):
    """The test above is not blind: what has nothing to do with the films stays at one half."""
    images, claims, features, truth = seen
    order = np.random.default_rng(5).permutation(images.height)
    other = dict(zip(images["image_id"], images["image_id"].gather(order), strict=True))
    dealt = claims.with_columns(pl.col("image_id").replace_strict(other))
    wrong = ProbeJudge().read(images, dealt, WORDS, features)
    place = np.argsort(order)
    for column, finding in ((0, "Mass"), (1, "Edema")):
        scores = wrong.filter(pl.col("finding") == finding)["p_present"]
        told = truth[place][scores.is_not_null().to_numpy(), column]
        if len(told):
            assert float(Curve.of(scores.drop_nulls(), told).auroc()[0]) == pytest.approx(0.5, abs=0.1)
    assert (wrong["outcome"] == "abstained").any()
    assert wrong.filter(pl.col("outcome") == "abstained")["why"].unique().to_list() == [NOTHING_LEARNT]


def test_the_same_films_give_the_same_answers(seen, answers):
    """To the last bit."""
    images, claims, features, _ = seen
    assert ProbeJudge().read(images, claims, WORDS, features).equals(answers)


def test_flipping_claims_of_a_patient_moves_no_answer_about_that_patient(seen, answers):
    """To the last bit: neither the fit, nor the penalty, nor the probability, nor the interval hears of them."""
    images, claims, features, _ = seen
    fold = record.fold_of(patients(images).to_numpy().astype(np.str_), ProbeJudge().folds)
    for number in range(ProbeJudge().folds):
        here = images.filter(pl.Series(fold == number))
        its = claims.join(here, on="image_id", how="semi").filter(pl.col("says") != "uncertain")
        after = ProbeJudge().read(images, flipped(claims, its), WORDS, features)
        assert moved(answers, after, answers.join(here, on="image_id", how="semi")).is_empty()
        elsewhere = answers.join(here, on="image_id", how="anti").filter(pl.col("outcome") == "answered")
        assert moved(answers, after, elsewhere).height > elsewhere.height / 2


@pytest.mark.parametrize("becomes", ["uncertain", None])
def test_a_claim_that_is_withdrawn_moves_no_answer_about_its_patient(seen, answers, becomes):
    """One claim becomes uncertain, or silent: then the findings no longer share what is known of them."""
    images, claims, features, _ = seen
    one = claims.filter(pl.col("says") == "present").head(1)
    its = (pl.col("image_id") == one["image_id"][0]) & (pl.col("finding") == one["finding"][0])
    changed = (
        claims.filter(~its)
        if becomes is None
        else claims.with_columns(says=pl.when(its).then(pl.lit(becomes, dtype=SAYS)).otherwise("says"))
    )
    after = ProbeJudge().read(images, changed, WORDS, features)
    patient = images.filter(pl.col("image_id") == one["image_id"][0])["patient_id"][0]
    films = images.filter(pl.col("patient_id") == patient)
    assert moved(answers, after, answers.join(films, on="image_id", how="semi")).is_empty()
    assert moved(answers, after, answers).height > 0


def test_a_flipped_claim_leaves_no_trace_below_the_last_decimal_either(seen):
    """The answers before they are rounded, of the fold whose claims were all flipped."""
    images, claims, features, _ = seen
    states = record.state_matrix(images, claims, WORDS)
    fold = record.fold_of(patients(images).to_numpy().astype(np.str_), 5)
    here = fold == 2
    turned = np.where(here[:, None] & np.isin(states, (0, 1)), 1 - states, states)
    before, after = (
        cross_fit(features, Labels(states=each, fold=fold, folds=5)).p_present for each in (states, turned)
    )
    assert np.array_equal(before[:, here], after[:, here], equal_nan=True)
    assert not np.array_equal(before[:, ~here], after[:, ~here], equal_nan=True)


def test_targets_that_are_the_labels_give_the_answers_of_the_labels(seen, answers):
    """Soft targets are fitted as labels are; a probe that is given what it was not made for is refused."""
    images, claims, features, _ = seen
    states = record.state_matrix(images, claims, WORDS)
    fold = record.fold_of(patients(images).to_numpy().astype(np.str_), 5)
    same = np.where(np.isin(states, (0, 1)), states, np.nan)
    targets = np.stack([np.where((fold == number)[:, None], np.nan, same) for number in range(5)])
    soft = ProbeJudge(targets="signal").read(images, claims, WORDS, features, targets=targets)
    answered = answers["p_present"].is_not_null()
    assert (soft["p_present"] - answers["p_present"]).abs().max() < 2e-6
    assert (soft["p_present"].is_not_null() == answered).all()
    with pytest.raises(UsageError):
        ProbeJudge().read(images, claims, WORDS, features, targets=targets)
    with pytest.raises(UsageError):
        ProbeJudge(targets="signal").read(images, claims, WORDS, features)


def test_a_rare_finding_is_unsupported_and_says_why(seen, answers):
    """Fewer than ten present claims of other patients: a fit would be of noise."""
    hernia = answers.filter(pl.col("finding") == "Hernia")
    assert hernia["outcome"].cast(pl.String).unique().to_list() == ["unsupported"]
    assert hernia["why"].str.contains(f"other patients.* at least {LEAST_CLAIMS}").all()
    assert seen[3][:, 2].sum() < LEAST_CLAIMS


def test_only_other_patients_are_counted(seen):
    """A claim must not decide whether it is judged: the count leaves out the fold of the one who asks."""
    images, claims, _, _ = seen
    states = record.state_matrix(images, claims, WORDS)
    fold = record.fold_of(patients(images).to_numpy().astype(np.str_), 5)
    rare = np.zeros_like(states)
    rare[np.flatnonzero(fold == 0)[:LEAST_CLAIMS]] = 1
    told = Labels(states=rare, fold=fold, folds=5)
    why = linear_probe._unsupported(told)
    assert {number for number, _ in why} == {0}


def test_few_films_are_unsupported(seen):
    """Below 200 nothing is fitted at all."""
    images, claims, features, _ = seen
    few = Held(features.image_ids[: LEAST_FILMS - 1], features.numbers[: LEAST_FILMS - 1])
    said = ProbeJudge().read(images, claims, WORDS, few)
    assert said["outcome"].cast(pl.String).unique().to_list() == ["unsupported"]
    assert mentions(said["why"][0], f"{LEAST_FILMS - 1} films", f"at least {LEAST_FILMS}")


def test_features_of_one_patient_alone_teach_nothing(seen):
    """With a single patient there is no other to learn from."""
    images, claims, features, _ = seen
    one = images.with_columns(patient_id=pl.lit("p"))
    assert set(ProbeJudge().read(one, claims, WORDS, features)["outcome"].cast(pl.String)) == {"unsupported"}


def test_films_without_a_patient_are_folded_alone_and_counted(seen):
    """A dataset that names none: a film is a patient of its own, and a notice says what that means."""
    images, claims, features, _ = seen
    nobody = images.with_columns(patient_id=pl.lit(None, dtype=pl.String))
    (notice,) = without_patients(nobody)
    assert (notice.code, notice.count) == ("no_patient", 600)
    assert without_patients(images) == []
    assert (ProbeJudge().read(nobody, claims, WORDS, features)["outcome"] == "answered").sum() > 0


def test_an_uncertain_claim_teaches_nothing(seen, answers):
    """As silence does: without them the answers are the same to the last bit."""
    images, claims, features, _ = seen
    certain = claims.filter(pl.col("says") != "uncertain")
    assert certain.height < claims.height
    assert ProbeJudge().read(images, certain, WORDS, features).equals(answers)


def test_moments_in_pieces_are_the_ridge_of_the_whole(seen):
    """The closed form is what a direct fit on standardised features gives."""
    images, claims, features, _ = seen
    states = record.state_matrix(images, claims, WORDS)[:, :2]
    known = np.isin(states, (0, 1)).all(axis=1)
    told = Labels(states=np.where(known[:, None], states, np.nan), fold=np.arange(len(states)) % 3, folds=3)
    scale = Scale.of(features)
    whole = Moments.of(gather(features, scale, told, known))
    (lines,) = fit(whole, [40.0])
    x = ((features.numbers - scale.centre) / scale.spread)[known].astype(np.float64)
    y = states[known].astype(np.float64)
    spread = np.where(x.std(axis=0) > 1e-6, x.std(axis=0), 1)
    z = (x - x.mean(axis=0)) / spread
    slopes = np.linalg.solve(z.T @ z + 40 * np.eye(WIDTH), z.T @ (y - y.mean(axis=0)))
    direct = z @ slopes + y.mean(axis=0)
    assert x @ lines.slopes + lines.offsets + lines.level == pytest.approx(direct, abs=1e-4)
    assert lines.squared_error(whole) == pytest.approx(((y - direct) ** 2).sum(axis=0), rel=1e-4)


def test_features_are_read_a_piece_at_a_time(seen):
    """Whatever their number: no more than a chunk is in memory."""
    images = seen[0]
    many = 2 * CHUNK + 100
    asked = []

    class Watched(Held):
        def rows(self, start, stop):
            asked.append((start, min(stop, many)))
            return np.random.default_rng(start).normal(size=(min(stop, many) - start, 3)).astype(np.float32)

    names = [f"{number}.png" for number in range(many)]
    films = pl.concat([images.head(1)] * many).with_columns(image_id=pl.Series(names), patient_id=pl.Series(names))
    said = pl.DataFrame({"image_id": names, "finding": "Mass", "says": ["present", "absent"] * (many // 2)})
    told = said.cast(dict(claims_schema(WORDS)))
    ProbeJudge().read(films, told, WORDS, Watched(names, np.zeros((0, 3))))
    assert max(stop - start for start, stop in asked) == CHUNK
    assert len(set(asked)) == 3


def test_platt_makes_scores_probabilities():
    """A known line is found again; scores that part the labels wholly, or say nothing, stay finite."""
    dice = np.random.default_rng(0)
    scores = dice.normal(size=20_000)
    labels = (dice.random(20_000) < sigmoid(2.0 * scores - 1.0)).astype(np.float64)
    assert platt(scores, labels) == pytest.approx((2.0, -1.0), abs=0.1)
    slope, offset = platt(np.array([0.0, 0.1, 0.9, 1.0]), np.array([0.0, 0, 1, 1]))
    assert 0 < slope < 1000
    assert np.isfinite(offset)
    assert platt(-scores, labels)[0] == 0
    assert platt(np.ones(10), np.array([1.0] + [0.0] * 9))[0] == 0


def test_the_card_says_that_it_was_told_labels():
    """The signal weighs it accordingly."""
    card = ProbeJudge(sha256="ab" * 32, engine="onnxruntime 1.31.1").card
    assert (card.kind, card.trained_on_target) == ("image", "yes")
    assert "other patients" in card.evidence
    assert card.held_out
    assert not ProbeJudge(by_patient=False).card.held_out
    assert card.revision == f"sha256:{'ab' * 32}"
    assert card.fingerprint != ProbeJudge(sha256="cd" * 32, engine="onnxruntime 1.31.1").card.fingerprint
    assert set(OUTCOME.categories) >= {"answered", "unsupported"}


def test_real_films_tell_of_real_labels(lite0):
    """On 400 real films, out of fold: effusion and atelectasis, which are large, are told by them."""
    if not FILMS.is_dir():
        pytest.skip(f"no films at {FILMS}: set BPALS_TEST_DATA")
    dataset = nih.load()
    index = open_index(FILMS, dataset.images["image_id"].to_list())
    names = index.found[:: len(index.found) // 400][:400]
    feature_spec = FeatureSpec(extractor="bpals.judges.backbone:open_extractor", given={"named": str(lite0)})
    with image_features(index, names, feature_spec, workers=0) as extracting:
        made = {name: film for name, film in extracting if not isinstance(film, Refusal)}
    assert len(made) == 400
    # The means of the seven stages: a third of the numbers, a thirtieth of the time.
    numbers = np.stack([made[name].features for name in names])[:, :784]
    images = dataset.images.filter(pl.col("image_id").is_in(names))
    claims = dataset.claims.join(images, on="image_id", how="semi", maintain_order="left")
    said = ProbeJudge().read(images, claims, dataset.vocabulary, Held(names, numbers))
    for finding in ("Effusion", "Atelectasis"):
        present = claims.filter(pl.col("finding") == finding)["says"] == "present"
        scores = said.filter(pl.col("finding") == finding)["p_present"]
        assert scores.null_count() == 0
        assert float(Curve.of(scores, present).auroc()[0]) > 0.65


def test_cross_fitting_reports_how_far_it_is(seen):
    """From nothing to all, never back."""
    images, claims, features, _ = seen
    shares = []
    states = record.state_matrix(images, claims, WORDS)
    fold = record.fold_of(patients(images).to_numpy().astype(np.str_), 5)
    cross_fit(features, Labels(states=states, fold=fold, folds=5), shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
