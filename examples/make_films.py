"""Make films.csv, 600 made-up films of 200 patients whose labels are sometimes wrong, and experts.csv, the truth.

python examples/make_films.py
"""

from pathlib import Path

import numpy as np
import polars as pl

FINDINGS = {"Cardiomegaly": (0.25, 0.95), "Effusion": (0.30, 0.80), "Pneumothorax": (0.15, 0.70)}
"""Share of patients who have it, and how probable it is to stay from one film to the next."""


def films(seed=7):
    """Patients with one to five films; one label in twenty is flipped, one in fifty is uncertain."""
    draw = np.random.default_rng(seed)
    visits = np.resize([1, 2, 3, 4, 5], 200)
    patient = np.repeat(np.arange(len(visits)), visits)
    visit = np.concatenate([np.arange(n) for n in visits])
    given = {
        "film": [f"{p:03}_{v}.png" for p, v in zip(patient, visit, strict=True)],
        "patient": [f"P{p:03}" for p in patient],
        "visit": visit,
        "view": draw.choice(["PA", "AP"], len(patient)),
        "age": draw.integers(20, 90, len(visits))[patient],
        "sex": draw.choice(["F", "M"], len(visits))[patient],
    }
    truth = {"image_id": given["film"]}
    for finding, (share, stays) in FINDINGS.items():
        has_it = (draw.random(len(visits)) < share)[patient]
        present = np.where(draw.random(len(patient)) < stays, has_it, draw.random(len(patient)) < share)
        said = np.where(draw.random(len(patient)) < 0.05, ~present, present)
        given[finding] = np.where(draw.random(len(patient)) < 0.02, -1, said.astype(np.int64))
        truth[finding] = present.astype(np.int64)
    return pl.DataFrame(given), pl.DataFrame(truth)


if __name__ == "__main__":
    labels, experts = films()
    labels.write_csv(Path(__file__).with_name("films.csv"))
    experts.write_csv(Path(__file__).with_name("experts.csv"))
