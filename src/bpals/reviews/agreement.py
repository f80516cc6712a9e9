"""Agreement of readers, and of judges with readers: how often they give the same verdict, and how far beyond chance.

Cohen        two of them, each with its own rate of calling
Fleiss       any number, one pooled rate
Krippendorff any number, missing reads, categories in an order if they have one
Gwet         AC1: chance as it would be where agreeing is hard, which stays sensible where a finding is rare
specific     positive and negative agreement: where one reader gives a verdict, how often another gives it too

All of them are made of sums over pairs of image and finding, so patients can be drawn whole, again and again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.numeric import PAIR, majority, patients
from bpals.reviews.verdicts import DEFINITE

Floats = npt.NDArray[np.float64]
Row = dict[str, Any]

# In this order a hedge lies between the two; an unreadable film is no read of the finding.
GRADES = ("absent", "uncertain", "present")
OTHERS = "the others"
MAJORITY = "majority"
MEAN = "mean"
CELLS = 2_000_000  # counts held at once while patients are drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """How often patients are drawn for an interval, and from which seed."""

    draws: int = 1000
    seed: int = 0


def cohen(cells: Floats) -> Floats:
    """Cohen's kappa of tables `(..., first says, second says)`."""
    whole = cells.sum(axis=(-2, -1))
    alike = _over(np.trace(cells, axis1=-2, axis2=-1), whole)
    chance = _over((cells.sum(axis=-1) * cells.sum(axis=-2)).sum(axis=-1), whole**2)
    return _over(alike - chance, 1 - chance)


def fleiss(alike: Floats, shares: Floats) -> Floats:
    """Fleiss' kappa from the share of reads that agree and the share of each category, `(..., category)`."""
    chance = (shares**2).sum(axis=-1)
    return _over(alike - chance, 1 - chance)


def gwet(alike: Floats, shares: Floats) -> Floats:
    """Gwet's AC1 from the same."""
    chance = (shares * (1 - shares)).sum(axis=-1) / (shares.shape[-1] - 1)
    return _over(alike - chance, 1 - chance)


def krippendorff(coincidences: Floats, *, ordinal: bool = False) -> Floats:
    """Krippendorff's alpha of coincidences `(..., one says, another says)`."""
    held = coincidences.sum(axis=-1)
    whole = held.sum(axis=-1)
    apart = _distance(held) if ordinal else 1.0 - np.eye(held.shape[-1])
    seen = (coincidences * apart).sum(axis=(-2, -1))
    expected = _over((held[..., :, None] * held[..., None, :] * apart).sum(axis=(-2, -1)), whole - 1)
    return 1 - _over(seen, expected)


def _distance(held: Floats) -> Floats:
    """Square the reads that lie between two grades, half of each grade itself included."""
    upto = np.cumsum(held, axis=-1)
    middle = upto - held / 2
    return np.asarray((middle[..., :, None] - middle[..., None, :]) ** 2)


def specific(coincidences: Floats) -> Floats:
    """Give for each category how often another reader says it too, `(..., category)`."""
    return _over(np.diagonal(coincidences, axis1=-2, axis2=-1), coincidences.sum(axis=-1))


def among(reads: pl.DataFrame, images: pl.DataFrame, bootstrap: Bootstrap) -> list[Row]:
    """Say how far the readers of a pair agree, one row per finding and their mean.

    `reads` are REVIEWS. All figures but `alpha_ordinal` leave hedges out. Pairs with one read say nothing.
    """
    definite, graded = _counted(reads, DEFINITE), _counted(reads, GRADES)
    findings = graded["group"].unique(maintain_order=True).to_list()
    figures = _of_items(_drawn(definite, _items(definite, DEFINITE), findings, images, bootstrap), len(DEFINITE))
    hedged = _of_items(_drawn(graded, _items(graded, GRADES), findings, images, bootstrap), len(GRADES))
    figures["alpha_ordinal"] = hedged["alpha_ordinal"]
    rows: list[Row] = []
    for place, finding in enumerate(findings):
        its = definite.filter(pl.col("group") == finding)
        readers = reads.filter(pl.col("finding") == finding)["reader"].n_unique()
        counts = {"n": its.height, "reads": int(its["reads"].sum()), "readers": readers}
        own = _with_intervals({name: each[:, place] for name, each in figures.items()})
        rows.append({"finding": finding, **counts, **own})
    if len(rows) > 1:
        counts = {name: sum(row[name] for row in rows) for name in ("n", "reads")}
        mean = _with_intervals({name: _mean(each) for name, each in figures.items()})
        rows.append({"finding": MEAN, **counts, **mean})
    return rows


