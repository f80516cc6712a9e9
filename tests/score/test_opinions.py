"""What an audit holds of a pair: claims of groups, their trust, and the pairs that cannot be scored."""

import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from bpals.errors import TruthError, UsageError, install_line
from bpals.findings import NODULE_OR_MASS, Group
from bpals.score.opinions import Audited, about, cleanlab_suspicion, opinions
from bpals.store.workspace import Workspace


@pytest.fixture
def audited(audit):
    """Write a workspace and read its tables."""

    def make(rows, **options):
        home = Workspace(audit(rows, **options)).open()
        judges = [name for name in home.run["files"] if name.startswith("judgments/")]
        return Audited(
            images=home.table("images.parquet"),
            claims=home.table("claims.parquet"),
            judgments=pl.concat([home.table(name) for name in judges]),
            signal=home.table("signal.parquet"),
            groups=home.table("groups.parquet") if home.has("groups.parquet") else None,
            calibration=home.table("calibration.parquet") if home.has("calibration.parquet") else None,
        )

    return make


def asked(*pairs):
    """Pairs to be looked up."""
    return pl.DataFrame(pairs, {"image_id": pl.String, "finding": pl.String}, orient="row")


def held(frame):
    """Trust by image."""
    return dict(frame.select("image_id", "trust").rows())


def counted(notices):
    """What was left out, by code."""
    return {notice.code: notice.count for notice in notices}


def nodules_and_masses(*films):
    """Rows of two findings: `(image, nodule says, p, mass says, p)`."""
    rows = []
    for image, nodule, p_nodule, mass, p_mass in films:
        rows += [(image, "Nodule", nodule, p_nodule), (image, "Mass", mass, p_mass)]
    return rows


@pytest.mark.quick
def test_a_group_claims_presence_if_any_member_does(audited):
    """One presence is enough; one uncertainty without a presence makes the group uncertain; part silence no claim."""
    tables = audited(
        nodules_and_masses(
            ("a", "absent", 0.1, "present", 0.4),
            ("b", "absent", 0.1, "absent", 0.2),
            ("c", "absent", 0.1, "uncertain", 0.2),
            ("d", "uncertain", 0.1, "present", 0.2),
            ("e", "absent", 0.1, None, 0.2),
        )
    )
    says = dict(opinions(tables, NODULE_OR_MASS).select("image_id", "says").rows())
    assert says == {"a": "present", "b": "absent", "c": "uncertain", "d": "present"}


@pytest.mark.quick
def test_the_probability_of_a_group_is_the_sum_of_its_members_at_most_one(audited):
    """The trust is that sum where presence is claimed, and what is left to one where absence is."""
    tables = audited(
        nodules_and_masses(
            ("a", "absent", 0.1, "present", 0.4),
            ("b", "absent", 0.1, "absent", 0.2),
            ("c", "present", 0.8, "present", 0.7),
            ("d", "absent", None, "present", 0.9),
        )
    )
    trust = held(opinions(tables, NODULE_OR_MASS))
    assert trust == {"a": pytest.approx(0.5), "b": pytest.approx(0.7), "c": 1.0, "d": None}


@pytest.mark.quick
def test_a_row_of_the_group_itself_stands_over_the_sum(audited):
    """Where the audit was calibrated on groups; a film without such a row keeps the sum."""
    tables = audited(
        nodules_and_masses(("a", "absent", 0.1, "present", 0.4), ("b", "absent", 0.1, "absent", 0.2)),
        groups=[("a", "Nodule or mass", "present", 0.25)],
    )
    assert held(opinions(tables, NODULE_OR_MASS)) == {"a": 0.25, "b": pytest.approx(0.7)}


@pytest.mark.quick
def test_several_judges_are_averaged_before_calibration(audited):
    """Those that answered: a failure is no evidence."""
    judged = {"one": [("a", "Mass", 0.2), ("b", "Mass", 0.3)], "two": [("a", "Mass", 0.6), ("b", "Mass", None)]}
    tables = audited([("a", "Mass", "present", 0.9), ("b", "Mass", "absent", 0.9)], judged=judged)
    frame = opinions(tables, Group(name="Mass", members=("Mass",)))
    assert dict(frame.select("image_id", "p_judge").rows()) == {"a": pytest.approx(0.4), "b": pytest.approx(0.3)}
    assert held(frame) == {"a": 0.9, "b": pytest.approx(0.1)}


