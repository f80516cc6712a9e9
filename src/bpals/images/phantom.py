"""A phantom: a chest film that is drawn, not taken, with the findings that it should have.

It serves to try a reading room, without a download and without a patient. It looks enough like a film that
window, zoom and a verdict make sense; nobody should learn radiology from it, and no judge should be scored on it.
"""

from __future__ import annotations

import io
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from PIL import Image

Plane = npt.NDArray[np.float64]

# In the order in which they are drawn: each uses up random numbers, so that another order is another film.
FINDINGS = (
    "Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Effusion", "Emphysema", "Fibrosis", "Hernia",
    "Infiltration", "Mass", "Nodule", "Pleural_Thickening", "Pneumonia", "Pneumothorax",
)  # fmt: skip

AIR, TISSUE, BONE = 0.16, 0.62, 0.16  # how bright a lung and a body are, and how much a rib adds, of 1


@dataclass(frozen=True, slots=True)
class _Chest:
    """The film being drawn, with one method per finding: x and y run from -1 to 1, to the right and down."""

    x: Plane
    y: Plane
    lungs: Plane  # 1 within the lungs, 0 outside, with soft edges
    random: np.random.Generator
    size: float  # of this patient

    def side(self) -> float:
        """Choose a lung: -1 is the left of the picture."""
        return float(self.random.choice([-1.0, 1.0]))

    def spot(self, x: float, y: float, width: float, height: float, soft: float = 0.25) -> Plane:
        """Give an ellipse: 1 inside, 0 outside."""
        away = np.sqrt(((self.x - x) / width) ** 2 + ((self.y - y) / height) ** 2)
        return _step((1 - away) / soft)

    def grain(self, coarse: int) -> Plane:
        """Give smooth noise between 0 and 1, with so many waves across the film."""
        small = self.random.uniform(0, 255, (coarse, coarse)).astype(np.uint8)
        big = Image.fromarray(small).resize((self.x.shape[1], self.x.shape[0]), Image.Resampling.BICUBIC)
        return np.asarray(big, dtype=np.float64) / 255

    def draw_atelectasis(self, film: Plane) -> Plane:
        side = self.side()
        band = self.y - (0.34 + 0.12 * side * self.x + self.random.uniform(-0.06, 0.06))
        return film + 0.2 * np.exp(-((band / 0.016) ** 2)) * self.spot(0.45 * side, 0.34, 0.24, 0.3) * self.lungs

    def draw_cardiomegaly(self, film: Plane) -> Plane:
        return np.maximum(film, 0.66 * self.spot(0.1, 0.3, 0.56 * self.size, 0.36, 0.12))

    def draw_consolidation(self, film: Plane) -> Plane:
        side, high = self.side(), self.random.uniform(-0.25, 0.2)
        dense = self.spot(0.42 * side, high, 0.22, 0.2, 0.5) * _step((self.grain(14) - 0.35) * 4)
        return film + 0.34 * dense * self.lungs

    def draw_edema(self, film: Plane) -> Plane:
        haze = np.exp(-(((np.abs(self.x) - 0.24) / 0.2) ** 2) - ((self.y - 0.02) / 0.34) ** 2)
        return film + (0.2 * haze + 0.1 * haze * self.grain(40)) * self.lungs

    def draw_effusion(self, film: Plane) -> Plane:
        side, level = self.side(), self.random.uniform(0.3, 0.42)
        beside = side * self.x
        curve = level + 0.1 - 0.5 * np.clip(beside - 0.45, 0, 1) + 0.2 * np.clip(0.45 - beside, 0, 1)
        return film + (0.62 - film) * _step((self.y - curve) / 0.05) * (beside > 0) * self.lungs

    def draw_emphysema(self, film: Plane) -> Plane:
        return film - 0.09 * self.lungs * (0.6 + 0.4 * self.grain(6))

    def draw_fibrosis(self, film: Plane) -> Plane:
        net = np.abs(self.grain(70) - 0.5) < 0.06
        return film + 0.17 * net * self.lungs * _step((self.y - 0.05) / 0.4)

    def draw_hernia(self, film: Plane) -> Plane:
        sac = self.spot(-0.02, 0.4, 0.2, 0.17, 0.12)
        gas = sac * (self.y < 0.36)
        return film + 0.1 * sac - 0.26 * gas

    def draw_infiltration(self, film: Plane) -> Plane:
        side, high = self.side(), self.random.uniform(-0.1, 0.3)
        return film + 0.2 * self.spot(0.4 * side, high, 0.26, 0.3, 0.9) * self.grain(26) * self.lungs

    def draw_mass(self, film: Plane) -> Plane:
        x, y = 0.42 * self.side(), self.random.uniform(-0.4, 0.1)
        return film + 0.3 * self.spot(x, y, 0.12, 0.11, 0.16) * self.lungs

    def draw_nodule(self, film: Plane) -> Plane:
        x, y = self.side() * self.random.uniform(0.36, 0.5), self.random.uniform(-0.4, 0.1)
        return film + 0.26 * self.spot(x, y, 0.042, 0.042, 0.2) * self.lungs

    def draw_pleural_thickening(self, film: Plane) -> Plane:
        side = self.side()
        rim = np.clip(self.lungs * (1 - self.lungs) * 4, 0, 1) * (side * self.x > 0.5)
        wide = self.spot(0.76 * side, 0.0, 0.1, 0.5, 0.4) * self.lungs
        return film + 0.2 * np.maximum(rim, wide)

    def draw_pneumonia(self, film: Plane) -> Plane:
        side = self.side()
        lobe = _step((self.y - 0.08 + 0.1 * side * self.x) / 0.06) * (side * self.x > 0.12)
        return film + 0.26 * lobe * (0.6 + 0.4 * self.grain(18)) * self.lungs

    def draw_pneumothorax(self, film: Plane) -> Plane:
        side, wide = self.side(), self.random.uniform(0.1, 0.17)
        beside = side * self.x
        away = np.sqrt(((beside - 0.4) / (0.36 - wide)) ** 2 + ((self.y + 0.02) / 0.58) ** 2)
        free = (away > 1) & (beside > 0.2) & (self.y < 0.3)
        line = np.exp(-(((away - 1) / 0.02) ** 2)) * (beside > 0.2) * (self.y < 0.3)
        flat = AIR - 0.1 + 0 * film
        return np.where(free, film + (flat - film) * 0.75 * self.lungs, film) + 0.16 * line * self.lungs


