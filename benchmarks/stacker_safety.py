"""Do reviews ever harm? Made-up datasets like NIH's, reviewed by fallible readers; the trust with reviews and without.

python benchmarks/stacker_safety.py             40 repetitions of each case, about half an hour
python benchmarks/stacker_safety.py --quick     20 repetitions of fewer films

Each dataset has 14 findings, claimed of .2 % to 18 % of its films and wrong at each finding's own rates, a record judge
and four image judges, three of which err together. n pairs are reviewed, half of them drawn by suspicion and half
evenly, with known chances, by readers that miss, invent and hedge. What reviews gain is measured on the other half of
the patients, of whom no pair is reviewed: the error AP and the log-loss of the trust, mean over the reviewed findings.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.findings import Vocabulary
from bpals.metrics import Curve
from bpals.signal.layout import LaidOut, Panel, groups_of, lay_out
from bpals.signal.observations import read_answers, read_devices
from bpals.signal.trust import estimate
from bpals.types import IMAGES, KIND, OUTCOME, REVIEWS, SAYS, SKILL, Dataset, Reviews, claims_schema, judgments_schema

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

SHOWN = np.array([0.18, 0.12, 0.11, 0.06, 0.055, 0.05, 0.04, 0.03, 0.025, 0.022, 0.02, 0.015, 0.013, 0.002])
"""How many films show each finding."""
MISSED = np.array([0.3, 0.1, 0.35, 0.4, 0.3, 0.3, 0.35, 0.4, 0.1, 0.2, 0.2, 0.4, 0.5, 0.1])
INVENTED = np.array([0.08, 0.03, 0.06, 0.012, 0.012, 0.02, 0.015, 0.01, 0.008, 0.008, 0.006, 0.006, 0.012, 0.0002])
"""Shares of presences that are not claimed, and of absences that are claimed as presences."""
CLEAN = 0.4
"""In a clean world so much of that noise is left: reviews can gain little there, and harm as much."""
COUNTS = (0, 30, 150, 500, 1000, 4000)
THREE = (1, 4, 6)
"""The findings that are reviewed where not all are."""
SKILL_OF = {"record": 0.9, "eye-1": 1.3, "eye-2": 1.2, "eye-3": 1.1, "other": 0.8}
"""Judge -> how far apart it sees films with and without a finding, in deviations."""
TOGETHER = 0.7
"""Correlation of the errors of the three eyes."""
PATIENT = 0.5
"""How far the films of a patient show the same."""
READERS = {"a": (0.9, 0.98), "b": (0.8, 0.97), "c": (0.7, 0.99), "d": (0.85, 0.93)}
"""Reader -> sensitivity and specificity."""
HEDGES = 0.05
FOLDS = 3


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of dataset and review."""

    reviews: int
    clean: bool = False
    """Few labels are wrong."""
    three: bool = False
    """Three findings are reviewed, not all."""
    films: int = 8000

    @property
    def words(self) -> str:
        """Say which it is."""
        return f"{'clean' if self.clean else 'noisy'}, {'three' if self.three else 'all'} findings"


@dataclass(frozen=True, slots=True)
class World:
    """A dataset with its judges; what the films show is known to us alone."""

    dataset: Dataset
    patient: npt.NDArray[np.int64]
    shows: Bools
    claimed: Bools
    judgments: pl.DataFrame
    panel: Panel

    @property
    def kept_back(self) -> Bools:
        """Films of patients that are never reviewed: half of them."""
        return np.asarray(self.patient % 2 == 1)


def make(case: Case, rng: np.random.Generator) -> World:
    """Make a dataset: many patients have one film, some have many."""
    patient = np.repeat(np.arange(case.films), rng.geometric(0.4, size=case.films))[: case.films]
    names = tuple(f"F{number:02}" for number in range(len(SHOWN)))
    own, whole = rng.normal(size=(2, case.films, len(SHOWN)))
    latent = np.sqrt(PATIENT) * whole[patient] + np.sqrt(1 - PATIENT) * own
    shows = latent > np.quantile(rng.normal(size=200_000), 1 - SHOWN)
    noise = CLEAN if case.clean else 1.0
    chance = np.where(shows, 1 - noise * MISSED, noise * INVENTED)
    claimed = rng.random(shows.shape) < chance
    dataset = _dataset(patient, names, claimed)
    seen = {}
    common = rng.normal(size=shows.shape)
    for judge, apart in SKILL_OF.items():
        share = TOGETHER if judge.startswith("eye") else 0.0
        errs = np.sqrt(share) * common + np.sqrt(1 - share) * rng.normal(size=shows.shape)
        seen[judge] = apart * shows + errs
    record = _right_about_claims(seen.pop("record"), SKILL_OF["record"], noise)
    tables = [_answers(dataset, judge, _sigmoid(score - 2)) for judge, score in seen.items()]
    panel = Panel(
        judges=tuple(read_answers(table["judge"][0], table, dataset.images, names) for table in tables),
        fold=patient % FOLDS,
        devices=read_devices(dataset.images, ()),
    )
    judgments = _answers(dataset, "record", record).cast(judgments_schema(dataset.vocabulary))
    return World(dataset, patient, shows, claimed, judgments, panel)


