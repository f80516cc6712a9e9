"""The metadata judge: its evidence, its networks, its answers, and that no label reaches the answer about itself."""

import dataclasses
import re
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import shape
from bpals.errors import ContractBroken
from bpals.findings import Group
from bpals.judges import record
from bpals.judges.record import (
    DECAYS,
    MOST_VIEWS,
    NO_OTHER,
    STUDENT_T,
    Films,
    Network,
    RecordJudge,
    Training,
    _views,
    fold_of,
    read_record,
    reports_of_films,
    state_matrix,
)
from bpals.numeric import sigmoid
from bpals.sources import nih
from bpals.testing import check_judgments, check_record_judge, flipped, moved, sample_claims, tiny_dataset
from bpals.testing.contracts import PAIR
from bpals.types import SAYS, judgments_schema
from world import datasets
from world.words import mentions

FLIPS = {"present": 10, "absent": 14}
"""Claims a finding that are flipped on the real record. Were they as many of each, a prevalence would not notice."""
SINGLE = 4
"""... of which so many, each, are of patients with one film."""
QUICK = RecordJudge(networks=2, training=Training(steps=20))


def read(judge, dataset, claims=None, **options):
    """What a judge answers about a dataset, or about other claims of its films."""
    said = dataset.claims if claims is None else claims
    return judge.read(dataset.images, said, dataset.vocabulary, **options)


@pytest.fixture(scope="module")
def nih_record():
    """NIH's real record, 1,569,680 claims."""
    return nih.load()


@pytest.fixture(scope="module")
def chosen(nih_record):
    """Claims of the first fold to flip at once, each of another patient, the rarest findings first."""
    films = reports_of_films(nih_record.images)
    fold = fold_of(films["patient"].to_numpy().astype(np.str_), RecordJudge().folds)
    placed = nih_record.images.select("image_id", patient=films["patient"], films=films["size"], fold=pl.Series(fold))
    pool = nih_record.claims.join(placed.filter(fold=0), on="image_id").sample(fraction=1, shuffle=True, seed=0)
    rarest = pool.filter(says="present")["finding"].value_counts().sort("count")["finding"]
    picked = []
    for finding in rarest:
        for says, count in FLIPS.items():
            its = pool.filter(finding=finding, says=says).unique("patient", keep="first", maintain_order=True)
            single = its.filter(films=1).head(SINGLE)
            several = its.filter(pl.col("films") > 1).head(count - single.height)
            picked += [single, several]
            pool = pool.join(pl.concat([single, several]), on="patient", how="anti", maintain_order="left")
    return pl.concat(picked)


@pytest.fixture(scope="module")
def answers(nih_record, chosen):
    """The answers of the first fold, before and after all chosen claims are flipped and everything is fitted again."""
    judge = RecordJudge(networks=2)
    turned = flipped(nih_record.claims, chosen)
    assert (turned["says"] != nih_record.claims["says"]).sum() == chosen.height
    return read(judge, nih_record, only_folds=[0]), read(judge, nih_record, turned, only_folds=[0])


def test_enough_claims_are_flipped(chosen):
    """At least 280, 20 a finding, of presence and of absence, a quarter from patients with one film, a patient once."""
    assert chosen.height >= 280
    assert chosen["finding"].value_counts()["count"].min() >= 20
    assert chosen["finding"].n_unique() == 14
    assert chosen.group_by("finding", "says").len().height == 28
    assert chosen.group_by("finding", "says").len()["len"].min() >= 8
    assert chosen.filter(films=1).height >= chosen.height / 4
    assert chosen["patient"].is_unique().all()


def test_flipping_a_claim_does_not_change_the_answer_about_it(chosen, answers):
    """To the last bit, probability and interval, on the real record with everything refitted."""
    before, after = answers
    asked = before.join(chosen, on=PAIR, how="semi")
    assert asked.height == chosen.height
    assert (asked["outcome"] == "answered").all()
    assert moved(before, after, chosen).is_empty()


