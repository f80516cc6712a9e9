"""Does the interval of `bpals rate` cover, and how wide is it? Simulated datasets, drawn from and read again and again.

python benchmarks/rate_coverage.py            2,000 repetitions a cell, about three quarters of an hour of one core
python benchmarks/rate_coverage.py --quick    200, about two minutes

Each cell of a table is coverage / mean width over that of Clopper and Pearson on a simple random sample of the same
size. The dataset is fixed; what is drawn from it is random, as it is for a user. Two more tables follow, of 200
repetitions: the rate corrected for the readers' own errors, by finding and pooled; and the interval that holds at any
time, by group of patients, looked at after every read.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bpals.signal.bounds import Strata, binomial, clopper_pearson, interval
from bpals.signal.rates import Corrected, corrected, together, watch
from bpals.signal.strata import STRATA, SUSPECT_SHARE, allocate, draw, stratify

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RATES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.3)
READS = (50, 100, 200, 300, 500, 1000)
FEWER_RATES = (0.002, 0.02, 0.1, 0.3)
FEWER_READS = (50, 100, 300, 1000)
NOMINAL, LEAST = 0.95, 0.94
NARROWER_FROM = 300
AT_MOST = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a simulated dataset is like."""

    name: str
    dice: int
    """Which stream of random numbers it gets, so that a world that is added changes no other."""
    films: int = 112_120
    presences: float = 0.05
    """Share of the claims that say present."""
    times: float = 6.0
    """How much likelier a presence is to be wrong than an absence."""
    auroc: float = 0.85
    """How well the suspicion tells wrong claims from right ones of the same kind."""
    predicted: float = 1.0
    """By what the predicted error rates are off."""
    patients: int = 1
    """Mean number of films a patient."""
    icc: float = 0.0
    """Correlation of errors within a patient."""
    main: bool = False
    """Whether every rate and number of reads is tried, and the width held against its limits."""


WORLDS = (
    World(name="suspicion of AUROC .85", dice=22, main=True),
    World(
        name="the same, films of a patient wrong together (mean 4 films, correlation .3)", dice=74, patients=4, icc=0.3
    ),
    World(name="the same, a dataset of 2,000 films", dice=34, films=2_000),
    World(name="presences 1 in 500", dice=18, presences=0.002),
    World(name="suspicion without skill (AUROC .5)", dice=34, auroc=0.5),
    World(name="predicted error rates 4 times too high", dice=38, predicted=4.0),
    World(name="predicted error rates 4 times too low", dice=37, predicted=0.25),
)


@dataclass(frozen=True, slots=True)
class Made:
    """A dataset: its strata, and how many of each are wrong."""

    size: Ints
    wrong: Ints
    suspicion: Floats

    @property
    def rate(self) -> float:
        """The share that is wrong: what the interval is to cover."""
        return float(self.wrong.sum() / self.size.sum())


def make(world: World, rate: float, dice: np.random.Generator) -> Made:
    """Make a dataset with about this error rate, and put its claims into the strata of bpals."""
    says_present = dice.random(world.films) < world.presences
    of_presence = min(rate * world.times / (world.presences * world.times + 1 - world.presences), 0.6)
    of_absence = (rate - world.presences * of_presence) / (1 - world.presences)
    chance = np.where(says_present, of_presence, of_absence)
    wrong = _wrong(world, chance, dice)
    apart = math.sqrt(2) * NormalDist().inv_cdf(world.auroc)
    seen = dice.normal(size=world.films) + apart * wrong
    odds = chance / (1 - chance) * np.exp(apart * seen - apart**2 / 2)
    suspicion = np.clip(odds / (1 + odds) * world.predicted, 0.0, 0.99)
    absences = np.flatnonzero(~says_present)
    ordered = absences[np.argsort(-suspicion[absences], kind="stable")]
    suspects = math.ceil(SUSPECT_SHARE * len(absences))
    parts = [np.flatnonzero(says_present), ordered[:suspects], ordered[suspects:]]
    parts = [part for part in parts if len(part)]
    return Made(
        np.array([len(part) for part in parts]),
        np.array([int(wrong[part].sum()) for part in parts]),
        np.array([float(suspicion[part].mean()) for part in parts]),
    )


def _wrong(world: World, chance: Floats, dice: np.random.Generator) -> NDArray[np.bool_]:
    """Make claims wrong; within a patient some films share one draw, so that errors correlate by `icc`."""
    own = dice.random(world.films)
    if world.patients == 1:
        return np.asarray(own < chance)
    films = dice.geometric(1 / world.patients, size=world.films)
    patient = np.repeat(np.arange(len(films)), films)[: world.films]
    shared = dice.random(len(films))[patient]
    together = dice.random(world.films) < math.sqrt(world.icc)
    return np.asarray(np.where(together, shared, own) < chance)