def review(case: Case, world: World, trust: Floats, rng: np.random.Generator) -> Reviews:
    """Draw pairs, half by suspicion and half evenly, and have one to three readers read each."""
    asked = np.zeros(trust.shape, dtype=bool)
    asked[:, list(THREE) if case.three else slice(None)] = True
    asked[world.kept_back] = False
    half = case.reviews / 2
    keen = np.where(asked, 1 - trust, 0.0)
    suspicious, even = np.minimum(half * keen / keen.sum(), 1), half * asked / asked.sum()
    inclusion = 1 - (1 - suspicious) * (1 - even)
    film, finding = np.nonzero(rng.random(trust.shape) < inclusion)
    reads = []
    for place, reader in enumerate(rng.permuted(np.tile(list(READERS), (len(film), 1)), axis=1)[:, :3].T):
        skill = np.array([READERS[name] for name in reader]).reshape(-1, 2)
        right = rng.random(len(film)) < np.where(world.shows[film, finding], skill[:, 0], skill[:, 1])
        word = np.where(world.shows[film, finding] == right, "present", "absent")
        word = np.where(rng.random(len(film)) < HEDGES, "uncertain", word)
        read = rng.random(len(film)) < (1.0, 0.5, 0.2)[place]
        reads.append(
            pl.DataFrame(
                {
                    "image_id": world.dataset.images["image_id"].gather(film),
                    "finding": pl.Series(world.dataset.vocabulary.findings, dtype=pl.String).gather(finding),
                    "reader": pl.Series(reader, dtype=pl.String),
                    "verdict": pl.Series(word, dtype=pl.String),
                    "inclusion": inclusion[film, finding],
                }
            ).filter(read)
        )
    return Reviews(table=pl.concat(reads).cast(REVIEWS))


def gains(case: Case, seed: int) -> tuple[float, float]:
    """Give what reviews gain in error AP and in log-loss, on the patients that were kept back."""
    rng = np.random.default_rng([seed, case.reviews, case.clean, case.three])
    world = make(case, rng)
    before = _trust(world, None)
    after = _trust(world, review(case, world, before, rng))
    unseen = world.kept_back
    wrong = (world.claimed != world.shows)[unseen]
    columns = [place for place in (THREE if case.three else range(len(SHOWN))) if wrong[:, place].any()]
    found, told = (
        [[measure(trust[unseen][:, place], wrong[:, place]) for place in columns] for trust in (before, after)]
        for measure in (_error_ap, _log_loss)
    )
    return float(np.mean(found[1]) - np.mean(found[0])), float(np.mean(told[0]) - np.mean(told[1]))


def study(case: Case, repetitions: int, seed: int = 0) -> tuple[tuple[float, float], tuple[float, float]]:
    """Give the mean gain in error AP and in log-loss, each with its standard error."""
    each = np.array([gains(case, seed + number) for number in range(repetitions)])
    mean, error = each.mean(axis=0), each.std(axis=0, ddof=1) / np.sqrt(repetitions)
    return (float(mean[0]), float(error[0])), (float(mean[1]), float(error[1]))


def cases(films: int) -> Iterator[Case]:
    """Every case."""
    for clean in (False, True):
        for three in (False, True):
            for reviews in COUNTS:
                yield Case(reviews, clean, three, films)


