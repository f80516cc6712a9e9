"""Datasets made of the films of examples: a few of them, drawn, for a judge; and all, with patients of two folds only.

With two folds an audit fits its judge twice and not five times.
"""

from __future__ import annotations

import io
import itertools
import runpy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from PIL import Image

from bpals.judges.record import RecordJudge, fold_of
from bpals.judges.runner.retry import RunPolicy
from bpals.judges.runner.transport import Endpoint
from bpals.tasks.judge import Order, run_judge

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = 24
"""Films of the dataset that the tests of the tasks share."""
FILMS = Path(__file__).with_name("two_folds") / "films.csv"
"""What `of_two_folds` makes of the films of the examples; tests/judges/test_record.py keeps it so."""
SOURCE, MAPPING = f"table:{FILMS}", str(EXAMPLES / "films.toml")
FINDINGS = ("Cardiomegaly", "Effusion", "Pneumothorax")
QUICK = RunPolicy(first_wait_s=0.002, longest_wait_s=0.02, drain_s=5, tries=2, patience_s=0.5)
"""A pace for tests: the same rules with short waits."""


@dataclass(frozen=True, kw_only=True)
class SmallSet:
    """Where a small dataset lies."""

    source: str
    mapping: str
    images: Path
    image_ids: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        """What names it on the command line."""
        return ["--source", self.source, "--mapping", self.mapping, "--images", str(self.images)]


def write(folder: Path, count: int = 24) -> SmallSet:
    """Write a table of the first films of the examples, and their pictures into `films`."""
    draw = runpy.run_path(str(EXAMPLES / "make_pictures.py"))["picture"]
    truth = pl.read_csv(EXAMPLES / "experts.csv").head(count)
    table, images, dice = folder / "films.csv", folder / "films", np.random.default_rng(7)
    pl.read_csv(EXAMPLES / "films.csv").head(count).write_csv(table)
    images.mkdir()
    for row in truth.iter_rows(named=True):
        draw(row, dice).save(images / row["image_id"])
    return SmallSet(
        source=f"table:{table}",
        mapping=str(EXAMPLES / "films.toml"),
        images=images,
        image_ids=tuple(truth["image_id"]),
    )


def another_picture(seed: int = 0) -> bytes:
    """A PNG that is no film of the set."""
    written = io.BytesIO()
    noise = np.random.default_rng(seed).integers(0, 256, size=(64, 64), dtype=np.uint8)
    Image.fromarray(noise).save(written, "PNG")
    return written.getvalue()


def order(small, server=None, **more):
    """How the small dataset is asked about, at a FaultyServer if one is given."""
    endpoints = (Endpoint(url=server.url, deadline_s=5),) if server else ()
    usual = {"source": small.source, "mapping": small.mapping, "endpoints": endpoints, "pace": QUICK, "workers": 0}
    return Order(**usual | more)


def ask(judge, small, home, server=None, *, said=None, **more):
    """Ask a judge about the small dataset, and keep what is said."""
    say = (lambda _: None) if said is None else said.append
    return run_judge(judge, images=small.images, workspace=home, order=order(small, server, **more), say=say)


def of_two_folds(films: pl.DataFrame) -> pl.DataFrame:
    """Lengthen the names of patients until they fall into the first two folds."""
    names = {name: _lengthened(name) for name in films["patient"].unique()}
    return films.with_columns(pl.col("patient").replace_strict(names))


def _lengthened(patient: str) -> str:
    names = (f"{patient}{'+' * more}" for more in itertools.count())
    return next(name for name in names if fold_of(np.array([name]), RecordJudge().folds)[0] < 2)
