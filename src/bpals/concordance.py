"""Concordance: how far readers agree with one another, with the labels, with the signal and with each judge.

A judge or a signal gives a probability, and 0.5 means little where it is not calibrated: it *calls* a finding on as
many of the films as most readers do, those to which it gives most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import polars as pl

from bpals.findings import Group
from bpals.plural import several
from bpals.score.dependence import called
from bpals.score.opinions import Audited, opinions
from bpals.score.resamples import Resampling
from bpals.signal.agreement import Bootstrap, Row, against_the_others, among, between, majority, side_by_side
from bpals.types import Notice

LABEL = "label"
SIGNAL = "bpals"


def concordance(
    reads: pl.DataFrame,
    audited: Audited,
    judges: Mapping[str, pl.DataFrame],
    groups: Sequence[Group],
    resampling: Resampling,
) -> list[Row]:
    """Give rows for the readers together, then for each reader beside the others, the label, the signal and the judges.

    `reads` are REVIEWS, `judges` the answers of each image judge. The last rows set label, signal and judges beside the
    majority of the readers.
    """
    here = _of_read_films(audited, reads)
    bootstrap = Bootstrap(draws=resampling.draws, seed=resampling.seed)
    known = reads.join(here.images, on="image_id", how="semi", maintain_order="left")
    most = majority(known)
    machines = _machines(most, here, judges, groups)
    pairs = pl.concat([against_the_others(known), side_by_side(known, machines), side_by_side(machines, most)])
    return [*among(known, here.images, bootstrap), *between(pairs, here.images, bootstrap)]


def unlike_films(reads: pl.DataFrame, audited: Audited) -> list[Notice]:
    """Say that judges answered different films of those that were read: their agreement does not compare."""
    read = set(reads["image_id"]) & set(audited.images["image_id"])
    given = {"record": audited.judgments} if audited.judgments.height else {}
    answered = {
        name: read & set(answers.filter(pl.col("outcome").cast(pl.String) == "answered")["image_id"])
        for name, answers in {**given, **audited.judges}.items()
    }
    unlike = sum(films != read for films in answered.values())
    if not unlike or len(answered) == 1:
        return []
    counts = ", ".join(f"{name} {len(films):,}" for name, films in answered.items())
    films_read = several(len(read), "film that was", "films that were")
    message = (
        f"of the {films_read} read the judges answered different ones ({counts}); each is held "
        "against readers on its own films, so their rows do not compare. Type: --only-judged"
    )
    return [Notice(code="unlike_films", count=unlike, message=message)]


def _of_read_films(audited: Audited, reads: pl.DataFrame) -> Audited:
    """Keep what the audit holds of films that were read."""
    read = reads.select("image_id").unique()

    def of(table: pl.DataFrame) -> pl.DataFrame:
        return table.join(read, on="image_id", how="semi", maintain_order="left")

    return replace(
        audited,
        images=of(audited.images),
        claims=of(audited.claims),
        judgments=of(audited.judgments),
        signal=of(audited.signal),
        groups=None if audited.groups is None else of(audited.groups),
    )


def _machines(
    most: pl.DataFrame, audited: Audited, judges: Mapping[str, pl.DataFrame], groups: Sequence[Group]
) -> pl.DataFrame:
    """Make readers of the label, the signal, the record judge and the image judges."""
    named = {group.name: group for group in groups}
    parts = []
    for finding in most["finding"].unique(maintain_order=True):
        group = named.get(finding, Group(name=finding, members=(finding,)))
        asked = most.filter(pl.col("finding") == finding)
        held = opinions(audited, group)
        held = held.filter(~pl.col("self_fitted") & pl.col("says").is_in(["present", "absent"]))
        label = held.select("image_id", verdict="says")
        parts.append(_as_reads(asked, label, LABEL))
        given = pl.when(pl.col("says") == "present").then("trust").otherwise(1 - pl.col("trust"))
        parts.append(_as_reads(asked, _calls(asked, held.select("image_id", p=given)), SIGNAL))
        for name, answers in {"record": audited.judgments, **judges}.items():
            said = opinions(replace(audited, judgments=answers), group).select("image_id", p="p_judge")
            parts.append(_as_reads(asked, _calls(asked, said), name))
    return pl.concat(parts) if parts else most


def _calls(asked: pl.DataFrame, given: pl.DataFrame) -> pl.DataFrame:
    """Call the finding on as many of the films as most readers do."""
    both = asked.select("image_id", "verdict").join(given.drop_nulls("p"), on="image_id", maintain_order="left")
    yes = called(both["p"].to_numpy(), int((both["verdict"] == "present").sum()))
    words = pl.Series(["absent", "present"]).gather(yes.astype("int64"))
    return both.select("image_id", verdict=words)


def _as_reads(asked: pl.DataFrame, said: pl.DataFrame, name: str) -> pl.DataFrame:
    """Lay out what a machine says as reads of it."""
    read = asked.select("image_id", "finding").join(said, on="image_id", maintain_order="left")
    return read.select("image_id", "finding", reader=pl.lit(name), verdict="verdict")