def against_the_others(reads: pl.DataFrame) -> pl.DataFrame:
    """Set each definite read beside what most of the other readers of the pair say, unless they split evenly."""
    definite = _definite(reads).with_columns(yes=(pl.col("verdict") == "present").cast(pl.Int64))
    others = definite.with_columns(
        votes=2 * (pl.col("yes").sum().over(PAIR) - pl.col("yes")) - (pl.len().over(PAIR).cast(pl.Int64) - 1)
    )
    settled = others.filter(pl.col("votes") != 0)
    return settled.select(
        *PAIR, first="reader", second=pl.lit(OTHERS), says=pl.col("yes") == 1, other=pl.col("votes") > 0
    )


def majority_reader(reads: pl.DataFrame) -> pl.DataFrame:
    """Make one reader of all: the verdict of most of them on each pair, and none where they split evenly."""
    verdict = pl.when("present").then(pl.lit("present")).otherwise(pl.lit("absent"))
    return majority(reads).filter(~pl.col("tied")).select(*PAIR, reader=pl.lit(MAJORITY), verdict=verdict)


def side_by_side(some: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """Set each definite read of some beside each of others about the same pair."""
    first = _definite(some).select(*PAIR, first="reader", says=pl.col("verdict") == "present")
    second = _definite(others).select(*PAIR, second="reader", other=pl.col("verdict") == "present")
    return first.join(second, on=PAIR, how="inner", maintain_order="left").select(
        *PAIR, "first", "second", "says", "other"
    )


def between(pairs: pl.DataFrame, images: pl.DataFrame, bootstrap: Bootstrap) -> list[Row]:
    """Say how far two raters agree: one row per first, second and finding, and one for their mean over findings.

    `pairs` are of `side_by_side` or `against_the_others`.
    """
    keys = pairs.select("first", "second", "finding").unique(maintain_order=True)
    places = keys.with_row_index("group")
    placed = pairs.join(places, on=["first", "second", "finding"], how="left", maintain_order="left")
    says, other = placed["says"].to_numpy(), placed["other"].to_numpy()
    cells = np.stack([~says & ~other, ~says & other, says & ~other, says & other], axis=1).astype(np.float64)
    totals = _drawn(placed, cells, list(range(keys.height)), images, bootstrap)
    figures = _of_two(totals.reshape(*totals.shape[:2], len(DEFINITE), len(DEFINITE)))
    rows: list[Row] = []
    for (first, second), part in places.group_by("first", "second", maintain_order=True):
        of = part["group"].to_numpy()
        sizes = totals[0, of].sum(axis=-1).astype(int).tolist()
        for place, size, finding in zip(of, sizes, part["finding"], strict=True):
            own = _with_intervals({name: each[:, place] for name, each in figures.items()})
            rows.append({"finding": finding, "first": first, "second": second, "n": size, **own})
        if len(of) > 1:
            mean = _with_intervals({name: _mean(each[:, of]) for name, each in figures.items()})
            rows.append({"finding": MEAN, "first": first, "second": second, "n": sum(sizes), **mean})
    return rows


def _definite(reads: pl.DataFrame) -> pl.DataFrame:
    return reads.filter(pl.col("verdict").cast(pl.String).is_in(list(DEFINITE)))


def _counted(reads: pl.DataFrame, grades: Sequence[str]) -> pl.DataFrame:
    """Count the verdicts of each pair that several readers read."""
    verdict = pl.col("verdict").cast(pl.String)
    each = [(verdict == grade).sum().cast(pl.Float64).alias(grade) for grade in grades]
    pairs = reads.filter(verdict.is_in(list(grades))).group_by(PAIR, maintain_order=True).agg(*each, reads=pl.len())
    return pairs.filter(pl.col("reads") > 1).rename({"finding": "group"})


def _items(counted: pl.DataFrame, grades: Sequence[str]) -> Floats:
    """Give what each pair adds: itself, how far its readers agree, the shares of the grades, the coincidences."""
    counts = counted.select(grades).to_numpy()
    reads = counts.sum(axis=1, keepdims=True)
    together = counts[:, :, None] * counts[:, None, :] - counts[:, :, None] * np.eye(len(grades))
    coincidences = (together / (reads - 1)[:, :, None]).reshape(len(counts), len(grades) ** 2)
    alike = (counts * (counts - 1)).sum(axis=1, keepdims=True) / (reads * (reads - 1))
    return np.concatenate([np.ones_like(alike), alike, counts / reads, coincidences], axis=1)


def _of_items(totals: Floats, grades: int) -> dict[str, Floats]:
    """Work the figures out of `(draw, finding, column)` sums of items."""
    items, alike, rest = totals[..., 0], totals[..., 1], totals[..., 2:]
    agreement, shares = _over(alike, items), _over(rest[..., :grades], items[..., None])
    coincidences = rest[..., grades:].reshape(*items.shape, grades, grades)
    kinds = {"fleiss": fleiss(agreement, shares), "alpha": krippendorff(coincidences)}
    kinds["alpha_ordinal"] = krippendorff(coincidences, ordinal=True)
    return {"agreement": agreement, **kinds, "ac1": gwet(agreement, shares), **_by_side(coincidences)}


def _of_two(cells: Floats) -> dict[str, Floats]:
    """Work the figures out of `(draw, group, first says, second says)` counts."""
    coincidences = cells + np.swapaxes(cells, -2, -1)
    whole = cells.sum(axis=(-2, -1))
    agreement = _over(np.trace(cells, axis1=-2, axis2=-1), whole)
    shares = _over(coincidences.sum(axis=-1) / 2, whole[..., None])
    kinds = {"kappa": cohen(cells), "alpha": krippendorff(coincidences), "ac1": gwet(agreement, shares)}
    return {"agreement": agreement, **kinds, **_by_side(coincidences)}


def _by_side(coincidences: Floats) -> dict[str, Floats]:
    each = specific(coincidences)
    return {"positive": each[..., -1], "negative": each[..., 0]}


def _drawn(
    table: pl.DataFrame, columns: Floats, groups: Sequence[Any], images: pl.DataFrame, bootstrap: Bootstrap
) -> Floats:
    """Add the columns up by group, once over all patients and then over each draw: `(1 + draws, group, column)`."""
    if table.is_empty():
        return np.zeros((1 + bootstrap.draws, len(groups), columns.shape[1]))
    known = pl.DataFrame({"image_id": images["image_id"], "patient": patients(images)})
    named = table.select("image_id", "group").join(known, on="image_id", how="left", maintain_order="left")
    who = named.select(pl.coalesce("patient", "film:" + pl.col("image_id")).rank("dense")).to_series().to_numpy() - 1
    place = named["group"].replace_strict(list(groups), range(len(groups)), return_dtype=pl.Int64).to_numpy()
    many, width = int(who.max()) + 1, len(groups)
    where = who.astype(np.int64) * width + place
    sums = np.stack([np.bincount(where, weights=column, minlength=many * width) for column in columns.T], axis=-1)
    sums = sums.reshape(many, width * columns.shape[1])
    rng, step = np.random.default_rng(bootstrap.seed), max(1, CELLS // many)
    parts = [sums.sum(axis=0, keepdims=True)]
    for start in range(0, bootstrap.draws, step):
        drawn = rng.multinomial(many, np.full(many, 1 / many), size=min(step, bootstrap.draws - start))
        parts.append(drawn.astype(np.float64) @ sums)
    return np.concatenate(parts).reshape(-1, width, columns.shape[1])


def _with_intervals(figures: Mapping[str, Floats]) -> Row:
    """Give each figure with the middle 95 % of its draws; what is not defined is None."""
    row: Row = {}
    for name, (value, *draws) in figures.items():
        row |= {name: None, f"{name}_low": None, f"{name}_high": None}
        if np.isnan(value):
            continue
        row[name] = float(value)
        # Draws in which a figure is not defined, such as one with a single verdict, say nothing about its spread.
        defined = np.array(draws)[~np.isnan(draws)]
        if len(defined):
            row[f"{name}_low"], row[f"{name}_high"] = map(float, np.quantile(defined, [0.025, 0.975]))
    return row


def _mean(values: Floats) -> Floats:
    known = values[:, ~np.isnan(values[0])]
    return np.asarray(known.mean(axis=1)) if known.shape[1] else np.full(len(values), np.nan)


def _over(above: Floats, below: Floats) -> Floats:
    above, below = np.broadcast_arrays(above, below)
    return np.asarray(np.divide(above, below, out=np.full(above.shape, np.nan), where=below > 0))
