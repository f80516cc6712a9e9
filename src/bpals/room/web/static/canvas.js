// <cxr-canvas>: one film under window and level, zoom and pan, with boxes and a ruler.
// Only what is seen is looked up: at most about as many values as the screen has pixels, whatever the film's size.

import { lookupTable } from "./film.js";
import { between, drawMarks, rulerLength } from "./marks.js";
import { Fingers } from "./fingers.js";

const MOST_ZOOM = 16;
const COARSE = 1.5;
/** From this zoom on the file holds less than the screen could show. */
export const OWN = 4;
/** The preset that a film opens with. */
const PRESETS = {
  1: ({ about: { window, level } }) => [window / 2, level],
  2: ({ about: { window, level } }) => [window * 0.6, level - window * 0.2],
  3: ({ about: { window, level } }) => [window * 0.6, level + window * 0.2],
  [OWN]: ({ about: { window, level } }) => [window, level],
  5: (film) => widest(film),
};

/** Hold the film's own window and every grey that it has. */
function widest(film) {
  const { window, level } = film.about;
  const [darkest, brightest] = film.extremes();
  const low = Math.min(darkest, level - window / 2);
  const high = Math.max(brightest, level + window / 2);
  return [high - low, (low + high) / 2];
}

class CxrCanvas extends HTMLElement {
  #film = null;
  #view = { scale: 1, x: 0, y: 0 };
  #fitted = true;
  #table = null;
  #scratch = document.createElement("canvas");
  #pixels = null;
  #waiting = 0;

  window = 255;
  level = 127.5;
  inverted = false;
  tool = "window";
  boxes = [];
  ruler = null;
  placing = null;

