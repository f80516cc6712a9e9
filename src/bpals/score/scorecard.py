"""The scorecard: how well a signal finds the labels that experts reject, beside other methods on the same pairs.

An error is a label that differs from the truth. Every method ranks the same pairs by suspicion:

    bpals            1 - trust
    self_confidence  the metadata judge's doubt in the label, before any calibration
    cleanlab         the same, with the labels that cleanlab would prune first
    label_only       presences first
    prevalence       rare presences first: no judge at all, the floor
    random           any order
    oracle           the errors first

and, where image judges answered every pair, what they give without a signal:

    judge NAME       the doubt of that judge alone
    record + NAME    the mean of its logit and the metadata judge's
    mean of judges   the mean of all their logits
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bpals.errors import TruthError
from bpals.metrics import Curve, Reliability, brier
from bpals.numeric import PAIR, logit
from bpals.score.intervals import Resamples, Resampling, Row, interval, spread
from bpals.score.opinions import Audited, about, by_finding
from bpals.text import several
from bpals.types import Notice

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

METHODS = ("bpals", "cleanlab", "self_confidence", "label_only", "prevalence", "random", "oracle")
BUDGETS = {"found_05": 0.05, "found_10": 0.10, "found_20": 0.20}
FIGURES = ("error_auroc", "error_ap", *BUDGETS)
ALONE = "p_judge "
"""How the column of an image judge's own probability begins."""


def suspicions(pairs: pl.DataFrame) -> dict[str, Floats]:
    """Give each method's suspicion of each pair; a method without a value for every pair is left out."""
    claimed, truth = pairs["claimed"].to_numpy(), pairs["present"].to_numpy()
    p_judge, prevalence = pairs["p_judge"].to_numpy(), pairs["prevalence"].to_numpy()
    held = {
        "bpals": 1.0 - pairs["trust"].to_numpy(),
        "cleanlab": pairs["cleanlab"].to_numpy(),
        "self_confidence": np.where(claimed, 1.0 - p_judge, p_judge),
        "label_only": claimed.astype(np.float64),
        "prevalence": np.where(claimed, 1.0 - prevalence, prevalence),
        "random": np.zeros(len(claimed)),
        "oracle": (claimed != truth).astype(np.float64),
    }
    held |= _equal_weights(pairs)
    # Rounded, because a sum taken in another order must not break a tie.
    return {method: np.round(scores, 12) for method, scores in held.items() if not np.isnan(scores).any()}


def _equal_weights(pairs: pl.DataFrame) -> dict[str, Floats]:
    """Give what image judges find alone, with the metadata judge, and all together with equal weights."""
    names = [name.removeprefix(ALONE) for name in pairs.columns if name.startswith(ALONE)]
    claimed = pairs["claimed"].to_numpy()
    logits = {name: logit(pairs[f"{ALONE}{name}"].cast(pl.Float64).to_numpy()) for name in names}
    record = logit(pairs["p_judge"].cast(pl.Float64).to_numpy())
    answered = [z for z in (record, *logits.values()) if not np.isnan(z).any()]
    held = {f"judge {name}": z for name, z in logits.items()}
    held |= {f"record + {name}": (record + z) / 2 for name, z in logits.items()}
    if len(answered) > 2:
        held["mean of judges"] = np.mean(answered, axis=0)
    return {method: np.where(claimed, -z, z) for method, z in held.items()}


def scorecard(
    pairs: pl.DataFrame, resampling: Resampling, progress: Callable[[float], None] = lambda _share: None
) -> tuple[list[Row], list[Row]]:
    """Score every method by finding and pooled, over all pairs and within given presences and absences.

    `pairs` is what `opinions.about` gives, with the column `present`: the truth. The second list is the reliability
    curve of the trust.
    """
    # One set of draws for every finding and method, so that differences are paired.
    resamples = Resamples.of(pairs["patient"].to_numpy(), resampling)
    claimed = pairs["claimed"].to_numpy()
    sides = {"all": np.ones_like(claimed), "present": claimed, "absent": ~claimed}
    rows: list[Row] = []
    curves: list[Row] = []
    cost = 0
    for finding, of_finding in by_finding(pairs):
        for given, side in sides.items():
            chosen = of_finding & side
            part, draws = pairs.filter(pl.Series(chosen)), resamples.take(chosen)
            rows += _score({"finding": finding, "given": given}, part, draws)
            if given == "all":
                curves.append(_reliability(finding, part, draws))
            cost += part.height
            progress(cost / (4 * pairs.height))
    return rows, curves


def _score(key: Row, pairs: pl.DataFrame, resamples: Resamples) -> list[Row]:
    """The rows of one part: the figure on the pairs themselves, and its interval over the draws."""
    error = (pairs["claimed"] != pairs["present"]).to_numpy()
    methods = suspicions(pairs)
    # With no error, or nothing but errors, there is no ranking to score.
    ranked = 0 < error.sum() < len(error)
    points = {method: _figures(scores, error) for method, scores in methods.items()} if ranked else {}
    draws = _drawn(methods, error, resamples) if ranked else {}
    rows = []
    for method in methods:
        row = {**key, "method": method, "n": len(error), "errors": int(error.sum())}
        for figure in FIGURES:
            row |= _spread(figure, points[method], draws[method]) if ranked else spread(figure)
        row |= spread("ap_gain")
        # Paired on the same draws: two intervals that overlap may still hide a clear difference.
        if ranked and method != "bpals":
            gain = float(points["bpals"]["error_ap"][0] - points[method]["error_ap"][0])
            row |= spread("ap_gain", gain, *interval(draws["bpals"]["error_ap"] - draws[method]["error_ap"]))
        known = method == "bpals" and len(error) > 0
        rows.append(row | (_calibration(pairs, error, resamples) if known else spread("ece") | spread("brier")))
    return rows


