"""Two judges compared on the pairs that both were asked: who is right, who errs together, where they differ.

`join` lays their answers beside a yardstick: the dataset's labels, or experts. `quality`, `dependence`, `gaps` and
`behaviour` each turn that into rows, with intervals over patients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bpals.findings import Group
from bpals.numeric import logit
from bpals.score.intervals import Difference, Resamples, average_precision, brier, ece, interval, mean, spread
from bpals.score.skill import Placed
from bpals.types import OUTCOME

Row = dict[str, Any]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

MEAN = "mean"
"""The name of the row that averages over findings."""
FEWEST = 5
"""A figure needs this many patients with the finding, and this many without."""
FIGURES = {
    "auroc": Placed.auroc,
    "ap": average_precision,
    "brier": brier,
    "ece": ece,
}
"""How well a judge ranks images, and how well its raw probability is calibrated."""
LETTERS = "ab"
CELLS = 4
"""Both judges, the first only, the second only, neither."""
JUDGES = 2
MOVED = 0.06
"""Nats. A server may drift this far between two equal requests; an answer that moves less ignores the image."""
LITTLE = 0.9
"""With less probability mass on yes and no than this, the model wanted to say something else."""
BEHAVIOUR = ("yes_rate", "coherent", "acquiescence", "low_mass", "reliance", "depends")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two judges: its answers, and its answer without an image, subject by subject."""

    name: str
    answers: Mapping[str, pl.DataFrame]
    """Finding -> its rows of the judge's table."""
    offsets: Mapping[str, tuple[float, float]]
    """Subject -> mean logit without an image of `present` and of `absent`; empty where the judge has no controls."""

    @classmethod
    def of(cls, name: str, answers: pl.DataFrame, offsets: Mapping[str, tuple[float, float]] | None = None) -> Side:
        """Sort a judge's table by finding."""
        parts = answers.partition_by("finding", as_dict=True, maintain_order=True)
        return cls(name=name, answers={str(key[0]): part for key, part in parts.items()}, offsets=offsets or {})

    def about(self, group: Group) -> pl.DataFrame:
        """Give `image_id, p` of a finding or a group; p is null where it was not answered.

        P(group) = 1 - product of (1 - p) over its members, all of which must be answered.
        """
        tables = [self.answers[member] for member in group.members if member in self.answers]
        its = [table.select("image_id", "p_present") for table in tables]
        if not its:
            return pl.DataFrame(schema={"image_id": pl.String, "p": pl.Float64})
        if len(group.members) == 1:
            return its[0].rename({"p_present": "p"})
        whole = (pl.len() == len(group.members)) & pl.col("p_present").is_not_null().all()
        any_of = 1 - (1 - pl.col("p_present")).product()
        return pl.concat(its).group_by("image_id", maintain_order=True).agg(p=pl.when(whole).then(any_of))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """The pairs of one finding that both judges were asked, image by image."""

    finding: str
    table: pl.DataFrame
    """image_id, patient (a number), p_a and p_b (null where not answered), truth (null where unknown)."""

    @property
    def known(self) -> pl.DataFrame:
        """The pairs whose truth the yardstick knows."""
        return self.table.drop_nulls("truth")

    @property
    def answered(self) -> pl.DataFrame:
        """The pairs that both answered."""
        return self.table.drop_nulls(["p_a", "p_b"])

    @property
    def scored(self) -> pl.DataFrame:
        """The pairs that both answered and the yardstick knows."""
        return self.table.drop_nulls(["p_a", "p_b", "truth"])


def join(group: Group, a: Side, b: Side, truth: pl.DataFrame) -> Pairs:
    """Lay two judges' answers about a finding, or a group, beside the yardstick: `image_id, patient, truth`."""
    sides = [side.about(group).rename({"p": f"p_{letter}"}) for letter, side in zip(LETTERS, (a, b), strict=True)]
    table = sides[0].join(sides[1], on="image_id", how="inner", maintain_order="left")
    return Pairs(finding=group.name, table=table.join(truth, on="image_id", how="inner", maintain_order="left"))


