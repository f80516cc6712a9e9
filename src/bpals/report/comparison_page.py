"""The page of a comparison: two judges, who was right, and the images on which they differ most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from bpals.report.charts import anchor, box, dot, line, picture, words
from bpals.report.templating import fill
from bpals.report.wording import DASH, NONE, count, listed, of, picture_source, plain, plural, seconds, spoken

Row = Mapping[str, Any]

OUTCOMES = ("answered", "abstained", "refused", "unparsed", "unsupported", "failed")
ROUND_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
CHANCE = 0.5
MINUS = "\N{MINUS SIGN}"
LABELS = "labels"
MEAN = "mean"
CARD = {
    "kind": "sort of judge",
    "model": "model",
    "revision": "revision",
    "engine": "run by",
    "pack": "prompt pack",
    "licence": "licence",
    "commercial_use": "commercial use",
    "trained_on_target": "trained on these labels",
    "evidence": "how that is known",
    "fingerprint": "fingerprint",
}
COST = {
    "requests": "requests",
    "prompt_tokens": "tokens read",
    "cached_tokens": "of these cached",
    "output_tokens": "tokens written",
}
BEHAVIOUR = {
    "yes_rate": ("says yes", "share of images with a probability of 0.5 or more"),
    "coherent": ("coherent", "its answers to “shows” and “free of” lean to opposite sides"),
    "acquiescence": ("acquiescence", "nats by which it says yes to both"),
    "low_mass": ("wants to say else", "share of answers with less than 0.9 on yes and no"),
    "depends": ("depends on the image", "its answer moves when another patient's image takes its place"),
    "reliance": ("moves by", "nats, on average, when it does"),
}


def render_comparison(found: Mapping[str, Any]) -> str:
    """Write a comparison as one self-contained page: a `Comparison` written out, whose images have a `picture`.

    A picture is a PNG, a sentence that says why there is none, or None where the image is not at hand.
    """
    names = list(dict.fromkeys(row["against"] for row in found["quality"]))
    # Experts make the headline where there are any: agreement with labels is no quality.
    against = next((name for name in names if name != LABELS), LABELS)
    return fill(
        "compare.html",
        version=found["meta"].get("bpals", ""),
        **{name: found[name] for name in ("a", "b", "common", "meta", "notes")},
        headline=_headline(found, against),
        judged=_judged(found["judges"]),
        outcomes=[_outcomes(letter, row) for letter, row in zip("AB", found["judges"], strict=True)],
        yardsticks=[_yardstick(found, name) for name in names],
        ways=_ways(found),
        answers=[
            (row["judge"], *_answers(found["behaviour"], row["judge"]), _asked(found["behaviour"], row["judge"]))
            for row in found["judges"]
        ],
        shares=SHARES.axis(),
        films=[_film(film) for film in found["films"]],
        gaps=[(spoken(finding), f"{gap:.3f}") for finding, gap in sorted(found["gaps"].items(), key=lambda g: -g[1])],
        patients=[
            (row["patient"], count(row["films"]), count(row["pairs"]), f"{row['mean_gap']:.3f}", f"{row['beyond']:.1f}")
            for row in found["patients"]
        ],
    )


def _headline(found: Mapping[str, Any], against: str) -> Row | None:
    """Give the figures of the mean, or of the only finding that could be scored, against one yardstick."""
    scored = [row for row in found["quality"] if row["against"] == against and row["auroc_a"] is not None]
    if not scored:
        return None
    # The mean over findings comes last, and exists only where several findings could be scored.
    row = scored[-1]
    together = [each for each in found["dependence"] if (each["against"], each["finding"]) == (against, row["finding"])]
    return {
        "experts": against != LABELS,
        "against": against,
        "findings": row.get("findings", 1),
        "finding": spoken(row["finding"]),
        **{name: f"{row[f'auroc_{name}']:.3f}" for name in "ab"},
        **_ahead(row),
        "correlation": _number(together[0]["error_correlation"]) if together else NONE,
        "correlation_interval": _interval(together[0], "error_correlation") if together else NONE,
        "worth": _number(together[0]["effective_judges"], 2) if together else NONE,
        "no_signal": listed([letter.upper() for letter in together[0]["no_signal"]]) if together else "",
    }


def _judged(judges: Sequence[Row]) -> list[tuple[str, ...]]:
    """Lay who the two are, and what they cost, side by side; what neither says is left out."""
    rows = [(words, *(plain(judge["card"].get(name) or "") for judge in judges)) for name, words in CARD.items()]
    counts = {"films": "images", "asked": "pairs asked"}
    rows += [(words, *(count(judge[name]) for judge in judges)) for name, words in counts.items()]
    costs = [judge["cost"] or {} for judge in judges]
    rows += [(words, *(count(cost[n]) if n in cost else "" for cost in costs)) for n, words in COST.items()]
    tokens = (f"{cost['tokens_per_film']:,.0f}" if "tokens_per_film" in cost else "" for cost in costs)
    times = (seconds(cost["seconds_per_film"]) if cost else "" for cost in costs)
    rows += [("tokens per image", *tokens), ("time per image, requests added up", *times)]
    rows.append(("drift when asked again", *(_drift(judge["drift"]) for judge in judges)))
    return [(words, *(value or NONE for value in values)) for words, *values in rows if any(values)]


def _drift(drift: Row | None) -> str:
    if not drift or drift.get("mean") is None:
        return ""
    compared = plural(drift["compared"], "answer")
    return f"{drift['mean']:.3f} nat on average over {compared}, {drift['largest']:.3f} at most"


def _outcomes(letter: str, row: Row) -> dict[str, Any]:
    """Draw a judge's questions by outcome, with the counts in words."""
    counts = {outcome: row[outcome] for outcome in OUTCOMES}
    rows = [(outcome, count(n), of(n, row["asked"])) for outcome, n in counts.items()]
    return {"letter": letter, "judge": row["judge"], "bar": outcome_bar(counts, what=row["judge"]), "rows": rows}