def _figures(scores: Floats, error: Mask, weights: Floats | None = None) -> dict[str, Floats]:
    curve = Curve.of(scores, error, weights)
    found = {name: curve.found(share) for name, share in BUDGETS.items()}
    return {"error_auroc": curve.auroc(), "error_ap": curve.average_precision(), **found}


def _drawn(methods: dict[str, Floats], error: Mask, resamples: Resamples) -> dict[str, dict[str, Floats]]:
    """The figures of every method on every draw of patients."""
    chunks: dict[str, list[dict[str, Floats]]] = {method: [] for method in methods}
    for weights in resamples.weights():
        for method, scores in methods.items():
            chunks[method].append(_figures(scores, error, weights))
    return {
        method: {figure: np.concatenate([part[figure] for part in parts]) for figure in FIGURES}
        for method, parts in chunks.items()
    }


def _spread(name: str, point: dict[str, Floats], draws: dict[str, Floats]) -> Row:
    return spread(name, float(point[name][0]), *interval(draws[name]))


def _calibration(pairs: pl.DataFrame, error: Mask, resamples: Resamples) -> Row:
    """Say how far the trust is from the outcome."""
    trust = pairs["trust"].to_numpy()
    point = {"ece": Reliability.of(trust, ~error).ece(), "brier": brier(trust, ~error)}
    chunks = [(Reliability.of(trust, ~error, w).ece(), brier(trust, ~error, w)) for w in resamples.weights()]
    draws = {"ece": np.concatenate([c[0] for c in chunks]), "brier": np.concatenate([c[1] for c in chunks])}
    return _spread("ece", point, draws) | _spread("brier", point, draws)


def _reliability(finding: str, pairs: pl.DataFrame, resamples: Resamples) -> Row:
    """One curve: in bins of equal mass, the mean trust that was promised and the share of labels that were right."""
    trust = pairs["trust"].to_numpy()
    right = (pairs["claimed"] == pairs["present"]).to_numpy()
    point = Reliability.of(trust, right)
    draws = np.concatenate([Reliability.of(trust, right, weights).right for weights in resamples.weights()])
    bins = []
    for place, n in enumerate(point.mass[0]):
        low, high = interval(draws[:, place])
        promised, rate = float(point.trust[0, place]), float(point.right[0, place])
        bins.append({"n": int(n), "p_mean": promised, "rate": rate, "low": low, "high": high})
    return {"finding": finding, "given": "all", "bins": bins}


def boxed_trust(truth: pl.DataFrame, audited: Audited, resampling: Resampling) -> tuple[list[Row], list[Notice]]:
    """Compare the trust of presences with and without a box, for each finding that has boxes, and pooled."""
    boxed = truth.select(PAIR)
    presences = (
        audited.claims.filter(pl.col("says").cast(pl.String) == "present")
        .select("image_id", pl.col("finding").cast(pl.String))
        .join(boxed.select("finding").unique(), on="finding", how="semi", maintain_order="left")
    )
    asked = presences.join(boxed.with_columns(boxed=True), on=PAIR, how="left", maintain_order="left")
    asked = asked.with_columns(pl.col("boxed").fill_null(value=False))
    if not asked["boxed"].any():
        raise TruthError(
            f"of {several(boxed.height, 'boxed pair')} none is a presence in this audit (first: "
            f"{boxed['image_id'][0]}, {boxed['finding'][0]}). The boxes belong to NIH's images: type: bpals audit "
            "--source nih"
        )
    pairs, notices = about(asked, audited, (), baselines=False)
    elsewhere = boxed.join(presences, on=PAIR, how="anti")
    if elsewhere.height:
        those = several(elsewhere.height, "boxed pair is", "boxed pairs are")
        message = f"{those} no presence in this audit: left out"
        notices.append(Notice(code="boxed_elsewhere", count=elsewhere.height, message=message))
    resamples = Resamples.of(pairs["patient"].to_numpy(), resampling)
    return [
        _boxed_row(finding, pairs.filter(pl.Series(chosen)), resamples.take(chosen))
        for finding, chosen in by_finding(pairs)
    ], notices


def _boxed_row(finding: str, pairs: pl.DataFrame, resamples: Resamples) -> Row:
    boxed = pairs["boxed"].to_numpy()
    trust = pairs["trust"].to_numpy()
    row: Row = {"finding": finding, "n_boxed": int(boxed.sum()), "n_other": int((~boxed).sum())}
    for name, chosen in (("boxed", boxed), ("other", ~boxed)):
        row[f"trust_{name}_mean"] = float(trust[chosen].mean()) if chosen.any() else None
        row[f"trust_{name}_median"] = float(np.median(trust[chosen])) if chosen.any() else None
    if not boxed.any() or boxed.all():
        return row | spread("boxed_auroc")
    draws = np.concatenate([Curve.of(trust, boxed, w).auroc() for w in resamples.weights()])
    return row | spread("boxed_auroc", float(Curve.of(trust, boxed).auroc()[0]), *interval(draws))
