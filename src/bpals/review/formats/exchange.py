"""What every format is handed and gives: reviews as a table, the sizes of their films, and what was noticed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from bpals.errors import TruthError
from bpals.plural import several
from bpals.review.formats.reviewtable import KEPT
from bpals.types import Notice

Sizes = Mapping[str, tuple[int, int]]
"""Film -> its width and height in pixels, for those whose pixels could be looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Films:
    """What a format may have to know of the films."""

    sizes: Sizes = field(default_factory=dict)
    dicom: Callable[[str], bytes | None] = lambda _image_id: None
    """Gives the whole DICOM file of a film; None for a film that is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Files to be written: one, without a name, or several of a folder."""

    files: Mapping[str, bytes]
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Reviews that a file holds, before anybody has looked whether their films are here."""

    table: pl.DataFrame
    """KEPT; the reader is null where the file names none, the external id where it gives none."""
    notices: tuple[Notice, ...] = ()


def table_of(rows: list[dict[str, Any]], name: str) -> pl.DataFrame:
    """Make KEPT of rows that a file gave; what is of another kind is refused by the name of its column."""
    columns = {}
    for column, kind in KEPT.items():
        try:
            columns[column] = pl.Series(column, [row.get(column) for row in rows], dtype=kind, strict=True)
        except (TypeError, pl.exceptions.PolarsError):
            raise TruthError(
                f"{name}: {column!r} holds what is no {kind}. Mend it, or export the reviews again"
            ) from None
    return pl.DataFrame(columns)


def no_reads(name: str, settled: int) -> tuple[Notice, ...]:
    """Count verdicts that readers came to together elsewhere: nobody read them, so none is kept."""
    together = "that readers came to together"
    those = several(settled, f"verdict {together} is no read", f"verdicts {together} are no reads")
    message = f"{name}: {those}: left out"
    return (Notice(code="settled", count=settled, message=message),) * bool(settled)


def not_drawn(reads: int) -> tuple[Notice, ...]:
    """Count reads whose boxes a format measures by the size of the film, and nobody knows it."""
    those = several(reads, "read has", "reads have")
    message = f"{those} boxes on films whose pixels were not found; kept, not drawn: --images PATH"
    return (Notice(code="unsized", count=reads, message=message),) * bool(reads)


def boxes_of(text: str | None) -> list[list[float]]:
    """Read the boxes of a review: x, y, width and height of each, in pixels of the film."""
    return json.loads(text) if text else []


def as_boxes(boxes: list[list[float]]) -> str | None:
    """Write boxes as the ledger keeps them; none where there is none."""
    return json.dumps(boxes) if boxes else None


def true_boxes(text: str) -> bool:
    """Say whether a text is a list of boxes."""
    try:
        boxes = json.loads(text)
    except ValueError:
        return False
    return isinstance(boxes, list) and all(isinstance(box, list) and _is_box(box) for box in boxes)


def _is_box(box: list[Any]) -> bool:
    numbers = [each for each in box if isinstance(each, int | float) and not isinstance(each, bool)]
    return len(box) == len(numbers) == 4 and all(math.isfinite(each) for each in numbers) and min(box[2:]) >= 0


def loaded(content: bytes, name: str) -> Any:
    """Read a JSON text; what is none is refused with its line."""
    try:
        return json.loads(content)
    except UnicodeDecodeError:
        raise TruthError(f"{name} is not UTF-8. Export it again as JSON") from None
    except RecursionError:
        raise TruthError(f"{name} is nested too deeply to be reviews. Name another file") from None
    except ValueError as error:
        where = f" line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise TruthError(f"{name}{where} is not whole JSON. Export it again, or name another file") from None
