"""The page of a comparison: two judges, who was right, and the images on which they differ most."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from bpals.report import charts
from bpals.report.charts import OUTCOMES, Span
from bpals.report.templating import fill
from bpals.report.wording import DASH, NONE, count, listed, of, plain, plural, seconds, spoken

Row = Mapping[str, Any]

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
        shares=charts.SHARES.axis(),
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
    return {"letter": letter, "judge": row["judge"], "bar": charts.outcome_bar(counts, what=row["judge"]), "rows": rows}


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
        "no_signal": listed([letter.upper() for letter in "ab" if row[f"auroc_{letter}_low"] <= charts.CHANCE]),
        "both": charts.two(row, aurocs, figure="auroc", title=f"AUROC, {finding}"),
        "a": _number(row["auroc_a"]),
        "b": _number(row["auroc_b"]),
        "difference": charts.difference(row, differences, figure="auroc", title=f"Difference of the AUROCs, {finding}"),
        **_ahead(row),
    }


def _ahead(row: Row) -> Row:
    """Say by how much A is ahead in AUROC, and who is ahead beyond chance."""
    return {
        "by": _signed(row["auroc_difference"]),
        "interval": _signed_interval(row, "auroc_difference"),
        "ahead": charts.ahead(row["auroc_difference_low"], row["auroc_difference_high"]),
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
    drawn = charts.share(value, low, high, title=f"Error correlation, {finding}")
    interval = _interval(row, "error_correlation")
    return {"finding": finding, "drawn": drawn, "value": _number(value), "interval": interval}


def _calls(row: Row) -> tuple[str, ...]:
    figures = [_with_interval(row, name) for name in ("agreement", "kappa", "error_correlation")]
    return (_finding(row), count(row["n"]) if "n" in row else "", *figures, _number(row["effective_judges"], 2))


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
        # The page is one file, and loads nothing.
        "source": "data:image/png;base64," + base64.b64encode(picture).decode() if shown else "",
        "why": "" if shown else picture or "image not at hand",
        "calls": calls.get((film["called_a"], film["called_b"]), "neither calls it"),
        "ranks": charts.ranks(film),
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