def _yardstick(found: Mapping[str, Any], name: str) -> Row:
    """Write what one yardstick, the labels or experts, says of both."""
    rows = [row for row in found["quality"] if row["against"] == name]
    scored = [row for row in rows if row["auroc_a"] is not None]
    ends = ("_low", "_high")
    aurocs = Span.of_aurocs([row[f"auroc_{letter}{end}"] for row in scored for letter in "ab" for end in ends])
    differences = Span.of_differences([row[f"auroc_difference{end}"] for row in scored for end in ends])
    calls = [row for row in found["dependence"] if row["against"] == name and row["agreement"] is not None]
    return {
        "title": "the dataset's own labels" if name == LABELS else f"experts ({name})",
        "contests": [_contest(row, aurocs, differences) for row in scored],
        "aurocs": aurocs.axis(),
        "differences": differences.axis(("B ahead", "A ahead")),
        "tables": ([_telling(row) for row in scored], [_calibration(row) for row in scored]),
        # Too few presences or absences that both answered.
        "unscored": [spoken(row["finding"]) for row in rows if row["auroc_a"] is None],
        "together": [_together(row) for row in calls if row["error_correlation"] is not None],
        "calls": [_calls(row) for row in calls],
    }


def _contest(row: Row, aurocs: Span, differences: Span) -> Row:
    """Draw one finding, or the mean, against one yardstick."""
    finding = _finding(row)
    return {
        "finding": finding,
        "about": f"{count(row['positives'])} of {count(row['n'])}" if "n" in row else f"{row['findings']} findings",
        # An AUROC whose interval includes a half may be chance.
        "no_signal": listed([letter.upper() for letter in "ab" if row[f"auroc_{letter}_low"] <= CHANCE]),
        "both": two(row, aurocs, figure="auroc", title=f"AUROC, {finding}"),
        "a": _number(row["auroc_a"]),
        "b": _number(row["auroc_b"]),
        "difference": difference(row, differences, figure="auroc", title=f"Difference of the AUROCs, {finding}"),
        **_ahead(row),
    }


