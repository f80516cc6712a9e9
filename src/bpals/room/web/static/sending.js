// The line at the top: whether the room has everything, and what is done where it has not.

import { retryNow } from "./api.js";
import { byId, toggle } from "./page.js";

export const NOT_SAVED = "Not saved yet: waiting for the room (retrying)";
const WORDS = {
  saved: () => "All saved",
  sending: () => "Saving",
  waiting: (count) => `${NOT_SAVED}, ${count} kept here`,
  loggedout: (count) => `Logged out: ${count} not yet sent, kept in this browser. Log in again`,
  conflict: () => "Changed in another window",
};

export class SendingLine {
  constructor() {
    this.line = byId("sending");
    byId("retry").addEventListener("click", () => retryNow());
  }

  show(state, count) {
    this.line.dataset.state = state;
    this.line.dataset.count = count;
    const words = WORDS[state](count);
    if (this.line.textContent !== words) this.line.textContent = words;
    this.offerRetry(state === "waiting");
  }

  /** Show the button that tries at once. */
  offerRetry(wanted) {
    toggle(byId("retry"), wanted);
  }
}
