"""Made-up judges of 600 films, for tests of what compares them: in arrays, and sealed in a workspace."""

import numpy as np
import polars as pl

import bpals
from bpals.findings import Group
from bpals.judges.stub import StubJudge
from bpals.score.pairwise import Side, join
from bpals.store.workspace import Workspace
from bpals.tasks.datasets import load_source
from bpals.testing import skilled
from world.datasets import EXAMPLES, MAPPING, SOURCE

CARD = """
model = "Sharp-1"
revision = "c0ffee"
licence = "CC-BY-NC-4.0"
trained_on_target = "no"
evidence = "Made up."
"""
EXPERTS = f"table={EXAMPLES / 'experts.csv'}"


def answers(p, *, finding="Effusion", present=None, absent=None, mass=None):
    """A judge's sealed answers about one finding; None is a refusal."""
    films = len(p)
    nothing = [None] * films
    return pl.DataFrame(
        {
            "image_id": [f"{film:05}" for film in range(films)],
            "finding": [finding] * films,
            "outcome": ["refused" if value is None else "answered" for value in p],
            "p_present": pl.Series(p, dtype=pl.Float64),
            "logit_present": pl.Series(nothing if present is None else present, dtype=pl.Float64),
            "logit_absent": pl.Series(nothing if absent is None else absent, dtype=pl.Float64),
            "mass": pl.Series(nothing if mass is None else mass, dtype=pl.Float64),
        }
    )


def films(count, films_each=2):
    """Films and their patients, who are numbers."""
    return pl.DataFrame(
        {"image_id": [f"{film:05}" for film in range(count)], "patient": [film // films_each for film in range(count)]}
    )


def pairs(a, b, truth, *, finding="Effusion"):
    """Two judges' answers about one finding beside what is so."""
    known = films(len(truth)).with_columns(truth=pl.Series(truth, dtype=pl.Boolean))
    sides = [Side.of(name, answers(p, finding=finding)) for name, p in (("a", a), ("b", b))]
    return join(Group(name=finding, members=(finding,)), *sides, known)


def world():
    """600 films, a third with the finding; judge A is better than B, and both share half of their noise."""
    draw = np.random.default_rng(0)
    truth = draw.random(600) < 1 / 3
    shared = draw.normal(size=600)
    a, b = (sigmoid(k * truth + shared + 0.7 * draw.normal(size=600) - 1) for k in (2.0, 1.0))
    return truth, a, b


def sigmoid(z):
    """A probability."""
    return 1 / (1 + np.exp(-z))


def truth():
    """What experts say of the made-up films: image_id, finding, present."""
    wide = pl.read_csv(EXAMPLES / "experts.csv").unpivot(
        index="image_id", variable_name="finding", value_name="present"
    )
    return wide.with_columns(pl.col("present") == 1)


def seal_scores(folder, name, table, card=None):
    """Seal scores as `bpals judge run table:FILE` does."""
    file = folder.parent / f"{name}.csv"
    table.select("image_id", "finding", "p_present", pl.col("outcome").cast(pl.String)).write_csv(file)
    if card is not None:
        file.with_name(f"{file.name}.card.toml").write_text(card, encoding="utf-8")
    order = bpals.Order(name=name, source=SOURCE, mapping=MAPPING)
    return bpals.run_judge(f"table:{file}", workspace=folder, order=order)


def make_workspace(folder):
    """Four judges of the made-up films: `sharp`, its copy, a `blunt` one, and one that says the same of all."""
    vocabulary = load_source(SOURCE, MAPPING).vocabulary
    known = truth()
    sharp = skilled(known, vocabulary, auroc=0.92, seed=1)
    seal_scores(folder, "sharp", sharp, CARD)
    seal_scores(folder, "copy", sharp)
    seal_scores(folder, "blunt", skilled(known, vocabulary, auroc=0.75, seed=2))
    seal_scores(folder, "blind", sharp.with_columns(p_present=pl.lit(0.7)))
    return folder


def seal_stub(folder, name="stub", seed=3, **extra):
    """Seal a judge that knows nothing and has all six outcomes, with what a run of it would have noted."""
    stub = StubJudge(
        seed=seed, name=name, bias=1.0, shares={"abstained": 0.02, "refused": 0.05, "unparsed": 0.03, "failed": 0.02}
    )
    dataset = load_source(SOURCE, MAPPING)
    answers = stub.scores(dataset.images["image_id"], dataset.vocabulary)
    offsets = {finding: [1.0, 1.0] for finding in dataset.vocabulary.findings}
    Workspace(folder).write_judge(name, stub.card.as_dict(), answers, None, {"offsets": offsets, **extra})
    return answers
