"""An expert calibration: what its file keeps and refuses, whose fit an image gets, and how experts here outweigh it."""

import dataclasses
import json

import numpy as np
import polars as pl
import pytest

from bpals.errors import UsageError
from bpals.findings import Group
from bpals.numeric import NORMAL_95
from bpals.signal import experts, trust
from bpals.signal.layout import lay_out
from bpals.signal.prior import (
    FEW_ALONE,
    FOLDS,
    FORMAT,
    UNSEEN,
    VERSION,
    Prior,
    content_hash,
    from_dict,
    patient_hash,
    suits,
)
from bpals.signal.rows import METHOD
from bpals.testing import check_signal, tiny_dataset
from bpals.types import REVIEWS, TRUTH, Reference, Reviews
from world.estimating import estimate as estimate_plain
from world.estimating import laid_out

EITHER = Group(name="Nodule or mass", members=("Nodule", "Mass"))
ABOUT = {
    "truth": "what readers say",
    "judge": "record-1",
    "sources": [{"kind": "table", "inputs": {"labels.csv": "sha256:1"}, "labels": 500, "images": 160}],
    "citations": [],
    "terms": "made up",
    "commercial_use": "no",
    "made_with": "a test",
}


@pytest.fixture(scope="module")
def dataset():
    """One hundred patients with one to four images."""
    return tiny_dataset(patients=100, seed=4)


@pytest.fixture(scope="module")
def judgments(dataset, judged):
    """What a judge says of them."""
    return judged(dataset)


def labelled(dataset, wrong, *, images=None, seed=2, findings=None):
    """Expert labels of findings and of the group: a share of the labelled presences is wrong, every absence right."""
    draw = np.random.default_rng(seed)
    claims = dataset.claims if images is None else dataset.claims.filter(pl.col("image_id").is_in(images))
    claims = claims.filter(pl.col("finding").is_in(list(findings or dataset.vocabulary.findings)))
    says = (claims["says"] == "present").to_numpy()
    truth = claims.select("image_id", pl.col("finding").cast(pl.String), split=pl.lit(None, dtype=pl.String))
    truth = truth.with_columns(present=pl.Series(says & (draw.random(len(says)) >= wrong))).select(TRUTH.names())
    both = truth.filter(pl.col("finding").is_in(EITHER.members)).group_by("image_id", maintain_order=True)
    group = both.agg(pl.col("present").any()).with_columns(
        finding=pl.lit(EITHER.name), split=pl.lit(None, dtype=pl.String)
    )
    return Reference(kind="table", truth=pl.concat([truth, group.select(TRUTH.names())]).cast(TRUTH), groups=(EITHER,))


@pytest.fixture(scope="module")
def made(dataset, judgments):
    """A calibration of it, fitted on the patients with an even number, of whom 70 % of the presences were rejected."""
    even = dataset.images.filter(pl.col("patient_id").str.slice(-1).is_in(list("02468")))["image_id"]
    laid = lay_out(dataset, judgments, None, [EITHER])
    found = experts.fit_calibration(laid, labelled(dataset, 0.7, images=even))
    return dataclasses.replace(found, name="made-1", about=ABOUT)


@pytest.fixture(scope="module")
def read(made):
    """The same, as it comes back from its file."""
    return from_dict(json.loads(json.dumps(experts.as_dict(made))), "made-1.json")


def estimate(dataset, judgments, prior, reference=None, **more):
    """The signal that starts from a calibration; its groups are laid out too, as in an audit."""
    laid, skill = laid_out(dataset, judgments, groups=list(prior.groups) if prior else [EITHER])
    return trust.estimate(laid, reference, skill=skill, prior=prior, **more)


# The file.