@pytest.mark.quick
def test_pairs_that_cannot_be_scored_are_counted_by_reason(audited):
    """Unknown images, silence, uncertain claims and pairs without a judge."""
    tables = audited(
        [
            ("a", "Mass", "present", 0.9),
            ("b", "Mass", "uncertain", 0.5),
            ("c", "Mass", "present", None),
            ("d", "Edema", "present", 0.5),
        ]
    )
    pairs, notices = about(asked(*[(image, "Mass") for image in "abcdz"]), tables, ())
    assert pairs["image_id"].to_list() == ["a"]
    codes = counted(notices)
    codes.pop("no_cleanlab", None)
    assert codes == {"unknown_images": 1, "silent": 1, "uncertain_claims": 1, "unjudged": 1}


@pytest.mark.quick
def test_a_reference_of_another_dataset_is_refused(audited):
    """None of its images is known; the message shows one of each."""
    tables = audited([("a", "Mass", "present", 0.9)])
    with pytest.raises(TruthError, match=r"of 1 image .*'z\.png'.*'a'.*bpals"):
        about(asked(("z.png", "Mass")), tables, ())


@pytest.mark.quick
def test_a_finding_about_which_nothing_is_claimed_is_silence(audited):
    """It is in the vocabulary, but the dataset never speaks of it."""
    tables = audited([("a", "Mass", "present", 0.9)])
    pairs, notices = about(asked(("a", "Mass"), ("a", "Hernia")), tables, ())
    assert pairs["finding"].to_list() == ["Mass"]
    assert counted(notices)["silent"] == 1


@pytest.mark.quick
def test_nothing_left_to_score_is_refused(audited):
    """Every claim uncertain."""
    with pytest.raises(TruthError, match="no pair"):
        about(asked(("a", "Mass")), audited([("a", "Mass", "uncertain", 0.9)]), ())


@pytest.mark.quick
def test_the_films_of_a_patient_share_a_number(audited):
    """The bootstrap draws patients."""
    rows = [(image, "Mass", "present", 0.9) for image in ("a1", "b1", "a2")]
    pairs, _ = about(asked(*[(row[0], "Mass") for row in rows]), audited(rows), (), baselines=False)
    numbers = dict(pairs.select("image_id", "patient").rows())
    assert numbers["a1"] == numbers["a2"] != numbers["b1"]


@pytest.mark.quick
def test_a_film_without_a_patient_is_one_of_its_own(audited):
    """Two films of nobody are not one patient."""
    tables = audited([("a1", "Mass", "present", 0.9), ("a2", "Mass", "present", 0.9)])
    nameless = tables.images.with_columns(patient_id=pl.lit(None, pl.String))
    tables = Audited(images=nameless, claims=tables.claims, judgments=tables.judgments, signal=tables.signal)
    pairs, _ = about(asked(("a1", "Mass"), ("a2", "Mass")), tables, (), baselines=False)
    assert pairs["patient"].n_unique() == 2


@pytest.mark.quick
def test_the_prevalence_is_that_of_the_whole_dataset(audited):
    """Not that of the scored pairs: one presence in four definite claims."""
    claims = zip("abcde", ("present", "absent", "absent", "absent", "uncertain"), strict=True)
    tables = audited([(image, "Mass", says, 0.5) for image, says in claims])
    pairs, _ = about(asked(("a", "Mass")), tables, ())
    assert pairs["prevalence"].to_list() == [0.25]


