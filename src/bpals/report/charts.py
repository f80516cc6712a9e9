"""The charts: pure functions from numbers to inline SVG.

Colours are classes that the style sheet paints for light, dark and print. Nothing is shown by colour alone: bars keep
the order of the flags, strips differ in shape, curves in their dashes, and every chart has a title.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from bpals.report.cases import Strip
from bpals.report.wording import FLAGS, SETTLED_FLAGS, count, of, plural, probability, share_interval
from bpals.report.wording import share as of_share


def element(name: str, *children: str, **attributes: str | float | None) -> Markup:
    """Write one element; children that are not markup and all attribute values are escaped, None is left out."""
    parts = [f"<{name}"]
    for key, value in attributes.items():
        if value is not None:
            text = number(value) if isinstance(value, int | float) else escape(value)
            # `class_` and `text_anchor` are Python's spelling of class and text-anchor.
            parts.append(f' {key.rstrip("_").replace("_", "-")}="{text}"')
    inside = Markup("").join(children)
    parts.append(f">{inside}</{name}>" if inside else "/>")
    # Every piece was escaped above; the tag and attribute names are ours.
    return Markup("".join(parts))  # noqa: S704


def number(value: float) -> str:
    """Write a number in as few characters as a picture needs."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def percent(share: float) -> str:
    """Place a share of the width."""
    return number(100 * share) + "%"


def picture(*children: str, title: str, desc: str = "", height: float, kind: str) -> Markup:
    """Frame a drawing that names and describes itself to those who cannot see it."""
    return element(
        "svg",
        element("title", title),
        element("desc", desc) if desc else Markup(""),
        *children,
        role="img",
        # No viewBox: with one, the text would shrink with the chart on a phone.
        class_=f"chart {kind}",
        width="100%",
        height=height,
    )


def box(x: float, y: float, width: float, height: float, tone: str) -> Markup:
    """Draw a bar: x and width as shares, y and height in pixels."""
    return element("rect", x=percent(x), y=y, width=percent(width), height=height, class_=tone)


def line(x1: float, y1: float, x2: float, y2: float, tone: str) -> Markup:
    """Draw a line: x as shares, y in pixels."""
    return element("line", x1=percent(x1), y1=y1, x2=percent(x2), y2=y2, class_=tone)


def dot(x: float, y: float, radius: float, tone: str) -> Markup:
    """Draw a dot: x as a share, y and radius in pixels."""
    return element("circle", cx=percent(x), cy=y, r=radius, class_=tone)


def words(text: str, x: float, y: float, *, anchor: str = "middle", tone: str = "tick") -> Markup:
    """Set a short text: x as a share, y in pixels."""
    return element("text", text, x=percent(x), y=y, text_anchor=anchor, class_=tone)


CELL_PX = 20
"""Widest cell of a strip."""

ROUND_ENDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """One axis: its end and its labels, at their places."""

    top: float
    labels: tuple[tuple[float, str], ...]


def flag_bar(flags: Mapping[str, int], *, what: str, height: float = 26) -> Markup:
    """Draw all labels of a kind as one bar, divided by flag."""
    total = sum(flags.values())
    shown = {flag: words_ for flag, words_ in FLAGS.items() if flags[flag] or flag not in SETTLED_FLAGS}
    texts = [f"{words_} {count(flags[flag])} ({of(flags[flag], total)})" for flag, words_ in shown.items()]
    parts, x = [box(0, 0, 1, height, "track")], 0.0
    for flag in FLAGS:
        width = flags[flag] / total if total else 0.0
        if width > 0:
            parts.append(box(x, 0, width, height, f"tone-{flag}"))
            x += width
            # A gap beside a part of a pixel or two would hide the part.
            if width > 0.004 and x < 0.999:
                parts.append(line(x, 0, x, height, "gap"))
    return picture(*parts, title=f"{what} by flag", desc=", ".join(texts), height=height, kind="bar")


