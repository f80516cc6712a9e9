// The outbox: what the reader wrote and the room has not yet confirmed. It lies in the browser's storage, so
// that a lost connection, a reload or a closed tab loses nothing; each act has a key, so that sent twice it is done
// once. A draft that waits behind another draft of its reading takes its place.

import { ask, Denied, LATE_MS, LoggedOut, newKey, onRetry, REPLY_MS, Unreached } from "./api.js";

const WAITS_MS = [500, 1000, 2000, 3000];
const WINDOW = "bpals.window.";

export class Outbox {
  #busy = false;
  #flight = null;
  #hurry = false;
  #drained = [];
  #tries = 0;
  #timer = 0;
  #count = 0;
  #waiting = new Map();
  #versions = new Map();

  /** `onState(state, count)` gets `saved`, `sending`, `waiting`, `loggedout` or `conflict`. */
  constructor(account, { onState, onConflict, onDenied }) {
    this.prefix = `bpals.outbox.${account}.`;
    this.window = newKey().slice(0, 8);
    // Held while this window lives: others see by it whose acts they must not touch.
    navigator.locks?.request(WINDOW + this.window, () => new Promise(() => {}));
    this.onState = onState;
    this.onConflict = onConflict;
    this.onDenied = onDenied;
    onRetry(() => this.#retry());
    document.addEventListener("visibilitychange", () => document.hidden || this.pump());
  }

  /** Learn which version of a reading the room has; a page that was fetched before the last reply knows an older one. */
  learn(reading, version) {
    this.#versions.set(reading, Math.max(version, this.version(reading)));
  }

  version(reading) {
    return this.#versions.get(reading) ?? 0;
  }

  /** Put an act into the outbox; give a promise of what the room replies. */
  add(reading, act, body) {
    if (act === "draft") this.#replaceDrafts(reading);
    this.#count += 1;
    const name = `${this.prefix}${Date.now()}.${String(this.#count).padStart(6, "0")}.${this.window}`;
    const item = { name, reading, act, body: { ...body, version: this.version(reading), key: newKey() }, sent: false };
    this.#keep(item);
    const reply = new Promise((resolve, reject) => this.#waiting.set(item.body.key, { resolve, reject }));
    reply.catch(() => {});
    this.pump();
    return reply;
  }

  /** Give what is not yet kept, oldest first. */
  items() {
    const mine = this.#names().filter((name) => name.endsWith(this.window));
    return mine.map((name) => JSON.parse(localStorage.getItem(name)));
  }

  /** Take over what windows left behind that are gone, such as this page before it was loaded anew. */
  async adopt() {
    const held = (await navigator.locks?.query())?.held ?? [];
    const alive = new Set(held.map((lock) => lock.name.replace(WINDOW, "")));
    for (const name of this.#names()) {
      if (alive.has(name.split(".").at(-1))) continue;
      const item = JSON.parse(localStorage.getItem(name));
      localStorage.removeItem(name);
      this.#keep({ ...item, name: name.replace(/[^.]*$/, this.window) });
    }
  }

  /** Wait until the room has everything. */
  drained() {
    return new Promise((resolve) => {
      this.#drained.push(resolve);
      this.pump();
    });
  }

  /** Try now: what is on its way and has no reply is sent anew. */
  #retry() {
    this.#tries = 0;
    this.#hurry = this.#busy;
    this.#flight?.abort();
    this.pump();
  }

  #names() {
    return Object.keys(localStorage)
      .filter((name) => name.startsWith(this.prefix))
      .sort();
  }

  /** Send until nothing is left, or until it cannot be sent now; true if nothing is left. */
  async pump() {
    if (this.#busy) return false;
    this.#busy = true;
    clearTimeout(this.#timer);
    try {
      for (let item = this.items()[0]; item; item = this.items()[0]) {
        if (!this.#tries) this.#say("sending");
        if (!(await this.#send(item))) return false;
        this.#tries = 0;
      }
      this.#say("saved");
      return true;
    } finally {
      this.#busy = false;
    }
  }

  async #send(item) {
    if (!item.sent) {
      item.body.version = Math.max(item.body.version, this.version(item.reading));
      item.sent = true;
      this.#keep(item);
    }
    const late = setTimeout(() => this.#say("waiting"), LATE_MS);
    this.#flight = new AbortController();
    try {
      const path = `/api/readings/${encodeURIComponent(item.reading)}/${item.act}`;
      const reply = await ask("POST", path, item.body, { patience_ms: REPLY_MS, signal: this.#flight.signal });
      this.learn(item.reading, reply.version ?? 0);
      this.#drop(item);
      this.#settle(item, "resolve", reply);
      return true;
    } catch (error) {
      return this.#failed(item, error);
    } finally {
      clearTimeout(late);
    }
  }

  #failed(item, error) {
    if (error instanceof Unreached) {
      this.#say("waiting");
      const wait = this.#hurry ? 0 : WAITS_MS[Math.min(this.#tries, WAITS_MS.length - 1)];
      this.#timer = setTimeout(() => this.pump(), wait);
      this.#hurry = false;
      this.#tries += 1;
      return false;
    }
    if (error instanceof LoggedOut) {
      this.#say("loggedout");
      return false;
    }
    if (!(error instanceof Denied)) throw error;
    if (error.status === 409 && error.reply.current) {
      this.#say("conflict");
      this.onConflict(item, error.reply.current);
      return false;
    }
    this.#drop(item);
    this.#settle(item, "reject", error);
    this.onDenied(item, error);
    return true;
  }

  /** After a conflict: send what was written here on top of what the room has. */
  insist(item, version) {
    this.#versions.set(item.reading, version);
    this.#keep({ ...item, sent: false, body: { ...item.body, version } });
    this.pump();
  }

  /** After a conflict: let go of everything that was written here about a reading. */
  giveWay(reading, version) {
    this.#versions.set(reading, version);
    for (const item of this.items().filter((each) => each.reading === reading)) {
      this.#drop(item);
      this.#settle(item, "reject", new Denied(409, null));
    }
    this.pump();
  }

  #settle(item, how, what) {
    this.#waiting.get(item.body.key)?.[how](what);
    this.#waiting.delete(item.body.key);
  }

  #replaceDrafts(reading) {
    for (const item of this.items()) {
      if (item.reading === reading && item.act === "draft" && !item.sent) this.#drop(item);
    }
  }

  #keep(item) {
    localStorage.setItem(item.name, JSON.stringify(item));
  }

  #drop(item) {
    localStorage.removeItem(item.name);
  }

  #say(state) {
    this.onState(state, this.items().length);
    if (state === "saved") for (const resolve of this.#drained.splice(0)) resolve();
  }
}
