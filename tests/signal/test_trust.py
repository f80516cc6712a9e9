"""The signal: what each row says, how it follows from claims and answers, and what reviews may and may not do."""

import dataclasses

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpals.errors import UsageError
from bpals.findings import Group, Vocabulary
from bpals.numeric import NORMAL_95
from bpals.signal.prior import fold_of_patient
from bpals.signal.rows import METHOD
from bpals.signal.value import ranks
from bpals.testing import check_signal, flipped, tiny_dataset
from bpals.types import IMAGES, REVIEWS, SAYS, Reference, Reviews, signal_schema
from world.estimating import estimate

FINDINGS = ("Effusion", "Nodule", "Mass")
NODULE_OR_MASS = Group(name="Nodule or mass", members=("Nodule", "Mass"))
TRUSTS = ["p_present", "trust", "trust_low", "trust_high"]


@pytest.fixture(scope="module")
def dataset():
    """Eighty patients with one to four films."""
    return tiny_dataset(patients=80, uncertain=0.05, seed=4)


@pytest.fixture(scope="module")
def judgments(dataset, judged):
    """What a judge says of them."""
    return judged(dataset)


@pytest.fixture(scope="module")
def reference(dataset, reviews):
    """Expert labels of a finding and of a group, on 120 films."""
    films = dataset.images["image_id"].sample(120, seed=1, shuffle=True)
    draw = np.random.default_rng(2)
    parts = [reviews(films, name, draw.random(120) < 0.4) for name in ("Effusion", NODULE_OR_MASS.name)]
    truth = pl.concat([part.truth for part in parts])
    return dataclasses.replace(parts[0], truth=truth, groups=(NODULE_OR_MASS,))


@pytest.fixture(scope="module")
def calibrated(dataset, judgments, reference):
    """The signal that is fitted on them."""
    return estimate(dataset, judgments, reference)


