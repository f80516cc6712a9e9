"""<cxr-canvas> in a real browser: the pixels that the server means, quickly, under window and level, zoom and marks."""

import base64
import json

import numpy as np
import pytest

from bpals.images.rendition import expose, shown
from world import browsers, dicoms
from world.browsers import until

CANVAS = "document.querySelector('.pane.current cxr-canvas')"
READY = f"{CANVAS}?.film && {CANVAS}.painted.width > 1"
NEXT = "words => document.getElementById('case').textContent !== words"
PIXELS = f"""
() => {{
  const canvas = {CANVAS};
  canvas.draw();
  const {{ scale, x, y }} = canvas.view;
  const {{ width, height }} = canvas.film;
  const data = canvas.painted.getContext('2d').getImageData(x, y, width, height).data;
  let grey = '';
  for (let at = 0; at < data.length; at += 4) grey += String.fromCharCode(data[at]);
  return [scale, btoa(grey)];
}}
"""
FRAMES = f"""
() => {{
  const canvas = {CANVAS};
  const pen = canvas.painted.getContext('2d');
  const rounds = [1, 2, 3].map(() => {{
    const took = Array.from({{ length: 12 }}, (_, at) => {{
      const began = performance.now();
      canvas.shiftWindow(at % 2 ? 0.03 : -0.02, 0.01);
      canvas.draw();
      pen.getImageData(0, 0, 1, 1);
      return performance.now() - began;
    }});
    return took.sort((a, b) => a - b)[6];
  }});
  return Math.min(...rounds);
}}
"""


def twelve_bits(**size):
    """A film of 12 bits, as detectors make them."""
    return browsers.chest(bits=12, **size)


SIGNED = (twelve_bits(width=300, height=220).astype(np.int16) - 2048).astype(np.int16)
KINDS = {
    "png-8": browsers.png(browsers.chest(width=300, height=220)),
    "png-16": browsers.png(browsers.chest(width=300, height=220, bits=16)),
    "dicom-12": dicoms.dicom(
        twelve_bits(width=300, height=220), BitsStored=12, HighBit=11, WindowCenter=2000, WindowWidth=1800
    ),
    "dicom-monochrome1": dicoms.dicom(
        twelve_bits(width=300, height=220), BitsStored=12, HighBit=11, PhotometricInterpretation="MONOCHROME1",
        WindowCenter=2100.5, WindowWidth=2001,
    ),
    "dicom-signed-rescaled": dicoms.dicom(
        SIGNED, RescaleSlope=2, RescaleIntercept=-100, WindowCenter=-300, WindowWidth=2200, PixelSpacing=[0.2, 0.1]
    ),
    "dicom-no-window": dicoms.dicom(twelve_bits(width=300, height=220), BitsStored=12, HighBit=11),
}  # fmt: skip


def pixels_of(window):
    """The zoom, and the grey of each pixel of a film of 300 x 220 that is on the canvas."""
    scale, grey = window.evaluate(PIXELS)
    return scale, np.frombuffer(base64.b64decode(grey), np.uint8).reshape(220, 300)


def shown_in(window):
    """Wait until the film of the case is on the canvas."""
    until(window, READY)


@pytest.fixture(scope="module")
def as_shown():
    """What the server says that a display shows."""
    return {f"{kind}.film": shown(expose(content)) for kind, content in KINDS.items()}


def test_u04_the_canvas_shows_the_servers_pixels(hall, enter, as_shown):
    """U04: at one to one, 8- and 16-bit PNG and DICOM (MONOCHROME1, signed, rescaled, without window) are equal."""
    room = hall({f"{kind}.film": content for kind, content in KINDS.items()}, reveal=False)
    window = enter(room)
    seen = set()
    for _ in KINDS:
        shown_in(window)
        reading = window.evaluate(f"{CANVAS}.closest('main') && document.getElementById('case').textContent")
        window.keyboard.press("9")
        scale, grey = pixels_of(window)
        assert scale == 1
        fits = [name for name, pixels in as_shown.items() if np.array_equal(pixels, grey)]
        assert len(fits) == 1, "no film of the server is shown exactly"
        seen.update(fits)
        window.keyboard.press("Enter")
        until(window, NEXT, reading)
    assert seen == set(as_shown)


