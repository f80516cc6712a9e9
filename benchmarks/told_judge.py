"""A judge that was told the labels: what its card changes, on real scores with more and more of the label added.

    python benchmarks/told_judge.py --data DATA                     audits NIH first, a minute or two
    python benchmarks/told_judge.py --data DATA --workspace DIR     with an audit made before, by the record judge alone
    python benchmarks/told_judge.py --data DATA --write             and put the table into docs/method.md

DATA holds `expert/four_findings_*.csv` and `predictions/chexnet_panel.parquet`. The scores are those of
`jrzech_densenet121`, whose 22,433 films were kept out of its training. An echo of e adds about e to the logit where the
finding is claimed and takes as much off where it is not, pair by pair between 0 and 2 e or so: what a network does that
was trained on these very films. The same scores come once with a card that says so (`trained_on_target`) and once with
one that does not. Error AP, without expert labels, on the adjudicated validation images that the model covers. The exit
code is 1 unless the first weighs less each time, and finds more errors wherever there is an echo.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

import bpals
from bpals.findings import NIH
from bpals.judges.record import RecordJudge
from bpals.metrics import Curve
from bpals.reviews import verdicts
from bpals.score.opinions import Audited, about
from bpals.signal.layout import lay_out
from bpals.signal.trust import estimate
from bpals.sources import nih
from bpals.store.workspace import Workspace
from bpals.tasks.panel import Chosen, measure
from bpals.types import Dataset
from section import Section

Floats = NDArray[np.float64]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "method.md"
OPENING, CLOSING = "<!-- printed by benchmarks/told_judge.py --write -->", "<!-- end of told judge -->"
MODEL = "jrzech_densenet121"
GROUPS = ("Pneumothorax", "Nodule or mass", "Airspace opacity")
ECHOES = (0.0, 1.0, 2.0, 4.0)
SEED = 6
EVIDENCE = 'evidence = "An echo of the labels was added on purpose, or none."\n'
CARDS = {
    "no": f'trained_on_target = "no"\n{EVIDENCE}',
    "yes": f'trained_on_target = "yes"\n{EVIDENCE}',
    "yes, held out": f'trained_on_target = "yes"\nheld_out = "yes"\n{EVIDENCE}',
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What all rows share: the dataset, the record judge's answers, the model's scores and the labels of experts."""

    dataset: Dataset
    record: pl.DataFrame
    scores: pl.DataFrame
    """image_id, finding, logit, claimed."""
    truth: pl.DataFrame


def ground(data: Path, workspace: Path) -> Ground:
    """Read everything; NIH is audited by the record judge if it was not before."""
    if not (workspace / "run.json").exists():
        bpals.audit(workspace=workspace, judges="record")
    dataset = nih.load()
    wide = pl.read_parquet(data / "predictions" / "chexnet_panel.parquet").filter(pl.col("model") == MODEL)
    long = wide.rename({"Image Index": "image_id"}).unpivot(
        list(NIH.findings), index="image_id", variable_name="finding", value_name="p"
    )
    claims = dataset.claims.select("image_id", pl.col("finding").cast(pl.String), claimed=pl.col("says") == "present")
    p = pl.col("p").clip(1e-9, 1 - 1e-9)
    scores = long.join(claims, on=["image_id", "finding"], maintain_order="left").with_columns(
        logit=(p / (1 - p)).log()
    )
    reference = verdicts.load(f"four-findings={data / 'expert'}", vocabulary=NIH, split="val")
    covered = reference.truth.drop("split").join(wide, left_on="image_id", right_on="Image Index", how="semi")
    record = Workspace(workspace).open().table("judgments/record.parquet")
    return Ground(dataset=dataset, record=record, scores=scores, truth=covered)


def echoing(known: Ground, echo: float) -> pl.DataFrame:
    """Add an echo of the claims to the scores."""
    draw = np.random.default_rng(SEED)
    loud = echo * np.maximum(0.0, 1 + 0.5 * draw.normal(size=known.scores.height))
    z = known.scores["logit"].to_numpy() + np.where(known.scores["claimed"].to_numpy(), loud, -loud)
    return known.scores.select("image_id", "finding", p_present=pl.Series(1 / (1 + np.exp(-z))))


def weighed(known: Ground, scores: pl.DataFrame, card: str, folder: Path) -> tuple[float, list[float]]:
    """Seal the scores under a card; give the judge's weight and the error AP of the signal, group by group."""
    file = folder / "scores.parquet"
    scores.write_parquet(file)
    file.with_name(f"{file.name}.card.toml").write_text(card, encoding="utf-8")
    home = Workspace(folder / "audit")
    bpals.run_judge(f"table:{file}", workspace=home.path, order=bpals.Order(name="model"))
    panel, _ = Chosen(record=RecordJudge(), sealed=(home.judge("model"),)).read_panel(known.dataset)
    laid = lay_out(known.dataset, known.record, panel)
    signal = estimate(laid, skill=measure(laid))
    dataset = known.dataset
    audited = Audited(images=dataset.images, claims=dataset.claims, judgments=known.record, signal=signal.table)
    return signal.weights["model"], found(known, audited)


def found(known: Ground, audited: Audited) -> list[float]:
    """Give the error AP of a signal, group by group."""
    pairs, _ = about(known.truth, audited, verdicts.GROUPS, baselines=False)
    told = []
    for group in GROUPS:
        its = pairs.filter(pl.col("finding") == group)
        wrong = (its["claimed"] != its["present"]).to_numpy()
        curve = Curve.of(np.round(1 - its["trust"].to_numpy(), 12), wrong)
        told.append(float(curve.average_precision()[0]))
    return told


def study(known: Ground) -> tuple[str, list[str]]:
    """Go through echoes and cards; write the table, and name what is not held."""
    dataset = known.dataset
    alone = Audited(
        images=dataset.images,
        claims=dataset.claims,
        judgments=known.record,
        signal=estimate(lay_out(dataset, known.record)).table,
    )
    lines = [
        f"| echo | trained on these labels | weight | {' | '.join(GROUPS)} |",
        f"|--:|---|--:|{'--:|' * len(GROUPS)}",
    ]
    lines.append(f"| | record judge alone | | {_cells(found(known, alone))} |")
    broken = []
    for echo in ECHOES:
        scores = echoing(known, echo)
        told = {}
        for card, text in CARDS.items():
            with tempfile.TemporaryDirectory() as folder:
                told[card] = weighed(known, scores, text, Path(folder))
            weight, error_ap = told[card]
            lines.append(f"| {echo:.0f} | {card} | {weight:.3f} | {_cells(error_ap)} |")
        if told["yes"][0] >= told["no"][0]:
            broken.append(f"echo {echo:.0f}: the card does not make it weigh less")
        if echo and sum(told["yes"][1]) <= sum(told["no"][1]):
            broken.append(f"echo {echo:.0f}: the card finds no more errors")
    return "\n".join(lines), broken


def _cells(error_ap: list[float]) -> str:
    return " | ".join(f"{value:.3f}" for value in error_ap)


def main() -> int:
    """Audit, weigh, score, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with expert/ and predictions/")
    parser.add_argument("--workspace", type=Path, help="an audit of NIH by the record judge")
    parser.add_argument("--write", action="store_true", help="put the table into docs/method.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text, broken = study(ground(given.data, given.workspace or Path(folder) / "audit"))
    print(text)
    if given.write:
        Section(PAGE, OPENING, CLOSING).write(text)
    for line in broken:
        print(f"NOT HELD: {line}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