def confirmed_bar(share: float, low: float, high: float, *, what: str, height: float = 30) -> Markup:
    """Draw the share of labels that readers would confirm, with its interval across the end of the bar."""
    middle = height / 2
    parts = [
        box(0, 0, 1, height, "track"),
        box(0, 0, share, height, "tone-trusted"),
        line(low, middle, high, middle, "range"),
        line(low, middle - 5, low, middle + 5, "range"),
        line(high, middle - 5, high, middle + 5, "range"),
    ]
    desc = f"{of_share(share)} would be confirmed, 95 % interval {share_interval(low, high)}"
    return picture(*parts, title=f"{what} that readers would confirm", desc=desc, height=height, kind="bar")


def meter(low: float | None, middle: float | None, high: float | None, *, title: str, tone: str) -> Markup:
    """Draw a value with its spread on the scale from 0 to 1."""
    parts = [box(0, 7, 1, 2, "track"), line(0.5, 4, 0.5, 12, "grid")]
    if middle is not None and low is not None and high is not None:
        parts += [box(low, 5, max(0.0, high - low), 6, f"band {tone}"), dot(middle, 8, 5, f"mark {tone}")]
    desc = f"{probability(middle)}, from {probability(low)} to {probability(high)}"
    return picture(*parts, title=title, desc=desc, height=16, kind="meter")


def bar(value: float, *, title: str, tone: str) -> Markup:
    """Draw a share as a plain bar."""
    return picture(box(0, 2, 1, 10, "track"), box(0, 2, value, 10, tone), title=title, height=14, kind="bar")


def histogram(present: Sequence[int], absent: Sequence[int], *, title: str) -> Markup:
    """Draw the trust of presences upwards and of absences downwards, each as a share of its kind."""
    half, middle = 46.0, 50.0
    parts = [line(x, 2, x, middle + half, "grid") for x in (0, 0.5, 1)]
    texts = []
    for name, heights, up in (("present", present, True), ("absent", absent, False)):
        # Each side has its own scale: presences are so rare that on one scale nothing of them would be seen.
        total, tallest = sum(heights), max(heights, default=0)
        texts.append(f"{plural(total, 'judged label')} of {'presence' if up else 'absence'}")
        for i, n in enumerate(heights):
            if n:
                # A bar of less than a pixel could not be seen at all.
                tall = max(1.0, half * n / tallest)
                top = middle - tall if up else middle
                parts.append(box((i + 0.06) / len(heights), top, 0.88 / len(heights), tall, f"tone-{name}"))
    parts.append(line(0, middle, 1, middle, "axis"))
    parts += [words(f"{x:g}", x, middle + half + 14, anchor=anchor(x)) for x in (0, 0.5, 1)]
    return picture(*parts, title=title, desc=" and ".join(texts), height=middle + half + 18, kind="histogram")


def whisker(value: float, low: float, high: float, *, top: float, title: str, tone: str) -> Markup:
    """Draw a value with its interval on a scale from 0 to top."""
    # An interval may reach beyond the scale; it ends at the edge.
    x, x1, x2 = (min(1.0, max(0.0, v / top)) for v in (value, low, high))
    marks = [line(x1, 10, x2, 10, f"whisker {tone}"), dot(x, 10, 4.5, tone)]
    return picture(line(0, 10, 1, 10, "grid"), *marks, title=title, height=20, kind="whisker")


def scale(values: Sequence[float]) -> Scale:
    """Choose a round end of the scale that holds all these shares."""
    highest = max(values, default=0.0)
    top = next((end for end in ROUND_ENDS if highest <= end), 1.0)
    return Scale(top=top, labels=((0, "0"), (top / 2, f"{50 * top:g} %"), (top, f"{100 * top:g} %")))