def _ahead(row: Row) -> Row:
    """Say by how much A is ahead in AUROC, and who is ahead beyond chance."""
    return {
        "by": _signed(row["auroc_difference"]),
        "interval": _signed_interval(row, "auroc_difference"),
        "ahead": ahead(row["auroc_difference_low"], row["auroc_difference_high"]),
    }


def _telling(row: Row) -> tuple[str, ...]:
    """Write how well the two tell images apart: a row of the first table."""
    counts = [count(row[name]) if name in row else "" for name in ("n", "positives", "left_out")]
    own = [_with_interval(row, f"auroc_{letter}") for letter in "ab"]
    filled = _signed_with_interval(row, "auroc_difference_filled") if "n" in row else ""
    p = _p(row["p_holm"]) if "n" in row else ""
    return (_finding(row), *counts, *own, _signed_with_interval(row, "auroc_difference"), p, filled)


def _calibration(row: Row) -> tuple[str, ...]:
    """Write how pure the top of each ranking is, and how far each probability is one: a row of the second table."""
    own = {figure: [_with_interval(row, f"{figure}_{letter}") for letter in "ab"] for figure in ("ap", "brier", "ece")}
    return (_finding(row), *own["ap"], _signed_with_interval(row, "ap_difference"), *own["brier"], *own["ece"])


def _together(row: Row) -> Row:
    finding = _finding(row)
    value, low, high = (row[f"error_correlation{end}"] for end in ("", "_low", "_high"))
    drawn = share(value, low, high, title=f"Error correlation, {finding}")
    interval = _interval(row, "error_correlation")
    return {"finding": finding, "drawn": drawn, "value": _number(value), "interval": interval}


def _calls(row: Row) -> tuple[str, ...]:
    figures = [_with_interval(row, name) for name in ("agreement", "kappa", "error_correlation")]
    lacks = listed([letter.upper() for letter in row["no_signal"]])
    worth = f"no signal: {lacks}" if lacks else _number(row["effective_judges"], 2)
    return (_finding(row), count(row["n"]) if "n" in row else "", *figures, worth)