def cell(world: World, rate: float, reads: int, repetitions: int, seed: int) -> tuple[float, float]:
    """Give the share of intervals that cover, and their mean width over Clopper and Pearson's."""
    dice = np.random.default_rng([seed, int(rate * 10_000), reads, world.dice])
    made = make(world, rate, dice)
    counts = allocate(made.size, made.suspicion, reads)
    told: dict[tuple[int, ...], tuple[bool, float]] = {}
    covered, width = 0, 0.0
    for drawn in dice.hypergeometric(made.wrong, made.size - made.wrong, counts, size=(repetitions, len(counts))):
        key = tuple(drawn.tolist())
        if key not in told:
            found = interval(Strata(made.size, counts, drawn))
            told[key] = (found.low <= made.rate <= found.high, found.width)
        covered += told[key][0]
        width += told[key][1]
    return covered / repetitions, width / repetitions / plain_width(made.rate, reads)


def plain_width(rate: float, reads: int) -> float:
    """Give the mean width of Clopper and Pearson's interval on a simple random sample."""
    chance = binomial(reads, rate)
    ends = {x: clopper_pearson(x, reads) for x in np.flatnonzero(chance > 1e-6).tolist()}
    return sum(float(chance[x]) * (high - low) for x, (low, high) in ends.items())


def simulate(world: World, cells: tuple[Sequence[float], Sequence[int]], repetitions: int, seed: int) -> list[str]:
    """Print one table, a row an error rate and a column a number of reads, and give what it breaks."""
    rates, reads = cells
    print(f"\n{world.name}\n\n| error rate | {' | '.join(f'n = {n:,}' for n in reads)} |")
    print(f"|---|{'---|' * len(reads)}")
    broken = []
    # Chance alone takes a share of the coverage: below the limit by three standard errors is below the limit.
    allowed = LEAST - 3 * math.sqrt(LEAST * (1 - LEAST) / repetitions) if repetitions < 1000 else LEAST
    for rate in rates:
        row = [cell(world, rate, n, repetitions, seed) for n in reads]
        print(f"| {rate:g} | {' | '.join(f'{c:.3f} / {w:.3f}' for c, w in row)} |", flush=True)
        for n, (covered, width) in zip(reads, row, strict=True):
            place = f"{world.name}, rate {rate:g}, n = {n}"
            limit = AT_MOST if n >= NARROWER_FROM else 1.0
            broken += [f"{place}: coverage {covered:.3f}"] if covered < allowed else []
            broken += [f"{place}: width {width:.3f}, above {limit}"] if world.main and width > limit else []
    return broken


@dataclass(frozen=True, slots=True)
class Skilled:
    """Three findings that two readers read, each pair by both, to be pooled."""

    presences: tuple[float, ...]
    rates: tuple[float, ...]
    sensitivity: float
    specificity: float


SKILLED = (
    Skilled((0.05, 0.1, 0.2), (0.02, 0.05, 0.1), 0.9, 0.97),
    Skilled((0.05, 0.1, 0.2), (0.05, 0.1, 0.3), 0.8, 0.95),
)


def doubly_read(made: Made, counts: Ints, readers: Skilled, dice: np.random.Generator) -> Corrected:
    """Draw pairs, let two readers read each of them, and correct the rate."""
    rows = []
    for place, (n, wrong) in enumerate(
        zip(counts, dice.hypergeometric(made.wrong, made.size - made.wrong, counts), strict=True)
    ):
        shows = (np.arange(n) < wrong) != (place == 0)  # the first stratum is what is said to be present
        seen = np.where(shows, readers.sensitivity, 1 - readers.specificity)
        yes = (dice.random((2, n)) < seen).sum(axis=0)
        says = "present" if place == 0 else "absent"
        rows += [(STRATA[place], says, k, 2 - k, int((yes == k).sum())) for k in range(3) if (yes == k).any()]
    patterns = pl.DataFrame(rows, schema=["cell", "says", "yes", "no", "len"], orient="row")
    sizes = pl.DataFrame({"cell": STRATA, "says": ["present", "absent", "absent"], "size": made.size})
    return corrected(patterns.sort("cell", "says", "yes", "no"), sizes.sort("cell", "says"), int(dice.integers(2**31)))


def correct_all(readers: Skilled, reads: int, repetitions: int, seed: int) -> list[tuple[float, float]]:
    """Give the coverage, where a rate is given, and how often it is: of each finding, then of all together."""
    dice = np.random.default_rng([seed, reads, int(1000 * readers.sensitivity)])
    worlds = [World(name="", dice=0, presences=share) for share in readers.presences]
    made = [make(world, rate, dice) for world, rate in zip(worlds, readers.rates, strict=True)]
    counts = [allocate(each.size, each.suspicion, reads) for each in made]
    true = [*(each.rate for each in made), float(np.mean([each.rate for each in made]))]
    covered: list[list[bool]] = [[] for _ in true]
    for _ in range(repetitions):
        told = [doubly_read(each, n, readers, dice) for each, n in zip(made, counts, strict=True)]
        pooled = together({str(place): (int(made[place].size.sum()), each) for place, each in enumerate(told)})
        for place, found in enumerate([*told, pooled]):
            if found.low is not None and found.high is not None:
                covered[place].append(found.low <= true[place] <= found.high)
    return [(float(np.mean(each)) if each else math.nan, len(each) / repetitions) for each in covered]


