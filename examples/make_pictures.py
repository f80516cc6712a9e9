"""Draw a picture for each film of films.csv: two lungs, a heart, and what experts.csv says is there.

python examples/make_pictures.py films
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl
from PIL import Image

SIDE_PX = 128


def bump(x, y, at, size):
    """A soft ellipse."""
    return np.exp(-(((x - at[0]) / size[0]) ** 2) - ((y - at[1]) / size[1]) ** 2)


def picture(film, draw):
    """A grey chest: bright is dense. A large heart, fluid at the base, a dark rim where the lung has collapsed."""
    y, x = np.mgrid[0 : 1 : SIDE_PX * 1j, 0 : 1 : SIDE_PX * 1j]
    lungs = bump(x, y, (0.3, 0.45), (0.14, 0.27)) + bump(x, y, (0.7, 0.45), (0.14, 0.27))
    heart = bump(x, y, (0.55, 0.62), (0.16 if film["Cardiomegaly"] else 0.1, 0.16))
    grey = 0.55 - 0.4 * lungs + 0.35 * heart
    if film["Effusion"]:
        grey += 0.4 * bump(x, y, (0.3, 0.78), (0.14, 0.1))
    if film["Pneumothorax"]:
        grey -= 0.3 * bump(x, y, (0.8, 0.3), (0.06, 0.2))
    noisy = grey + draw.normal(0, 0.04, grey.shape) + draw.normal(0, 0.03)
    return Image.fromarray(np.uint8(255 * np.clip(noisy, 0, 1)))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(7)
    truth = pl.read_csv(Path(__file__).with_name("experts.csv"))
    for row in truth.iter_rows(named=True):
        picture(row, rng).save(folder / row["image_id"])
    print(f"{truth.height} films in {folder}")