def _ways(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Lay how the two answer side by side, mean over findings; what neither shows is left out."""
    means = [row for row in found["behaviour"] if row["finding"] == MEAN]
    rows = [
        (words, *(_with_interval(row, name) for row in means), meaning) for name, (words, meaning) in BEHAVIOUR.items()
    ]
    return [row for row in rows if set(row[1:-1]) != {NONE}]


def _answers(behaviour: Sequence[Row], judge: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Write how a judge answers, finding by finding: the columns that it has anything for, and the rows."""
    rows = [row for row in behaviour if row["judge"] == judge and row["finding"] != MEAN]
    has = [name for name in BEHAVIOUR if any(row[name] is not None for row in rows)]
    habit = ["p_without_film"] if any(row["p_without_film"] is not None for row in rows) else []
    columns = ("Finding", *(BEHAVIOUR[name][0] for name in has), *("without an image" for _ in habit))
    written = [
        (
            spoken(row["finding"]),
            *(_with_interval(row, name) for name in has),
            *(_number(row[name], 2) for name in habit),
        )
        for row in rows
    ]
    return columns, written


def _asked(behaviour: Sequence[Row], judge: str) -> list[tuple[str, ...]]:
    """Write a judge's questions by outcome, finding by finding."""
    rows = [row for row in behaviour if row["judge"] == judge and row["finding"] != MEAN]
    return [(spoken(row["finding"]), *(count(row[name]) for name in ("asked", *OUTCOMES))) for row in rows]


def _film(film: Row) -> dict[str, Any]:
    picture = film["picture"]
    shown = isinstance(picture, bytes)
    calls = {(True, False): "only A calls it", (False, True): "only B calls it", (True, True): "both call it"}
    return {
        **{name: film[name] for name in ("image_id", "patient")},
        "place": count(film["place"]),
        "finding": spoken(film["finding"]),
        "source": picture_source(picture) if shown else "",
        "why": "" if shown else picture or "image not at hand",
        "calls": calls.get((film["called_a"], film["called_b"]), "neither calls it"),
        "ranks": ranks(film),
        **{f"p_{letter}": f"{film[f'p_{letter}']:.3f}" for letter in "ab"},
        "label": _verdict(film, "truth", "uncertain or silent"),
        "experts": _verdict(film, "experts", ""),
    }


def _verdict(film: Row, who: str, unknown: str) -> str:
    return unknown if film[who] is None else "present" if film[who] else "absent"


def _finding(row: Row) -> str:
    return "Mean" if row["finding"] == MEAN else spoken(row["finding"])


def _number(value: float | None, digits: int = 3) -> str:
    return NONE if value is None else f"{value:.{digits}f}".replace("-", MINUS)


def _signed(value: float | None) -> str:
    return NONE if value is None else f"{value:+.3f}".replace("-", MINUS)


def _interval(row: Row, name: str) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    if low is None or high is None:
        return NONE
    # Between a minus sign and a dash nobody could tell which is which.
    between = " to " if low < 0 else DASH
    return f"{_number(low)}{between}{_number(high)}"


def _signed_with_interval(row: Row, name: str) -> str:
    return NONE if row[name] is None else _small(_signed(row[name]), _signed_interval(row, name))


def _signed_interval(row: Row, name: str) -> str:
    return f"{_signed(row[f'{name}_low'])} to {_signed(row[f'{name}_high'])}"


def _with_interval(row: Row, name: str) -> str:
    value = row.get(name)
    return NONE if value is None else _small(_number(value), _interval(row, name))


def _small(value: str, interval: str) -> Markup:
    return Markup("{} <small>{}</small>").format(value, interval)


def _p(value: float | None) -> str:
    # More digits would promise more than a normal approximation can give.
    return NONE if value is None else "<0.001" if value < 0.001 else f"{value:.3f}"


# The charts of two judges.


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of numbers drawn from left to right, with the places that are labelled."""

    low: float
    high: float
    ticks: tuple[float, ...]
    sign: str = ""

    @classmethod
    def of_aurocs(cls, values: Sequence[float]) -> Span:
        """Take the stretch from a tenth below the lowest, or from chance, up to 1."""
        # A scale from 0 would press all judges into its right half.
        low = min([CHANCE, *(int(10 * value) / 10 for value in values)])
        return cls(low=low, high=1.0, ticks=(low, CHANCE, 0.75, 1.0) if low < CHANCE else (CHANCE, 0.75, 1.0))

    @classmethod
    def of_differences(cls, values: Sequence[float]) -> Span:
        """Take a round stretch with zero in its middle."""
        reach = next((step for step in ROUND_STEPS if max(map(abs, values), default=0.0) <= step), 1.0)
        return cls(low=-reach, high=reach, ticks=(-reach, 0.0, reach), sign="+")

    def place(self, value: float) -> float:
        """Say where a value lies, as a share of the width; what is outside lies at the edge."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))

    def grid(self, height: float) -> list[Markup]:
        """Draw a line at each label."""
        return [line(self.place(tick), 0, self.place(tick), height, "grid") for tick in self.ticks]

    def mark(self, value: float, low: float, high: float, y: float, tone: str) -> list[Markup]:
        """Draw a value with its interval."""
        return [
            line(self.place(low), y, self.place(high), y, f"whisker {tone}"),
            dot(self.place(value), y, 4.5, tone),
        ]

    def axis(self, ends: tuple[str, str] = ("", "")) -> Markup:
        """Write the labels, and what the ends mean."""
        parts = [line(0, 1, 1, 1, "axis")]
        for tick in self.ticks:
            x = self.place(tick)
            text = (f"{tick:{self.sign}g}" if tick else "0").replace("-", "\N{MINUS SIGN}")
            parts += [line(x, 1, x, 5, "axis"), words(text, x, 18, anchor=anchor(x))]
        parts += [words(end, x, 34, anchor=anchor(x)) for x, end in enumerate(ends)]
        title = f"scale from {self.low:g} to {self.high:g}"
        return picture(*parts, title=title, height=40 if any(ends) else 22, kind="scale")


SHARES = Span(low=0.0, high=1.0, ticks=(0.0, 0.5, 1.0))


def two(row: Row, span: Span, *, figure: str, title: str) -> Markup:
    """Draw a figure of both judges with their intervals, A above B."""
    parts = span.grid(28)
    texts = []
    # One above the other: whiskers on one line would hide each other.
    for letter, y in (("a", 9), ("b", 20)):
        value, low, high = (row[f"{figure}_{letter}{end}"] for end in ("", "_low", "_high"))
        parts += span.mark(value, low, high, y, f"side-{letter}")
        texts.append(f"{letter.upper()} {value:.3f}, from {low:.3f} to {high:.3f}")
    return picture(*parts, title=title, desc="; ".join(texts), height=28, kind="two")


def difference(row: Row, span: Span, *, figure: str, title: str) -> Markup:
    """Draw how much more A has than B, in the colour of the one that is ahead beyond chance."""
    value, low, high = (row[f"{figure}_difference{end}"] for end in ("", "_low", "_high"))
    marks = span.mark(value, low, high, 14, f"side-{ahead(low, high) or 'none'}")
    desc = f"{value:+.3f}, from {low:+.3f} to {high:+.3f}"
    return picture(*span.grid(28), *marks, title=title, desc=desc, height=28, kind="difference")


def ahead(low: float, high: float) -> str:
    """Name the judge that is ahead beyond chance: `a`, `b`, or nobody."""
    return "a" if low > 0 else "b" if high < 0 else ""


def share(value: float, low: float, high: float, *, title: str) -> Markup:
    """Draw a share of both judges together, with its interval, on the scale from 0 to 1."""
    marks = SHARES.mark(value, low, high, 10, "side-none")
    return picture(*SHARES.grid(20), *marks, title=title, height=20, kind="share")


def ranks(film: Row) -> Markup:
    """Draw where the two judges rank an image among all images, from the least to the most suspect of a finding."""
    places = {letter: float(film[f"rank_{letter}"]) for letter in "ab"}
    parts = [box(0, 19, 1, 3, "track")]
    for (letter, rank), y in zip(places.items(), (10, 38), strict=True):
        x = 0.02 + 0.96 * rank  # a dot at the edge stays whole
        parts += [dot(x, 20.5, 6, f"mark side-{letter}"), words(letter.upper(), x, y)]
    texts = (f"{letter.upper()} {100 * rank:.1f} %" for letter, rank in places.items())
    return picture(*parts, title=f"Rank among all images: {', '.join(texts)}", height=42, kind="ranks")


def outcome_bar(counts: Mapping[str, int], *, what: str) -> Markup:
    """Draw all questions of a judge as one bar, divided by outcome."""
    total = sum(counts[outcome] for outcome in OUTCOMES)
    parts, x = [box(0, 0, 1, 22, "track")], 0.0
    for outcome in OUTCOMES:
        width = counts[outcome] / total if total else 0.0
        parts += [box(x, 0, width, 22, f"out-{outcome}")] if width else []
        x += width
    desc = ", ".join(f"{outcome} {count(counts[outcome])} ({of(counts[outcome], total)})" for outcome in OUTCOMES)
    return picture(*parts, title=f"Outcomes of {what}", desc=desc, height=22, kind="bar")
