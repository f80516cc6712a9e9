"""The rows of the signal: what was estimated, written out a row a claim, with flag, reasons and rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.signal import flags, reasons
from bpals.signal.devices import Devices
from bpals.signal.pairs import NORMAL_95, Matrix, Pairs, logit, sigmoid
from bpals.signal.voices import Bools, Ints, Voice
from bpals.types import DEVICES, FLAG, SAYS, signal_schema

METHOD = "record-1"
JUDGES_METHOD = "judges-1"
"""Where an image judge took part."""
DECIMALS = 6
BLOCK = 131_072
"""Claims whose reasons are gathered at a time, which bounds the memory."""
UNCERTAIN = pl.Series(["uncertain_claim: the dataset itself is uncertain here", None])
REVIEWED = pl.Series(["reviewed: an expert read this pair; its trust comes from a fit without this patient", None])

Wrong = Mapping[str, tuple[Ints, Bools]]
NO_REVIEW = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool))
"""A member of a calibrated group has no review of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Findings, or groups, on their way to a signal table."""

    pairs: Pairs
    """What is claimed, and what the judges say together."""
    record: Pairs
    """The same with the record judge alone; it is `pairs` itself where there is no other judge."""
    voices: tuple[Voice, ...]
    """The image judges, each with what it is heeded on."""
    moved: Bools
    """Pairs in whose probability an image judge took part."""
    p_present: Matrix
    spread: Matrix
    fitted: Bools
    """Pairs whose probability comes from a fit on expert labels."""
    reviewed: Bools
    """... and was cross-fitted, because the pair is one of them."""
    notes: dict[str, str]
    """For each calibrated finding, the reason that says so."""

    @property
    def agreement(self) -> Matrix:
        """Share of the heeded judges that answered and stand on the claim's side of what is usual for them."""
        said = self.record.states
        present, definite = said == 1, (said == 0) | (said == 1)
        stands = np.zeros(said.shape, dtype=np.int32)
        asked = np.zeros(said.shape, dtype=np.int32)
        everywhere = np.ones(said.shape[1], dtype=bool)
        heard = [(self.record.p_present, self.record.usual, everywhere)]
        heard += [(voice.p_present, voice.usual, voice.heeded) for voice in self.voices]
        for given, usual, heeded in heard:
            # Half a comparison with NaN is false, so who did not answer stands nowhere.
            asked += ~np.isnan(given) & heeded
            stands += np.where(present, given >= usual, given <= usual) & heeded
        return np.where((asked > 0) & definite, stands / np.maximum(asked, 1), np.nan)


def write(
    part: Part, images: pl.DataFrame, devices: Devices | None, wrong: Wrong | None
) -> tuple[pl.DataFrame, list[dict[str, Any]]]:
    """Write the part out, one row a claim in the order of films and findings; and the rules that flagged them."""
    said = part.pairs.states
    p = np.round(part.p_present, DECIMALS)
    low, high = _interval(p, part.spread)
    present, absent = said == 1, said == 0
    trust = np.where(present, p, np.where(absent, 1 - p, np.nan))
    trust_low = np.where(present, low, np.where(absent, 1 - high, np.nan))
    trust_high = np.where(present, high, np.where(absent, 1 - low, np.nan))
    flagged, rules = _flag(part, trust, trust_high, wrong or {})
    claimed = ~np.isnan(said)
    films, columns = np.nonzero(claimed)
    table = pl.DataFrame(
        {
            "image_id": part.pairs.image_ids.gather(films),
            "finding": pl.Series(columns.astype(np.uint32)),
            "says": pl.Series(np.select([said[claimed] == 1, said[claimed] == 0], [0, 1], 2).astype(np.uint32)),
            "p_present": p[claimed],
            "trust": trust[claimed],
            "trust_low": trust_low[claimed],
            "trust_high": trust_high[claimed],
            "agreement": part.agreement[claimed],
            "answered": part.pairs.answered[claimed],
            "flag": pl.Series(flagged[claimed].astype(np.uint32)),
        },
        nan_to_null=True,
    )
    schema = signal_schema(part.pairs.findings)
    named = table.with_columns(
        pl.Series("finding", list(part.pairs.findings), dtype=schema["finding"]).gather(table["finding"]),
        pl.Series("says", SAYS.categories, dtype=SAYS).gather(table["says"]),
        pl.Series("flag", flags.NAMES, dtype=FLAG).gather(table["flag"]),
        _reasons(part, images, devices, claimed),
        _method(part, claimed),
        pl.lit("unknown", dtype=DEVICES).alias("devices") if devices is None else devices.column.gather(films),
    )
    return _ranked(named).select(schema.names()).cast(schema), rules


