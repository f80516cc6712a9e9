"""How the shards of a judge ended, and what is missing between them and one whole run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bpals.draw import Draw
from bpals.plural import several
from bpals.shard import Shard
from bpals.types import Notice

WHOLE = ""
"""The shard of a run that was not divided."""
MOST_NAMED = 8
"""Shards that are named in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEnd:
    """How the latest run of a shard ended."""

    state: str
    draw: Draw | None
    """What it was to ask about, with the other shards; none in ledgers of before it was written down."""


def ends_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, ShardEnd]:
    """Say how each shard ended, by the time its runs began; where a whole run, or all of n shards, did all, only it."""
    ends: dict[str, ShardEnd] = {}
    for run in sorted(runs, key=lambda each: str(each["began"])):
        plan, state = run["plan"], "killed" if run["state"] == "running" else str(run["state"])
        shard = str(plan.get("shard", WHOLE))
        if "controls" not in plan:
            ends[shard] = ShardEnd(state=state, draw=Draw.read(plan))
        elif shard not in ends:  # its controls were asked about, and none of its films
            ends[shard] = ShardEnd(state="unfinished", draw=Draw.read(plan))
    for some in _wholes(ends):
        if all(end.state == "done" for end in some.values()) and _cover(some, ends):
            return some
    return ends


def _wholes(ends: Mapping[str, ShardEnd]) -> Iterator[dict[str, ShardEnd]]:
    """Give each set of shards that are a whole run together."""
    if WHOLE in ends:
        yield {WHOLE: ends[WHOLE]}
    for n in sorted({Shard.parse(shard).of for shard in ends if shard}):
        if not _missing(ends, n):
            yield {shard: ends[shard] for shard in _named(n)}


def _cover(some: Mapping[str, ShardEnd], ends: Mapping[str, ShardEnd]) -> bool:
    """Say whether shards that were drawn alike asked about all that any shard was to ask about."""
    drawn, wanted = _draws(some), _draws(ends)
    return len(drawn) < 2 and all(draw.covers(each) for draw in drawn for each in wanted)


def _draws(ends: Mapping[str, ShardEnd]) -> dict[Draw, list[str]]:
    """Give every draw with its shards."""
    found: dict[Draw, list[str]] = {}
    for shard, end in sorted(ends.items()):
        if end.draw is not None:
            found.setdefault(end.draw, []).append(shard or "the run without --shard")
    return found


def _named(n: int) -> list[str]:
    return [str(Shard(part, n)) for part in range(1, n + 1)]


def _missing(ends: Mapping[str, ShardEnd], n: int) -> list[str]:
    return [shard for shard in _named(n) if shard not in ends]


def gaps(judge: str, ends: Mapping[str, ShardEnd], home: Path) -> list[Notice]:
    """Say where shards were drawn or divided differently, did not come, or came before they were done."""
    return [*_drawn_differently(judge, ends, home), *_not_whole(judge, ends)]


def _drawn_differently(judge: str, ends: Mapping[str, ShardEnd], home: Path) -> Iterator[Notice]:
    drawn = _draws(ends)
    if len(drawn) < 2:
        return
    named = len({draw.names for draw in drawn}) > 1
    each = [f"{', '.join(shards[:MOST_NAMED])}: {draw.words(named=named)}" for draw, shards in drawn.items()]
    words = (
        f"judge {judge!r}: the parts were drawn differently: {' and '.join(each)}. Run them alike (--limit-images, "
        f"--seed, and the same films) and merge again, or ask here about what is missing: "
        f"bpals judge run SPEC --images PATH --workspace {home}"
    )
    yield Notice(code="shards_drawn", count=len(drawn), message=words)


def _not_whole(judge: str, ends: Mapping[str, ShardEnd]) -> Iterator[Notice]:
    if WHOLE in ends:  # somebody asked about everything
        return
    numbers = sorted({Shard.parse(shard).of for shard in ends})
    missing = {n: _missing(ends, n) for n in numbers}
    if len(numbers) > 1 and all(missing.values()):
        each = " and ".join(f"{n:,} ({', '.join(gone[:MOST_NAMED])} missing)" for n, gone in missing.items())
        words = f"judge {judge!r}: the parts were divided differently: into {each}. Run those that are missing of one"
        yield Notice(code="shards_divided", count=len(numbers), message=words)
    elif len(numbers) == 1 and (gone := missing[numbers[0]]):
        those = several(len(gone), "shard is", "shards are")
        words = f"judge {judge!r}: {those} not among these: {', '.join(gone[:MOST_NAMED])}"
        yield Notice(code="shards_missing", count=len(gone), message=words)
    if left := [f"{shard} ({end.state})" for shard, end in ends.items() if end.state != "done"]:
        those, them = several(len(left), "shard was", "shards were"), "it" if len(left) == 1 else "them"
        words = f"judge {judge!r}: {those} not done: {', '.join(left[:MOST_NAMED])}. Run {them} again, and merge"
        yield Notice(code="shards_unfinished", count=len(left), message=words)