def quality(several: Sequence[Pairs], against: str) -> list[Row]:
    """Score both against the yardstick on the pairs that both answered, with paired differences, and their mean."""
    rows, placed = [], []
    for pairs in several:
        both = pairs.scored
        figures = _placed(both, list(FIGURES))
        placed += [figures] if figures else []
        counts = {"n": both.height, "positives": int(both["truth"].sum())}
        row = {"finding": pairs.finding, "against": against, **counts, "left_out": pairs.known.height - both.height}
        filled = _placed(_filled(pairs), ["auroc"]).get("auroc")
        rows.append(row | _written(figures) | _difference("auroc_difference_filled", filled))
    rows = holm(rows)
    if len(placed) > 1:
        means = {}
        for name in FIGURES:
            a, b = zip(*(figures[name] for figures in placed), strict=True)
            means[name] = mean(a), mean(b)
        rows.append({"finding": MEAN, "against": against, "findings": len(placed), **_written(means)})
    return rows


Both = tuple[Placed, Placed]
"""A figure of each judge."""


def _placed(table: pl.DataFrame, names: Sequence[str]) -> dict[str, Both]:
    """Work figures out for both judges; none where too few patients have the finding, or have it not."""
    truth = table["truth"].to_numpy().astype(np.bool_)
    patients: NDArray[Any] = table["patient"].to_numpy()
    # Patients, not images: five images of one patient are one observation.
    if min(len(np.unique(patients[truth])), len(np.unique(patients[~truth]))) < FEWEST:
        return {}
    a, b = (table[f"p_{letter}"].to_numpy() for letter in LETTERS)
    return {name: (FIGURES[name](a, truth, patients), FIGURES[name](b, truth, patients)) for name in names}


def _filled(pairs: Pairs) -> pl.DataFrame:
    """Give all pairs, with the judge's mean for what it did not answer.

    A refusal is no accident: a judge that leaves out what is hard would else look better than it is.
    """
    known = pairs.known
    return known.with_columns(pl.col("p_a", "p_b").fill_null(pl.col("p_a", "p_b").mean())).drop_nulls(["p_a", "p_b"])


def _written(figures: Mapping[str, Both]) -> Row:
    """Write every figure of both with its interval, and what A has more than B; null where there is none."""
    row: Row = {}
    for name in FIGURES:
        both = figures.get(name)
        for letter, one in zip(LETTERS, both or (None, None), strict=True):
            row |= spread(f"{name}_{letter}", *(() if one is None else (one.value, *one.interval)))
        row |= _difference(f"{name}_difference", both)
    return row | {"p_value": Difference.of(*figures["auroc"]).p_value if figures else None}


def _difference(name: str, both: Both | None) -> Row:
    if both is None:
        return spread(name)
    found = Difference.of(*both)
    return spread(name, found.value, found.low, found.high)


def holm(rows: list[Row]) -> list[Row]:
    """Correct the p-values of the paired differences of AUROC for the number of findings, after Holm."""
    tested = sorted((row for row in rows if row["p_value"] is not None), key=lambda row: float(row["p_value"]))
    corrected: dict[str, float] = {}
    # Holm: a corrected p-value is never below that of a smaller one.
    highest = 0.0
    for place, row in enumerate(tested):
        highest = max(highest, min(1.0, (len(tested) - place) * float(row["p_value"])))
        corrected[row["finding"]] = highest
    return [{**row, "p_holm": corrected.get(row["finding"])} for row in rows]