def _interval(p: Matrix, spread: Matrix) -> tuple[Matrix, Matrix]:
    """95 % interval of a probability from the standard deviation of its logit."""
    reach = NORMAL_95 * spread
    low = np.minimum(np.round(sigmoid(logit(p) - reach), DECIMALS), p)
    high = np.maximum(np.round(sigmoid(logit(p) + reach), DECIMALS), p)
    return low, high


def _flag(part: Part, trust: Matrix, high: Matrix, wrong: Wrong) -> tuple[npt.NDArray[np.int8], list[dict[str, Any]]]:
    """Flag every claim, finding by finding and direction by direction."""
    flagged = np.full(trust.shape, flags.UNJUDGED, dtype=np.int8)
    rules = []
    for column, finding in enumerate(part.pairs.findings):
        for says, state in (("present", 1), ("absent", 0)):
            here = (part.pairs.states[:, column] == state) & ~np.isnan(trust[:, column])
            if finding in part.notes:
                films, errors = wrong.get(finding, NO_REVIEW)
                reviewed = here[films]
                rule = flags.rule_by_review(finding, says, trust[films[reviewed], column], errors[reviewed])
            else:
                rule = flags.rule_by_share(finding, says, trust[here, column])
            flagged[here, column] = flags.apply(rule, trust[here, column], high[here, column])
            rules.append(asdict(rule))
    return flagged, rules


def _reasons(part: Part, images: pl.DataFrame, devices: Devices | None, claimed: Bools) -> pl.Series:
    """Gather each claim's reasons, the most telling first."""
    kinds = [
        reasons.timeline_reasons(part.pairs, images),
        reasons.colabel_reasons(part.pairs),
        reasons.record_reasons(part.pairs, part.record),
        *(reasons.judge_reasons(voice, part.pairs.findings) for voice in part.voices if voice.heeded.any()),
    ]
    films, columns = np.nonzero(claimed)
    place = films * claimed.shape[1] + columns
    notes = pl.Series([*(part.notes.get(name) for name in part.pairs.findings), None], dtype=pl.String)
    noted = np.where(part.fitted[claimed], columns, len(part.pairs.findings))
    uncertain, reviewed = part.pairs.states[claimed] == 0.5, part.reviewed[claimed]
    blocks = []
    for start in range(0, len(place), BLOCK):
        block = slice(start, start + BLOCK)
        told = [
            UNCERTAIN.gather(np.where(uncertain[block], 0, 1)),
            *(_interleave(kind, place[block]) for kind in kinds),
            *([] if devices is None else [devices.seen_by.gather(films[block])]),
            notes.gather(noted[block]),
            REVIEWED.gather(np.where(reviewed[block], 0, 1)),
        ]
        frame = pl.DataFrame([series.alias(str(number)) for number, series in enumerate(told)])
        blocks.append(frame.select(reasons=pl.concat_list(pl.all()).list.drop_nulls()).to_series())
    return pl.concat(blocks) if blocks else pl.Series("reasons", [], dtype=pl.List(pl.String))


def _interleave(by_finding: Sequence[pl.Series], place: Ints) -> pl.Series:
    """Turn one series a finding into one series film by film, and take the claimed pairs."""
    count, films = len(by_finding), len(by_finding[0])
    film, column = place // count, place % count
    return pl.concat(by_finding).gather(column * films + film)


def _method(part: Part, claimed: Bools) -> pl.Series:
    """Name the signal that made each row; `/crossfit` marks a pair whose own review was left out."""
    which = np.where(part.reviewed, 2, np.where(part.fitted, 1, 0)) + 3 * part.moved
    ends = ("", "+experts", "+experts/crossfit")
    names = [f"{method}{end}" for method in (METHOD, JUDGES_METHOD) for end in ends]
    return pl.Series("method", names).gather(which[claimed])


def _ranked(table: pl.DataFrame) -> pl.DataFrame:
    """Rank the claims: the least trusted is read first, unjudged ones last; ties by film and finding."""
    order = table.with_row_index("row").select("row", "trust").sort("trust", "row", nulls_last=True)["row"]
    rank = np.empty(table.height, dtype=np.int64)
    rank[order.to_numpy()] = np.arange(1, table.height + 1)
    return table.with_columns(review_rank=pl.Series(rank))
