"""Looking for films: every holder is listed, and each film gets its place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from bpals.films.holder import HEAD, Entry, Holder, Readers, Spot, count_pixels
from bpals.films.listing import Listing
from bpals.films.names import Names, is_archive, is_film, stem
from bpals.films.refused import Refused
from bpals.plural import several
from bpals.types import Notice, Refusal


class Survey:
    """What was found while looking for films."""

    def __init__(self, names: Names | None) -> None:
        """Look for these films, or for all."""
        self._names = names
        self.holders: list[Holder] = []
        self.spots: dict[str, Spot] = {}
        self._rivals: dict[str, list[Spot]] = {}
        self._strangers = 0
        self._nested = 0
        self._refused: Counter[Refusal] = Counter()
        self._damages: list[str] = []

    def add(self, holder: Holder, known: Listing, name: str, archives: list[Entry] | None = None) -> None:
        """Look through one holder; the archives in a folder are put aside, those in archives are not opened."""
        self.holders.append(holder)
        number = len(self.holders) - 1
        above = "" if archives is None else f"{holder.path}/"
        entries, damage = known.entries(holder, name)
        if damage:
            self._damages.append(damage)
        elif not entries and archives is None:
            self._damages.append(f"{holder.path.name} is no archive, or an empty one")
        for entry in entries:
            if is_archive(entry.name):
                self._nested += archives is None
                if archives is not None and entry.refusal is None:
                    archives.append(entry)
            else:
                self._place(above + entry.name, Spot(number, entry))

    def _place(self, name: str, spot: Spot) -> None:
        if spot.entry.refusal is not None:
            self._refused[spot.entry.refusal] += 1
        path = name.replace("\\", "/")
        image_id = self._names.of(path) if self._names else _own_id(path)
        if image_id is None:
            self._strangers += is_film(path)
        elif image_id in self.spots:
            self._rivals.setdefault(image_id, [self.spots[image_id]]).append(spot)
        else:
            self.spots[image_id] = spot

    def settle(self) -> None:
        """Where a film was found several times, take the one with the most pixels, or else the most bytes."""
        with Readers(self.holders) as readers:

            def rank(spot: Spot) -> tuple[bool, int, int]:
                pixels = spot.entry.pixels
                if pixels is None and spot.entry.refusal is None:
                    try:
                        pixels = count_pixels(readers.read(spot, HEAD))
                    except Refused:
                        pixels = None
                return spot.entry.refusal is None, pixels or 0, spot.entry.size

            for image_id, rivals in self._rivals.items():
                self.spots[image_id] = max(rivals, key=rank)

    def why_none(self) -> str:
        """Say why nothing was found, and what to do."""
        damage = f" ({self._damages[0]})" if self._damages else ""
        if self._names is None or not self._strangers:
            return f"{damage}. Name a folder, a tar or a zip of PNG, JPEG or DICOM files"
        others = several(self._strangers, "is", "are")
        return (
            f" of this dataset{damage}: {others} there, none is called {self._names.first}. "
            "NIH is the default dataset; name your own with --source table:FILE --mapping FILE.toml"
        )

    def notices(self, place: str, missing: list[str]) -> Iterator[Notice]:
        """Count what is odd."""
        if missing:
            whole = len(missing) + len(self.spots)
            gone = (
                f"{len(missing):,} of {several(whole, 'film')} {'is' if len(missing) == 1 else 'are'} not under {place}"
            )
            words = f"{gone}, the first is {missing[0]}: not judged"
            yield Notice(code="films_missing", count=len(missing), message=words)
        if self._strangers:
            one, more = f"film under {place} is", f"films under {place} are"
            words = f"{several(self._strangers, one, more)} not in the dataset: not read"
            yield Notice(code="films_unasked", count=self._strangers, message=words)
        if self._rivals:
            twice = several(len(self._rivals), "film lies", "films lie")
            words = f"{twice} under {place} more than once: the largest was taken"
            yield Notice(code="film_copies", count=len(self._rivals), message=words)
        for refusal, count in sorted(self._refused.items(), key=lambda item: item[0].code):
            one, more = f"file under {place} is not read,", f"files under {place} are not read, each"
            words = f"{several(count, one, more)} because {refusal.message}"
            yield Notice(code="files_refused", count=count, message=words)
        if self._nested:
            one = f"archive inside an archive under {place} was not opened: unpack the outer one"
            more = f"archives inside archives under {place} were not opened: unpack the outer ones"
            words = several(self._nested, one, more)
            yield Notice(code="archives_nested", count=self._nested, message=words)
        for damage in self._damages:
            yield Notice(code="archive_damaged", count=1, message=f"{damage}: its other films are read")


def _own_id(path: str) -> str | None:
    """Name a film after its file where nobody asked for it by another name."""
    return stem(path.rpartition("/")[2]) if is_film(path) else None
