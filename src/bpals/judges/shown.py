"""What a run is shown: a film, why there is none, or a control in its place."""

from __future__ import annotations

from dataclasses import dataclass

from bpals.types import Film, Refusal


@dataclass(frozen=True, slots=True)
class Shown:
    """A film, or why there is none, or a control."""

    image_id: str
    film: Film | Refusal | None
    control: str = ""

    @property
    def sha256(self) -> str:
        """Of the film's bytes; empty where there is none."""
        return self.film.sha256 if isinstance(self.film, Film) else ""


@dataclass(frozen=True, slots=True)
class Open:
    """A film that can be asked about; none is the control without an image."""

    image_id: str
    film: Film | None
    control: str
    sha256: str
