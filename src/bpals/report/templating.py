"""Templates: every value is escaped, and an unknown name is an error."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from bpals.report import charts, wording
from bpals.report.wording import plain

FILTERS = {
    "count": wording.count,
    "share": wording.share,
    "probability": wording.probability,
    "spoken": wording.spoken,
    "listed": wording.listed,
    "seconds": wording.seconds,
    "plain": plain,
}
WORDS = {
    "FLAGS": wording.FLAGS,
    "METHODS": wording.METHODS,
    "charts": charts,
    "interval": wording.interval,
    "of": wording.of,
    "plural": wording.plural,
    "share_interval": wording.share_interval,
}


def fill(template: str, **context: Any) -> str:
    """Fill a template into a page."""
    return _environment().get_template(template).render(**context)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("bpals.report"),
        autoescape=True,
        # A name that is misspelt would otherwise print nothing, and nobody would see it.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS)
    environment.globals.update(WORDS)
    return environment