@given(
    patients=st.integers(0, 8),
    longest=st.integers(1, 4),
    shares=st.tuples(st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from([0.0, 0.3, 1.0])),
    failed=st.sampled_from([0.0, 0.3, 1.0]),
    judges=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_every_signal_keeps_the_contract(judged, patients, longest, shares, failed, judges, seed):
    """One row a claim, trust exactly p or 1 - p, interval around it, null where nobody could say, ranks, reasons."""
    silent, uncertain = shares
    dataset = tiny_dataset(patients=patients, longest=longest, silent=silent, uncertain=uncertain, seed=seed)
    answers = [judged(dataset, seed=seed + number, failed=failed, judge=f"j{number}") for number in range(judges)]
    judgments = pl.concat(answers) if answers else judged(dataset).clear()
    signal = estimate(dataset, judgments)
    check_signal(signal.table, dataset.claims)
    assert signal.table.schema == signal_schema(dataset.vocabulary.findings)
    assert signal.groups is None
    assert signal.table["answered"].max() in {*range(judges + 1), None}
    assert set(signal.table["method"]) <= {METHOD}
    assert estimate(dataset, judgments).table.equals(signal.table)


def test_the_judge_s_probability_is_the_signal_s(dataset, judgments):
    """Without reviews nothing is added to what the judge said."""
    table = estimate(dataset, judgments).table
    assert table["p_present"].to_list() == judgments["p_present"].to_list()
    low = pl.when(pl.col("says") == "present").then("trust_low").otherwise(1 - pl.col("trust_high"))
    certain = pl.Series(table["says"] != "uncertain")
    assert table.select(low).to_series().filter(certain).to_numpy() == pytest.approx(
        judgments["p_low"].filter(certain).to_numpy(), abs=2e-6
    )


def test_flipping_a_claim_turns_its_trust_round(dataset, judgments):
    """With the answers held fixed, what was trusted as present is distrusted as absent."""
    turned = flipped(dataset.claims, dataset.claims.filter(pl.col("says") != "uncertain"))
    before = estimate(dataset, judgments).table
    after = estimate(dataclasses.replace(dataset, claims=turned), judgments).table
    assert after["trust"].to_numpy() == pytest.approx(1 - before["trust"].to_numpy(), nan_ok=True)
    assert after["p_present"].equals(before["p_present"])


def test_a_failed_judge_changes_no_number(dataset, judgments, judged):
    """A failure is never evidence: not of presence, not of absence, not of hardness."""
    broken = judged(dataset, seed=9, failed=1.0, judge="broken")
    assert estimate(dataset, pl.concat([judgments, broken])).table.equals(estimate(dataset, judgments).table)


def test_an_uncertain_claim_has_a_probability_and_no_trust(dataset, judgments):
    """The judge still answers; which side to trust nobody said."""
    rows = estimate(dataset, judgments).table.filter(pl.col("says") == "uncertain")
    assert rows.height > 5
    assert rows["p_present"].is_not_null().all()
    assert rows["trust"].is_null().all()
    assert rows["agreement"].is_null().all()
    assert set(rows["flag"]) == {"unjudged"}
    assert rows["reasons"].list.first().str.extract(r"^(\w+):").unique().to_list() == ["uncertain_claim"]


def test_agreement_is_whether_the_answer_stands_on_the_claim_s_side(dataset, judgments):
    """Above what is usual for the finding stands with a presence, below it with an absence."""
    table = estimate(dataset, judgments).table.filter(pl.col("says") != "uncertain")
    usual = judgments.group_by("finding").agg(usual=pl.col("p_present").mean())
    beside = table.join(usual, on="finding", how="left", maintain_order="left")
    above = beside["p_present"] >= beside["usual"]
    assert beside["agreement"].to_list() == (above == (beside["says"] == "present")).cast(pl.Float64).to_list()


def test_what_is_worth_most_is_read_first(dataset, judgments):
    """The rank is that of the value of a read; what has no trust comes last."""
    table = estimate(dataset, judgments).table
    first = table.sort("review_rank")
    assert table["review_rank"].equals(ranks(table))
    assert first["trust"].tail(table["trust"].null_count()).is_null().all()


def test_reviews_move_every_finding_and_every_row_says_so(dataset, judgments, calibrated):
    """Findings that were read, groups with their members, and by what all share the rest.

    All images of the patients that were read are cross-fitted, also those that nobody read.
    """
    check_signal(calibrated.table, dataset.claims)
    check_signal(calibrated.groups, calibrated.groups.select("image_id", "finding", "says"))
    plain = estimate(dataset, judgments).table
    definite = calibrated.table["says"] != "uncertain"
    assert (calibrated.table["p_present"] != plain["p_present"]).filter(definite).all()
    patients = dataset.images.join(calibrated.calibration, on="image_id", how="semi")["patient_id"].unique()
    read = dataset.images.filter(pl.col("patient_id").is_in(patients.implode())).select("image_id")
    for table in (calibrated.table, calibrated.groups):
        assert set(table.join(read, on="image_id", how="semi")["method"]) == {f"{METHOD}+experts/crossfit"}
        assert set(table.join(read, on="image_id", how="anti")["method"]) == {f"{METHOD}+experts"}
    assert set(calibrated.findings) == {"Effusion", "Nodule or mass"}
    for fit in calibrated.findings.values():
        assert fit["n"] == 120
        assert sum(fit["designs"].values()) == pytest.approx(1, abs=0.01)


def test_a_finding_that_nobody_reviewed_follows_what_all_share(dataset, judgments, reference):
    """Reviews of Effusion move Mass by less than Effusion, and leave it less sure; the reason says that nobody read."""
    only = dataclasses.replace(reference, truth=reference.truth.filter(finding="Effusion"), groups=())
    done, plain = estimate(dataset, judgments, only), estimate(dataset, judgments).table
    assert done.groups is None
    assert set(done.findings) == {"Effusion"}
    moved, wide = {}, {}
    for finding in ("Effusion", "Mass"):
        after, before = (table.filter(finding=finding) for table in (done.table, plain))
        moved[finding] = (after["p_present"] - before["p_present"]).abs().mean()
        wide[finding] = after.select(deviation("trust_low", "trust_high")).to_series().mean()
    assert 0 < moved["Mass"] < moved["Effusion"]
    assert wide["Mass"] > wide["Effusion"]
    said = {finding: done.table.filter(finding=finding)["reasons"].explode() for finding in ("Effusion", "Mass")}
    assert said["Mass"].str.contains("nobody read Mass here").any()
    assert said["Effusion"].str.contains("fitted on 120 expert labels of Effusion").any()


def deviation(low, high):
    """The standard deviation of a logit, from the ends of its 95 % interval."""
    ends = [(pl.col(end) / (1 - pl.col(end))).log() for end in (low, high)]
    return (ends[1] - ends[0]).abs() / (2 * NORMAL_95)


def test_a_group_bounds_its_members_and_lends_none_its_trust(dataset, judgments, calibrated):
    """No member is above its group; claimed alone it has less than the group; between members the order stays."""
    wide = calibrated.table.pivot("finding", index="image_id", values="p_present", maintain_order=True)
    beside = wide.join(calibrated.groups.select("image_id", whole="p_present"), on="image_id", maintain_order="left")
    assert (beside.select(pl.max_horizontal("Nodule", "Mass") <= pl.col("whole") + 2e-6)).to_series().all()
    claimed = calibrated.table.filter(pl.col("finding").is_in(NODULE_OR_MASS.members), says="present")
    pairs = claimed.join(calibrated.groups, on="image_id", suffix="_group")
    assert (pairs["trust"] < pairs["trust_group"]).mean() > 0.4
    assert not pairs["reasons"].list.eval(pl.element().str.starts_with("group:")).list.any().any()
    means = []
    for present in (False, True):
        table = estimate(dataset, judgments, told(calibrated, present=present)).table
        means.append(table.filter(pl.col("finding") != "Effusion")["p_present"].mean())
    assert means[0] < means[1] - 0.05


def told(calibrated, *, present):
    """The reviewed pairs of the group again, all of them with the same verdict."""
    its = calibrated.calibration.filter(finding=NODULE_OR_MASS.name)
    truth = its.select("image_id", "finding", present=pl.lit(present), split=pl.lit(None, dtype=pl.String))
    return Reference(kind="table", truth=truth, groups=(NODULE_OR_MASS,))


def test_a_group_s_rows_are_claims_of_their_own(dataset, calibrated):
    """One a film that says anything of a member; present if a member is."""
    claims = dataset.claims.filter(pl.col("finding") != "Effusion").with_columns(pl.col("says").cast(pl.String))
    wanted = claims.group_by("image_id", maintain_order=True).agg(
        says=pl.when((pl.col("says") == "present").any())
        .then(pl.lit("present"))
        .when((pl.col("says") == "absent").all())
        .then(pl.lit("absent"))
        .otherwise(pl.lit("uncertain"))
    )
    assert calibrated.groups.select("image_id", pl.col("says").cast(pl.String)).equals(wanted)
    assert calibrated.groups.schema == signal_schema(("Nodule or mass",))


@pytest.mark.parametrize("finding", ["Effusion", "Nodule or mass"])
def test_flipping_a_review_does_not_change_the_trust_of_its_own_pair(
    dataset, judgments, reference, calibrated, finding
):
    """Bit-equal through the whole signal: the finding's row, the group's, and those of the members that follow it."""
    its = reference.truth.with_row_index("place").filter(finding=finding)
    for place, film in its.select("place", "image_id").head(60).gather_every(20).rows():
        turned = pl.when(pl.col("place") == place).then(~pl.col("present")).otherwise("present")
        truth = reference.truth.with_row_index("place").with_columns(present=turned).drop("place")
        again = estimate(dataset, judgments, dataclasses.replace(reference, truth=truth))
        for before, after in ((calibrated.table, again.table), (calibrated.groups, again.groups)):
            own = pl.col("image_id") == film
            assert before.filter(own).select(TRUSTS).equals(after.filter(own).select(TRUSTS))
        tables = (calibrated.table, again.table) if finding == "Effusion" else (calibrated.groups, again.groups)
        assert (tables[0]["p_present"] != tables[1]["p_present"]).sum() > 50


def test_the_pairs_that_were_used_are_kept_with_their_fold(dataset, calibrated, reference):
    """The scorecard may then refuse what is not cross-fitted; the fold is the patient's."""
    used = calibrated.calibration
    assert used.columns == ["image_id", "finding", "present", "fold"]
    assert used.height == reference.truth.height
    fold = fold_of_patient(dataset.images["patient_id"])
    places = dict(zip(dataset.images["image_id"], fold, strict=True))
    assert used["fold"].to_list() == [places[film] for film in used["image_id"]]


def test_a_reference_of_other_films_is_used_as_far_as_it_goes(dataset, judgments, reference):
    """Films that are not in the dataset, and findings and groups that it does not audit, are passed over."""
    strange = reference.truth.head(50).with_columns(image_id="other" + pl.col("image_id"))
    unheard = reference.truth.head(50).with_columns(finding=pl.lit("Fracture"))
    odd = Group(name="Odd", members=("Mass", "Fracture"))
    more = pl.concat([reference.truth, strange, unheard, unheard.with_columns(finding=pl.lit("Odd"))])
    done = estimate(dataset, judgments, dataclasses.replace(reference, truth=more, groups=(NODULE_OR_MASS, odd)))
    alone = estimate(dataset, judgments, reference)
    assert done.table.equals(alone.table)
    assert done.groups.equals(alone.groups)
    assert done.calibration.equals(alone.calibration)


@pytest.mark.parametrize(("count", "most"), [(1, 0.12), (3, 0.12), (20, 0.2)])
def test_the_first_labels_are_fitted_and_move_little(dataset, judgments, reference, count, most):
    """From the first one on; nobody needs so many errors or patients, and no trust turns over."""
    few = dataclasses.replace(reference, truth=reference.truth.filter(finding="Effusion").head(count))
    done, plain = estimate(dataset, judgments, few), estimate(dataset, judgments).table
    check_signal(done.table, dataset.claims)
    assert done.findings["Effusion"]["n"] == count
    moved = (done.table["p_present"] - plain["p_present"]).abs()
    assert 0 < moved.mean() < most
    assert set(done.findings["Effusion"]["designs"]) == {"partly pooled"}


def test_reviews_that_nothing_can_be_fitted_on_are_refused_with_words(dataset, judgments, reference):
    """About what nobody judged, or about other images; verdicts of one kind are fitted all the same."""
    with pytest.raises(UsageError, match="nothing can be fitted on it"):
        estimate(dataset, judgments.clear(), reference)
    strange = reference.truth.with_columns(image_id="other" + pl.col("image_id"))
    with pytest.raises(UsageError, match="none of its images"):
        estimate(dataset, judgments, dataclasses.replace(reference, truth=strange))
    for one_sided in (True, False):
        truth = reference.truth.with_columns(present=pl.lit(one_sided))
        done = estimate(dataset, judgments, dataclasses.replace(reference, truth=truth))
        check_signal(done.table, dataset.claims)
        means = [
            table.filter(finding="Effusion")["p_present"].mean()
            for table in (done.table, estimate(dataset, judgments).table)
        ]
        assert (means[0] > means[1]) == one_sided


def bare(dataset):
    """The dataset with nothing known of its films but their names."""
    nothing = [pl.lit(None, kind).alias(name) for name, kind in IMAGES.items() if name != "image_id"]
    return dataclasses.replace(dataset, images=dataset.images.with_columns(nothing))


def silent_about(dataset, *findings):
    """The dataset without a word about some findings."""
    kept = ~pl.col("finding").cast(pl.String).is_in(list(findings))
    return dataclasses.replace(dataset, claims=dataset.claims.filter(kept))


ODD = {
    "nothing known of the films": bare,
    "a member nobody speaks of": lambda dataset: silent_about(dataset, "Mass"),
    "a group nobody speaks of": lambda dataset: silent_about(dataset, "Mass", "Nodule"),
    "much silence": lambda _: tiny_dataset(patients=80, silent=0.4, uncertain=0.2, seed=4),
}


def about_groups(dataset):
    """The films of a dataset with a question about the group each."""
    vocabulary = Vocabulary(name="groups", findings=(NODULE_OR_MASS.name,))
    films = dataset.images.select("image_id")
    asked = films.with_columns(
        finding=pl.lit(NODULE_OR_MASS.name, dtype=vocabulary.enum), says=pl.lit("absent", dtype=SAYS)
    )
    return dataclasses.replace(dataset, vocabulary=vocabulary, claims=asked)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(("failed", "asked"), [(0.0, False), (0.3, False), (0.3, True)])
def test_an_odd_dataset_is_calibrated_too(dataset, reference, judged, odd, failed, asked):
    """No warning, no NaN, whether a judge was asked about the groups or not."""
    strange = ODD[odd](dataset)
    answers = judged(about_groups(strange), seed=5, failed=failed) if asked else None
    done = estimate(strange, judged(strange, failed=failed), reference, group_judgments=answers)
    check_signal(done.table, strange.claims)
    check_signal(done.groups, done.groups.select("image_id", "finding", "says"))


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_a_judge_that_always_says_the_same_does_no_harm(dataset, judgments, reference, value):
    """Nothing is flagged for it without reviews, and reviews can still be fitted."""
    flat = judgments.with_columns(pl.lit(value).alias(name) for name in ("p_present", "p_low", "p_high"))
    plain = estimate(dataset, flat).table
    check_signal(plain, dataset.claims)
    assert set(plain["flag"]) == {"unverified", "unjudged"}
    check_signal(estimate(dataset, flat, reference).table, dataset.claims)


def test_the_rules_say_how_each_finding_was_flagged(dataset, judgments, calibrated):
    """Two a finding and a group, presence and absence, with words for the report."""
    plain = estimate(dataset, judgments).rules
    assert [(rule["finding"], rule["says"]) for rule in plain] == [
        (finding, says) for finding in FINDINGS for says in ("present", "absent")
    ]
    assert {rule["basis"] for rule in plain} == {"none"}
    assert len(calibrated.rules) == 8
    assert {rule["basis"] for rule in calibrated.rules} <= {"calibrated", "certified"}
    assert all(rule["stated"] for rule in calibrated.rules)
    read = [rule for rule in calibrated.rules if rule["certificates"]]
    assert {rule["finding"] for rule in read} == {"Effusion", NODULE_OR_MASS.name}
    levels = {rule["says"]: rule["trusted_from"] for rule in calibrated.rules}
    assert levels == pytest.approx({"present": 0.8, "absent": 0.95})


def test_without_experts_nothing_is_called_trusted_or_wrong(dataset, judgments, seen, panel):
    """Also beside an image judge: labels are ranked, and hard where the judges split."""
    for more in ({}, {"panel": panel(dataset, seen(dataset))}):
        table = estimate(dataset, judgments, **more).table
        assert set(table["flag"]) <= {"unverified", "hard", "unjudged"}
        assert table["review_rank"].n_unique() == table.height
    assert "hard" in set(table["flag"])


def test_a_certificate_counts_patients_and_not_films(dataset, calibrated):
    """Four films of one patient are alike, so they are one trial and not four."""
    read = calibrated.calibration.filter(finding="Effusion").select("image_id")
    low = calibrated.table.filter(pl.col("finding") == "Effusion", pl.col("trust") < 0.5)
    claims = low.join(read, on="image_id").join(dataset.images, on="image_id")
    told = {rule["says"]: rule["words"] for rule in calibrated.rules if rule["finding"] == "Effusion"}
    for says in ("present", "absent"):
        its = claims.filter(pl.col("says") == says)
        assert f" by {its['patient_id'].n_unique()} reviewed patients" in told[says]
    assert claims["patient_id"].n_unique() < claims.height


def reads_of(reference, draw, right=0.95):
    """The same labels as single reads: one to three of each by readers that err, with the chances of the draw."""
    truth = reference.truth
    tables = []
    for reader, share in (("ann", 1.0), ("ben", 0.6), ("cid", 0.3)):
        says = truth["present"].to_numpy() == (draw.random(truth.height) < right)
        table = truth.select(
            "image_id",
            "finding",
            reader=pl.lit(reader),
            verdict=pl.Series(np.where(says, "present", "absent")),
            inclusion=pl.lit(0.5),
        )
        tables.append(table.filter(pl.Series(draw.random(truth.height) < share)))
    return Reviews(table=pl.concat(tables).cast(REVIEWS), groups=reference.groups)


def test_single_reads_teach_nearly_what_adjudicated_labels_do(dataset, judgments, reference, calibrated):
    """By readers that are seldom wrong: the same findings are fitted, and the trusts are alike."""
    done = estimate(dataset, judgments, reviews=reads_of(reference, np.random.default_rng(5)))
    check_signal(done.table, dataset.claims)
    assert set(done.findings) == set(calibrated.findings)
    assert set(done.readers) == {"Effusion", NODULE_OR_MASS.name}
    assert set(done.readers["Effusion"]) == {"ann", "ben", "cid"}
    effusion = [table.filter(finding="Effusion")["p_present"].to_numpy() for table in (done.table, calibrated.table)]
    assert np.corrcoef(*effusion)[0, 1] > 0.8


def test_flipping_a_read_does_not_change_the_trust_of_its_own_pair(dataset, judgments, reference):
    """Bit-equal: how its reader errs is then known from other patients' reads alone."""
    reads = reads_of(reference, np.random.default_rng(5))
    before = estimate(dataset, judgments, reviews=reads).table
    its = reads.table.with_row_index("place").filter(pl.col("finding") == "Effusion")
    for place, film in its.select("place", "image_id").gather_every(60).rows():
        other = pl.when(pl.col("verdict") == "present").then(pl.lit("absent")).otherwise(pl.lit("present"))
        turned = pl.when(pl.int_range(pl.len()) == place).then(other).otherwise(pl.col("verdict").cast(pl.String))
        table = reads.table.with_columns(verdict=turned.cast(reads.table["verdict"].dtype))
        after = estimate(dataset, judgments, reviews=dataclasses.replace(reads, table=table)).table
        own = (pl.col("image_id") == film) & (pl.col("finding") == "Effusion")
        assert before.filter(own).select(TRUSTS).equals(after.filter(own).select(TRUSTS))
        assert not before["p_present"].equals(after["p_present"])


def test_the_order_of_expert_labels_does_not_matter(dataset, judgments, reference, calibrated):
    """To rounding: labels shuffled, the same trusts."""
    shuffled = dataclasses.replace(reference, truth=reference.truth.sample(fraction=1.0, shuffle=True, seed=7))
    again = estimate(dataset, judgments, shuffled)
    for before, after in ((calibrated.table, again.table), (calibrated.groups, again.groups)):
        assert before["p_present"].to_numpy() == pytest.approx(after["p_present"].to_numpy(), abs=2e-6)


def test_reviewed_too_a_judge_under_two_names_is_one_judge(dataset, judgments, reference, seen, panel):
    """Trust that was fitted on expert labels, and the groups', change by no more than rounding."""
    table = seen(dataset)
    copy = table.with_columns(judge=pl.lit("copy"))
    once, twice = (
        estimate(dataset, judgments, reference, panel=panel(dataset, *tables)) for tables in ((table,), (table, copy))
    )
    for before, after in ((once.table, twice.table), (once.groups, twice.groups)):
        for name in TRUSTS:
            assert before[name].to_numpy() == pytest.approx(after[name].to_numpy(), abs=1e-6, nan_ok=True)


# What people settled stands in the table, whatever the judges say.

SETTLED = ["verdict", "verdict_by", "readers_present", "readers_absent"]


def settled_reads(dataset, rows):
    """Reads of the first images: (image, finding) -> the word of each reader."""
    names = dataset.images["image_id"]
    said = [(names[row], finding, f"r{number}", word, None) for (row, finding), words in rows.items()
            for number, word in enumerate(words)]  # fmt: skip
    return Reviews(table=pl.DataFrame(said, schema=REVIEWS, orient="row"), groups=(NODULE_OR_MASS,))


def row_of(dataset, table, image, finding):
    """One label's row."""
    return table.row(by_predicate=(pl.col("image_id") == dataset.images["image_id"][image])
                     & (pl.col("finding") == finding), named=True)  # fmt: skip


@pytest.fixture(scope="module")
def certain():
    """Forty patients, every label definite."""
    return tiny_dataset(patients=40, seed=6)


def test_few_reads_settle_labels_and_move_trust_little(certain, judged):
    """Verdicts, flags, reasons and places change; a tie, a single read or a verdict about a group settles nothing."""
    answers = judged(certain)
    plain = estimate(certain, answers).table
    label = row_of(certain, plain, 0, "Effusion")["says"]
    other, same = "absent" if label == "present" else "present", row_of(certain, plain, 1, "Effusion")["says"]
    said = {(0, "Effusion"): [other, other, label], (1, "Effusion"): [same, same],
            (2, "Effusion"): ["present", "absent"], (3, "Effusion"): ["absent"],
            (4, NODULE_OR_MASS.name): ["absent", "absent"]}  # fmt: skip
    done = estimate(certain, answers, reviews=settled_reads(certain, said)).table
    check_signal(done, certain.claims)
    assert 0 < (done["p_present"] - plain["p_present"]).abs().mean() < 0.1
    rejected, confirmed, tied, once, group = (row_of(certain, done, row, "Effusion") for row in range(5))
    assert (rejected["flag"], confirmed["flag"]) == ("rejected", "confirmed")
    assert [rejected[name] for name in SETTLED] == [other, "readers", *((2, 1) if other == "present" else (1, 2))]
    assert rejected["reasons"][0] == f"verdict: 2 of 3 readers say {other}"
    assert {rejected["review_rank"], confirmed["review_rank"]} == {done.height - 1, done.height}
    for row in (tied, once, group):
        assert (row["verdict"], row["verdict_by"]) == (None, None)
        assert row["flag"] not in {"confirmed", "rejected"}
        assert not row["reasons"][0].startswith("verdict")
    assert (tied["readers_present"], tied["readers_absent"]) == (1, 1)
    assert (once["readers_present"], once["readers_absent"]) == (0, 1)
    for member in NODULE_OR_MASS.members:
        row = row_of(certain, done, 4, member)
        assert [row[name] for name in SETTLED] == [None, None, 0, 0]
        assert row["flag"] not in {"confirmed", "rejected"}


def test_adjudicated_labels_are_verdicts_of_findings_and_groups(reference, calibrated):
    """Of every pair of the reference that the dataset has, and of no other; its trust is the cross-fitted one."""
    truth = reference.truth.select(
        "image_id", "finding", told=pl.when("present").then(pl.lit("present")).otherwise(pl.lit("absent"))
    )
    for table in (calibrated.table, calibrated.groups):
        check = table.with_columns(pl.col("finding", "says", "flag", "verdict", "verdict_by").cast(pl.String))
        beside = check.join(truth, on=["image_id", "finding"], how="left", maintain_order="left")
        assert beside["verdict"].equals(beside["told"], check_names=False)
        settled = beside.filter(pl.col("told").is_not_null())
        assert settled["method"].str.ends_with("/crossfit").all()
        assert set(settled["verdict_by"]) == {"adjudicated"}
        definite = settled.filter(pl.col("says") != "uncertain")
        right = (definite["says"] == definite["told"]).to_list()
        assert definite["flag"].to_list() == ["confirmed" if each else "rejected" for each in right]
        assert set(right) == {True, False}
        assert definite["reasons"].list.first().to_list() == [
            f"verdict: an adjudicated label says {word}" for word in definite["told"]
        ]
        assert not set(beside.filter(pl.col("told").is_null())["flag"]) & {"confirmed", "rejected"}
    uncertain = calibrated.table.filter(pl.col("verdict").is_not_null(), pl.col("says") == "uncertain")
    assert uncertain.height
    assert set(uncertain["flag"]) == {"unjudged"}
    assert calibrated.table.filter(pl.col("finding") != "Effusion")["verdict"].is_null().all()


def test_a_random_sample_settles_its_pairs_too(dataset, judgments, reference, reviews):
    """Beside the labels to calibrate on, and without any."""
    films = dataset.images["image_id"][:6]
    sample = reviews(films, "Mass", [True, False] * 3)
    for more in ((reference,), ()):
        done = estimate(dataset, judgments, *more, random_sample=sample).table
        told = done.filter(pl.col("finding") == "Mass", pl.col("verdict").is_not_null())
        assert dict(told.select("image_id", "verdict").rows()) == dict(
            zip(films, ["present", "absent"] * 3, strict=True)
        )


def test_a_label_that_no_judge_answered_is_settled_all_the_same(certain, judged):
    """It has no trust, and a verdict."""
    nobody = judged(certain, failed=1.0)
    done = estimate(certain, nobody, reviews=settled_reads(certain, {(0, "Mass"): ["present", "present"]})).table
    check_signal(done, certain.claims)
    row = row_of(certain, done, 0, "Mass")
    assert (row["trust"], row["verdict"]) == (None, "present")
    assert row["flag"] == ("confirmed" if row["says"] == "present" else "rejected")
