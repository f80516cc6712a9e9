// How long a case took: wall time since it was first shown, and active time, in which the page was seen and a key or
// a pointer had moved within the last minute. It outlives a reload.

const IDLE_MS = 60_000;
const TICK_MS = 1000;
const ASLEEP_MS = 5000;
/** Two ticks this far apart: the machine slept, or the page was frozen. */

export class Clock {
  #kept = null;
  #last = 0;
  #moved = 0;

  constructor() {
    for (const what of ["pointerdown", "pointermove", "keydown", "wheel"]) {
      addEventListener(what, () => this.#touch(), { passive: true, capture: true });
    }
    document.addEventListener("visibilitychange", () => this.#tick());
    setInterval(() => this.#tick(), TICK_MS);
  }

  /** Begin a case, or go on with it. */
  begin(reading) {
    this.#tick();
    this.name = `bpals.clock.${reading}`;
    const before = localStorage.getItem(this.name);
    this.#kept = before ? JSON.parse(before) : { began: Date.now(), active_ms: 0 };
    this.#last = Date.now();
    this.#moved = Date.now();
    this.#save();
  }

  /** Say how long it has been. */
  spent() {
    this.#tick();
    return {
      active_s: Math.round(this.#kept.active_ms) / 1000,
      wall_s: Math.max(0, Date.now() - this.#kept.began) / 1000,
    };
  }

  /** Forget a case that is read. */
  end(reading) {
    localStorage.removeItem(`bpals.clock.${reading}`);
    if (this.name === `bpals.clock.${reading}`) this.#kept = null;
  }

  #touch() {
    this.#tick();
    this.#moved = Date.now();
  }

  #tick() {
    const now = Date.now();
    const passed = now - this.#last;
    this.#last = now;
    if (!this.#kept || passed <= 0 || passed > ASLEEP_MS) return;
    const seen = !this.hidden && !document.hidden;
    this.hidden = document.hidden;
    if (!seen || now - this.#moved > IDLE_MS) return;
    this.#kept.active_ms += passed;
    this.#save();
  }

  #save() {
    localStorage.setItem(this.name, JSON.stringify(this.#kept));
  }
}