def test_a_flipped_claim_is_evidence_for_others(nih_record, chosen, answers):
    """The test above is not blind: the patient's other films, and a single film's other findings, are answered anew."""
    before, after = answers
    here = nih_record.claims.join(chosen, on=PAIR, how="anti")
    single = here.join(chosen.filter(films=1), on="image_id", how="semi")
    assert moved(before, after, single).height > single.height / 2
    patients = nih_record.images.join(chosen.filter(pl.col("films") > 1), left_on="patient_id", right_on="patient")
    others = here.join(patients, on="image_id", how="semi").join(chosen, on="image_id", how="anti")
    assert moved(before, after, others).height > others.height / 2


def test_a_film_s_own_other_claims_do_not_speak_where_the_patient_has_other_films(nih_record, chosen, answers):
    """The film's labels come from one report and echo its errors: only a patient with one film needs them."""
    several = chosen.filter(pl.col("films") > 1)
    same_film = nih_record.claims.join(several, on=PAIR, how="anti").join(several, on="image_id", how="semi")
    assert same_film.height == 13 * several.height
    assert moved(*answers, same_film).is_empty()


@dataclasses.dataclass
class Cheat:
    """A judge that lets the claim in by one of the back doors."""

    door: str

    def read(self, images, claims, vocabulary):
        """Answer with a number in which the claim stands."""
        claimed = (pl.col("says") == "present").cast(pl.Float64)
        other = claimed.sum().over("image_id") - claimed
        p = {
            "the claim itself": 0.1 + 0.8 * claimed,
            "the film's No Finding": 0.2 + 0.3 * (claimed.sum().over("image_id") == 0),
            "a count of the film's labels": claimed.mean().over("image_id") / 2,
            "the prevalence": claimed.mean().over("finding"),
            "nothing but the other labels": 0.3 + 0.01 * other,
        }[self.door]
        answered = claims.with_columns(p=p).join(images.select("image_id"), on="image_id", maintain_order="left")
        return answered.select(
            *PAIR,
            judge=pl.lit("cheat"),
            kind=pl.lit("record"),
            outcome=pl.lit("answered"),
            p_present="p",
            p_low="p",
            p_high="p",
        ).cast(judgments_schema(vocabulary))


@pytest.mark.parametrize(
    "door", ["the claim itself", "the film's No Finding", "a count of the film's labels", "the prevalence"]
)
def test_a_judge_that_sees_the_claim_is_caught(door, nih_record, chosen):
    """The same check finds each way in, on the tiny dataset and on the real record."""
    with pytest.raises(ContractBroken, match=r"\(\d+_\d+.png, \w+\) .*flipped"):
        check_record_judge(Cheat(door), tiny_dataset())
    cheat = Cheat(door)
    assert not moved(
        read(cheat, nih_record), read(cheat, nih_record, flipped(nih_record.claims, chosen)), chosen
    ).is_empty()


def test_a_judge_that_does_not_see_the_claim_passes():
    """The check does not cry wolf."""
    check_record_judge(Cheat("nothing but the other labels"), tiny_dataset())


@pytest.mark.parametrize("seed", range(3))
def test_the_record_judge_keeps_its_contract(seed):
    """Whole answers, the same twice, and the flip test one claim at a time, with open and missing claims about."""
    check_record_judge(QUICK, tiny_dataset(uncertain=0.1, silent=0.1, seed=seed), claims=8, seed=seed)


