"""Workspaces that know their films and claims, without the minute of an audit; and a ledger to lie beside them."""

import tempfile
from pathlib import Path

import atthedesk

import shape
from bpals.room.desk.desk import Desk
from bpals.store.ledger import Ledger
from bpals.store.workspace import LEDGER, Workspace
from bpals.tasks.audit import load_source


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
            Desk.open(ledger, atthedesk.make_study(name="that must never be lost"))
        return path.read_bytes()
