"""The demo: 120 drawn images of 72 patients, labels that are sometimes wrong, two judges, one audit.

Nothing in it is real. The images are phantoms (`images/phantom.py`), so the truth is known; labels and answers of the
two image judges are that truth with mistakes. The metadata judge takes no part: it would have to learn from 120
images, and its guesses would drown what the others see.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from bpals.findings import NIH
from bpals.images.phantom import draw_phantom
from bpals.store.files import write_durably
from bpals.store.workspace import RUN
from bpals.tasks.audit import audit
from bpals.tasks.judge import Order, run_judge

Progress = Callable[[str, float], None]

PATIENTS, FILMS = 72, 120
AFFLICTED = 14
"""Patients of each finding: with fewer than ten on a side a judge has no signal."""
MISSED, INVENTED = 0.1, 0.03
"""The share of presences that the labels miss, and of absences that they label present."""
JUDGES: Mapping[str, float] = {"made-up-judge": 1.8, "made-up-second": 2.2}
"""Name -> the standard deviation of its error, in logits."""
DEEP_EVERY = 5
"""One image in so many has 16 bits."""
MAPPING = f"""\
name = "demo"
title = "The demo: drawn films"
attribution = "Drawn by bpals; no patient stands behind it."

[columns]
image = "film"
patient = "patient"
order = "visit"
view = "view"
age = "age"
sex = "sex"

[labels]
layout = "columns"
audited = [{", ".join(f'"{finding}"' for finding in NIH.findings)}]

[values]
present = ["1"]
absent = ["0"]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """Where it lies."""

    workspace: Path
    images: Path


def make_demo(workspace: str | os.PathLike[str] = "demo", *, progress: Progress = lambda _what, _share: None) -> Demo:
    """Draw the images, make up labels and judges' answers, and audit them; an existing demo is kept."""
    home = Path(workspace)
    demo = Demo(workspace=home, images=home / "films")
    if (home / RUN).exists():
        return demo
    labels, truth, answers = _made_up(np.random.default_rng(8))
    demo.images.mkdir(parents=True, exist_ok=True)
    for number, (film, has) in enumerate(truth.items()):
        progress("drawing images", 0.8 * number / FILMS)
        bits = 8 if number % DEEP_EVERY else 16
        write_durably(demo.images / film, draw_phantom(has, seed=number, bits=bits))
    table, mapping = home / "labels.csv", home / "labels.toml"
    labels.write_csv(table)
    mapping.write_text(MAPPING, encoding="utf-8")
    source = f"table:{table}"
    for judge, scores_table in answers.items():
        scores = home / f"{judge}.csv"
        scores_table.write_csv(scores)
        run_judge(f"table:{scores}", workspace=home, order=Order(name=judge, source=source, mapping=str(mapping)))
    audit(
        source,
        mapping=mapping,
        workspace=home,
        judges=list(JUDGES),
        progress=lambda what, share: progress(what, 0.8 + 0.2 * share),
    )
    return demo


def _made_up(draw: np.random.Generator) -> tuple[pl.DataFrame, dict[str, list[str]], dict[str, pl.DataFrame]]:
    """Make up the truth, the labels and the answers of each judge."""
    patient = np.sort(np.append(np.arange(PATIENTS), draw.integers(0, PATIENTS, FILMS - PATIENTS)))
    visit = np.arange(FILMS) - np.searchsorted(patient, patient)
    names = [f"{one:03}_{at}.png" for one, at in zip(patient, visit, strict=True)]
    columns = dict(enumerate(NIH.findings))
    order = np.tile(np.arange(PATIENTS), (len(columns), 1))
    often = (draw.permuted(order, axis=1).T < AFFLICTED)[patient]
    has = np.where(draw.random(often.shape) < 0.75, often, draw.random(often.shape) < 0.04)
    says = np.where(draw.random(has.shape) < np.where(has, MISSED, INVENTED), ~has, has)
    known = {
        "film": names,
        "patient": [f"D{one:02}" for one in patient],
        "visit": visit,
        "view": draw.choice(["PA", "AP"], FILMS),
        "age": draw.integers(20, 90, PATIENTS)[patient],
        "sex": draw.choice(["F", "M"], PATIENTS)[patient],
    }
    labels = pl.DataFrame(known | {name: says[:, at].astype(np.int64) for at, name in columns.items()})
    answers = {}
    for judge, strays in JUDGES.items():
        score = 1 / (1 + np.exp(-(3.2 * (2 * has - 1) + strays * draw.standard_normal(has.shape))))
        answers[judge] = pl.DataFrame(
            {"image_id": names} | {name: score[:, at].round(4) for at, name in columns.items()}
        )
    truth = {name: [columns[int(at)] for at in np.flatnonzero(row)] for name, row in zip(names, has, strict=True)}
    return labels, truth, answers