def test_the_flip_test_holds_where_films_share_a_study():
    """Films of one study are one report: a flip on one moves neither its own answer nor the other film's."""
    dataset = tiny_dataset(patients=16)
    pairs = pl.col("patient_id") + "/" + (pl.col("follow_up") // 2).cast(pl.String)
    dataset = dataclasses.replace(dataset, images=dataset.images.with_columns(study_id=pairs))
    before = read(QUICK, dataset)
    for chosen in sample_claims(dataset.claims, 6, seed=1).iter_slices(1):
        after = read(QUICK, dataset, flipped(dataset.claims, chosen))
        study = dataset.images.join(chosen, on="image_id", how="semi")["study_id"]
        films = dataset.images.filter(pl.col("study_id").is_in(study.implode()))
        mates = dataset.claims.join(films, on="image_id", how="semi").join(
            chosen, on="finding", how="semi", maintain_order="left"
        )
        assert moved(before, after, mates).is_empty()


def test_some_folds_are_answered_as_all_are():
    """`only_folds` saves work and changes nothing."""
    dataset = tiny_dataset(patients=20)
    whole = read(QUICK, dataset)
    parts = [read(QUICK, dataset, only_folds=[fold]) for fold in range(QUICK.folds)]
    assert sum(part.height for part in parts) == whole.height
    assert all(moved(whole, part, dataset.claims).is_empty() for part in parts)
    assert read(QUICK, dataset, only_folds=[]).is_empty()


def test_an_uncertain_claim_is_answered_and_silence_is_not():
    """An answer for each claim, in the order of the claims; about what nobody said nothing is said."""
    dataset = tiny_dataset(uncertain=0.3, silent=0.3)
    answers = read(QUICK, dataset)
    check_judgments(answers, dataset)
    assert answers.height < dataset.images.height * 3
    assert (answers.filter(dataset.claims["says"] == "uncertain")["outcome"] == "answered").all()


def test_a_patient_with_one_film_is_answered_from_the_other_findings_of_the_film():
    """Two findings that always come together vouch for one another, in patients who have nothing else."""
    dataset = tiny_dataset(patients=400, longest=1, findings=("Effusion", "Edema", "Mass"), seed=3)
    together = dataset.claims.with_columns(
        says=pl.when(pl.col("finding") == "Edema")
        .then(pl.col("says").filter(pl.col("finding") == "Effusion").first().over("image_id"))
        .otherwise("says")
    )
    answers = read(RecordJudge(networks=2), dataset, together).with_columns(says=together["says"])
    edema = answers.filter(finding="Edema")
    seen, unseen = (edema.filter(says=says)["p_present"].mean() for says in ("present", "absent"))
    assert seen > unseen + 0.1


def test_a_small_record_is_learned_from():
    """With 150 films, findings that stay are told from those that do not: a judge that only guesses has 0.5 here."""
    dataset = tiny_dataset(patients=60, seed=5)
    answers = read(RecordJudge(networks=2), dataset).with_columns(says=dataset.claims["says"])
    several = answers.filter(~pl.col("image_id").str.ends_with("_000.png"))
    present, absent = (several.filter(says=says)["p_present"].to_numpy() for says in ("present", "absent"))
    auroc = (present[:, None] > absent[None, :]).mean()
    assert auroc > 0.75


def test_a_judge_with_nobody_to_learn_from_abstains():
    """One patient cannot be cross-fitted; an abstention has no number."""
    dataset = tiny_dataset(patients=1)
    answers = read(QUICK, dataset)
    check_judgments(answers, dataset)
    assert (answers["outcome"] == "abstained").all()
    assert answers["p_present"].is_null().all()


def test_a_judge_abstains_about_a_finding_that_nobody_was_certain_of():
    """Where every claim of a finding is uncertain, there is nothing to learn, and 0.5 would be made up."""
    dataset = tiny_dataset()
    claims = dataset.claims.with_columns(
        says=pl.when(pl.col("finding") == "Mass").then(pl.lit("uncertain", dtype=SAYS)).otherwise("says")
    )
    answers = read(QUICK, dataset, claims)
    assert (answers.filter(finding="Mass")["outcome"] == "abstained").all()
    assert (answers.filter(pl.col("finding") != "Mass")["outcome"] == "answered").all()


@pytest.mark.parametrize("patients", [0, 1, 2, 3])
def test_any_number_of_patients_is_served(patients):
    """None, one, or fewer than there are folds: whole tables, no warning."""
    dataset = tiny_dataset(patients=patients, longest=1)
    check_judgments(read(QUICK, dataset), dataset)


@pytest.mark.parametrize("kept", [[], ["age"], ["view", "sex"]])
def test_a_film_of_which_little_is_known_is_served(kept):
    """Only image_id is never null."""
    dataset = tiny_dataset()
    bare = [pl.lit(None, kind).alias(name) for name, kind in dataset.images.schema.items() if name not in kept]
    images = dataset.images.with_columns(bare).with_columns(image_id=dataset.images["image_id"])
    check_judgments(read(QUICK, dataclasses.replace(dataset, images=images)), dataset)


def test_every_claim_of_one_kind_is_served():
    """A finding that is never, or always, present has a rate near 0, or near 1, and no infinite logit."""
    dataset = tiny_dataset()
    for says, near in (("absent", 0.0), ("present", 1.0)):
        answers = read(QUICK, dataset, dataset.claims.with_columns(says=pl.lit(says, dtype=SAYS)))
        assert (answers["p_present"] - near).abs().max() < 0.2


def test_the_interval_comes_from_the_spread_of_the_networks():
    """With several networks it has a width, with one none; it always holds the answer."""
    dataset = tiny_dataset()
    wide, one = (read(dataclasses.replace(QUICK, networks=networks), dataset) for networks in (4, 1))
    assert (wide["p_high"] - wide["p_low"]).min() > 0
    assert (one["p_high"] - one["p_low"]).max() < 1e-5
    check_judgments(one, dataset)


def test_progress_grows_and_the_card_says_who_answers():
    """A bar can be drawn; and the card's fingerprint changes with the settings, and with nothing else."""
    told = []
    read(QUICK, tiny_dataset(), progress=told.append)
    assert told == [0.0, 0.2, 0.4, 0.6, 0.8]
    card = RecordJudge().card
    assert card.kind == "record"
    assert (card.trained_on_target, card.held_out) == ("yes", True)
    assert card.settings["networks"] == RecordJudge().networks
    assert card.fingerprint == RecordJudge().card.fingerprint
    others = [RecordJudge(seed=1), RecordJudge(folds=4), RecordJudge(training=Training(epochs=1))]
    assert len({judge.card.fingerprint for judge in others} | {card.fingerprint}) == 4


def test_the_docs_name_every_setting_with_its_value():
    """docs/judges.md has a row for each, so that a change of the judge is a change of the page."""
    page = (shape.ROOT / "docs" / "judges.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\|`(\w+)`\|([\d., ]+)\|.+\|$", page, re.MULTILINE))
    settings = dict(RecordJudge().card.settings)
    settings |= settings.pop("training")
    written = {name: ", ".join(map(str, np.atleast_1d(value))) for name, value in settings.items()}
    assert rows == written
    assert mentions(page, f"{STUDENT_T[RecordJudge().networks]:.2f}", "networks")
    assert f"weighs {DECAYS[0]} or {DECAYS[1]} times as much" in page


