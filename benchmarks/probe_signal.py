"""The probe beside the record judge: what pixels on a CPU add, on the adjudicated films that have a film.

    python benchmarks/probe_signal.py --data DATA --judgments FILE            about five minutes on two cores
    python benchmarks/probe_signal.py --data DATA --judgments FILE --write    and put the tables into docs/method.md

DATA holds `expert/four_findings_*.csv`; FILE is what the probe said, `judgments/NAME.parquet` of the workspace in which
`bpals judge run probe:lite0` was run. Scored are the test films that the probe answered. The record judge is calibrated
on all validation films. The combination learns from those and from the test films, cross-fitted by patient: the trust
of a film comes from fits that saw no review of its patient. Beside it stands what it learns from validation films with
a film alone. The record judge is asked once, and its answers are weighed as an audit with those judges and labels
weighs them. Intervals draw patients whole. The exit code is 1 unless the combination is above the record judge alone in
two groups of three and in none below it beyond the paired interval, whether the record judge was taught by the
validation films or by the same labels.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

import bpals
from bpals.findings import NIH
from bpals.metrics import Curve
from bpals.reviews import verdicts
from bpals.score.intervals import Resamples, Resampling, interval
from bpals.score.opinions import Audited, about
from bpals.score.scorecard import suspicions
from bpals.signal.trust import Signal
from bpals.store.workspace import Workspace
from bpals.tasks.audit import GROUP_ANSWERS, RECORD_ANSWERS, Answers, weigh
from bpals.tasks.chosen_judges import choose
from bpals.tasks.datasets import load_source
from bpals.tasks.expert_labels import load_experts
from section import Section

Floats = NDArray[np.float64]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "method.md"
OPENING, CLOSING = "<!-- printed by benchmarks/probe_signal.py --write -->", "<!-- end of probe -->"
GROUPS = ("Pneumothorax", "Nodule or mass", "Airspace opacity")
OURS = "both, combination cross-fitted"
ALIKE = "record, calibrated on the same labels"
BEFORE = "record, calibrated on validation"
ON_THE_PAGE = (
    "prevalence, no judge",
    "record, untrained",
    "probe",
    "both, untrained",
    BEFORE,
    ALIKE,
    "both, fitted on all validation films",
    OURS,
)
"""The rows that docs/method.md shows; the screen shows all."""
RESAMPLING = Resampling(draws=1000, seed=0)
CARD = """\
trained_on_target = "yes"
held_out = "yes"
evidence = "A linear probe, cross-fitted by patient."
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """One audit: whom it hears, and which labels teach it."""

    judges: str
    labels: str | None = None


AUDITS: Mapping[str, Audit] = {
    BEFORE: Audit(judges="record", labels="val"),
    ALIKE: Audit(judges="record", labels="val-and-seen"),
    "both, untrained": Audit(judges="record,probe"),
    "both, fitted on the validation films with a film": Audit(judges="record,probe", labels="seen-val"),
    "both, fitted on all validation films": Audit(judges="record,probe", labels="val"),
    OURS: Audit(judges="record,probe", labels="val-and-seen"),
    "the same, record taught by films with a film only": Audit(judges="record,probe", labels="seen"),
}
"""What each row of the tables rests on."""


def write_labels(data: Path, seen: pl.Series, folder: Path) -> pl.DataFrame:
    """Write the adjudicated labels that teach, and give those of the test films that the probe answered."""
    truth = verdicts.load(f"four-findings={data / 'expert'}", vocabulary=NIH, split="all").truth
    val, has_film = pl.col("split") == "val", pl.col("image_id").is_in(seen.implode())
    chosen = {"val": val, "val-and-seen": val | has_film, "seen": has_film, "seen-val": val & has_film}
    for name, kept in chosen.items():
        truth.filter(kept).select("image_id", "finding", "present").write_csv(folder / f"{name}.csv")
    return truth.filter(~val & has_film)


def seal(judgments: Path, home: Path) -> pl.Series:
    """Seal what the probe said, with a card, and give the films that it answered."""
    said = pl.read_parquet(judgments, columns=["image_id", "finding", "outcome", "p_present"])
    scores = home / "probe.parquet"
    said.write_parquet(scores)
    scores.with_name(f"{scores.name}.card.toml").write_text(CARD, encoding="utf-8")
    bpals.run_judge(f"table:{scores}", workspace=home / "audit", order=bpals.Order(name="probe"))
    return said["image_id"].unique()


def signals(home: Path) -> tuple[Audited, dict[str, Signal]]:
    """Ask the record judge, weigh what it and the probe say by each of the audits, and give what they share."""
    folder = home / "audit"
    if not (folder / "run.json").exists():
        bpals.audit(workspace=folder, judges="record", calibrate=f"table={home / 'val.csv'}")
    kept, dataset = Workspace(folder), load_source("nih")
    sealed = kept.open()
    answers = Answers(claims=sealed.table(RECORD_ANSWERS), groups=sealed.table(GROUP_ANSWERS))
    made = {}
    for name, audit in AUDITS.items():
        taught = None if audit.labels is None else f"table={home / audit.labels}.csv"
        use = {"calibrate": taught, "calibrate_split": "all", "reviews": None, "refit": None}
        experts = load_experts(use, dataset)
        heard = answers if taught else Answers(claims=answers.claims)
        weighed = weigh(dataset, choose(kept, audit.judges), heard, experts, lambda _what, _share: None)
        made[name] = weighed.signal
        for finding, fit in weighed.signal.findings.items():
            print(f"{name}: {finding}, {fit['n']} labels, {fit['errors']} errors", flush=True)
    judges = {"probe": kept.judge("probe").answers()}
    table = pl.DataFrame()
    shared = Audited(
        images=dataset.images, claims=dataset.claims, judgments=answers.claims, signal=table, judges=judges
    )
    return shared, made


