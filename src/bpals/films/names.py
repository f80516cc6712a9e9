"""Which film a file is, by its name: the stem of the name, or the path where the dataset's ids are paths."""

from __future__ import annotations

from collections.abc import Collection

FILMS = (".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".dcm", ".dicom", ".dic")
OTHER_IMAGES = (".gif", ".webp", ".svg", ".tif", ".tiff", ".bmp")
"""Found by name, so that they are refused for what they are and not counted as missing."""
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".zip")


def stem(name: str) -> str:
    """Take the ending off a film's name; what is no ending of a film belongs to the name."""
    head, dot, ending = name.rpartition(".")
    return head if dot and head and f".{ending.lower()}" in (*FILMS, *OTHER_IMAGES) else name


def is_film(name: str) -> bool:
    """Say whether a name ends like that of a film."""
    return name.lower().endswith((*FILMS, *OTHER_IMAGES))


def is_archive(name: str) -> bool:
    """Say whether a name ends like that of an archive that is read."""
    return name.lower().endswith(ARCHIVES)


def _parts(name: str) -> list[str]:
    return [part for part in stem(name).split("/") if part not in {"", "."}]


class Names:
    """The films that are asked for, by every path that may stand for them."""

    def __init__(self, wanted: Collection[str]) -> None:
        """Take the ids as the dataset has them."""
        self.first = next(iter(wanted), "")
        self._ids: dict[str, str] = {}
        shorter: dict[str, list[str]] = {}
        for image_id in wanted:
            parts = _parts(image_id)
            self._ids.setdefault("/".join(parts), image_id)
            if len(parts) > 1:
                shorter.setdefault("/".join(parts[1:]), []).append(image_id)
        # A path without its first folder stands for a film only if it can stand for no other.
        for tail, image_ids in shorter.items():
            if len(image_ids) == 1:
                self._ids.setdefault(tail, image_ids[0])
        self._depths = sorted({tail.count("/") + 1 for tail in self._ids}, reverse=True)

    def of(self, name: str) -> str | None:
        """Give the id that a file stands for."""
        parts = _parts(name)
        tails = ("/".join(parts[-depth:]) for depth in self._depths if depth <= len(parts))
        return next((self._ids[tail] for tail in tails if tail in self._ids), None)