def test_no_claim_of_a_group_reaches_the_answer_about_the_group():
    """Each patient's first film turned round in every finding: the group's answer about it keeps its bits."""
    dataset = tiny_dataset(patients=60, longest=4)
    group = Group(name="Either", members=dataset.vocabulary.findings[:2])
    judge = RecordJudge(networks=2)

    def read(claims):
        return judge.read_groups(dataset.images, claims, dataset.vocabulary, [group])

    before = read(dataset.claims)
    assert before.height == dataset.images.height
    fold = fold_of(dataset.images["patient_id"].to_numpy().astype(str), judge.folds)
    asked = dataset.images.filter(pl.Series(fold == 0)).unique("patient_id", keep="first", maintain_order=True)
    turned = pl.when(pl.col("says") == "present").then(pl.lit("absent")).otherwise(pl.lit("present")).cast(SAYS)
    theirs = pl.col("image_id").is_in(asked["image_id"].to_list())
    after = read(dataset.claims.with_columns(says=pl.when(theirs).then(turned).otherwise("says")))
    same, other = (answers.filter(theirs) for answers in (before, after))
    assert_frame_equal(same, other, check_exact=True)
    assert not before.equals(after)


def evidence(dataset, claims=None):
    """The features of every film."""
    said = dataset.claims if claims is None else claims
    return read_record(dataset.images, said, dataset.vocabulary).features


