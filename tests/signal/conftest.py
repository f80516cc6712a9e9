"""Answers and reviews out of the air, for the tests of this room."""

import numpy as np
import polars as pl
import pytest

from bpals.signal.layout import Pairs
from bpals.signal.observations import read_answers, read_devices
from bpals.types import KIND, OUTCOME, TRUTH, Reference, judgments_schema
from world.estimating import MeasuredPanel


@pytest.fixture(scope="session")
def judged():
    """Make judgments of a dataset's claims: seeded answers, some of them failed, by one judge."""

    def judged(dataset, *, seed=0, failed=0.0, judge="record"):
        draw = np.random.default_rng(seed)
        n = dataset.claims.height
        claimed = (dataset.claims["says"] == "present").to_numpy()
        z = draw.normal(-1.5, 1.0, n) + 1.5 * claimed
        reach = draw.uniform(0.05, 1.0, n)
        p, low, high = (np.round(1 / (1 + np.exp(-side)), 6) for side in (z, z - reach, z + reach))
        out = draw.random(n) < failed
        return dataset.claims.select(
            "image_id",
            "finding",
            judge=pl.lit(judge),
            kind=pl.lit("record", dtype=KIND),
            outcome=pl.Series(np.where(out, "failed", "answered")).cast(OUTCOME),
            **{
                name: pl.Series(np.where(out, np.nan, side)).fill_nan(None)
                for name, side in (("p_present", p), ("p_low", low), ("p_high", high))
            },
        ).cast(judgments_schema(dataset.vocabulary))

    return judged


@pytest.fixture(scope="session")
def reviews():
    """Make expert labels: films, a finding or a group, and which of the films have it."""

    def reviews(films, finding, present, groups=()):
        truth = {"image_id": films, "finding": [finding] * len(films), "present": present, "split": None}
        return Reference(kind="table", truth=pl.DataFrame(truth, schema=TRUTH), groups=tuple(groups))

    return reviews


@pytest.fixture(scope="session")
def matrices():
    """Make pairs from matrices: a row a film, a column a finding."""

    def matrices(states, p_present, spread=0.0, findings=None):
        states, p = np.asarray(states, dtype=float), np.asarray(p_present, dtype=float)
        names = tuple(findings or (f"F{column}" for column in range(states.shape[1])))
        return Pairs(
            image_ids=pl.Series([f"{row:05}.png" for row in range(len(states))], dtype=pl.String),
            findings=names,
            states=states,
            p_present=p,
            spread=np.broadcast_to(spread, p.shape).astype(float),
            answered=(~np.isnan(p)).astype(np.int32),
        )

    return matrices


@pytest.fixture(scope="session")
def seen():
    """Make an image judge's answers: `strength` is how far they follow the claims, `share` how many films it saw."""

    def seen(dataset, *, judge="eye", seed=0, strength=2.0, share=1.0):
        draw = np.random.default_rng([seed, 5])
        n = dataset.claims.height
        claimed = (dataset.claims["says"] == "present").to_numpy()
        films = dataset.images.select("image_id", saw=pl.Series(draw.random(dataset.images.height) < share))
        p = 1 / (1 + np.exp(-(draw.normal(0.0, 1.0, n) + strength * claimed)))
        answers = dataset.claims.select(
            "image_id",
            "finding",
            judge=pl.lit(judge),
            outcome=pl.lit("answered", dtype=OUTCOME),
            p_present=pl.Series(p),
        )
        return answers.join(films.filter("saw"), on="image_id", how="semi", maintain_order="left")

    return seen


@pytest.fixture(scope="session")
def panel():
    """Seat judges, a table of answers each; `used` names the findings on which one has a signal, by default all."""

    def panel(dataset, *tables, used=None, fold=None, asked=(), checks=None):
        findings = dataset.vocabulary.findings
        return MeasuredPanel(
            judges=tuple(read_answers(table["judge"][0], table, dataset.images, findings) for table in tables),
            fold=np.zeros(dataset.images.height, dtype=np.int64) if fold is None else fold,
            devices=read_devices(dataset.images, asked),
            checks=checks,
            used=used or {},
        )

    return panel