def dependence(several: Sequence[Pairs], against: str, resamples: Resamples) -> list[Row]:
    """Say for each finding, and for their mean, how alike the two call and how often they err together."""
    rows: list[Row] = [{"finding": pairs.finding, "against": against, "n": pairs.scored.height} for pairs in several]
    sums = [_dependence_sums(pairs, resamples) for pairs in several]
    if not sums:
        return []
    totals = resamples.totals(np.hstack(sums)).reshape(len(resamples.counts) + 1, len(sums), JUDGES, CELLS)
    calls, wrong = totals[:, :, 0], totals[:, :, 1]
    figures = {"agreement": _alike(calls), "kappa": _kappa(calls), "error_correlation": _phi(wrong)}
    for place, row in enumerate(rows):
        row.update(_with_intervals({name: values[:, place] for name, values in figures.items()}))
    if len(rows) > 1:
        means = {name: _mean_of_findings(values) for name, values in figures.items()}
        known = int((~np.isnan(figures["error_correlation"][0])).sum())
        rows.append({"finding": MEAN, "against": against, "findings": known, **_with_intervals(means)})
    return rows


def only_with_signal(together: Sequence[Row], right: Sequence[Row]) -> list[Row]:
    """Give the rows of `dependence` a worth only where both judges have a signal, by the rows of `quality`.

    The errors of a judge that guesses hardly correlate with anybody's, so the formula would call it a whole judge.
    `no_signal` names who has none: `a`, `b` or both. The mean needs a finding with a signal, and a mean AUROC above .5.
    """
    rows = []
    for row in together:
        scored = [each for each in right if each["against"] == row["against"] and each["auroc_a"] is not None]
        findings = [each for each in scored if row["finding"] in (MEAN, each["finding"]) and each["finding"] != MEAN]
        # The mean comes last; where only one finding could be scored, that one stands for it.
        own = scored[-1:] if row["finding"] == MEAN else findings
        lacks = [letter for letter in LETTERS if own and not (_above(own, letter) and _above(findings, letter))]
        worth = row["effective_judges"] if own and not lacks else None
        rows.append({**row, "no_signal": lacks, "effective_judges": worth})
    return rows


def _above(rows: Sequence[Row], letter: str) -> bool:
    """Whether an AUROC of a judge lies above chance with its whole interval."""
    return any(row[f"auroc_{letter}_low"] > 0.5 for row in rows)


def called(p: Floats, count: int) -> Bools:
    """Call the finding on the `count` images with the highest scores, and on those tied with the last of them."""
    if count == 0:
        return np.zeros(len(p), dtype=np.bool_)
    return np.asarray(p >= np.partition(p, len(p) - count)[len(p) - count])


def _dependence_sums(pairs: Pairs, resamples: Resamples) -> Floats:
    """Count, patient by patient, who called and who was wrong: four cells each."""
    both = pairs.scored
    truth = both["truth"].to_numpy().astype(np.bool_)
    calls = [called(both[f"p_{letter}"].to_numpy(), int(truth.sum())) for letter in LETTERS]
    wrong = [call != truth for call in calls]
    return resamples.add_up(both["patient"].to_numpy(), [*_cells(*calls), *_cells(*wrong)])


def _cells(first: Bools, second: Bools) -> list[Bools]:
    return [first & second, first & ~second, ~first & second, ~first & ~second]


def _with_intervals(figures: dict[str, Floats]) -> Row:
    """Give each figure with its interval, and how many independent judges two that err together so far are worth."""
    row = _with_ends(figures)
    rho = row["error_correlation"]
    # Kish: n judges whose errors correlate by rho carry n / (1 + (n - 1) rho); below 0 they are no more than two.
    return row | {"effective_judges": None if rho is None else JUDGES / (1 + (JUDGES - 1) * max(rho, 0.0))}


def _mean_of_findings(values: Floats) -> Floats:
    """Average over the findings that have the figure."""
    known = values[:, ~np.isnan(values[0])]
    return np.asarray(known.mean(axis=1)) if known.shape[1] else np.full(len(values), np.nan)


def _alike(cells: Floats) -> Floats:
    return _over(cells[..., 0] + cells[..., 3], cells.sum(axis=-1))


def _kappa(cells: Floats) -> Floats:
    """Cohen: agreement beyond what the two rates of calling give by chance."""
    whole = cells.sum(axis=-1)
    both, one, other, neither = np.moveaxis(cells, -1, 0)
    chance = _over((both + one) * (both + other) + (other + neither) * (one + neither), whole**2)
    return _over(_alike(cells) - chance, 1 - chance)