def shuffled_words(claims, film, seed):
    """The claims with other words for one film, each changed."""
    turn = 1 + np.random.default_rng(seed).integers(0, 2, claims.height)
    other = pl.Series(SAYS.categories).gather((claims["says"].to_physical().to_numpy() + turn) % 3).cast(SAYS)
    return claims.with_columns(says=pl.when(pl.col("image_id") == film).then(other).otherwise("says"))


def with_studies(dataset, films=2):
    """Let several films of a patient share a study."""
    study = pl.col("patient_id") + "/" + (pl.col("follow_up") // films).cast(pl.String)
    return dataclasses.replace(dataset, images=dataset.images.with_columns(study_id=study))


def test_states_keep_silence_and_uncertainty():
    """1 present, 0 absent, one half uncertain, NaN silent: nothing is turned into absence."""
    dataset = tiny_dataset(patients=30, uncertain=0.2, silent=0.2)
    states = state_matrix(dataset.images, dataset.claims, dataset.vocabulary)
    counts = dict(dataset.claims["says"].value_counts().iter_rows())
    assert (states == 1).sum() == counts["present"]
    assert (states == 0).sum() == counts["absent"]
    assert (states == 0.5).sum() == counts["uncertain"]
    assert np.isnan(states).sum() == dataset.images.height * 3 - dataset.claims.height
    film, finding, says = dataset.claims.row(7)
    row = dataset.images["image_id"].to_list().index(film)
    column = dataset.vocabulary.findings.index(finding)
    assert states[row, column] == {"present": 1, "absent": 0, "uncertain": 0.5}[says]


def test_a_fold_depends_on_the_patient_alone():
    """Neither the other patients nor the order of the films move a patient into another fold."""
    some = np.array(["p1", "p2", "p1", "film:x.png"])
    many = np.array([f"p{number}" for number in range(500)] + ["film:x.png"])
    among_few = dict(zip(some, fold_of(some, 5), strict=True))
    among_many = dict(zip(many, fold_of(many, 5), strict=True))
    assert among_few == {name: among_many[name] for name in among_few}
    assert fold_of(some[::-1], 5).tolist() == fold_of(some, 5)[::-1].tolist()
    assert np.bincount(fold_of(many, 5), minlength=5).min() > 60


@given(seed=st.integers(0, 10_000), film=st.integers(0, 29), studies=st.booleans())
@settings(max_examples=40, deadline=None)
def test_no_claim_of_the_film_is_in_its_evidence(seed, film, studies):
    """So its No Finding, a count of its labels and their sum are not either; and a study's films share one report."""
    dataset = tiny_dataset(seed=seed % 7)
    dataset = with_studies(dataset) if studies else dataset
    name = dataset.images["image_id"][film]
    before, after = evidence(dataset), evidence(dataset, shuffled_words(dataset.claims, name, seed))
    same = (before == after).all(axis=1)
    mates = dataset.images["image_id"] == name
    if studies:
        mates = dataset.images["study_id"] == dataset.images["study_id"][film]
    assert same[mates.to_numpy()].all()
    family = (dataset.images["patient_id"] == dataset.images["patient_id"][film]) & ~mates
    assert not same[family.to_numpy()].any()
    assert same[(dataset.images["patient_id"] != dataset.images["patient_id"][film]).to_numpy()].all()


def test_a_claim_of_another_film_is_evidence():
    """The test above is not blind: one flip on a film changes the evidence of the patient's others."""
    dataset = tiny_dataset()
    film = dataset.images.filter(pl.col("follow_up") == 2)["image_id"][0]
    after = evidence(dataset, shuffled_words(dataset.claims, film, 0))
    assert ((evidence(dataset) != after).any(axis=1)).sum() == 2


def expected_history(dataset, film):
    """The summary of a patient's other reports, written down a second time, slowly: one report a film."""
    images = dataset.images.with_row_index("row")
    states = state_matrix(dataset.images, dataset.claims, dataset.vocabulary)
    rare = images["view"].value_counts().sort("count")["view"][0]
    said = np.nan_to_num(states)
    silent = np.isnan(states)[:, np.isnan(states).any(axis=0)]
    nothing = said.sum(axis=1, keepdims=True) == 0
    channels = np.concatenate([said, silent, nothing, (images["view"] == rare).to_numpy()[:, None]], axis=1)
    row = images.row(film, named=True)
    family = images.filter(pl.col("patient_id") == row["patient_id"]).sort("follow_up")
    place = family["follow_up"].to_list().index(row["follow_up"])
    rows = family["row"].to_list()
    columns = []
    for decay in DECAYS:
        for others in (rows[:place][::-1], rows[place + 1 :]):
            weights = np.array([decay ** (steps + 1) for steps in range(len(others))])
            mean = np.full(channels.shape[1], NO_OTHER)
            if others:
                mean = (channels[others] * weights[:, None]).sum(axis=0) / weights.sum()
            columns += [mean, [np.log1p(weights.sum())]]
    others = rows[:place] + rows[place + 1 :]
    columns.append(channels[others].mean(axis=0) if others else np.full(channels.shape[1], NO_OTHER))
    columns.append(np.log1p(channels[others].sum(axis=0)))
    return np.concatenate(columns)


def test_the_history_is_what_the_words_say():
    """Means of the reports before and after, nearer ones weighing more, and of all others, with their counts."""
    dataset = tiny_dataset(patients=12, longest=5, uncertain=0.1, silent=0.1, seed=2)
    features = evidence(dataset)
    for film in range(dataset.images.height):
        wanted = expected_history(dataset, film)
        assert features[film, : len(wanted)] == pytest.approx(wanted, abs=1e-5)


def test_the_order_of_the_rows_is_no_evidence():
    """A table in another order is the same record."""
    dataset = tiny_dataset(patients=20)
    turned = dataclasses.replace(dataset, images=dataset.images.reverse())
    assert evidence(turned)[::-1] == pytest.approx(evidence(dataset), abs=1e-6)


def test_a_study_s_films_count_as_one_report():
    """Two films of one report are one voice, not two; a patient with one study has no other report."""
    dataset = tiny_dataset(patients=8, longest=4)
    apart = read_record(dataset.images, dataset.claims, dataset.vocabulary)
    joined = read_record(with_studies(dataset).images, dataset.claims, dataset.vocabulary)
    films = dict(dataset.images["patient_id"].value_counts().iter_rows())
    sizes = [films[patient] for patient in dataset.images["patient_id"]]
    assert apart.others.tolist() == [size - 1 for size in sizes]
    assert joined.others.tolist() == [(size + 1) // 2 - 1 for size in sizes]


def test_a_film_without_a_patient_is_alone():
    """It has no other report, and a fold of its own."""
    dataset = tiny_dataset()
    images = dataset.images.with_columns(patient_id=pl.lit(None, pl.String))
    record = read_record(images, dataset.claims, dataset.vocabulary)
    assert (record.others == 0).all()
    assert len(np.unique(record.patients)) == images.height


def test_what_is_not_known_is_marked_and_not_invented():
    """An unknown age is the mean age with a mark beside it; nothing in the evidence is NaN."""
    dataset = tiny_dataset()
    images = dataset.images.with_columns(
        age=pl.when(pl.int_range(pl.len()) == 0).then(None).otherwise("age"),
        view=pl.when(pl.int_range(pl.len()) == 1).then(None).otherwise("view"),
        sex=pl.lit(None, pl.String),
        follow_up=pl.lit(None, pl.Int64),
    )
    features = evidence(dataclasses.replace(dataset, images=images))
    assert np.isfinite(features).all()
    mean = images["age"].mean()
    assert (np.abs(features[0] - mean) < 1e-3).any()


def test_at_most_a_few_views_have_a_column():
    """A dataset with forty spellings of the view does not get forty columns."""
    dataset = tiny_dataset(patients=40)
    images = dataset.images.with_columns(view="v" + pl.int_range(pl.len()).cast(pl.String))
    assert _views(images).shape[1] == MOST_VIEWS - 1
    assert _views(images.with_columns(view=pl.lit(None, pl.String))).shape[1] == 0


@pytest.mark.parametrize("patients", [0, 1])
def test_an_empty_record_has_empty_matrices(patients):
    """No film, or one: no warning."""
    dataset = tiny_dataset(patients=patients)
    record = read_record(dataset.images, dataset.claims, dataset.vocabulary)
    assert record.states.shape == (patients, 3)
    assert record.features.shape[0] == len(record.patients) == len(record.others) == patients


FINDINGS, FEATURES = 3, 4


def make_films(count=64, *, seed=0, silent=0.0):
    """Films with random evidence and claims, half of them of patients with one film."""
    draw = np.random.default_rng(seed)
    states = (draw.random((count, FINDINGS)) < 0.4).astype(np.float32)
    states[draw.random(states.shape) < 0.1] = 0.5
    states[draw.random(states.shape) < silent] = np.nan
    features = draw.standard_normal((count, FEATURES)).astype(np.float32)
    return Films(features=features, states=states, single=draw.random(count) < 0.5)


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
    films = dataclasses.replace(films, features=films.features.astype(np.float64))
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
    states[:, 0] = draw.random(count) < 1 / (1 + np.exp(-3 * films.features[:, 0]))
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
        features=np.concatenate([films.features] * 2),
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
    films.features[:, 0] = 2992.1
    fitted = record.fit(films, np.ones(300, np.float32), Training(steps=20), seed=0)
    other = dataclasses.replace(films, features=films.features.copy())
    other.features[:, 0] = 224.0
    assert (fitted.logits(other) == fitted.logits(films)).all()


def test_evidence_far_out_speaks_no_louder():
    """A feature of one film in a thousand is many deviations out; beyond FARTHEST nothing changes."""
    films = make_films(300)
    fitted = record.fit(films, np.ones(300, np.float32), Training(steps=20), seed=0)
    side = np.sign(films.features)
    far, farther = (dataclasses.replace(films, features=side * np.float32(by)) for by in (1e4, 1e6))
    assert (fitted.logits(far) == fitted.logits(farther)).all()
    assert np.abs(fitted.scaled(far.features)).max() == record.FARTHEST


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
        features=np.ones((1, FEATURES), np.float32),
        states=np.array([[0, np.nan, 1]], np.float32),
        single=np.ones(1, dtype=bool),
    )
    fitted = record.fit(films, np.ones(1, np.float32), Training(steps=10), seed=0)
    assert np.isfinite(fitted.logits(films)).all()


def test_probabilities_do_not_overflow():
    """Logits of any size, no warning."""
    assert sigmoid(np.array([-1e9, 0.0, 1e9])) == pytest.approx([0, 0.5, 1])


def test_they_are_those_of_the_examples_but_for_the_folds_of_their_patients():
    """The file is what is made of the examples; no two patients became one, and both folds have films."""
    films, examples = pl.read_csv(datasets.FILMS), pl.read_csv(datasets.EXAMPLES / "films.csv")
    assert films.equals(datasets.of_two_folds(examples))
    assert films["patient"].n_unique() == examples["patient"].n_unique()
    folds = fold_of(films["patient"].to_numpy().astype(str), RecordJudge().folds)
    assert {fold: int((folds == fold).sum()) > 200 for fold in set(folds.tolist())} == {0: True, 1: True}