def _dataset(patient: npt.NDArray[np.int64], names: tuple[str, ...], claimed: Bools) -> Dataset:
    vocabulary = Vocabulary(name="made-up", findings=names)
    images = pl.DataFrame(
        {
            "image_id": [f"{film:06}.png" for film in range(len(patient))],
            "patient_id": [f"p{number:06}" for number in patient],
            "follow_up": np.arange(len(patient)),
        }
    )
    missing = [pl.lit(None, kind).alias(name) for name, kind in IMAGES.items() if name not in images.columns]
    claims = pl.DataFrame(
        {
            "image_id": np.repeat(images["image_id"].to_numpy(), len(names)),
            "finding": names * len(patient),
            "says": pl.Series(np.where(claimed, "present", "absent").ravel()).cast(SAYS),
        }
    )
    return Dataset(
        name="made-up",
        title="Made up",
        vocabulary=vocabulary,
        images=images.with_columns(missing).select(IMAGES.names()).cast(IMAGES),
        claims=claims.cast(claims_schema(vocabulary)),
        attribution="Made up.",
        inputs={},
    )


def _right_about_claims(score: Floats, apart: float, noise: float) -> Floats:
    """Give P(claimed | score): what a judge that was fitted to the claims of other patients says."""
    shown = _sigmoid(np.log(SHOWN / (1 - SHOWN)) + apart * score - apart**2 / 2)
    return np.asarray(shown * (1 - noise * MISSED) + (1 - shown) * noise * INVENTED)


def _answers(dataset: Dataset, judge: str, p_present: Floats) -> pl.DataFrame:
    return dataset.claims.select(
        "image_id",
        "finding",
        judge=pl.lit(judge),
        kind=pl.lit("record" if judge == "record" else "image", dtype=KIND),
        outcome=pl.lit("answered", dtype=OUTCOME),
        p_present=pl.Series(p_present.ravel()),
        p_low=pl.lit(None, pl.Float64),
        p_high=pl.lit(None, pl.Float64),
    )


def _all_used(laid: LaidOut) -> pl.DataFrame:
    rows = [
        (judge, name, "claims", len(level.record.states), 1, 0.8, 0.7, 0.9, True)
        for level in laid.levels
        for judge in ("record", *(its.name for its in level.judges))
        for name in level.record.findings
    ]
    return pl.DataFrame(rows, schema=SKILL, orient="row")


def _trust(world: World, reviews: Reviews | None) -> Floats:
    groups = groups_of(world.dataset.vocabulary, None, reviews)
    laid = lay_out(world.dataset, world.judgments, world.panel, groups)
    table = estimate(laid, skill=_all_used(laid), reviews=reviews).table
    return table["trust"].to_numpy().reshape(world.shows.shape)


def _error_ap(trust: Floats, wrong: Bools) -> float:
    return float(Curve.of(1 - trust, wrong).average_precision()[0])


def _log_loss(trust: Floats, wrong: Bools) -> float:
    kept = np.clip(trust, 1e-6, 1 - 1e-6)
    return float(-np.log(np.where(wrong, 1 - kept, kept)).mean())


def _sigmoid(z: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-z)))


def unsafe(gain: Sequence[float]) -> bool:
    """Say whether a mean gain lies below 0 by more than its 95 % interval."""
    mean, error = gain
    return mean + 1.96 * error < 0


def main() -> int:
    """Print the study; the exit code is 1 where reviews harmed."""
    parser = argparse.ArgumentParser(description="Do reviews ever harm?")
    parser.add_argument("--repetitions", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="20 repetitions of 4,000 films")
    asked = parser.parse_args()
    repetitions = asked.repetitions or (20 if asked.quick else 40)
    films = 4000 if asked.quick else 8000
    print(f"{repetitions} repetitions a case, {films:,} films, seed {asked.seed}; gain by reviews, 95 % interval")
    print(f"{'world':>22} {'reviews':>8} {'error AP':>26} {'log-loss':>28}")
    harmed = 0
    for case in cases(films):
        found = study(case, repetitions, asked.seed)
        bad = [unsafe(gain) for gain in found]
        harmed += sum(bad)
        cells = [
            f"{mean:>+9.5f} ({mean - 1.96 * error:+.5f} to {mean + 1.96 * error:+.5f}){'!' if harm else ' '}"
            for (mean, error), harm in zip(found, bad, strict=True)
        ]
        print(f"{case.words:>22} {case.reviews:>8} {'  '.join(cells)}", flush=True)
    print("! below 0 by more than the interval")
    return 1 if harmed else 0


if __name__ == "__main__":
    sys.exit(main())