def _phi(cells: Floats) -> Floats:
    """Correlation of two yes/no columns."""
    both, one, other, neither = np.moveaxis(cells, -1, 0)
    spread = np.sqrt((both + one) * (other + neither) * (both + other) * (one + neither))
    return _over(both * neither - one * other, spread)


def gaps(several: Sequence[Pairs]) -> pl.DataFrame:
    """Rank the images of each finding as either judge does, and say who calls it.

    A judge calls a finding on as large a share of images as the yardstick does, those that it ranks highest. Columns:
    image_id, patient, truth, p_a, p_b, finding, rank_a, rank_b, called_a, called_b, gap (rank_a - rank_b).
    """
    return pl.concat([_ranked(pairs) for pairs in several])


def _ranked(pairs: Pairs) -> pl.DataFrame:
    both = pairs.answered.select("image_id", "patient", "truth", "p_a", "p_b")
    ranks = {f"rank_{letter}": (pl.col(f"p_{letter}").rank("average") - 0.5) / pl.len() for letter in LETTERS}
    share = both["truth"].mean()
    # Both judges call equally often, or the one that says yes more often would look more sensitive.
    edge = 1 - (float(share) if isinstance(share, float) else 0.0)
    return both.with_columns(finding=pl.lit(pairs.finding), **ranks).with_columns(
        called_a=pl.col("rank_a") > edge,
        called_b=pl.col("rank_b") > edge,
        gap=pl.col("rank_a") - pl.col("rank_b"),
    )


def by_film(gaps: pl.DataFrame) -> pl.DataFrame:
    """Give every image with the finding on which the two differ most: one calls it, and the gap is the widest."""
    one_calls = pl.col("called_a") != pl.col("called_b")
    down = [True, True, False, False]
    widest = gaps.sort(one_calls, pl.col("gap").abs(), "image_id", "finding", descending=down)
    return widest.unique("image_id", keep="first", maintain_order=True)


def by_finding(gaps: pl.DataFrame) -> dict[str, float]:
    """Give the mean gap of each finding."""
    return dict(gaps.group_by("finding", maintain_order=True).agg(pl.col("gap").abs().mean()).iter_rows())


def by_patient(gaps: pl.DataFrame, count: int) -> pl.DataFrame:
    """List the patients who add most to the disagreement: the sum of their gaps beyond the usual gap."""
    beyond = pl.col("gap").abs() - pl.col("gap").abs().mean()
    totals = {"mean_gap": pl.col("gap").abs().mean(), "beyond": pl.col("beyond").sum()}
    patients = gaps.with_columns(beyond=beyond).group_by("patient")
    found = patients.agg(films=pl.col("image_id").n_unique(), pairs=pl.len(), **totals)
    return found.sort(["beyond", "patient"], descending=[True, False]).head(count)


def behaviour(
    side: Side, findings: Sequence[str], films: pl.DataFrame, resamples: Resamples, draw: np.random.Generator
) -> list[Row]:
    """Say for each finding, and for their mean, how one judge answers; `films`: image_id, patient (a number)."""
    rows: list[Row] = []
    sums = []
    for finding in findings:
        its = side.answers.get(finding)
        known = pl.DataFrame() if its is None else its.join(films, on="image_id", how="inner", maintain_order="left")
        counts = _counts(known)
        offset = side.offsets.get(finding)
        rows.append({"judge": side.name, "finding": finding, **counts, "p_without_film": _without(offset)})
        answered = known.filter(pl.col("outcome") == "answered") if counts["answered"] else None
        sums.append(_behaviour_sums(answered, offset, draw, resamples))
    totals = resamples.totals(np.hstack(sums)).reshape(len(resamples.counts) + 1, len(rows), len(BEHAVIOUR), 2)
    values = _over(totals[..., 0], totals[..., 1])
    for place, row in enumerate(rows):
        row.update(_with_ends(dict(zip(BEHAVIOUR, values[:, place].T, strict=True))))
    means = dict(zip(BEHAVIOUR, _behaviour_mean(values).T, strict=True))
    return [*rows, {"judge": side.name, "finding": MEAN, **_with_ends(means)}]


