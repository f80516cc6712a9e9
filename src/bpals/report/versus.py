"""Charts of two judges, A and B: figures with their intervals side by side, their difference, their ranks of a film.

A stands above B, and left of zero means that B has more, so that nothing is told by colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from bpals.report.svg import box, dot, line, picture, words
from bpals.report.wording import count, of

Row = Mapping[str, Any]

OUTCOMES = ("answered", "abstained", "refused", "unparsed", "unsupported", "failed")
ROUND_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
CHANCE = 0.5


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

    def axis(self, ends: tuple[str, str] = ("", "")) -> Markup:
        """Write the labels, and what the ends mean."""
        parts = [line(0, 1, 1, 1, "axis")]
        for tick in self.ticks:
            x = self.place(tick)
            anchor = "start" if x == 0 else "end" if x == 1 else "middle"
            text = f"{tick:{self.sign}g}" if tick else "0"
            parts += [line(x, 1, x, 5, "axis"), words(text.replace("-", "\N{MINUS SIGN}"), x, 18, anchor=anchor)]
        parts += [
            words(end, x, 34, anchor=anchor) for end, x, anchor in zip(ends, (0, 1), ("start", "end"), strict=True)
        ]
        title = f"scale from {self.low:g} to {self.high:g}"
        return picture(*parts, title=title, height=40 if any(ends) else 22, kind="scale")


SHARES = Span(low=0.0, high=1.0, ticks=(0.0, 0.5, 1.0))


def two(row: Row, span: Span, *, figure: str, title: str) -> Markup:
    """Draw a figure of both judges with their intervals, A above B."""
    parts = span.grid(28)
    told = []
    for letter, y in (("a", 9), ("b", 20)):
        value, low, high = (row[f"{figure}_{letter}{end}"] for end in ("", "_low", "_high"))
        tone = f"side-{letter}"
        parts += [
            line(span.place(low), y, span.place(high), y, f"whisker {tone}"),
            dot(span.place(value), y, 4.5, tone),
        ]
        told.append(f"{letter.upper()} {value:.3f}, from {low:.3f} to {high:.3f}")
    return picture(*parts, title=title, desc="; ".join(told), height=28, kind="two")


def difference(row: Row, span: Span, *, figure: str, title: str) -> Markup:
    """Draw how much more A has than B, in the colour of the one that is ahead beyond chance."""
    value, low, high = (row[f"{figure}_difference{end}"] for end in ("", "_low", "_high"))
    tone = f"side-{ahead(low, high) or 'none'}"
    marks = [line(span.place(low), 14, span.place(high), 14, f"whisker {tone}"), dot(span.place(value), 14, 4.5, tone)]
    told = f"{value:+.3f}, from {low:+.3f} to {high:+.3f}"
    return picture(*span.grid(28), *marks, title=title, desc=told, height=28, kind="difference")


def ahead(low: float, high: float) -> str:
    """Name the judge that is ahead beyond chance: `a`, `b`, or nobody."""
    return "a" if low > 0 else "b" if high < 0 else ""


def share(value: float, low: float, high: float, *, title: str) -> Markup:
    """Draw a share of both judges together, with its interval, on the scale from 0 to 1."""
    span = SHARES
    marks = [
        line(span.place(low), 10, span.place(high), 10, "whisker side-none"),
        dot(span.place(value), 10, 4.5, "side-none"),
    ]
    return picture(*span.grid(20), *marks, title=title, height=20, kind="share")


def ranks(film: Row) -> Markup:
    """Draw where the two judges put a film among all films, from the least to the most suspect of a finding."""
    places = {letter: float(film[f"rank_{letter}"]) for letter in "ab"}
    parts = [box(0, 19, 1, 3, "track")]
    for (letter, rank), y in zip(places.items(), (10, 38), strict=True):
        x = 0.02 + 0.96 * rank  # a dot at the edge stays whole
        parts += [dot(x, 20.5, 6, f"mark side-{letter}"), words(letter.upper(), x, y)]
    title = "Rank among all films: " + ", ".join(
        f"{letter.upper()} {100 * rank:.1f} %" for letter, rank in places.items()
    )
    return picture(*parts, title=title, height=42, kind="ranks")


def outcome_bar(counts: Mapping[str, int], *, what: str) -> Markup:
    """Draw all questions of a judge as one bar, divided by outcome."""
    total = sum(counts[outcome] for outcome in OUTCOMES)
    parts, x = [box(0, 0, 1, 22, "track")], 0.0
    for outcome in OUTCOMES:
        width = counts[outcome] / total if total else 0.0
        parts += [box(x, 0, width, 22, f"out-{outcome}")] if width else []
        x += width
    told = ", ".join(f"{outcome} {count(counts[outcome])} ({of(counts[outcome], total)})" for outcome in OUTCOMES)
    return picture(*parts, title=f"Outcomes of {what}", desc=told, height=22, kind="bar")
