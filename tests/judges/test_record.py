"""The record judge: what it answers, what it rests on, and that no claim reaches the answer about itself."""

import dataclasses
import re

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import shape
from bpals.errors import ContractBroken
from bpals.findings import Group
from bpals.judges.record import DECAYS, STUDENT_T, RecordJudge, Training, fold_of, reports_of_films
from bpals.sources import nih
from bpals.testing import check_judgments, check_record_judge, flipped, moved, sample_claims, tiny_dataset
from bpals.testing.contracts import PAIR
from bpals.types import SAYS, judgments_schema
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
def record():
    """NIH's real record, 1,569,680 claims."""
    return nih.load()


@pytest.fixture(scope="module")
def chosen(record):
    """Claims of the first fold to flip at once, each of another patient, the rarest findings first."""
    films = reports_of_films(record.images)
    fold = fold_of(films["patient"].to_numpy().astype(np.str_), RecordJudge().folds)
    placed = record.images.select("image_id", patient=films["patient"], films=films["size"], fold=pl.Series(fold))
    pool = record.claims.join(placed.filter(fold=0), on="image_id").sample(fraction=1, shuffle=True, seed=0)
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
def answers(record, chosen):
    """The answers of the first fold, before and after all chosen claims are flipped and everything is fitted again."""
    judge = RecordJudge(networks=2)
    turned = flipped(record.claims, chosen)
    assert (turned["says"] != record.claims["says"]).sum() == chosen.height
    return read(judge, record, only_folds=[0]), read(judge, record, turned, only_folds=[0])


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


def test_a_flipped_claim_is_evidence_for_others(record, chosen, answers):
    """The test above is not blind: the patient's other films, and a single film's other findings, are answered anew."""
    before, after = answers
    here = record.claims.join(chosen, on=PAIR, how="anti")
    single = here.join(chosen.filter(films=1), on="image_id", how="semi")
    assert moved(before, after, single).height > single.height / 2
    patients = record.images.join(chosen.filter(pl.col("films") > 1), left_on="patient_id", right_on="patient")
    others = here.join(patients, on="image_id", how="semi").join(chosen, on="image_id", how="anti")
    assert moved(before, after, others).height > others.height / 2


def test_a_film_s_own_other_claims_do_not_speak_where_the_patient_has_other_films(record, chosen, answers):
    """The film's labels come from one report and echo its errors: only a patient with one film needs them."""
    several = chosen.filter(pl.col("films") > 1)
    same_film = record.claims.join(several, on=PAIR, how="anti").join(several, on="image_id", how="semi")
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
def test_a_judge_that_sees_the_claim_is_caught(door, record, chosen):
    """The same check finds each way in, on the tiny dataset and on the real record."""
    with pytest.raises(ContractBroken, match=r"\(\d+_\d+.png, \w+\) .*flipped"):
        check_record_judge(Cheat(door), tiny_dataset())
    cheat = Cheat(door)
    assert not moved(read(cheat, record), read(cheat, record, flipped(record.claims, chosen)), chosen).is_empty()


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
