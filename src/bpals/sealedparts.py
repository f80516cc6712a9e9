"""Sealed parts: a judge that no ledger holds, such as a table of scores, brought together from several workspaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from bpals.errors import UsageError
from bpals.judgerun import JudgeRun, ended
from bpals.ledger.merge import Clash
from bpals.lightbox import Named
from bpals.sealedjudge import SealedJudge, open_judge
from bpals.types import JudgeCard
from bpals.workspace import Workspace

_RANK = "_rank"


def merge_sealed(
    home: Workspace, films: Named, name: str, parts: Sequence[Path]
) -> tuple[JudgeRun, int, int, list[Clash]]:
    """Bring the sealed answers of one judge together: the run, its new and known films, and what clashes."""
    here = [home.path] if name in home.judge_names() else []
    sealed = [open_judge(path, name) for path in (*here, *parts)]
    for other in sealed:
        _refuse_other(sealed[0], other, films)
    before = sealed[0].answers("image_id")["image_id"].n_unique() if here else 0
    answers, clashes = _joined(name, [each.answers() for each in sealed], "finding")
    said = [table for each in sealed if (table := each.film_answers()) is not None]
    about_films, more = _joined(name, said, "topic") if said else (None, [])
    record = sealed[0].record
    extra = {key: value for key, value in record.items() if key not in ("format", "card", "counts", "files")}
    path = home.seal_judge(name, record["card"], answers, about_films, extra)
    state = str(record.get("state", "done"))
    run = ended(card_of(record["card"]), state, answers, path, ())
    return run, run.films - before, before, [*clashes, *more]


def _refuse_other(first: SealedJudge, other: SealedJudge, films: Named) -> None:
    """Refuse another judge of the same name, and another dataset."""
    where = other.path.parent
    if (dataset := other.record.get("dataset", films.dataset)) != films.dataset:
        raise UsageError(
            f"{where}: judge {other.name!r} is about the dataset {dataset!r}, and {films.dataset!r} is merged. "
            "Merge it into a workspace of its own: --workspace DIR"
        )
    old, new = card_of(first.card).identity, card_of(other.card).identity
    if differs := [f"{field} was {old[field]!r}, is {new[field]!r}" for field in old if old[field] != new[field]]:
        raise UsageError(
            f"{where}: judge {other.name!r} is another one than in {first.path.parent}: {'; '.join(differs)}. "
            "Two judges are never mixed under one name. Seal one under another name (--name), or leave it out"
        )


def card_of(given: Mapping[str, Any]) -> JudgeCard:
    """Read a card as it is written in a record or in a ledger's list."""
    known = {name: given[name] for name in JudgeCard.__dataclass_fields__ if name in given}
    return JudgeCard(**{**known, "polarities": tuple(known.get("polarities", ()))})


def _joined(judge: str, tables: Sequence[pl.DataFrame], subject: str) -> tuple[pl.DataFrame, list[Clash]]:
    """Join tables by film and subject: an answer beats a failure, else the first stays."""
    key = ["image_id", subject]
    if all(table.equals(tables[0]) for table in tables):
        return tables[0], []
    ranked = pl.concat([table.with_columns(pl.lit(number).alias(_RANK)) for number, table in enumerate(tables)])
    failed = pl.col("outcome").cast(pl.String) == "failed"
    kept = ranked.sort(failed, _RANK, maintain_order=True).unique(key, keep="first", maintain_order=True)
    said = ranked.filter(~failed).join(kept.filter(~failed), on=key, suffix="_kept")
    same = (pl.col("outcome") == pl.col("outcome_kept")) & pl.col("p_present").eq_missing(pl.col("p_present_kept"))
    columns = ("outcome", "p_present", "outcome_kept", "p_present_kept")
    differ = said.filter(~same).sort(_RANK, *key).select(*(pl.col(name).cast(pl.String) for name in key), *columns)
    clashes = [
        Clash(judge=judge, image_id=image_id, subject=about, here=_words(kept, q), there=_words(outcome, p))
        for image_id, about, outcome, p, kept, q in differ.iter_rows()
    ]
    return kept.drop(_RANK).sort(*key), clashes


def _words(outcome: str, p: float | None) -> str:
    return outcome if p is None else f"{outcome} {p:.6g}"