def axis(along: Scale) -> Markup:
    """Write the scale under a column of whiskers."""
    parts = [line(0, 1, 1, 1, "axis")]
    for at, text in along.labels:
        x = at / along.top
        parts += [line(x, 1, x, 5, "axis"), words(text, x, 18, anchor=anchor(x))]
    return picture(*parts, title=f"scale from 0 to {along.labels[-1][1]}", height=22, kind="scale")


def anchor(x: float) -> str:
    """Keep a text at an end of the scale inside the picture."""
    return "start" if x == 0 else "end" if x == 1 else "middle"


def hundred(hits: int, *, title: str, tone: str) -> Markup:
    """Draw a hundred dots, so many of them filled."""
    dots = []
    for i in range(100):
        # A filled dot is a little larger: in print, colour alone would not tell it from an empty one.
        filled = i < hits
        x, y = 8 + 15 * (i % 10), 8 + 15 * (i // 10)
        dots.append(element("circle", cx=x, cy=y, r=5 if filled else 4.5, class_=tone if filled else "empty"))
    return picture(*dots, title=title, desc=f"{hits} of 100 dots are filled", height=152, kind="hundred")


def timeline(strip: Strip, *, title: str) -> Markup:
    """Draw a patient's images: above the label of each, below the judge's P(present) as a column."""
    n = len(strip.films)
    pitch = 1 / n
    parts: list[Markup] = [line(0, 54, 1, 54, "axis")]
    for i, film in enumerate(strip.films):
        x, asked = i * pitch, " asked" if i == strip.at else ""
        parts.append(_cell(x, pitch, film.says, asked))
        if film.p_present is not None:
            tall = max(1.0, 20 * film.p_present)
            parts.append(box(x + 0.2 * pitch, 54 - tall, 0.6 * pitch, tall, f"column{asked}"))
    parts += [line((a + 0.1) * pitch, 30.5, (b + 0.9) * pitch, 30.5, "study") for a, b in strip.studies]
    middle = (strip.at + 0.5) * pitch
    arrow = element("path", d="M-6 0 6 0 0 8Z", class_="arrow")
    parts.append(element("svg", arrow, x=f"{100 * middle:.2f}%", y=0, overflow="visible"))
    parts += _orders(strip)
    says = [film.says or "silent" for film in strip.films]
    desc = f"Image {strip.position} of {strip.total} is in question. In order: {', '.join(says)}"
    drawing = picture(*parts, title=title, desc=desc, height=72, kind="timeline")
    return element("div", drawing, class_="strip", style=f"max-width:{n * CELL_PX}px")


def _cell(x: float, pitch: float, says: str | None, asked: str) -> Markup:
    left, wide = x + 0.08 * pitch, 0.84 * pitch
    if says is None:
        return line(x + 0.35 * pitch, 19, x + 0.65 * pitch, 19, "silent")
    cell = box(left, 11, wide, 16, f"cell says-{says}{asked}")
    half = box(left, 19, wide, 8, "half") if says == "uncertain" else Markup("")
    return cell + half


def _orders(strip: Strip) -> list[Markup]:
    """Write the follow-up numbers of the image in question and, where there is room, of the first and last."""
    n = len(strip.films)
    # 330 px is a phone's width: two numbers that touch there are worse than one that is missing.
    room_px = min(CELL_PX, 330 / n)
    numbers = ["" if film.order is None else str(film.order) for film in strip.films]
    places = {strip.at} | {i for i in (0, n - 1) if abs(i - strip.at) * room_px > 14 + 8 * len(numbers[i])}
    texts = []
    for i in sorted(places):
        near_end = len(numbers[i]) > 2
        anchor = "start" if i == 0 and near_end else "end" if i == n - 1 and near_end else "middle"
        x = {"start": i / n, "end": (i + 1) / n}.get(anchor, (i + 0.5) / n)
        texts.append(words(numbers[i], x, 68, anchor=anchor, tone="tick asked" if i == strip.at else "tick"))
    return texts
