// What keys and buttons do to a film: one table for both.

import { OWN } from "./canvas.js";
import { byId } from "./page.js";

const STEP_PX = 40;
const NUDGE_PX = 8;
const WINDOW_STEP = 0.05;
const ZOOM_STEP = 1.25;
const ARROWS = { left: [-1, 0], right: [1, 0], up: [0, -1], down: [0, 1] };
const SHIFTED = { narrower: [-1, 0], wider: [1, 0], brighter: [0, -1], darker: [0, 1] };

export class FilmTools {
  constructor(panes, { boxName, onBox }) {
    this.panes = panes;
    this.boxName = boxName;
    this.preset = byId("preset");
    this.preset.addEventListener("change", () => {
      this.act(`preset${this.preset.value}`);
      // In the list the letters would go on choosing presets.
      panes.active?.focus({ preventScroll: true });
    });
    const place = panes.place;
    place.addEventListener("film-box", (event) => event.target === panes.current && onBox(event.detail));
    place.addEventListener("film-shown", ({ target }) => {
      if (target === panes.current) this.preset.value = String(OWN);
    });
    for (const what of ["film-tool", "film-shown", "focusin"]) place.addEventListener(what, () => this.update());
  }

  /** Do it; false if the key is not used. */
  act(does) {
    const canvas = this.panes.active;
    if (does === "earlier" || does === "later") return this.panes.step(does === "earlier" ? -1 : 1);
    if (!canvas?.film) return false;
    if (ARROWS[does]) canvas.pan(...ARROWS[does].map((way) => -way * STEP_PX));
    else if (SHIFTED[does]) canvas.shiftWindow(SHIFTED[does][0] * WINDOW_STEP, -SHIFTED[does][1] * WINDOW_STEP);
    else if (does.startsWith("preset")) this.#preset(canvas, Number(does.slice(6)));
    else if (does.startsWith("drag-")) this.#drag(does.slice(5));
    else this.#plain(canvas, does);
    this.update();
    return true;
  }

  #plain(canvas, does) {
    const acts = {
      nearer: () => canvas.zoom(ZOOM_STEP),
      farther: () => canvas.zoom(1 / ZOOM_STEP),
      fit: () => canvas.fit(),
      whole: () => canvas.whole(),
      invert: () => canvas.invert(),
      ruler: () => (canvas.ruler ? canvas.abandon() : canvas.begin("ruler")),
      box: () => this.#box(),
      leave: () => canvas.abandon(),
    };
    acts[does]?.();
  }

  #box() {
    const name = this.boxName();
    if (name) this.panes.current?.begin("box", name);
    this.panes.current?.focus();
  }

  #preset(canvas, number) {
    canvas.preset(number);
    this.preset.value = String(number);
  }

  #drag(tool) {
    for (const canvas of this.panes.place.querySelectorAll("cxr-canvas")) canvas.tool = tool;
    this.tool = tool;
  }

  /** While a box or a ruler is being placed, arrows move it, Enter keeps it, Escape drops it; false if it is no such key. */
  place(does) {
    const canvas = this.panes.active;
    if (!canvas?.placing) return false;
    const way = ARROWS[does] ?? SHIFTED[does];
    if (way) canvas.nudge(way[0] * NUDGE_PX, way[1] * NUDGE_PX, Boolean(SHIFTED[does]));
    else if (does === "save" || does === "rest") canvas.place();
    else if (does === "leave" || does === canvas.placing.kind) canvas.abandon();
    else return false;
    return true;
  }

  /** Show on the buttons what is on. */
  update() {
    const canvas = this.panes.active;
    const on = {
      "drag-window": (this.tool ?? "window") === "window",
      "drag-pan": this.tool === "pan",
      invert: canvas?.inverted ?? false,
      ruler: Boolean(canvas?.ruler) || canvas?.placing?.kind === "ruler",
      box: canvas?.placing?.kind === "box",
    };
    for (const [does, pressed] of Object.entries(on)) {
      const button = document.querySelector(`.tools [data-does="${does}"]`);
      if (button) button.setAttribute("aria-pressed", String(pressed));
    }
    if (canvas && this.tool) canvas.tool = this.tool;
  }
}