  connectedCallback() {
    if (this.painted) return;
    this.painted = this.#layer("film");
    this.marked = this.#layer("marks");
    this.painted.setAttribute("role", "img");
    this.words = "The film is coming";
    this.marked.setAttribute("aria-hidden", "true");
    this.readout = document.createElement("p");
    this.readout.className = "readout";
    this.coarse = document.createElement("p");
    this.coarse.className = "coarse";
    this.coarse.hidden = true;
    this.append(this.readout, this.coarse);
    new Fingers(this);
    this.sizes = new ResizeObserver(() => this.#resize());
    this.sizes.observe(this);
  }

  disconnectedCallback() {
    cancelAnimationFrame(this.#waiting);
    this.#waiting = 0;
  }

  #layer(name) {
    const canvas = document.createElement("canvas");
    canvas.className = name;
    this.append(canvas);
    return canvas;
  }

  get film() {
    return this.#film;
  }

  /** Show a film through its own window, fitted; null shows none. */
  set film(film) {
    this.#film = film;
    this.boxes = [];
    this.ruler = null;
    this.placing = null;
    this.inverted = false;
    if (film) {
      this.setWindow(film.about.window, film.about.level);
      this.#resize(); // The observer comes later: until then the layers have a size that the browser made up.
      this.fit();
    }
    this.redraw();
  }

  /** Say what the film is, for those who do not see it. */
  set words(text) {
    this.painted.setAttribute("aria-label", text);
  }

  /** How large a pixel of the film is on the canvas, and where its first one stands. */
  get view() {
    return { ...this.#view };
  }

  #resize() {
    const ratio = globalThis.devicePixelRatio || 1;
    const width = Math.max(1, Math.round(this.clientWidth * ratio));
    const height = Math.max(1, Math.round(this.clientHeight * ratio));
    if (width === this.painted.width && height === this.painted.height) return;
    for (const layer of [this.painted, this.marked]) {
      layer.width = width;
      layer.height = height;
    }
    if (this.#fitted) this.fit();
    this.draw();
  }

  // Window and level

  setWindow(window, level) {
    this.window = Math.max(1, window);
    this.level = level;
    this.#table = null;
    this.redraw();
  }

  /** Move window and level by shares of the film's own window. */
  shiftWindow(wider, brighter) {
    const own = this.#film?.about.window ?? 255;
    this.setWindow(this.window + wider * own, this.level - brighter * own);
  }

  preset(number) {
    if (this.#film) this.setWindow(...PRESETS[number](this.#film));
  }

  invert() {
    this.inverted = !this.inverted;
    this.#table = null;
    this.redraw();
  }

  // Zoom and pan, in pixels of the canvas

  fit() {
    if (!this.#film || !this.painted.width) return;
    const { width, height } = this.painted;
    const scale = Math.min(width / this.#film.width, height / this.#film.height);
    this.#see(scale, (width - this.#film.width * scale) / 2, (height - this.#film.height * scale) / 2);
    this.#fitted = true;
  }

  /** Show one pixel of the film as one of the screen, around the middle. */
  whole() {
    this.zoomTo(1, this.painted.width / 2, this.painted.height / 2);
  }

  zoom(factor, x = this.painted.width / 2, y = this.painted.height / 2) {
    this.zoomTo(this.#view.scale * factor, x, y);
  }

  zoomTo(wanted, x, y) {
    const least = Math.min(1, 32 / Math.max(this.#film?.width ?? 32, this.#film?.height ?? 32));
    const scale = Math.min(MOST_ZOOM, Math.max(least, wanted));
    const ratio = scale / this.#view.scale;
    this.#see(scale, x - (x - this.#view.x) * ratio, y - (y - this.#view.y) * ratio);
  }

  pan(x, y) {
    this.#see(this.#view.scale, this.#view.x + x, this.#view.y + y);
  }

  #see(scale, x, y) {
    // Whole pixels where one stands for one, so that none is blended with its neighbour.
    this.#view = scale === 1 ? { scale, x: Math.round(x), y: Math.round(y) } : { scale, x, y };
    this.#fitted = false;
    this.redraw();
  }

  reset() {
    if (!this.#film) return;
    this.inverted = false;
    this.setWindow(this.#film.about.window, this.#film.about.level);
    this.fit();
  }

  /** Turn a place in the window of the browser into one on the canvas. */
  onCanvas(event) {
    const edge = this.painted.getBoundingClientRect();
    const ratio = edge.width ? this.painted.width / edge.width : 1;
    return [(event.clientX - edge.left) * ratio, (event.clientY - edge.top) * ratio];
  }

  /** Turn a place on the canvas into one on the film, inside of it. */
  onFilm(x, y) {
    const { scale, x: left, y: top } = this.#view;
    return {
      x: Math.min(this.#film.width, Math.max(0, (x - left) / scale)),
      y: Math.min(this.#film.height, Math.max(0, (y - top) / scale)),
    };
  }

  // Box and ruler: two places on the film, moved by a pointer or by keys

  /** Begin a box or a ruler in the middle of what is seen. */
  begin(kind, name = "") {
    if (!this.#film) return;
    const { width, height } = this.painted;
    const a = this.onFilm(width * 0.4, height * 0.4);
    const b = this.onFilm(width * 0.6, kind === "ruler" ? height * 0.4 : height * 0.6);
    this.placing = { kind, name, a, b };
    this.redraw();
    this.#tell();
  }

  /** Move it, or its second corner alone, by pixels of the screen. */
  nudge(x, y, second) {
    const far = { x: x / this.#view.scale, y: y / this.#view.scale };
    for (const end of second ? ["b"] : ["a", "b"]) {
      const place = this.placing[end];
      this.placing[end] = {
        x: Math.min(this.#film.width, Math.max(0, place.x + far.x)),
        y: Math.min(this.#film.height, Math.max(0, place.y + far.y)),
      };
    }
    this.redraw();
    this.#tell();
  }

  /** Keep it. */
  place() {
    const placed = this.placing;
    this.placing = null;
    if (placed?.kind === "ruler") this.ruler = { a: placed.a, b: placed.b };
    const box = placed?.kind === "box" ? between(placed) : null;
    if (box && box.width >= 1 && box.height >= 1) {
      this.dispatchEvent(new CustomEvent("film-box", { bubbles: true, detail: box }));
    }
    this.redraw();
    this.#tell();
  }

  abandon() {
    this.placing = null;
    this.ruler = null;
    this.redraw();
    this.#tell();
  }

  #tell() {
    this.dispatchEvent(new CustomEvent("film-tool", { bubbles: true }));
  }

  // Painting

  redraw() {
    this.#waiting ||= requestAnimationFrame(() => {
      this.#waiting = 0;
      this.draw();
    });
  }

  draw() {
    const pen = this.painted.getContext("2d", { alpha: false });
    pen.fillStyle = "#000";
    pen.fillRect(0, 0, this.painted.width, this.painted.height);
    if (this.#film) this.#paint(pen);
    const place = (x, y) => [this.#view.x + x * this.#view.scale, this.#view.y + y * this.#view.scale];
    const spacing = this.#film?.about.spacing_mm ?? null;
    const { boxes, ruler, placing } = this;
    drawMarks(this.marked.getContext("2d"), place, { boxes, ruler, placing, spacing });
    this.#describe(spacing);
  }

  #paint(pen) {
    const { scale, x, y } = this.#view;
    const times = Math.max(0, Math.floor(Math.log2(1 / scale)));
    const { values, width, height } = this.#film.halved(times);
    const step = scale * 2 ** times;
    const left = Math.max(0, Math.floor(-x / step));
    const top = Math.max(0, Math.floor(-y / step));
    const right = Math.min(width, Math.ceil((this.painted.width - x) / step));
    const bottom = Math.min(height, Math.ceil((this.painted.height - y) / step));
    const [across, down] = [right - left, bottom - top];
    if (across <= 0 || down <= 0) return;
    this.#table ??= lookupTable(this.#film.about.bits, this.window, this.level, this.inverted);
    const pixels = this.#ready(across, down);
    const shown = new Uint32Array(pixels.data.buffer);
    const table = this.#table;
    for (let line = 0, to = 0; line < down; line += 1) {
      let from = (top + line) * width + left;
      for (const end = to + across; to < end; to += 1, from += 1) shown[to] = table[values[from]];
    }
    this.#scratch.getContext("2d", { alpha: false }).putImageData(pixels, 0, 0);
    pen.imageSmoothingEnabled = step !== 1;
    pen.imageSmoothingQuality = "low";
    pen.drawImage(this.#scratch, 0, 0, across, down, x + left * step, y + top * step, across * step, down * step);
  }

  #ready(across, down) {
    if (this.#pixels?.width !== across || this.#pixels?.height !== down) {
      this.#pixels = new ImageData(across, down);
      this.#scratch.width = across;
      this.#scratch.height = down;
    }
    return this.#pixels;
  }

  #describe(spacing) {
    this.coarse.hidden = !this.#film || this.#view.scale <= COARSE;
    if (!this.#film) {
      this.readout.textContent = "";
      return;
    }
    const zoom = `${(this.#view.scale * 100).toFixed(0)} %`;
    const size = `${this.#film.width} × ${this.#film.height}`;
    this.coarse.textContent = `${size} px, shown at ${zoom}: fine detail is not in this file`;
    const { slope, intercept, bits } = this.#film.about;
    const words = [
      `W ${(this.window * Math.abs(slope)).toFixed(0)} L ${(this.level * slope + intercept).toFixed(0)}`,
      zoom,
      `${size}, ${bits} bit`,
    ];
    if (this.inverted) words.push("inverted");
    const ruler = this.placing?.kind === "ruler" ? this.placing : this.ruler;
    if (ruler) words.push(`ruler ${rulerLength(ruler, spacing)}`);
    this.readout.textContent = words.join("  ·  ");
  }
}

customElements.define("cxr-canvas", CxrCanvas);
