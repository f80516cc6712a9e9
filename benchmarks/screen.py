"""Films on the screen: how long the server takes to render one, how large it is, how long a frame of a drag takes.

python benchmarks/screen.py          drawn films of four sizes, in Debian's Chromium; prints a table
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import Page, Route, sync_playwright

import bpals.room
from bpals.images.phantom import draw_phantom
from bpals.images.rendition import Rendition, render

STATIC = Path(bpals.room.__file__).parent / "static"
ROOM = "http://room.test"
SIZES = ((1024, 8), (2048, 8), (2048, 16), (2740, 16))
"""Side in pixels, bits; the last one has 7.5 million pixels."""
PAGE = f"""<!doctype html><link rel="stylesheet" href="{ROOM}/reading.css"><div id="panes"><figure class="pane">
<cxr-canvas></cxr-canvas></figure></div><script type="module" src="{ROOM}/canvas.js"></script>"""
LOAD = f"""async () => {{
  const {{ loadFilm }} = await import('{ROOM}/film.js');
  const film = await loadFilm('{ROOM}/film');
  document.getElementById('panes').style.height = '900px';
  const canvas = document.querySelector('cxr-canvas');
  canvas.film = film;
  await new Promise(requestAnimationFrame);
  canvas.draw();
}}"""
DRAG = """async ([scale, frames]) => {
  const canvas = document.querySelector('cxr-canvas');
  if (scale) canvas.whole(); else canvas.fit();
  const took = [];
  for (let frame = 0; frame < frames; frame += 1) {
    await new Promise(requestAnimationFrame);
    const began = performance.now();
    canvas.shiftWindow(frame % 2 ? 0.02 : -0.02, 0.001);
    canvas.draw();
    canvas.painted.getContext('2d').getImageData(0, 0, 1, 1);
    took.push(performance.now() - began);
  }
  return took;
}"""


def film_of(side: int, bits: int) -> bytes:
    """Draw a chest, enlarged to a side."""
    small = Image.open(io.BytesIO(draw_phantom(["Mass"], seed=1, bits=bits)))
    values = np.asarray(small).astype(np.float64)
    large = np.asarray(Image.fromarray(values.astype(np.float32)).resize((side, side), Image.Resampling.BICUBIC))
    noisy = large + np.random.default_rng(0).normal(0, 0.004 * values.max(), large.shape)
    written = io.BytesIO()
    top = (1 << bits) - 1
    Image.fromarray(np.clip(noisy, 0, top).astype(np.uint8 if bits == 8 else np.uint16)).save(written, "PNG")
    return written.getvalue()


def answer(route: Route, film: Rendition) -> None:
    """Give a page what it asks for, as the room would."""
    name = route.request.url.removeprefix(f"{ROOM}/")
    if name == "film":
        headers = {"X-Film": json.dumps(film.about())}
        # Playwright hands bodies over as they are: what the browser would unpack is unpacked here.
        body = film.content if film.kind == "png8" else gzip.decompress(film.content)
        route.fulfill(body=body, headers=headers)
    elif name == "":
        route.fulfill(body=PAGE, content_type="text/html")
    else:
        kind = "text/css" if name.endswith("css") else "text/javascript"
        route.fulfill(body=(STATIC / name).read_bytes(), content_type=kind)


def measure(window: Page, side: int, bits: int, frames: int) -> list[str]:
    """Measure one film."""
    content = film_of(side, bits)
    began = time.perf_counter()
    film = render(content)
    rendered = time.perf_counter() - began
    if not isinstance(film, Rendition):
        raise SystemExit(film.message)
    window.unroute_all()
    window.route(f"{ROOM}/**", lambda route: answer(route, film))
    window.goto(f"{ROOM}/")
    window.evaluate(LOAD)
    fitted, whole = (statistics.median(window.evaluate(DRAG, [scale, frames])) for scale in (0, 1))
    return [
        f"{side} x {side}, {bits} bit", f"{rendered * 1000:,.0f}", f"{len(film.content) / 1000:,.0f}",
        f"{fitted:.1f}", f"{whole:.1f}",
    ]  # fmt: skip


def main() -> None:
    """Print one row a size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=60, help="frames of each drag")
    frames: int = parser.parse_args().frames
    browser = shutil.which("chromium")
    if browser is None:
        sys.exit("no chromium on this machine: apt-get install chromium")
    with sync_playwright() as driver:
        chromium: Any = driver.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        window = chromium.new_page(viewport={"width": 1600, "height": 1000})
        print(f"one film each, median of {frames} frames of a drag, window 1600 x 900 px, no GPU")
        print("| film | rendered, ms | sent, kB | frame fitted, ms | frame 1:1, ms |")
        print("|---|---|---|---|---|")
        for side, bits in SIZES:
            print(f"| {' | '.join(measure(window, side, bits, frames))} |", flush=True)
        chromium.close()


if __name__ == "__main__":
    main()