def held(asked: pl.DataFrame, shared: Audited, made: Mapping[str, Signal]) -> tuple[pl.DataFrame, dict[str, Floats]]:
    """Say how suspect each method holds each pair; a trust that rests on its own review would be refused."""
    tables = {}
    for name, signal in made.items():
        audited = replace(shared, signal=signal.table, groups=signal.groups, calibration=signal.calibration)
        pairs, _ = about(asked.drop("split"), audited, verdicts.GROUPS)
        tables[name] = pairs.sort("finding", "image_id")
    pairs = tables[OURS]
    alone = suspicions(pairs)
    told = {
        "prevalence, no judge": alone["prevalence"],
        "record, untrained": alone["self_confidence"],
        "probe": alone["judge probe"],
        "mean of their logits": alone["record + probe"],
    }
    return pairs, told | {name: np.round(1 - its["trust"].to_numpy(), 12) for name, its in tables.items()}


def figures(pairs: pl.DataFrame, methods: Mapping[str, Floats]) -> tuple[dict[str, str], str, list[str]]:
    """Write a table for each group and one short table of all, and name what is not held."""
    tables, above, below = {}, 0, []
    head: list[str] = []
    short: dict[str, list[str]] = {name: [] for name in ON_THE_PAGE}
    finding = pairs["finding"].cast(pl.String).to_numpy()
    wrong = (pairs["claimed"] != pairs["present"]).to_numpy()
    drawn = Resamples.of(pairs["patient"].to_numpy(), RESAMPLING)
    for group in GROUPS:
        chosen = finding == group
        error, weights = wrong[chosen], list(drawn.take(chosen).weights())
        points = {name: _both(scores[chosen], error, None) for name, scores in methods.items()}
        draws = {
            name: np.concatenate([_both(scores[chosen], error, each) for each in weights], axis=1)
            for name, scores in methods.items()
        }
        lines = [f"| {group} | error AP | AUROC | the combination has more AP |", "|---|--:|--:|--:|"]
        for name in methods:
            cells = [
                f"{points[name][place, 0]:.3f} ({_span(draws[name][place])})" for place in range(len(points[name]))
            ]
            more = points[OURS][0, 0] - points[name][0, 0]
            gain = "" if name == OURS else f"{more:+.3f} ({_span(draws[OURS][0] - draws[name][0], '+')})"
            lines.append(f"| {name} | {' | '.join(cells)} | {gain} |")
            if name in short:
                short[name].append(f"{points[name][0, 0]:.3f}" + (f"; {gain}" if gain else ""))
        head.append(f"{group}, {int(error.sum())} errors")
        tables[f"{group}, {len(error)} films, {int(error.sum())} errors."] = "\n".join(lines)
        above += all(points[OURS][0, 0] > points[name][0, 0] for name in (BEFORE, ALIKE))
        spans = [interval(draws[OURS][0] - draws[name][0])[1] for name in (BEFORE, ALIKE)]
        below += [group] if any(high is not None and high < 0 for high in spans) else []
    broken = [f"{group}: below the record judge beyond the interval" for group in below]
    broken += [] if above > 1 else [f"above the record judge in {above} of {len(GROUPS)} groups"]
    rows = [f"| error AP | {' | '.join(head)} |", f"|---|{'--:|' * len(head)}"]
    rows += [f"| {name} | {' | '.join(cells)} |" for name, cells in short.items()]
    return tables, "\n".join(rows), broken


def _both(scores: Floats, error: NDArray[np.bool_], weights: Floats | None) -> Floats:
    curve = Curve.of(scores, error, weights)
    return np.stack([curve.average_precision(), curve.auroc()])


def _span(draws: Floats, sign: str = "") -> str:
    low, high = interval(draws)
    return "no interval" if low is None or high is None else f"{low:{sign}.3f} to {high:{sign}.3f}"


def main() -> int:
    """Audit, score, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with expert/")
    parser.add_argument("--judgments", type=Path, required=True, help="what the probe said: judgments/NAME.parquet")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/method.md")
    parser.add_argument("--keep", type=Path, help="a folder for the workspace; the record judge is not asked again")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = given.keep or Path(folder)
        home.mkdir(parents=True, exist_ok=True)
        asked = write_labels(given.data, seal(given.judgments, home), home)
        tables, short, broken = figures(*held(asked, *signals(home)))
    text = "\n\n".join(f"**{title}**\n\n{body}" for title, body in tables.items())
    print(text)
    if given.write:
        Section(PAGE, OPENING, CLOSING).write(short)
    for line in broken:
        print(f"NOT HELD: {line}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
