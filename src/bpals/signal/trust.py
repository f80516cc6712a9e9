"""The first signal: from claims and judgments, and expert labels where there are any, to trust."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.chronology import patients
from bpals.errors import UsageError
from bpals.findings import Group
from bpals.signal import calibrate, flags, reasons
from bpals.signal.pairs import NORMAL_95, Matrix, Pairs, lay_out, logit, sigmoid, with_groups
from bpals.types import DEVICES, FLAG, SAYS, Dataset, Reference, signal_schema

METHOD = "record-1"
DECIMALS = 6
BLOCK = 131_072
"""Claims whose reasons are gathered at a time, which bounds the memory."""
UNCERTAIN = pl.Series(["uncertain_claim: the dataset itself is uncertain here", None])
REVIEWED = pl.Series(["reviewed: an expert read this pair; its trust comes from a fit without this patient", None])
FEWEST_PATIENTS = 10
"""Fewer reviewed patients cannot be cross-fitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """The signal and what it rests on."""

    table: pl.DataFrame
    groups: pl.DataFrame | None = None
    calibration: pl.DataFrame | None = None
    """The pairs that were used, with the fold that left them out."""
    findings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """For each calibrated finding or group: how it was fitted."""
    rules: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Findings, or groups, on their way to a signal table."""

    pairs: Pairs
    p_present: Matrix
    spread: Matrix
    fitted: npt.NDArray[np.bool_]
    """Pairs whose probability comes from a fit on expert labels."""
    reviewed: npt.NDArray[np.bool_]
    """... and was cross-fitted, because the pair is one of them."""
    notes: dict[str, str]
    """For each calibrated finding, the reason that says so."""


Evidence = npt.NDArray[np.floating[Any]]
"""The features of the films, from the record judge: a row a film."""


def estimate(
    dataset: Dataset,
    judgments: pl.DataFrame,
    reference: Reference | None = None,
    *,
    evidence: Evidence | None = None,
    group_judgments: pl.DataFrame | None = None,
) -> Signal:
    """Say how far to trust each claim; with a reference, fitted on it and cross-fitted by patient.

    `evidence` and `group_judgments` serve the fit: what a judge saw of each film, and what it says of the groups.
    """
    pairs = lay_out(dataset.images, dataset.claims, judgments, dataset.vocabulary)
    part = _uncalibrated(pairs)
    if reference is None:
        table, rules = _table(part, dataset, wrong=None)
        return Signal(table=table, rules=rules)
    return _calibrated(part, dataset, reference, evidence, group_judgments)


def _uncalibrated(pairs: Pairs) -> _Part:
    """Take the judges at their word."""
    nobody = np.zeros(pairs.states.shape, dtype=bool)
    return _Part(pairs=pairs, p_present=pairs.p_present, spread=pairs.spread, fitted=nobody, reviewed=nobody, notes={})


def _calibrated(
    part: _Part,
    dataset: Dataset,
    reference: Reference,
    evidence: Evidence | None,
    group_judgments: pl.DataFrame | None,
) -> Signal:
    """Fit findings and groups on the reference; the members of a group follow it."""
    truth = _known_truth(dataset, reference)
    named = set(truth["finding"].unique())
    groups = [group for group in reference.groups_within(dataset.vocabulary) if group.name in named]
    context = _context(part.pairs, dataset, evidence)
    fold = calibrate.fold_of_patient(patients(dataset.images))
    part, fits = _fit_part(part, truth, context, fold, reference.kind)
    group_table: pl.DataFrame | None = None
    rules: list[dict[str, Any]] = []
    if groups:
        group_part, group_fits = _fit_part(
            _uncalibrated(with_groups(part.pairs, groups, group_judgments)), truth, context, fold, reference.kind
        )
        fits |= group_fits
        group_table, rules = _table(group_part, dataset, wrong=_wrong(group_part, truth))
        part = _follow(part, group_part, groups, fits)
    if not fits:
        raise UsageError(
            f"--calibrate {reference.kind}: nothing can be fitted on it: of no finding that was judged here does it "
            "hold presences and absences. Give other expert labels, or audit without --calibrate"
        )
    table, finding_rules = _table(part, dataset, wrong=_wrong(part, truth))
    used = truth.with_columns(fold=pl.Series(fold[truth["row"].to_numpy()], dtype=pl.Int32))
    used = used.filter(pl.col("finding").is_in(list(fits)))
    return Signal(
        table=table,
        groups=group_table,
        calibration=used.select("image_id", "finding", "present", "fold"),
        findings=fits,
        rules=[*finding_rules, *rules],
    )


def _known_truth(dataset: Dataset, reference: Reference) -> pl.DataFrame:
    """Keep the reference's pairs whose film is in the dataset, with the film's row."""
    rows = dataset.images.select("image_id", "patient_id").with_row_index("row")
    truth = reference.truth.join(rows, on="image_id", how="inner", maintain_order="left")
    readers = truth.select(pl.coalesce("patient_id", "image_id")).n_unique()
    if readers < FEWEST_PATIENTS:
        raise UsageError(
            f"--calibrate {reference.kind}: {readers} of its patients are in this dataset, and cross-fitting by "
            f"patient needs {FEWEST_PATIENTS}. Give more expert labels, or audit without --calibrate"
        )
    return truth


def _context(pairs: Pairs, dataset: Dataset, evidence: Evidence | None) -> calibrate.Context:
    """Gather what the designs may use."""
    said = np.nan_to_num(pairs.states)
    views = dataset.images["view"].drop_nulls().value_counts().sort(["count", "view"], descending=[True, False])
    rarer = views["view"].to_list()[1:2]
    view = dataset.images["view"].is_in(rarer).fill_null(value=False).to_numpy().astype(float)
    return calibrate.Context(
        no_finding=(said.sum(axis=1) == 0).astype(float)[:, None],
        view=view[:, None],
        logits=logit(np.nan_to_num(pairs.p_present, nan=0.5)),
        states=said,
        evidence=np.zeros((len(said), 0)) if evidence is None else evidence.astype(float),
    )


def _fit_part(
    part: _Part, truth: pl.DataFrame, context: calibrate.Context, fold: npt.NDArray[np.int64], kind: str
) -> tuple[_Part, dict[str, dict[str, Any]]]:
    """Calibrate each finding that the truth speaks of."""
    p_present, spread = part.p_present.copy(), part.spread.copy()
    fitted, reviewed = part.fitted.copy(), part.reviewed.copy()
    notes, fits = dict(part.notes), {}
    for column, finding in enumerate(part.pairs.findings):
        its = truth.filter(pl.col("finding") == finding)
        rows = its["row"].to_numpy().astype(np.int64)
        answered = ~np.isnan(part.pairs.p_present[rows, column])
        its, rows = its.filter(answered), rows[answered]
        if its.is_empty() or its["present"].n_unique() < 2:
            continue
        done = calibrate.calibrate(
            part.pairs,
            finding,
            context,
            calibrate.Reviewed(rows=rows, present=its["present"].to_numpy(), fold=fold[rows]),
        )
        p_present[:, column], spread[:, column] = done.p_present, done.spread
        fitted[:, column], reviewed[rows, column] = ~np.isnan(done.p_present), True
        notes[finding] = f"calibrated: fitted on {done.n} expert labels of {finding} ({kind})"
        fits[finding] = {"n": done.n, "errors": done.errors, "design": done.design, "penalty": done.penalty}
    return replace(part, p_present=p_present, spread=spread, fitted=fitted, reviewed=reviewed, notes=notes), fits


def _follow(part: _Part, groups: _Part, named: Sequence[Group], fits: Mapping[str, Any]) -> _Part:
    """Give the members of a calibrated group their parts of its probability."""
    p_present, spread, notes = part.p_present.copy(), part.spread.copy(), dict(part.notes)
    fitted, reviewed = part.fitted.copy(), part.reviewed.copy()
    for column, group in enumerate(named):
        if group.name not in fits:
            continue
        members = [part.pairs.column(name) for name in group.members]
        shares = _shares(part.pairs.p_present[:, members], part.pairs.states[:, members] == 1)
        for share, place, member in zip(shares.T, members, group.members, strict=True):
            if member in fits:
                continue
            # Where the group has no answer the member keeps its own, and where it has none itself it gets none.
            its = groups.fitted[:, column] & ~np.isnan(part.pairs.p_present[:, place])
            p_present[its, place] = (share * groups.p_present[:, column])[its]
            spread[its, place] = groups.spread[its, column]
            fitted[:, place] |= its
            reviewed[:, place] |= groups.reviewed[:, column] & its
            labels = f"{fits[group.name]['n']} expert labels"
            notes[member] = f"group: follows from {group.name}, which was fitted on {labels}"
    return replace(part, p_present=p_present, spread=spread, fitted=fitted, reviewed=reviewed, notes=notes)


def _shares(p_present: Matrix, claimed: npt.NDArray[np.bool_]) -> Matrix:
    """Divide a group among its members as the judges divide it; a claimed member shares with the claimed ones only.

    The experts said whether the group is there, not which member: in that, the dataset's word is taken.
    """
    known = np.nan_to_num(p_present)
    rivals = np.where(claimed, known, 0.0).sum(axis=1, keepdims=True)
    total = np.where(claimed, rivals, known.sum(axis=1, keepdims=True))
    return np.asarray(known / np.maximum(total, 1e-12))


Wrong = Mapping[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]]
NO_REVIEW = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool))
"""A member of a calibrated group has no review of its own."""


def _wrong(part: _Part, truth: pl.DataFrame) -> Wrong:
    """List, for each calibrated finding, one reviewed film a patient and whether its claim is wrong."""
    listed = {}
    for column, finding in enumerate(part.pairs.findings):
        its = truth.filter(pl.col("finding") == finding)
        if finding not in part.notes or its.is_empty():
            continue
        said = part.pairs.states[its["row"].to_numpy(), column]
        its = its.with_columns(said=pl.Series(said)).filter(pl.col("said").is_in([0.0, 1.0]))
        shuffled = its[np.random.default_rng(1).permutation(its.height)]
        once = shuffled.with_columns(patient=pl.coalesce("patient_id", "image_id"))
        once = once.unique(["patient", "said"], keep="first", maintain_order=True).sort("row")
        listed[finding] = (once["row"].to_numpy().astype(np.int64), (once["said"] != once["present"]).to_numpy())
    return listed


def _table(part: _Part, dataset: Dataset, wrong: Wrong | None) -> tuple[pl.DataFrame, list[dict[str, Any]]]:
    """Write the part out, one row a claim in the order of films and findings."""
    said = part.pairs.states
    p = np.round(part.p_present, DECIMALS)
    low, high = _interval(p, part.spread)
    present, absent = said == 1, said == 0
    trust = np.where(present, p, np.where(absent, 1 - p, np.nan))
    trust_low = np.where(present, low, np.where(absent, 1 - high, np.nan))
    trust_high = np.where(present, high, np.where(absent, 1 - low, np.nan))
    flagged, rules = _flag(part, trust, trust_high, wrong or {})
    claimed = ~np.isnan(said)
    films, columns = np.nonzero(claimed)
    usual = part.pairs.usual
    stands = np.where(present, part.pairs.p_present >= usual, part.pairs.p_present <= usual)
    agreement = np.where((part.pairs.answered > 0) & (present | absent), stands.astype(float), np.nan)
    table = pl.DataFrame(
        {
            "image_id": part.pairs.image_ids.gather(films),
            "finding": pl.Series(columns.astype(np.uint32)),
            "says": pl.Series(np.select([said[claimed] == 1, said[claimed] == 0], [0, 1], 2).astype(np.uint32)),
            "p_present": p[claimed],
            "trust": trust[claimed],
            "trust_low": trust_low[claimed],
            "trust_high": trust_high[claimed],
            "agreement": agreement[claimed],
            "answered": part.pairs.answered[claimed],
            "flag": pl.Series(flagged[claimed].astype(np.uint32)),
        },
        nan_to_null=True,
    )
    schema = signal_schema(part.pairs.findings)
    named = table.with_columns(
        pl.Series("finding", list(part.pairs.findings), dtype=schema["finding"]).gather(table["finding"]),
        pl.Series("says", SAYS.categories, dtype=SAYS).gather(table["says"]),
        pl.Series("flag", flags.NAMES, dtype=FLAG).gather(table["flag"]),
        _reasons(part, dataset, columns, claimed),
        _method(part, claimed),
        pl.lit("unknown", dtype=DEVICES).alias("devices"),
    )
    return _ranked(named).select(schema.names()).cast(schema), rules


def _interval(p: Matrix, spread: Matrix) -> tuple[Matrix, Matrix]:
    """95 % interval of a probability from the standard deviation of its logit."""
    reach = NORMAL_95 * spread
    low = np.minimum(np.round(sigmoid(logit(p) - reach), DECIMALS), p)
    high = np.maximum(np.round(sigmoid(logit(p) + reach), DECIMALS), p)
    return low, high


def _flag(part: _Part, trust: Matrix, high: Matrix, wrong: Wrong) -> tuple[npt.NDArray[np.int8], list[dict[str, Any]]]:
    """Flag every claim, finding by finding and direction by direction."""
    flagged = np.full(trust.shape, flags.UNJUDGED, dtype=np.int8)
    rules = []
    for column, finding in enumerate(part.pairs.findings):
        for says, state in (("present", 1), ("absent", 0)):
            here = (part.pairs.states[:, column] == state) & ~np.isnan(trust[:, column])
            if finding in part.notes:
                films, errors = wrong.get(finding, NO_REVIEW)
                reviewed = here[films]
                rule = flags.rule_by_review(finding, says, trust[films[reviewed], column], errors[reviewed])
            else:
                rule = flags.rule_by_share(finding, says, trust[here, column])
            flagged[here, column] = flags.apply(rule, trust[here, column], high[here, column])
            rules.append(asdict(rule))
    return flagged, rules


def _reasons(
    part: _Part, dataset: Dataset, columns: npt.NDArray[np.int64], claimed: npt.NDArray[np.bool_]
) -> pl.Series:
    """Gather each claim's reasons, the most telling first."""
    kinds = [
        reasons.timeline_reasons(part.pairs, dataset.images),
        reasons.colabel_reasons(part.pairs),
        reasons.record_reasons(part.pairs),
    ]
    place = np.nonzero(claimed)[0] * claimed.shape[1] + columns
    notes = pl.Series([*(part.notes.get(name) for name in part.pairs.findings), None], dtype=pl.String)
    noted = np.where(part.fitted[claimed], columns, len(part.pairs.findings))
    uncertain, reviewed = part.pairs.states[claimed] == 0.5, part.reviewed[claimed]
    blocks = []
    for start in range(0, len(place), BLOCK):
        block = slice(start, start + BLOCK)
        told = [
            UNCERTAIN.gather(np.where(uncertain[block], 0, 1)),
            *(_interleave(kind, place[block]) for kind in kinds),
            notes.gather(noted[block]),
            REVIEWED.gather(np.where(reviewed[block], 0, 1)),
        ]
        frame = pl.DataFrame([series.alias(str(number)) for number, series in enumerate(told)])
        blocks.append(frame.select(reasons=pl.concat_list(pl.all()).list.drop_nulls()).to_series())
    return pl.concat(blocks) if blocks else pl.Series("reasons", [], dtype=pl.List(pl.String))


def _interleave(by_finding: Sequence[pl.Series], place: npt.NDArray[np.int64]) -> pl.Series:
    """Turn one series a finding into one series film by film, and take the claimed pairs."""
    count, films = len(by_finding), len(by_finding[0])
    film, column = place // count, place % count
    return pl.concat(by_finding).gather(column * films + film)


def _method(part: _Part, claimed: npt.NDArray[np.bool_]) -> pl.Series:
    """Name the signal that made each row; `/crossfit` marks a pair whose own review was left out."""
    which = np.where(part.reviewed, 2, np.where(part.fitted, 1, 0))[claimed]
    return pl.Series("method", [METHOD, f"{METHOD}+experts", f"{METHOD}+experts/crossfit"]).gather(which)


def _ranked(table: pl.DataFrame) -> pl.DataFrame:
    """Rank the claims: the least trusted is read first, unjudged ones last; ties by film and finding."""
    order = table.with_row_index("row").select("row", "trust").sort("trust", "row", nulls_last=True)["row"]
    rank = np.empty(table.height, dtype=np.int64)
    rank[order.to_numpy()] = np.arange(1, table.height + 1)
    return table.with_columns(review_rank=pl.Series(rank))
