// Which case comes next: asked of the room, and the ones after it fetched while this one is read.

import { ask } from "./api.js";

/** Say where a film of a reading is. */
export function filmOf(reading, n) {
  return `/api/readings/${encodeURIComponent(reading)}/films/${n}`;
}

export class Casebook {
  #ahead = [];
  #turns = 0; // Counts what changes which case is shown: an answer that was asked for before it is out of date.

  constructor(store) {
    this.store = store;
    this.of = 0;
  }

  /** Ask for the case to be read now; what comes after it is fetched in the background. */
  async next() {
    this.#turns += 1;
    const handed = await ask("POST", "/api/next", {});
    this.study = handed.study;
    this.of = handed.reading?.of ?? this.of;
    this.#fetchAhead(handed);
    return handed;
  }

  /** Give a case that was fetched ahead and is ready to be shown, or null. */
  take() {
    if (!this.ready) return null;
    this.#turns += 1;
    return this.#ahead.shift().reading;
  }

  /** Whether a case is there that can be read blind at once; one that is locked already is asked of the room. */
  get ready() {
    return this.#ahead[0]?.reading?.phase === "blind";
  }

  /** Put the case that is shown back: another one comes before it. */
  putBack(reading) {
    this.#turns += 1;
    this.#ahead.unshift({ id: reading.reading_id, reading });
  }

  /** Learn what comes after the case that is shown, without changing what is shown. */
  async topUp(shown) {
    const turn = this.#turns;
    const handed = await ask("POST", "/api/next", {});
    if (turn !== this.#turns) return;
    this.of = handed.reading?.of ?? this.of;
    const ahead = [handed.reading, ...handed.ahead].filter((each) => each && each.reading_id !== shown.reading_id);
    this.#fetchAhead({ reading: shown, ahead });
  }

  async reading(id) {
    return ask("GET", `/api/readings/${encodeURIComponent(id)}`);
  }

  /** Ask again for what is known of a reading that was revealed. */
  async reveal(id) {
    return ask("POST", `/api/readings/${encodeURIComponent(id)}/reveal`, {});
  }

  #fetchAhead({ reading, ahead }) {
    const before = new Map(this.#ahead.map((each) => [each.id, each]));
    this.#ahead = ahead.map((each) => before.get(each.reading_id) ?? { id: each.reading_id, reading: null });
    const now = (reading?.films ?? []).map((film) => filmOf(reading.reading_id, film.n));
    const coming = ahead.flatMap((each) => each.films.map((film) => filmOf(each.reading_id, film.n)));
    this.store.keepOnly([...now, ...coming]);
    this.#fetch(ahead);
  }

  /** Fetch one after another, the nearest first, so that none delays the one before it. */
  async #fetch(ahead) {
    for (const each of ahead) {
      const entry = this.#ahead.find((known) => known.id === each.reading_id);
      if (!entry || entry.reading) continue;
      const current = each.films.find((film) => film.current);
      try {
        entry.reading = await this.reading(each.reading_id);
        if (current) await this.store.get(filmOf(each.reading_id, current.n));
      } catch {
        return; // Nothing is lost: it is asked for again when it is wanted.
      }
    }
  }
}
