// The films of a case side by side in time order, and the films of the next cases, fetched before they are wanted.

import { pause } from "./api.js";
import { FilmRefused, loadFilm } from "./film.js";
import { keepFocus, make, toggle } from "./page.js";
import "./canvas.js";

const MOST_PANES = 4;
const TRY_AGAIN_MS = 2000;

/** Films that were fetched or are on their way, by address. */
export class FilmStore {
  #films = new Map();

  get(url, onProgress) {
    if (!this.#films.has(url)) {
      const film = loadFilm(url, { onProgress });
      film.catch(() => this.#films.delete(url));
      this.#films.set(url, film);
    }
    return this.#films.get(url);
  }

  /** Let go of every film but these. */
  keepOnly(urls) {
    for (const url of this.#films.keys()) if (!urls.includes(url)) this.#films.delete(url);
  }
}

export class Panes {
  #panes = new Map();
  #shown = 0;

  constructor(place, strip, store) {
    this.place = place;
    this.strip = strip;
    this.store = store;
    this.films = [];
    keepFocus(strip);
    place.addEventListener("focusin", (event) => this.#activate(event.target.closest("cxr-canvas")));
    place.addEventListener("pointerdown", (event) => this.#activate(event.target.closest("cxr-canvas")));
  }

  /** The film that is read. */
  get current() {
    return this.#panes.get(this.now)?.canvas ?? null;
  }

  /** The film that the keys work on. */
  get active() {
    return this.picked?.isConnected ? this.picked : this.current;
  }

  #activate(canvas) {
    if (!canvas) return;
    this.picked = canvas;
    for (const pane of this.#panes.values()) pane.figure.toggleAttribute("data-active", pane.canvas === canvas);
  }

  /** Show the films of a case: at first the one that is read. `address(n)` says where a film is. */
  show(films, address, words) {
    this.#shown += 1;
    this.films = films;
    this.address = address;
    this.words = words;
    this.now = films.find((film) => film.current)?.n ?? films[0]?.n;
    this.beside = null;
    this.picked = null;
    this.#panes.clear();
    this.place.replaceChildren();
    this.#fillStrip();
    this.#draw(this.now === undefined ? [] : [this.now]);
  }

  clear() {
    this.show([], () => "", "");
  }

  /** Put the film before or after beside the one that is read; passing over that one shows it alone. */
  step(direction) {
    const order = this.films.map((film) => film.n);
    const at = order.indexOf(this.beside ?? this.now) + direction;
    if (at < 0 || at >= order.length) return false;
    this.beside = order[at] === this.now ? null : order[at];
    this.#draw(this.beside === null ? [this.now] : [this.now, this.beside]);
    return true;
  }

  #flip(n) {
    const open = [...this.#panes.keys()];
    const next = open.includes(n) ? open.filter((each) => each !== n) : [...open, n].slice(-MOST_PANES);
    if (!next.includes(this.now)) next.push(this.now);
    this.beside = next.find((each) => each !== this.now) ?? null;
    this.#draw(next);
  }

  #draw(wanted) {
    for (const [n, pane] of this.#panes) {
      if (wanted.includes(n)) continue;
      pane.figure.remove();
      this.#panes.delete(n);
    }
    for (const n of wanted) if (!this.#panes.has(n)) this.#panes.set(n, this.#open(n));
    const order = [...this.#panes.keys()].sort((a, b) => a - b);
    order.forEach((n, at) => {
      const { figure } = this.#panes.get(n);
      if (this.place.children[at] !== figure) this.place.insertBefore(figure, this.place.children[at] ?? null);
    });
    this.#panes = new Map(order.map((n) => [n, this.#panes.get(n)]));
    this.#activate(this.active);
    this.#markStrip(order);
  }

  #fillStrip() {
    toggle(this.strip, this.films.length > 1);
    this.buttons = new Map(
      this.films.map((film) => {
        const about = { type: "button", disabled: film.n === this.now, click: () => this.#flip(film.n) };
        return [film.n, make("button", about, named(film, this.films))];
      }),
    );
    const line = make("div", { class: "scroll" }, ...this.buttons.values());
    this.strip.replaceChildren(make("span", {}, `${this.films.length} films of this patient:`), line);
  }

  /** Say which films are open, and bring the one that was opened last into the line. */
  #markStrip(open) {
    for (const [n, button] of this.buttons) button.setAttribute("aria-pressed", String(open.includes(n)));
    const button = this.buttons.get(this.beside ?? this.now);
    if (!button) return;
    const line = button.parentElement;
    // Not scrollIntoView, which would move the page too where it is one column.
    line.scrollLeft = button.offsetLeft - line.offsetLeft - (line.clientWidth - button.offsetWidth) / 2;
  }

  #open(n) {
    const film = this.films.find((each) => each.n === n);
    const canvas = document.createElement("cxr-canvas");
    canvas.tabIndex = 0;
    const words = named(film, this.films);
    canvas.setAttribute("role", "group");
    canvas.setAttribute("aria-label", `${words}: arrows move it, Shift and arrows change window and level`);
    const wait = make("p", { class: "wait", role: "status" }, "The film is coming.");
    const bar = make("progress", { "aria-label": "How much of the film has come" });
    wait.append(bar);
    const caption = make("figcaption", {}, words);
    const figure = make("figure", { class: n === this.now ? "pane current" : "pane" }, canvas, wait, caption);
    this.#fill({ canvas, wait, bar, n, shown: this.#shown });
    return { figure, canvas };
  }

  async #fill({ canvas, wait, bar, n, shown }) {
    const url = this.address(n);
    const onProgress = (come, whole) => whole && (bar.value = come / whole);
    while (shown === this.#shown) {
      try {
        const film = await this.store.get(url, onProgress);
        if (shown !== this.#shown || !canvas.isConnected) return;
        canvas.film = film;
        canvas.words = `${this.words}, ${film.width} by ${film.height} pixels, ${film.about.bits} bit, complete`;
        wait.remove();
        canvas.dispatchEvent(new CustomEvent("film-shown", { bubbles: true }));
        return;
      } catch (error) {
        const over = error instanceof FilmRefused && error.status < 500 && ![401, 429].includes(error.status);
        wait.textContent = over ? error.message : "The film does not come. It is asked for again.";
        if (over) return;
        await pause(TRY_AGAIN_MS);
      }
    }
  }
}

/** Name a film by its place in time. */
function named(film, films) {
  const when = film.when ? film.when : `film ${films.indexOf(film) + 1} of ${films.length}`;
  return film.current ? `${when} (this case)` : when;
}
