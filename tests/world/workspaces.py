"""Workspaces that know their films, claims or signal, without the minute of an audit; and a ledger beside them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import polars as pl

import shape
from bpals.room.desk.desk import Desk
from bpals.store.ledger import Ledger
from bpals.store.workspace import LEDGER, Workspace
from bpals.tasks.datasets import load_source
from bpals.types import SAYS
from world import desks

FINDINGS = ("Cardiomegaly", "Effusion", "Pneumothorax")


def seal(folder, dataset):
    """Seal the films and claims of a dataset in a folder."""
    with Workspace(folder).writing() as staging:
        staging.write_table("claims.parquet", dataset.claims)
        staging.write_table("images.parquet", dataset.images)
        staging.finish({"source": {"name": dataset.name}})
    return folder


def seal_small(folder):
    """Seal the 600 example films with three findings."""
    examples = shape.ROOT / "examples"
    return seal(folder, load_source(f"table:{examples}/films.csv", f"{examples}/films.toml"))


def ledger_bytes():
    """Give the file of a ledger in which a study has begun, and nobody has read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / LEDGER
        with Ledger.open(path) as ledger, ledger.lock("test"):
            Desk.open(ledger, desks.make_study(name="that must never be lost"))
        return path.read_bytes()


def signal_of(
    films: int = 120,
    findings: tuple[str, ...] = ("Edema", "Hernia", "Mass"),
    *,
    seed: int = 0,
    uncertain: float = 0.0,
    unjudged: float = 0.0,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Give a signal over films of patients that have one to five each, and the films."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(films), rng.integers(1, 6, films))[:films]
    images = pl.DataFrame(
        {"image_id": [f"{film:05}.png" for film in range(films)], "patient_id": [f"p{one}" for one in owner]}
    )
    signal = images.select("image_id").join(pl.DataFrame({"finding": list(findings)}), how="cross")
    trust = rng.beta(4, 1, signal.height).round(6)
    says = np.where(rng.random(signal.height) < 0.3, "present", "absent")
    signal = signal.with_columns(
        pl.col("finding").cast(pl.Enum(findings)),
        says=pl.Series(np.where(rng.random(signal.height) < uncertain, "uncertain", says)).cast(SAYS),
        trust=pl.Series(np.where(rng.random(signal.height) < unjudged, np.nan, trust), nan_to_null=True),
        method=pl.lit("record-1+experts"),
    )
    return signal.with_columns(
        trust=pl.when(pl.col("says") != "uncertain").then("trust"),
        trust_low=pl.col("trust") * 0.9,
        trust_high=pl.col("trust") * 0.9 + 0.1,
    ), images


def write_signal(folder: Path) -> Path:
    """Seal such a signal as a workspace."""
    signal, images = signal_of(films=200, findings=FINDINGS)
    home = Workspace(folder)
    with home.writing() as staging:
        staging.write_table("images.parquet", images)
        staging.write_table("signal.parquet", signal)
        staging.finish({"bpals": "test", "source": "made up"})
    return home.path