def test_a_file_gives_back_what_was_written(made, read):
    """To five digits; writing it again gives the same bytes and hash, and no label is in it."""
    assert experts.as_dict(read) == experts.as_dict(made)
    assert read.sha256 == content_hash(experts.as_dict(made))
    assert (read.dataset, read.vocabulary, read.groups) == (made.dataset, made.vocabulary, made.groups)
    for before, after in ((made.findings, read.findings), (made.of_groups, read.of_groups)):
        assert after.columns == before.columns
        for name, fit in before.subjects.items():
            assert fit.means.shape == (1 + FOLDS, len(before.columns))
            assert after.subjects[name].means == pytest.approx(fit.means, rel=1e-4)
            assert after.subjects[name].covariance == pytest.approx(fit.covariance, rel=1e-4, abs=1e-12)
            assert (after.subjects[name].labels, after.subjects[name].errors) == (fit.labels, fit.errors)
            assert np.linalg.eigvalsh(after.subjects[name].covariance).min() > 0
    assert (read.labels, read.read_images, read.inputs) == (500, 160, {"sha256:1"})
    text = json.dumps(experts.as_dict(made))
    assert "p0002" not in text
    assert ".png" not in text
    assert len(read.patients) == 50


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda whole: whole | {"format": "another"}, "no expert calibration"),
        (lambda _: {}, "no expert calibration"),
        (lambda whole: whole | {"version": VERSION + 1}, f"version {VERSION + 1}"),
        (lambda whole: whole | {"terms": "anything"}, "sha256"),
        (lambda whole: {name: value for name, value in whole.items() if name != "sha256"}, "sha256"),
    ],
)
def test_another_format_version_or_content_is_refused(made, change, why):
    """With the file's name, and what to do next."""
    assert experts.as_dict(made)["format"] == FORMAT
    with pytest.raises(UsageError, match=rf"x\.json .*{why}.*bpals calibration fit"):
        from_dict(change(experts.as_dict(made)), "x.json")


def test_it_suits_its_own_dataset_and_findings(made, dataset):
    """Another name or other findings are named."""
    assert suits(made, dataset) == ""
    assert "elsewhere" in suits(dataclasses.replace(made, dataset="elsewhere"), dataset)
    assert "Hernia" in suits(dataclasses.replace(made, vocabulary=(*made.vocabulary, "Hernia")), dataset)


# Whose fit an image gets.


def test_who_it_was_fitted_on_gets_the_fit_without_them(dataset, judgments, read):
    """Cross-fitted rows are those of its patients and say so; others get the fit of all."""
    table = estimate(dataset, judgments, read).table
    check_signal(table, dataset.claims)
    who = table.join(dataset.images, on="image_id", maintain_order="left")["patient_id"]
    own = pl.Series([patient_hash(name) in read.patients for name in who])
    assert set(table.filter(own)["method"]) == {f"{METHOD}+made-1/crossfit"}
    assert set(table.filter(~own)["method"]) == {f"{METHOD}+made-1"}
    crossed = Prior.of(read, read.findings, dataset.images)
    assert crossed.crossed.sum() == dataset.images.filter(crossed.crossed)["patient_id"].is_in(who.filter(own)).sum()
    assert set(crossed.which[crossed.crossed]) == set(range(1, FOLDS + 1))
    stranger = dataclasses.replace(read, patients=frozenset())
    again = estimate(dataset, judgments, stranger).table
    assert again.filter(~own)["p_present"].equals(table.filter(~own)["p_present"])
    assert (again.filter(own)["p_present"] != table.filter(own)["p_present"]).mean() > 0.9


def test_a_fold_fit_does_not_know_its_patients(dataset, judgments, made):
    """Flip the verdicts on one fold's patients: the fit without them is the same to the last bit."""
    even = dataset.images.filter(pl.col("patient_id").str.slice(-1).is_in(list("02468")))
    place = Prior.of(made, made.findings, even).which
    first = even.filter(pl.Series(place == 1))["image_id"].to_list()
    before = labelled(dataset, 0.7, images=even["image_id"])
    turned = pl.when(pl.col("image_id").is_in(first)).then(~pl.col("present")).otherwise("present")
    after = dataclasses.replace(before, truth=before.truth.with_columns(present=turned))
    laid = lay_out(dataset, judgments, None, [EITHER])
    one, other = (experts.fit_calibration(laid, each) for each in (before, after))
    for here, there in ((one.findings, other.findings), (one.of_groups, other.of_groups)):
        for name, fit in here.subjects.items():
            assert np.array_equal(fit.means[1], there.subjects[name].means[1])
            assert not np.array_equal(fit.means[0], there.subjects[name].means[0])
            assert not np.array_equal(fit.means[2], there.subjects[name].means[2])


