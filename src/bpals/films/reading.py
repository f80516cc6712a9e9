"""Reading: films of a shelf, prepared one after another for a judge."""

from __future__ import annotations

from collections.abc import Iterable

from bpals.films.passage import Passage
from bpals.films.prepare import Preparation, Prepared
from bpals.films.shelf import Shelf
from bpals.types import Film


class Reading(Passage[Prepared, Film]):
    """Prepared films, in the order of `shelf.order(image_ids)`."""

    def _given(self, image_id: str, made: Prepared) -> Film:
        del image_id  # a film has no name: it goes to a judge
        return made.film


def prepared(
    shelf: Shelf, image_ids: Iterable[str], preparation: Preparation, *, workers: int | None = None
) -> Reading:
    """Read and prepare films, in the order of `shelf.order(image_ids)`; 0 workers prepare in this process."""
    return Reading(shelf, image_ids, preparation, workers=workers)