def test_window_level_and_invert_change_the_pixels(hall, enter):
    """A drag to the right widens the window, down darkens; presets and Shift with arrows too; two clicks start anew."""
    room = hall({"one.png": KINDS["png-16"]})
    window = enter(room)
    shown_in(window)
    window.keyboard.press("9")
    first = pixels_of(window)[1]
    place = window.locator(".pane.current cxr-canvas").bounding_box()
    x, y = place["x"] + 200, place["y"] + 200
    window.mouse.move(x, y)
    window.mouse.down()
    window.mouse.move(x, y + 60, steps=4)
    window.mouse.up()
    darker = pixels_of(window)[1]
    assert darker.mean() < first.mean() - 20
    window.keyboard.press("4")
    for key in ("Shift+ArrowUp", "2", "3", "1", "i"):
        window.keyboard.press(key)
        changed = pixels_of(window)[1]
        assert not np.array_equal(changed, first), key
    window.keyboard.press("4")
    assert np.array_equal(pixels_of(window)[1], 255 - first)
    window.mouse.dblclick(x, y)
    window.keyboard.press("9")
    assert np.array_equal(pixels_of(window)[1], first)


@pytest.mark.parametrize(
    ("side", "bits", "frames"), [(1024, 8, 30), (2048, 16, 30), (2740, 16, 15)], ids=["1024", "2048", "7.5-MP"]
)
def test_u03_window_and_level_follow_the_hand(hall, enter, side, bits, frames):
    """U03: a frame under a drag takes less than 1/30 s on 1024² and on 2048² of 16 bits, and 7.5 MP stays usable."""
    large = np.tile(browsers.chest(width=side // 4, height=side // 4, bits=bits), (4, 4))
    room = hall({"one.png": browsers.png(large)})
    window = enter(room, viewport={"width": 1600, "height": 1000})
    shown_in(window)
    fitted = window.evaluate(FRAMES)
    window.keyboard.press("9")
    whole = window.evaluate(FRAMES)
    assert max(fitted, whole) < 1000 / frames


def test_zoom_stays_at_the_pointer_and_pan_moves(hall, enter):
    """What is under the pointer stays there while the wheel turns; arrows move; 0 fits again."""
    room = hall({"one.png": KINDS["png-8"]})
    window = enter(room)
    shown_in(window)
    place = window.locator(".pane.current cxr-canvas").bounding_box()
    under = f"({{x, y}}) => {CANVAS}.onFilm(...{CANVAS}.onCanvas({{clientX: x, clientY: y}}))"
    pointer = {"x": place["x"] + 300, "y": place["y"] + 250}
    window.mouse.move(pointer["x"], pointer["y"])
    before, fitted = window.evaluate(under, pointer), window.evaluate(f"{CANVAS}.view")
    window.mouse.wheel(0, -400)
    until(window, f"scale => {CANVAS}.view.scale > scale * 1.5", fitted["scale"])
    after = window.evaluate(under, pointer)
    assert abs(before["x"] - after["x"]) < 0.01
    assert abs(before["y"] - after["y"]) < 0.01
    window.keyboard.press("ArrowRight")
    assert window.evaluate(under, pointer)["x"] > after["x"] + 1
    window.keyboard.press("0")
    assert window.evaluate(f"{CANVAS}.view") == fitted


def test_the_ruler_measures_millimetres_where_the_film_knows_them(hall, enter):
    """In pixels on a PNG; on a DICOM with its spacing, which differs down and across, in mm; by keys alone."""
    films = {"a.png": KINDS["png-8"], "b.dcm": KINDS["dicom-signed-rescaled"]}
    room = hall(films, reveal=False)
    window = enter(room)
    words = set()
    for _ in films:
        shown_in(window)
        case = window.inner_text("#case")
        window.keyboard.press("9")
        window.keyboard.press("r")
        for _ in range(5):
            window.keyboard.press("Shift+ArrowRight")
        window.keyboard.press("Enter")
        ruler = window.evaluate(f"{CANVAS}.ruler")
        length = ruler["b"]["x"] - ruler["a"]["x"]
        window.evaluate(f"{CANVAS}.draw()")
        text = window.inner_text(".pane.current .readout")
        unit = "mm" if "mm" in text else "px"
        want = f"ruler {length * 0.1:.1f} mm" if unit == "mm" else f"ruler {length:.0f} px"
        assert want in text
        words.add(unit)
        window.keyboard.press("Enter")
        until(window, NEXT, case)
    assert words == {"mm", "px"}


def test_boxes_are_drawn_by_hand_and_by_keys_and_kept_in_pixels_of_the_film(hall, enter):
    """A drag, and arrows with Enter; both belong to the finding marked last; Esc drops one; they are stored."""
    room = hall({"one.png": KINDS["png-8"]}, reveal=False)
    window = enter(room)
    shown_in(window)
    window.keyboard.press("9")
    window.keyboard.press("m")
    window.keyboard.press("b")
    start = window.evaluate(f"{CANVAS}.view")
    edge = window.locator(".pane.current cxr-canvas").bounding_box()
    window.mouse.move(edge["x"] + start["x"] + 50, edge["y"] + start["y"] + 40)
    window.mouse.down()
    window.mouse.move(edge["x"] + start["x"] + 110, edge["y"] + start["y"] + 90, steps=3)
    window.mouse.up()
    window.keyboard.press("b")
    window.keyboard.press("ArrowLeft")
    window.keyboard.press("Shift+ArrowDown")
    window.keyboard.press("Enter")
    window.keyboard.press("b")
    window.keyboard.press("Escape")
    assert "2 boxes" in window.inner_text("[data-finding=Mass] .sign")
    window.keyboard.press("Enter")
    window.wait_for_selector("#nothing:not([hidden])")
    kept = room.reviews().filter(finding="Mass")["box"].item()
    first, second = json.loads(kept)
    assert first == pytest.approx([50, 40, 60, 50], abs=0.6)
    assert second[2] > 0
    assert room.reviews().filter(finding="Mass")["verdict"].item() == "present"


def test_films_of_the_patient_stand_side_by_side_in_time_order(hall, enter):
    """[ opens the film before, at its side; ] goes back over this one; the strip opens more."""
    films = {"now.png": KINDS["png-8"], "old-before": KINDS["png-16"], "older-before": KINDS["png-8"]}
    room = hall(films, earlier={"now.png": ["older-before", "old-before"]})
    window = enter(room)
    shown_in(window)
    captions = "[...document.querySelectorAll('.pane figcaption')].map(each => each.textContent)"
    assert window.evaluate(captions) == ["follow-up 2 (this case)"]
    window.keyboard.press("[")
    assert window.evaluate(captions) == ["follow-up 1", "follow-up 2 (this case)"]
    window.keyboard.press("[")
    assert window.evaluate(captions) == ["follow-up 0", "follow-up 2 (this case)"]
    window.click("#strip button:has-text('follow-up 1')")
    assert window.evaluate(captions) == ["follow-up 0", "follow-up 1", "follow-up 2 (this case)"]
    until(window, "[...document.querySelectorAll('cxr-canvas')].every(each => each.film)")
    window.keyboard.press("i")
    inverted = "[...document.querySelectorAll('cxr-canvas')].map(each => each.inverted)"
    assert window.evaluate(inverted) == [False, False, True]