def test_labels_of_other_images_fit_nothing(dataset, judgments):
    """None is given back, and the caller says so."""
    strange = labelled(dataset, 0.5)
    strange = dataclasses.replace(strange, truth=strange.truth.with_columns(image_id="other" + pl.col("image_id")))
    assert experts.fit_calibration(lay_out(dataset, judgments, None, [EITHER]), strange) is None


# What it does to the trust.


def presences(table):
    """The mean trust of labelled presences of findings."""
    return table.filter(says="present")["trust"].mean()


def widths(table):
    """The width of each interval, as a deviation of the logit."""
    ends = [(pl.col(end).clip(1e-6, 1 - 1e-6)) for end in ("trust_low", "trust_high")]
    logits = [(end / (1 - end)).log() for end in ends]
    return table.select((logits[1] - logits[0]) / (2 * NORMAL_95)).to_series()


def test_it_sets_a_judge_right_whom_nobody_reads_here(dataset, judgments, read):
    """Presences that 30 % of readers confirm have that trust, and the reason names the calibration."""
    plain, done = (estimate(dataset, judgments, prior) for prior in (None, read))
    assert abs(presences(done.table) - 0.3) < 0.08 < abs(presences(plain.table) - 0.3)
    assert done.findings == {}
    assert done.calibration is None
    assert done.groups is not None
    assert done.table["reasons"].explode().str.contains("made-1").any()
    assert {rule["basis"] for rule in done.rules} == {"calibrated"}
    assert {rule["basis"] for rule in plain.rules} == {"none"}


def test_it_is_less_sure_where_it_extrapolates(dataset, judgments, read):
    """A view of which next to nothing was read has a wider interval, and one that was read has not."""
    subjects = {
        name: dataclasses.replace(fit, views={"PA": 500, "AP": 2}) for name, fit in read.findings.subjects.items()
    }
    frontal = dataclasses.replace(read, findings=dataclasses.replace(read.findings, subjects=subjects))
    tables = [estimate(dataset, judgments, prior).table for prior in (read, frontal)]
    view = tables[0].join(dataset.images, on="image_id", maintain_order="left")["view"]
    before, after = (widths(table) for table in tables)
    assert (after > before + 0.01).filter(view == "AP").mean() > 0.95
    assert before.filter(view == "PA").to_numpy() == pytest.approx(after.filter(view == "PA").to_numpy())
    here = Prior.of(frontal, frontal.findings, dataset.images)
    assert np.array_equal(here.extrapolates("Mass"), (dataset.images["view"] == "AP").to_numpy())
    assert here.extrapolates("Hernia").all()
    rows, laid = np.arange(5), np.zeros((5, len(read.findings.columns)))
    by = here.variance("Mass", read.findings.columns, laid, rows)
    assert np.ptp(by) == pytest.approx(UNSEEN**2)


def test_columns_are_matched_by_name(dataset, read):
    """In whatever order they are, and one that it does not know adds nothing."""
    here = Prior.of(read, read.findings, dataset.images)
    columns, rows = read.findings.columns, np.arange(dataset.images.height)
    laid = np.random.default_rng(0).normal(size=(len(rows), len(columns)))
    order = np.random.default_rng(1).permutation(len(columns))
    mixed = tuple(columns[place] for place in order)
    wide = np.concatenate([laid[:, order], np.full((len(rows), 1), 1e6)], axis=1)
    shift = here.shift("Mass", columns, laid, rows)
    assert here.shift("Mass", (*mixed, "seen"), wide, rows) == pytest.approx(shift)
    covariance = here.covariance("Mass", (*mixed, "seen"))
    assert covariance[:-1, :-1] == pytest.approx(here.covariance("Mass", columns)[np.ix_(order, order)])
    assert (covariance[-1] == 0).all()
    assert (here.shift("Hernia", columns, laid, rows) == 0).all()


def test_experts_here_outweigh_it(dataset, judgments, read):
    """They say that all is right: few labels move it part of the way, many to where they would be without it."""
    found = {}
    for share in (0, 12, None):
        images = dataset.images["image_id"] if share is None else dataset.images["image_id"][:share]
        reference = None if share == 0 else labelled(dataset, 0.0, images=images)
        found[share] = presences(estimate(dataset, judgments, read, reference).table)
    alone = presences(estimate_plain(dataset, judgments, labelled(dataset, 0.0)).table)
    assert found[0] < found[12] < found[None]
    assert found[None] == pytest.approx(alone, abs=0.08)
    done = estimate(dataset, judgments, read, labelled(dataset, 0.0))
    assert set(done.findings) == {*dataset.vocabulary.findings, EITHER.name}
    assert set(done.table["method"].str.strip_suffix("/crossfit")) == {f"{METHOD}+made-1+experts"}


