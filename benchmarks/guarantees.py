"""Do the flags' guarantees hold? Made-up datasets with known errors, reviewed and certified again and again.

python benchmarks/guarantees.py                    500 repetitions of each case, about two minutes
python benchmarks/guarantees.py --quick            60
python benchmarks/guarantees.py --repetitions 2000

Each dataset has patients with several films whose errors and trusts are alike, NIH-like shares of wrong claims, and a
trust that ranks errors with an AUROC of about .85. Reviews are drawn evenly, or mostly where the trust is low.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from bpals.numeric import newton
from bpals.signal.certificates import (
    Certificate,
    Drawn,
    bound_errors,
    certify_precision,
    certify_trusted,
    control_discoveries,
    control_misses,
)

Floats = npt.NDArray[np.float64]

WRONG = (0.013, 0.09, 0.31, 0.44, 0.68)
"""Shares of wrong claims: those of the adjudicated NIH films, presences and absences."""
READ = (100, 300, 1000)
CLAIMS = 6000
ALIKE = 0.2
"""Correlation of the errors, and of the scores, of one patient's films."""
APART = 1.47
"""Distance of wrong from right claims in standard deviations: an AUROC of .85."""
RANDOM_SHARE = 0.2
"""Of targeted reviews, those that are drawn evenly all the same."""
NOISE, FOLDS = 8, 5
"""Columns that say nothing, and folds of patients, where the trust is fitted on the reviews."""
PROMISES = ("misses", "precision", "trusted_above", "trusted", "discoveries")


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of dataset and review."""

    wrong: float
    read: int
    targeted: bool
    flat: bool = False
    """The trust knows nothing: every set of claims has the same share of wrong ones."""
    fitted: bool = False
    """The trust is fitted on the reviews, among columns of noise: cross-fitted where reviewed, as in an audit."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """Claims with a trust; whether they are wrong is known to us alone."""

    trust: Floats
    wrong: npt.NDArray[np.bool_]
    patient: npt.NDArray[np.int64]


def cases() -> list[Case]:
    """Every case; the flat ones lie just beyond what may be certified, the few are fewer than a first set takes."""
    usual = [Case(wrong, read, targeted) for wrong in WRONG for read in READ for targeted in (False, True)]
    edge = [Case(wrong, 300, targeted, flat=True) for wrong in (0.79, 0.055) for targeted in (False, True)]
    few = [Case(0.68, 25, targeted=False), Case(0.79, 25, targeted=False, flat=True)]
    learnt = [Case(wrong, read, False, fitted=True) for wrong in (0.31, 0.44, 0.68) for read in (100, 300)]
    return usual + edge + few + learnt


def make(case: Case, rng: np.random.Generator) -> Dataset:
    """Make a dataset: many patients have one film, some have dozens."""
    films = rng.geometric(0.28, size=CLAIMS)
    patient = np.repeat(np.arange(CLAIMS), films)[:CLAIMS]
    share = (1 - ALIKE) / ALIKE
    wrong = rng.random(CLAIMS) < rng.beta(case.wrong * share, (1 - case.wrong) * share, size=CLAIMS)[patient]
    together, alone = rng.normal(size=CLAIMS)[patient], rng.normal(size=CLAIMS)
    apart = 0.0 if case.flat else APART
    score = apart * wrong + np.sqrt(ALIKE) * together + np.sqrt(1 - ALIKE) * alone
    logit = np.log(case.wrong / (1 - case.wrong)) + APART * score - APART**2 / 2
    return Dataset(1 / (1 + np.exp(logit)), wrong, patient)


def review(case: Case, dataset: Dataset, rng: np.random.Generator) -> tuple[Drawn, npt.NDArray[np.bool_]]:
    """Draw claims to be read, and give what was drawn with the chances."""
    even = np.full(CLAIMS, case.read / CLAIMS)
    inclusion = even
    if case.targeted:
        keen = np.maximum(1 - dataset.trust, 0.02)
        inclusion = np.minimum(RANDOM_SHARE * even + (1 - RANDOM_SHARE) * case.read * keen / keen.sum(), 1.0)
    read = rng.random(CLAIMS) < inclusion
    drawn = Drawn(
        trust=dataset.trust[read],
        wrong=dataset.wrong[read],
        patient=dataset.patient[read],
        inclusion=inclusion[read],
    )
    return drawn, read


def fit(dataset: Dataset, read: npt.NDArray[np.bool_], rng: np.random.Generator) -> Dataset:
    """Make a trust of the reviews: of a claim that was read, from the other folds of patients."""
    noise = rng.normal(size=(CLAIMS, NOISE))
    columns = np.column_stack([np.ones(CLAIMS), np.log(dataset.trust / (1 - dataset.trust)), noise])
    ridge = np.array([1e-3, 1.0, *[1.0] * NOISE])
    fold = np.where(read, dataset.patient % FOLDS, FOLDS)
    trust = np.empty(CLAIMS)
    for left_out in range(FOLDS + 1):
        others = read & (fold != left_out)
        start, right = np.zeros(int(others.sum())), 1.0 - dataset.wrong[others]
        weights, _ = newton(columns[others], start, right, ridge)
        here = fold == left_out
        trust[here] = 1 / (1 + np.exp(-columns[here] @ weights))
    return replace(dataset, trust=trust)


def certify(drawn: Drawn, unread: Floats) -> Iterator[Certificate]:
    """Ask for every certificate there is."""
    yield control_misses(drawn)
    yield certify_precision(drawn)
    yield certify_trusted(drawn.take(drawn.trust >= 0.5))
    yield bound_errors(drawn, 0.5)
    yield control_discoveries(drawn, unread)


def realised(certificate: Certificate, dataset: Dataset, unread: npt.NDArray[np.bool_]) -> float:
    """Say what the promise came to: the share missed or falsely listed, or 1 where a doubtful promise was broken."""
    if certificate.cut is None:
        return 0.0
    trust, wrong, level = dataset.trust, dataset.wrong, certificate.level
    match certificate.promise:
        case "misses":
            return float((trust[wrong] > certificate.cut).mean())
        case "precision":
            return float(wrong[trust <= certificate.cut].mean() < level)
        case "discoveries":
            return float(1 - wrong[unread & (trust <= certificate.cut)].mean())
        case _:
            return float(wrong[trust >= certificate.cut].mean() > level)


def study(case: Case, repetitions: int, seed: int = 0) -> dict[str, tuple[float, float, float]]:
    """Give for each promise: how often it was made, what it came to, and the standard error of that.

    A promise that holds on average is averaged over the times it was made; one with a doubt, over all times.
    """
    rng = np.random.default_rng(seed)
    made: dict[str, list[bool]] = {name: [] for name in PROMISES}
    came: dict[str, list[float]] = {name: [] for name in PROMISES}
    for _ in range(repetitions):
        dataset = make(case, rng)
        drawn, read = review(case, dataset, rng)
        if case.fitted:
            dataset = fit(dataset, read, rng)
            drawn = replace(drawn, trust=dataset.trust[read])
        for certificate in certify(drawn, dataset.trust[~read]):
            made[certificate.promise].append(certificate.certified)
            if certificate.certified or certificate.promise != "misses":
                came[certificate.promise].append(realised(certificate, dataset, ~read))
    return {name: (float(np.mean(made[name])), *_mean(came[name])) for name in PROMISES}


def _mean(values: list[float]) -> tuple[float, float]:
    """Average, with a standard error that a handful of promises cannot make small."""
    if not values:
        return 0.0, 0.0
    return float(np.mean(values)), float(max(np.std(values), 1 / len(values)) / np.sqrt(len(values)))


ALLOWED = {"misses": 0.1, "precision": 0.1, "trusted_above": 0.1, "trusted": 0.1, "discoveries": 0.2}
"""The share missed, the doubt, the doubt, the doubt, the share falsely listed."""


def main() -> int:
    """Print the study; the exit code is 1 where a promise is broken beyond three standard errors."""
    parser = argparse.ArgumentParser(description="Do the guarantees hold?")
    parser.add_argument("--repetitions", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="60 repetitions")
    asked = parser.parse_args()
    repetitions = asked.repetitions or (60 if asked.quick else 500)
    print(f"{repetitions} repetitions a case, seed {asked.seed}; each cell: how often certified, what it came to")
    print(f"{'wrong':>6} {'read':>5} {'drawn':>9}  " + "".join(f"{name:>16}" for name in PROMISES))
    print(
        f"{'':>6} {'':>5} {'allowed':>9}  "
        + "".join(f"{'<= ' + format(ALLOWED[name], '.2f'):>16}" for name in PROMISES)
    )
    broken = 0
    for case in cases():
        found = study(case, repetitions, asked.seed)
        bad = [name for name, (_, came, error) in found.items() if came > ALLOWED[name] + 3 * error]
        broken += len(bad)
        drawn = ("targeted" if case.targeted else "evenly") + ("*" if case.flat else "+" if case.fitted else "")
        cells = "".join(
            f"{given:>8.2f} {came:>6.3f}{'!' if name in bad else ' '}" for name, (given, came, _) in found.items()
        )
        print(f"{case.wrong:>6} {case.read:>5} {drawn:>9}  {cells}", flush=True)
    print("* the trust knows nothing. + it is fitted on the reviews. ! broken by more than three standard errors")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
