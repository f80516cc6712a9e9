"""The scorecard: how well the trust finds the errors that radiologists found, as a page and as a part of the report."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from bpals.report.charts import Scale, anchor, dot, element, line, picture, words
from bpals.report.templating import fill
from bpals.report.wording import METHODS

Row = Mapping[str, Any]

BUDGETS = {"found_05": 0.05, "found_10": 0.10, "found_20": 0.20}
FIGURES = {
    "error_ap": "Error AP",
    "error_auroc": "Error AUROC",
    "found_05": "Found at 5\N{NO-BREAK SPACE}%",
    "found_10": "Found at 10\N{NO-BREAK SPACE}%",
    "found_20": "Found at 20\N{NO-BREAK SPACE}%",
}
GIVEN = {"all": "all labels", "present": "labels of presence only", "absent": "labels of absence only"}
TONES = {method: f"method-{method}" for method in METHODS}
REVIEWED = Scale(top=0.2, labels=((0, "0"), (0.05, "5 %"), (0.1, "10 %"), (0.2, "20 % reviewed")))
SHARES = Scale(top=1, labels=((0, "0"), (0.25, "25 %"), (0.5, "50 %"), (0.75, "75 %"), (1, "100 % of the errors")))
PRECISION = Scale(top=1, labels=((0, "0"), (0.5, "0.5"), (1, "1")))
TRUSTS = Scale(top=1, labels=((0, "0"), (0.5, "0.5"), (1, "trust 1")))
RIGHT = Scale(top=1, labels=((0, "0"), (0.25, "25 %"), (0.5, "50 %"), (0.75, "75 %"), (1, "100 % right")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One curve: its points, with intervals where there are any."""

    name: str
    tone: str
    points: tuple[tuple[float, float], ...]
    intervals: tuple[tuple[float, float], ...] = ()
    dots: bool = True


def key_line(tone: str) -> Markup:
    """Draw the stroke of a curve for a legend; its name stands beside it."""
    return element(
        "svg", line(0, 4, 1, 4, f"curve {tone}"), class_="chart stroke", width=26, height=8, aria_hidden="true"
    )


def curves(series: Sequence[Series], *, x: Scale, y: Scale, title: str, height: float = 200) -> Markup:
    """Draw curves over a grid; the labels of y stand on their lines, so that nothing is lost to a margin."""
    top, bottom = 16.0, height - 24

    def up(value: float) -> float:
        return bottom - (bottom - top) * value / y.top

    parts = [line(0, up(at), 1, up(at), "axis" if at == 0 else "grid") for at, _ in y.labels]
    parts += [words(text, 0, up(at) - 4, anchor="start") for at, text in y.labels if at > 0]
    parts += [words(text, at / x.top, height - 7, anchor=anchor(at / x.top)) for at, text in x.labels]
    for one in series:
        places = [(px / x.top, up(py)) for px, py in one.points]
        # A curve without intervals has fewer of them than points.
        for (px, _), (low, high) in zip(places, one.intervals, strict=False):
            parts.append(line(px, up(low), px, up(high), f"interval {one.tone}"))
        for (x1, y1), (x2, y2) in itertools.pairwise(places):
            parts.append(line(x1, y1, x2, y2, f"curve {one.tone}"))
        if one.dots:
            parts += [dot(px, py, 4, f"mark {one.tone}") for px, py in places]
    return picture(*parts, title=title, desc="; ".join(s.name for s in series), height=height, kind="curves")


def boards(rows: Sequence[Row]) -> list[Row]:
    """Sort scorecard rows into boards, one per reference and split."""
    sorted_rows: dict[tuple[Any, Any], list[Row]] = {}
    for row in rows:
        sorted_rows.setdefault((row["reference"], row.get("split")), []).append(row)
    return [_board(str(reference), split, its) for (reference, split), its in sorted_rows.items()]