def _step(value: Plane) -> Plane:
    """Give a soft step from 0 to 1 around 0."""
    return np.clip(value + 0.5, 0, 1)


def draw_phantom(findings: Collection[str], *, seed: int, side_px: int = 640, bits: int = 8) -> bytes:
    """Draw a film with these findings and no other, as a grey PNG of 8 or 16 bits; the same seed is the same film."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[-1 : 1 : side_px * 1j, -1 : 1 : side_px * 1j]
    x, y = x + random.uniform(-0.03, 0.03), y + random.uniform(-0.03, 0.03)
    size = random.uniform(0.92, 1.06)
    chest = _Chest(x=x, y=y, lungs=_lungs(x, y, size), random=random, size=size)
    film, heart = _anatomy(chest)
    chest = replace(chest, lungs=chest.lungs * (1 - heart))
    for name in FINDINGS:
        if name in findings:
            film = getattr(chest, f"draw_{name.lower()}")(film)
    film = np.clip(film + random.normal(0, 0.014, film.shape), 0, 1)
    buffer = io.BytesIO()
    grey = (film * (2**bits - 1)).astype(np.uint8 if bits == 8 else np.uint16)
    Image.fromarray(grey).save(buffer, "PNG", compress_level=3)
    return buffer.getvalue()


def _lungs(x: Plane, y: Plane, size: float) -> Plane:
    """Draw both lungs: narrow at the top, cut off by the diaphragm and by the heart."""
    beside = np.abs(x)
    away = np.sqrt(((beside - 0.4 * size) / (0.36 * size * (1 - 0.22 * np.clip(-y, 0, 1)))) ** 2 + (y / 0.78) ** 2)
    above = _step((0.52 - 0.1 * (x > 0) + 0.5 * (beside - 0.4) ** 2 * 2 - y) / 0.03)
    return _step((1 - away) / 0.06) * above


def _anatomy(chest: _Chest) -> tuple[Plane, Plane]:
    """Draw what every chest has: body, lungs with vessels, spine, heart, ribs, collar bones; give the heart too."""
    x, y, lungs = chest.x, chest.y, chest.lungs
    body = _step((1 - np.sqrt((x / 1.02) ** 2 + ((y - 0.2) / 1.35) ** 2)) / 0.08)
    film = TISSUE * body * (0.92 + 0.08 * chest.grain(5))
    film -= (TISSUE - AIR) * lungs * (0.92 + 0.08 * chest.grain(9))
    vessels = np.abs(chest.grain(34) - 0.5) < 0.05
    film += 0.07 * vessels * lungs * np.exp(-((np.abs(x) - 0.2) ** 2) / 0.05)
    film += 0.1 * np.exp(-((x / 0.075) ** 2)) * (0.85 + 0.15 * np.sin(34 * y))
    heart = chest.spot(0.1, 0.27, 0.33 * chest.size, 0.33, 0.12)
    film = np.maximum(film, 0.6 * np.maximum(heart, chest.spot(0.02, -0.2, 0.12, 0.32, 0.3)))
    for number in range(9):
        middle = -0.66 + 0.155 * number + 0.3 * (np.abs(x) - 0.2) ** 2
        film += BONE * 0.5 * np.exp(-(((y - middle) / 0.022) ** 2)) * ((np.abs(x) > 0.1) & (np.abs(x) < 0.8))
    collar = -0.7 - 0.16 * (np.abs(x) - 0.1)
    film += BONE * np.exp(-(((y - collar) / 0.026) ** 2)) * ((np.abs(x) > 0.06) & (np.abs(x) < 0.8))
    return film, heart
