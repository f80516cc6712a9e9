"""Single readers as error finders, worked out by hand."""

import polars as pl
import pytest

from bpals.errors import TruthError
from bpals.findings import NODULE_OR_MASS
from bpals.score.intervals import Resampling
from bpals.score.opinions import Audited
from bpals.score.readers import readers
from bpals.store.workspace import Workspace
from bpals.types import REVIEWS

FEW = Resampling(draws=40, seed=0)


def reads(*rows):
    """Rows `(image, reader, verdict)` about a mass."""
    verdicts = {"Y": "present", "N": "absent", "H": "uncertain"}
    return pl.DataFrame(
        [(image, "Mass", reader, verdicts[verdict], None) for image, reader, verdict in rows], REVIEWS, orient="row"
    )


def panel(**films):
    """Three readers, one letter each: `a="YYN"`."""
    return reads(*[(film, f"r{place}", said) for film, letters in films.items() for place, said in enumerate(letters)])


@pytest.fixture
def tables(audit):
    """Four films that claim a mass, with trusts .1, .2, .3 and .4."""
    rows = [(film, "Mass", "present", p) for film, p in zip("abcd", (0.1, 0.2, 0.3, 0.4), strict=True)]
    home = Workspace(audit([*rows, ("e", "Mass", "uncertain", 0.5)]))
    names = ("images", "claims", "judgments/record", "signal")
    images, claims, judgments, signal = (home.open().table(f"{name}.parquet") for name in names)
    return Audited(images=images, claims=claims, judgments=judgments, signal=signal)


def row(rows, reader, finding="Mass"):
    """One row."""
    (only,) = [r for r in rows if (r["reader"], r["finding"]) == (reader, finding)]
    return only


def test_a_reader_is_held_against_the_majority_of_the_others(tables):
    """r0 flags a and d; the others call a and b errors: precision and recall 1/2; the signal flags a and b."""
    rows, notices = readers(panel(a="NNN", b="YNN", c="YYY", d="NYY"), tables, (), FEW)
    first = row(rows, "r0")
    assert (first["n"], first["flags"], first["errors"]) == (4, 2, 2)
    assert (first["precision"], first["recall"]) == (0.5, 0.5)
    assert (first["signal_precision"], first["signal_recall"]) == (1, 1)
    assert notices[0].code == "reader_ties"


def test_where_the_others_split_the_pair_is_left_out(tables):
    """For r1 the others of b and d disagree: only a and c remain."""
    rows, notices = readers(panel(a="NNN", b="YNN", c="YYY", d="NYY"), tables, (), FEW)
    second = row(rows, "r1")
    assert (second["n"], second["flags"], second["precision"], second["recall"]) == (2, 1, 1, 1)
    assert {notice.code: notice.count for notice in notices} == {"reader_ties": 4}


def test_hedges_are_left_out_and_counted(tables):
    """A hedge is no flag and no vote."""
    rows, notices = readers(panel(a="NHN", b="YYY"), tables, (), FEW)
    assert {notice.code: notice.count for notice in notices} == {"hedges": 1}
    assert row(rows, "r1")["n"] == 1
    assert row(rows, "r0")["n"] == 2


def test_a_pair_that_one_reader_read_is_left_out(tables):
    """There is nobody to be held against."""
    rows, notices = readers(reads(("a", "r0", "N"), ("b", "r0", "Y"), ("b", "r1", "Y")), tables, (), FEW)
    assert {notice.code: notice.count for notice in notices} == {"single_reads": 1}
    assert row(rows, "r0")["n"] == 1


def test_a_reader_without_flags_has_no_precision(tables):
    """Null, not NaN; the recall is none of the errors."""
    rows, _ = readers(panel(a="YNN", b="YYY"), tables, (), FEW)
    silent = row(rows, "r0")
    assert (silent["flags"], silent["precision"], silent["precision_low"], silent["recall"]) == (0, None, None, 0)
    assert silent["signal_precision"] is None


def test_all_readers_together_keep_each_ones_number_of_flags(tables):
    """The row `all` adds up what each reader did and what the signal did at that reader's flags."""
    rows, _ = readers(panel(a="NNN", b="YNN", c="YYY", d="NYY"), tables, (), FEW)
    everyone = row(rows, "all")
    singles = [row(rows, f"r{place}") for place in range(3)]
    assert everyone["n"] == sum(single["n"] for single in singles)
    assert everyone["flags"] == sum(single["flags"] for single in singles)
    caught = sum(single["precision"] * single["flags"] for single in singles)
    assert everyone["precision"] == pytest.approx(caught / everyone["flags"])
    assert everyone["recall"] == pytest.approx(caught / everyone["errors"])


def test_pooled_rows_speak_of_all_findings(tables):
    """With one finding they repeat it, for each reader and for all."""
    rows, _ = readers(panel(a="NNN", b="YYY"), tables, (), FEW)
    assert {r["reader"] for r in rows if r["finding"] == "pooled"} == {"r0", "r1", "r2", "all"}
    assert {**row(rows, "r0", "pooled"), "finding": "Mass"} == row(rows, "r0")


def test_the_promised_keys_are_there(tables):
    """Programs read them."""
    rows, _ = readers(panel(a="NNN", b="YYY"), tables, (), FEW)
    figures = [f"{f}{end}" for f in ("precision", "recall", "signal_precision", "signal_recall")
               for end in ("", "_low", "_high")]  # fmt: skip
    assert list(rows[0]) == ["finding", "reader", "n", "flags", "errors", *figures]


def test_groups_and_uncertain_claims_are_treated_as_in_the_scorecard(audit):
    """A reader flags a group whose claim is absent by reading it present."""
    home = Workspace(
        audit([("a", "Nodule", "absent", 0.4), ("a", "Mass", "absent", 0.5), ("b", "Mass", "present", 0.5),
               ("b", "Nodule", "absent", 0.1), ("c", "Mass", "uncertain", 0.5), ("c", "Nodule", "absent", 0.1)])
    )  # fmt: skip
    names = ("images", "claims", "judgments/record", "signal")
    images, claims, judgments, signal = (home.open().table(f"{name}.parquet") for name in names)
    tables = Audited(images=images, claims=claims, judgments=judgments, signal=signal)
    verdicts = panel(a="YYY", b="YYY", c="YYY").with_columns(finding=pl.lit("Nodule or mass"))
    rows, notices = readers(verdicts, tables, [NODULE_OR_MASS], FEW)
    first = row(rows, "r0", "Nodule or mass")
    assert (first["n"], first["flags"], first["precision"], first["signal_precision"]) == (2, 1, 1, 1)
    assert {notice.code: notice.count for notice in notices} == {"uncertain_claims": 3}


def test_one_reader_alone_is_refused(tables):
    """A file in which nobody shares a film cannot be scored."""
    with pytest.raises(TruthError, match="enough readers"):
        readers(reads(("a", "r0", "N"), ("b", "r1", "Y")), tables, (), FEW)