@pytest.mark.quick
def test_a_pair_used_in_calibration_needs_a_crossfitted_trust(audited):
    """Its own review must not have made its trust."""
    rows = [("a", "Mass", "present", 0.9), ("b", "Mass", "present", 0.9)]
    careless = audited(rows, method="record/calibrated", calibration=[("a", "Mass")], name="one")
    with pytest.raises(UsageError, match=r"1 pair .*a, Mass.*--split.*bpals"):
        about(asked(("a", "Mass"), ("b", "Mass")), careless, ())
    assert about(asked(("b", "Mass")), careless, ())[0].height == 1
    careful = audited(rows, method="record/calibrated/crossfit", calibration=[("a", "Mass")], name="two")
    assert about(asked(("a", "Mass"), ("b", "Mass")), careful, ())[0].height == 2


@pytest.mark.quick
@pytest.mark.parametrize("used", ["Nodule or mass", "Mass"])
def test_the_sum_of_a_used_group_needs_every_member_crossfitted(audited, used):
    """Whether the group was reviewed or the member."""
    rows = [("a", "Nodule", "absent", 0.1, "record/crossfit"), ("a", "Mass", "present", 0.5, "record")]
    tables = audited(rows, calibration=[("a", used)])
    with pytest.raises(UsageError, match="not cross-fitted"):
        about(asked(("a", "Nodule or mass")), tables, [NODULE_OR_MASS])


@pytest.mark.quick
def test_a_member_that_was_never_reviewed_may_stay_as_it_is(audited):
    """Only the reviewed member needs the cross-fitted row."""
    rows = [("a", "Nodule", "absent", 0.1, "record/crossfit"), ("a", "Mass", "present", 0.5, "record")]
    pairs, _ = about(asked(("a", "Nodule or mass")), audited(rows, calibration=[("a", "Nodule")]), [NODULE_OR_MASS])
    assert pairs.height == 1


@pytest.mark.quick
@pytest.mark.parametrize(("method", "refused"), [("record/crossfit", False), ("record", True)])
def test_a_used_row_of_the_group_itself_must_be_crossfitted(audited, method, refused):
    """Then the members' rows do not matter."""
    tables = audited(
        nodules_and_masses(("a", "absent", 0.1, "present", 0.4)),
        groups=[("a", "Nodule or mass", "present", 0.25, method)],
        calibration=[("a", "Nodule or mass")],
    )
    if refused:
        with pytest.raises(UsageError, match="not cross-fitted"):
            about(asked(("a", "Nodule or mass")), tables, [NODULE_OR_MASS])
    else:
        pairs, _ = about(asked(("a", "Nodule or mass")), tables, [NODULE_OR_MASS])
        assert pairs["trust"].to_list() == [0.25]


WITHOUT_CLEANLAB = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "cleanlab":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
from bpals.score import opinions
import numpy as np
from bpals.errors import MissingExtra
try:
    opinions.cleanlab_suspicion(np.array([True, False]), np.array([0.1, 0.2]))
except MissingExtra as missing:
    print(missing)
"""


def test_pruned_claims_come_first_and_then_self_confidence():
    """As `find_label_issues(filter_by="prune_by_noise_rate")` flags them, called here by itself."""
    cleanlab_filter = pytest.importorskip("cleanlab.filter", reason="cleanlab is in the extra bpals[peers]")
    rng = np.random.default_rng(0)
    p_present = rng.beta(1, 3, 4000)
    claimed = rng.random(4000) < np.where(rng.random(4000) < 0.1, 0.5, p_present)
    pruned = cleanlab_filter.find_label_issues(
        claimed.astype(int), np.c_[1 - p_present, p_present], filter_by="prune_by_noise_rate", n_jobs=1
    )
    doubt = np.where(claimed, 1 - p_present, p_present)
    order = np.argsort(-cleanlab_suspicion(claimed, p_present), kind="stable")
    assert 0 < pruned.sum() < 4000
    assert pruned[order].tolist() == sorted(pruned, reverse=True)
    for chosen in (pruned[order], ~pruned[order]):
        assert (np.diff(doubt[order][chosen]) <= 0).all()


def test_without_cleanlab_the_line_to_type_is_given():
    """In a process where the package cannot be found."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_CLEANLAB], capture_output=True, text=True, check=True)
    assert install_line("peers") in done.stdout