def _counts(its: pl.DataFrame) -> dict[str, int]:
    """Count the questions by outcome."""
    outcomes = its["outcome"].cast(pl.String) if its.height else pl.Series(dtype=pl.String)
    counted = dict(outcomes.alias("outcome").value_counts().iter_rows())
    return {"asked": its.height, **{outcome: counted.get(outcome, 0) for outcome in OUTCOME.categories}}


def _without(offset: tuple[float, float] | None) -> float | None:
    """The probability that it gives without an image."""
    return None if offset is None else float(1 / (1 + np.exp(-(offset[0] - offset[1]) / 2)))


def _behaviour_sums(
    its: pl.DataFrame | None, offset: tuple[float, float] | None, draw: np.random.Generator, resamples: Resamples
) -> Floats:
    """Add up each figure and how many images have it, patient by patient."""
    if its is None:
        return np.zeros((resamples.counts.shape[1], 2 * len(BEHAVIOUR)))
    patient = its["patient"].to_numpy()
    figures = _figures(its, patient, offset, draw)
    columns = [column for name in BEHAVIOUR for column in (np.nan_to_num(figures[name]), ~np.isnan(figures[name]))]
    return resamples.add_up(patient, columns)


def _figures(
    its: pl.DataFrame, patient: Ints, offset: tuple[float, float] | None, draw: np.random.Generator
) -> dict[str, Floats]:
    """One value per image for each figure; NaN where the judge has no such answer."""
    p = its["p_present"].to_numpy()
    evidence = logit(p)
    without = offset or (np.nan, np.nan)
    present, absent = (
        its[f"logit_{polarity}"].cast(pl.Float64).to_numpy() - habit
        for polarity, habit in zip(("present", "absent"), without, strict=True)
    )
    both = ~np.isnan(present) & ~np.isnan(absent)
    moved = np.abs(evidence - of_another_patient(evidence, patient, draw))
    mass = its["mass"].cast(pl.Float64).to_numpy()
    return {
        "yes_rate": (p >= 0.5).astype(np.float64),
        "coherent": np.where(both, (present > 0) != (absent > 0), np.nan),
        "acquiescence": (present + absent) / 2,
        "low_mass": np.where(np.isnan(mass), np.nan, mass < LITTLE),
        "reliance": moved,
        "depends": np.where(np.isnan(moved), np.nan, moved > MOVED),
    }


def of_another_patient(values: Floats, patient: Ints, draw: np.random.Generator) -> Floats:
    """Give each image the value of an image of another patient, drawn at random; NaN if there is none."""
    order = draw.permutation(len(values))
    # Sorted by patient, a shift by the most images of one patient lands on another, unless one has more than half.
    order = order[np.argsort(patient[order], kind="stable")]
    shift = int(np.bincount(patient).max())
    other = np.empty(len(values))
    other[order] = np.where(patient[order] == np.roll(patient[order], shift), np.nan, np.roll(values[order], shift))
    return other


def _behaviour_mean(values: Floats) -> Floats:
    """Average each figure over the findings that have it."""
    here = ~np.isnan(values[:1])
    return _over(np.where(here, values, 0.0).sum(axis=1), np.broadcast_to(here.sum(axis=1), values[:, 0].shape))


def _with_ends(figures: Mapping[str, Floats]) -> Row:
    """Give each figure with its interval: the first value is the figure itself, the others are draws of it."""
    row: Row = {}
    for name, values in figures.items():
        row |= spread(name, None if np.isnan(values[0]) else float(values[0]), *interval(values[1:]))
    return row


def _over(above: Floats, below: Floats) -> Floats:
    """Divide; NaN where there is nothing to divide by."""
    return np.asarray(np.divide(above, below, out=np.full(np.shape(above), np.nan), where=below > 0))
