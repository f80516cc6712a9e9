"""Numbers and names as people read them."""

from __future__ import annotations

from collections.abc import Sequence

NBSP = "\N{NO-BREAK SPACE}"
DASH = "\N{EN DASH}"
NONE = "\N{EM DASH}"

FLAGS = {
    "likely_mislabelled": "likely mislabelled",
    "suspect": "suspect",
    "hard": "hard",
    "trusted": "trusted",
    "unjudged": "unjudged",
}
"""The flags in the order of every bar and table, from most to least doubtful."""

METHODS = {
    "bpals": "bpals",
    "cleanlab": "cleanlab",
    "self_confidence": "self-confidence",
    "label_only": "label only",
    "prevalence": "prevalence only",
    "random": "random order",
    "oracle": "oracle",
}
"""The methods of a scorecard, in the order of every table."""


def count(n: int) -> str:
    """Write 1569680 as 1,569,680."""
    return f"{n:,}"


def share(x: float | None) -> str:
    """Write a share in percent with the digits it deserves; a little is never shown as nothing."""
    if x is None:
        return NONE
    if 0 < x < 0.0005:
        return f"<0.1{NBSP}%"
    if 0.9995 < x < 1:
        return f">99.9{NBSP}%"
    digits = 0 if x in (0, 1) else 1
    return f"{100 * x:.{digits}f}{NBSP}%"


def of(part: int, whole: int) -> str:
    """Write part of whole as a share; nothing of nothing is a dash."""
    return share(part / whole) if whole else NONE


def probability(p: float | None) -> str:
    """Write a probability with two digits; what is not certain is never shown as 0 or 1."""
    if p is None:
        return NONE
    if 0 < p < 0.005:
        return "<0.01"
    if 0.995 < p < 1:
        return ">0.99"
    return f"{p:.2f}"


def interval(low: float | None, high: float | None) -> str:
    """Write an interval of a probability."""
    if low is None or high is None:
        return NONE
    return f"{probability(low)}{DASH}{probability(high)}"


def share_interval(low: float, high: float) -> str:
    """Write an interval of a share, with the percent sign once."""
    return f"{share(low).removesuffix(f'{NBSP}%')}{DASH}{share(high)}"


def plural(n: int, one: str, many: str = "") -> str:
    """Write 1 film, 2 films."""
    return f"{count(n)}{NBSP}{one if n == 1 else many or one + 's'}"


def spoken(name: str) -> str:
    """Show a finding as the dataset spells it, with blanks and a capital."""
    return name[:1].upper() + name[1:].replace("_", " ")


def listed(names: Sequence[str], last: str = "and") -> str:
    """Join names into a phrase: a, b and c."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} {last} {names[-1]}"


def seconds(s: float) -> str:
    """Write a duration: 41 s, 3 min 20 s."""
    whole = round(s)
    if whole < 60:
        return f"{s:.1f}{NBSP}s" if s < 10 else f"{whole}{NBSP}s"
    return f"{whole // 60}{NBSP}min {whole % 60}{NBSP}s"