def test_flipping_a_review_beside_it_does_not_change_its_own_trust(dataset, judgments, read):
    """Bit-equal, for every finding of the patient's images."""
    reference = labelled(dataset, 0.2, images=dataset.images["image_id"][:80])
    before = estimate(dataset, judgments, read, reference).table
    for place in (3, 60, 150):
        film = reference.truth["image_id"][place]
        turned = pl.when(pl.int_range(pl.len()) == place).then(~pl.col("present")).otherwise("present")
        changed = dataclasses.replace(reference, truth=reference.truth.with_columns(present=turned))
        after = estimate(dataset, judgments, read, changed).table
        own = pl.col("image_id") == film
        assert before.filter(own)["p_present"].equals(after.filter(own)["p_present"])
        assert not before["p_present"].equals(after["p_present"])


def one_read(dataset, verdict, row=0):
    """A single read of one label."""
    claim = dataset.claims.filter(pl.col("finding") == "Effusion").row(row, named=True)
    table = pl.DataFrame([(claim["image_id"], "Effusion", "a", verdict, None)], schema=REVIEWS, orient="row")
    return Reviews(table=table)


def test_the_first_read_changes_little(dataset, judgments, read):
    """Neither the trusts nor their intervals jump from no read to one: both rest on the calibration."""
    before = estimate(dataset, judgments, read).table
    after = estimate(dataset, judgments, read, reviews=one_read(dataset, "present")).table
    same = pl.DataFrame({"before": before["trust"], "after": after["trust"]})
    assert (same["before"] - same["after"]).abs().max() < 0.1
    width = [(table["trust_high"] - table["trust_low"]).mean() for table in (before, after)]
    assert width[1] == pytest.approx(width[0], rel=0.05)
    assert (before["flag"].cast(pl.String) == after["flag"].cast(pl.String)).mean() > 0.9


def test_without_a_calibration_one_read_calls_no_other_finding_anything(dataset, judgments):
    """Findings that nobody read stay unverified, and their reason says so; an uncertain read changes nothing."""
    plain = estimate(dataset, judgments, None).table
    unsure = estimate(dataset, judgments, None, reviews=one_read(dataset, "uncertain")).table
    assert unsure.select("trust", "trust_low", "flag").equals(plain.select("trust", "trust_low", "flag"))
    after = estimate(dataset, judgments, None, reviews=one_read(dataset, "absent")).table
    others = after.filter((pl.col("finding") != "Effusion") & (pl.col("says") != "uncertain"))
    assert set(others["flag"].cast(pl.String)) == {"unverified"}
    assert others["reasons"].explode().str.starts_with("unread: ").any()


def test_presences_of_patients_with_one_image_say_nothing_where_next_to_none_was_read(dataset, judgments, made):
    """Their interval is too wide for a flag; where such presences were read, it is like that of others."""
    lone = dataset.images.filter(pl.len().over("patient_id") == 1).select("image_id")
    said = {}
    for alone in (0, FEW_ALONE - 1, 10_000):
        subjects = {
            name: dataclasses.replace(fit, alone=alone, presences=50) for name, fit in made.findings.subjects.items()
        }
        prior = dataclasses.replace(made, findings=dataclasses.replace(made.findings, subjects=subjects))
        table = estimate(dataset, judgments, prior).table.filter(pl.col("says") == "present")
        said[alone] = table.join(lone, on="image_id", how="semi")
    for few in (0, FEW_ALONE - 1):
        assert set(said[few]["flag"].cast(pl.String)) == {"unverified"}
    assert len(set(said[10_000]["flag"].cast(pl.String))) > 1
    # A group and its members meet by how sure each is, so the trust of members may move.
    alike = [table.filter(finding="Effusion")["trust"] for table in said.values()]
    assert alike[0].equals(alike[1])