def reliabilities(curves: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """Turn reliability bins into curves beside the diagonal of perfect calibration."""
    ours_by_key = {_key(row): row for row in rows if row["method"] == "bpals"}
    drawn: list[Row] = []
    perfect = Series(name="perfectly calibrated", tone="method-oracle", points=((0, 0), (1, 1)), dots=False)
    for curve in curves:
        # A bin without a draw of its patients has no interval, and cannot be drawn.
        bins = [b for b in curve["bins"] if all(_known(b[end]) for end in ("p_mean", "rate", "low", "high"))]
        ours = Series(
            name="bpals",
            tone="method-bpals",
            points=tuple((b["p_mean"], b["rate"]) for b in bins),
            intervals=tuple((b["low"], b["high"]) for b in bins),
        )
        drawn.append(
            {
                "reference": str(curve.get("reference") or ""),
                "finding": str(curve["finding"]),
                "given": str(curve["given"]),
                "n": sum(b["n"] for b in bins),
                "series": (perfect, ours),
                # The row with its ECE and Brier score; empty where there is none.
                "ours": ours_by_key.get(_key(curve), {}),
            }
        )
    return drawn


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("reference", "split", "finding", "given"))


def _known(value: float | None) -> bool:
    return value is not None and not math.isnan(value)


def scorecard_context(rows: Sequence[Row], reliability: Sequence[Row]) -> dict[str, Any]:
    """Give the scorecard's template what it shows."""
    return {
        "boards": boards(rows),
        "reliabilities": reliabilities(reliability, rows),
        "FIGURES": FIGURES,
        "GIVEN": GIVEN,
        "TONES": TONES,
        "curves": curves,
        "key_line": key_line,
        "scales": {"precision": PRECISION, "reviewed": REVIEWED, "shares": SHARES, "trusts": TRUSTS, "right": RIGHT},
    }


def render_scorecard(
    rows: Sequence[Row],
    reliability: Sequence[Row],
    meta: Mapping[str, Any],
    *,
    boxes: Sequence[Row] = (),
    readers: Sequence[Row] = (),
    agreement: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = (),
) -> str:
    """Write the scorecard as one self-contained page; `meta` says how it was made.

    `agreement` are tables, each a title, a header and lines, as the terminal shows them.
    """
    facts = {key: value for key, value in meta.items() if key not in ("notes", "title", "source")}
    source = meta.get("source") or {}
    return fill(
        "scorecard.html",
        version=meta.get("bpals", ""),
        title=meta.get("title") or (source.get("title") if isinstance(source, Mapping) else source) or "",
        facts=facts,
        notes=meta.get("notes") or (),
        boxes=boxes,
        readers=readers,
        agreement=agreement,
        **scorecard_context(rows, reliability),
    )


def _board(reference: str, split: str | None, rows: Sequence[Row]) -> Row:
    keys = list(dict.fromkeys((str(row["finding"]), str(row["given"])) for row in rows))
    contests = [_contest(f, g, [r for r in rows if (r["finding"], r["given"]) == (f, g)]) for f, g in keys]
    overall = [contest for contest in contests if contest["given"] == "all"]
    return {
        "reference": reference,
        "split": split or "all",
        "contests": overall,
        "within": [contest for contest in contests if contest["given"] != "all"],
        "methods": {row["method"] for contest in overall for row in contest["rows"]},
    }


def _contest(finding: str, given: str, rows: Sequence[Row]) -> Row:
    """Lay out one finding, one kind of label, every method."""
    order = list(METHODS)
    # Methods that we do not know come last; somebody may score their own.
    ranked = sorted(rows, key=lambda row: order.index(row["method"]) if row["method"] in order else len(order))
    found = []
    # The most important curve is drawn last, on top.
    for row in reversed(ranked):
        points = [(share, row[key]) for key, share in BUDGETS.items() if row.get(key) is not None]
        if points:
            method = str(row["method"])
            tone = TONES.get(method, "method-other")
            found.append(Series(name=METHODS.get(method, method), tone=tone, points=((0, 0), *points)))
    n, errors = (max((row.get(key) or 0 for row in rows), default=0) for key in ("n", "errors"))
    ours = next((row for row in ranked if row["method"] == "bpals"), None)
    return {"finding": finding, "given": given, "n": n, "errors": errors, "rows": ranked, "found": found, "ours": ours}