def simulate_corrected(repetitions: int, seed: int, reads: Sequence[int]) -> list[str]:
    """Print how often corrected intervals cover, by finding and pooled, and give what is too seldom."""
    broken = []
    print("\nCorrected for the readers' errors: coverage / how often a rate is given\n")
    print("| readers | error rates | n | first | second | third | all findings |\n|---|---|---|---|---|---|---|")
    allowed = LEAST - 3 * math.sqrt(LEAST * (1 - LEAST) / repetitions)
    for readers in SKILLED:
        who = f"{readers.sensitivity:g}, {readers.specificity:g}"
        for n in reads:
            row = correct_all(readers, n, repetitions, seed)
            cells = " | ".join(f"{c:.3f} / {g:.2f}" for c, g in row)
            print(f"| {who} | {', '.join(f'{rate:g}' for rate in readers.rates)} | {n:,} | {cells} |", flush=True)
            seldom = [c for c, given in row if given * repetitions >= 0.5 * repetitions and c < allowed]
            broken += [f"corrected, readers {who}, n = {n}: coverage {c:.3f}" for c in seldom]
    return broken


def watched(reads: int, repetitions: int, seed: int) -> list[tuple[str, float]]:
    """Give, for all films and each group, the share of reading lists in which the interval ever loses the truth."""
    dice = np.random.default_rng([seed, reads, 7])
    films = 3000
    group = np.where(dice.random(films) < 0.2, "few", "many")
    present = dice.random(films) < np.where(group == "few", 0.3, 0.1)
    chance = np.where(present, 0.3, 0.02) * np.where(group == "few", 1.5, 1.0)
    wrong = dice.random(films) < chance
    suspicion = np.clip(chance * np.exp(1.5 * wrong + dice.normal(size=films) / 2), 0.001, 0.95)
    claims = pl.DataFrame({"image_id": [f"{film:05}" for film in range(films)], "finding": "Effusion",
                           "says": np.where(present, "present", "absent"), "trust": 1 - suspicion})  # fmt: skip
    known = claims.select("image_id", wrong=pl.Series(wrong), group=pl.Series(group))
    placed = stratify(claims)
    parts = {"all": pl.lit(value=True), "few": pl.col("group") == "few", "many": pl.col("group") == "many"}
    parts |= {says: pl.col("says") == says for says in ("present", "absent")}
    lost = dict.fromkeys(parts, 0)
    every = claims.join(known, on="image_id")
    true = {name: float(np.mean(every.filter(its)["wrong"].to_numpy())) for name, its in parts.items()}
    for repetition in range(repetitions):
        drawn = draw(placed, reads=reads, seed=repetition).rename({"inclusion": "drawn"}).join(known, on="image_id")
        told = drawn.with_columns(looked=pl.col("drawn").is_not_null())
        told = told.with_columns(wrong=pl.when("looked").then("wrong"))
        for name, its in parts.items():
            steps = watch(told.filter(its))
            lost[name] += bool(((steps["low"] > true[name]) | (steps["high"] < true[name])).any())
    return [(name, count / repetitions) for name, count in lost.items()]


def simulate_watched(repetitions: int, seed: int, reads: Sequence[int]) -> list[str]:
    """Print how often an interval that holds at any time ever loses the truth, and give what does too often."""
    print("\nLooked at after every read: share of reading lists in which the truth is ever lost\n")
    broken = []
    allowed = 1 - NOMINAL + 3 * math.sqrt(NOMINAL * (1 - NOMINAL) / repetitions)
    for n in reads:
        row = watched(n, repetitions, seed)
        if n == reads[0]:
            print(f"| | {' | '.join(name for name, _ in row)} |\n|---|{'---|' * len(row)}")
        print(f"| n = {n:,} | {' | '.join(f'{share:.3f}' for _, share in row)} |", flush=True)
        broken += [f"at any time, {name}, n = {n}: lost in {share:.3f}" for name, share in row if share > allowed]
    return broken


def main() -> None:
    """Print every table; end with 1 if an interval covers too little or is too wide."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="200 repetitions, fewer cells")
    parser.add_argument("--repetitions", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rates, reads = (RATES[::3], (50, 300)) if given.quick else (RATES, READS)
    repetitions = 200 if given.quick else given.repetitions
    started = time.perf_counter()
    broken = []
    print(f"coverage / width over Clopper-Pearson, nominal {NOMINAL}, {repetitions:,} repetitions, seed {given.seed}")
    for world in WORLDS:
        every = world.main or given.quick
        some = (rates, reads) if every else (FEWER_RATES, FEWER_READS)
        broken += simulate(world, some, repetitions, given.seed)
    fewer, numbers = (30, (300,)) if given.quick else (200, (100, 300))
    broken += simulate_corrected(fewer, given.seed, numbers)
    broken += simulate_watched(fewer, given.seed, numbers)
    print(f"\n{time.perf_counter() - started:,.0f} s")
    print("\n".join(["broken:", *broken]) if broken else "every cell within its limits")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
