// What mouse, pen and fingers do to a film: drag for the tool in hand, two fingers or the middle button to move, the
// wheel to zoom at the pointer, two clicks to start anew.

const WHEEL_STEP = 1.0015;

export class Fingers {
  #down = new Map();
  #moved = null;

  constructor(canvas) {
    this.canvas = canvas;
    canvas.addEventListener("pointerdown", (event) => this.#press(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => this.#lift(event));
    canvas.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    canvas.addEventListener("dblclick", () => canvas.placing || canvas.reset());
    canvas.addEventListener("contextmenu", (event) => event.preventDefault());
  }

  #press(event) {
    if (!this.canvas.film || event.target.closest("button")) return;
    this.canvas.setPointerCapture(event.pointerId);
    const [x, y] = this.canvas.onCanvas(event);
    this.#down.set(event.pointerId, { x, y });
    this.#moved = this.#down.size > 1 || event.button !== 0 || event.ctrlKey ? "pan" : this.canvas.tool;
    if (this.canvas.placing && this.#moved !== "pan") {
      this.#moved = "place";
      const at = this.canvas.onFilm(x, y);
      this.canvas.placing.a = at;
      this.canvas.placing.b = at;
    }
  }

  #move(event) {
    const before = this.#down.get(event.pointerId);
    if (!before) return;
    const [x, y] = this.canvas.onCanvas(event);
    if (this.#down.size > 1) this.#pinch(event.pointerId, before, { x, y });
    else this.#drag(x, y, x - before.x, y - before.y);
    this.#down.set(event.pointerId, { x, y });
  }

  #drag(x, y, across, down) {
    if (this.#moved === "place") {
      this.canvas.placing.b = this.canvas.onFilm(x, y);
      this.canvas.redraw();
    } else if (this.#moved === "pan") this.canvas.pan(across, down);
    else this.canvas.shiftWindow(across / 300, -down / 300);
  }

  #pinch(moving, before, after) {
    const [, fixed] = [...this.#down].find(([pointer]) => pointer !== moving);
    const wide = (place) => Math.max(1, Math.hypot(place.x - fixed.x, place.y - fixed.y));
    this.canvas.zoom(wide(after) / wide(before), (fixed.x + after.x) / 2, (fixed.y + after.y) / 2);
    this.canvas.pan((after.x - before.x) / 2, (after.y - before.y) / 2);
  }

  #lift(event) {
    if (!this.#down.delete(event.pointerId) || this.#down.size) return;
    if (this.#moved === "place" && this.canvas.placing) this.canvas.place();
    this.#moved = null;
  }

  #wheel(event) {
    if (!this.canvas.film) return;
    event.preventDefault();
    this.canvas.zoom(WHEEL_STEP ** -event.deltaY, ...this.canvas.onCanvas(event));
  }
}
