// Talking to the room: JSON there and back, and three ways to fail that a page must tell apart.

/** Nothing came back, or the room is not up: whether it was done is not known, and it is to be sent again. */
export class Unreached extends Error {}

/** Nobody is logged in any more. */
export class LoggedOut extends Error {}

/** The room refused, and why; `reply` is all that it sent. */
export class Denied extends Error {
  constructor(status, reply) {
    super(sentence(reply?.error?.message ?? `The room refused this (${status}).`));
    this.status = status;
    this.code = reply?.error?.code ?? "";
    this.reply = reply ?? {};
  }
}

const PATIENCE_MS = 20_000;
/** So long the reply to something written may take: after that it is sent again, which its key makes harmless. */
export const REPLY_MS = 6000;
/** After so long without a reply the reader sees that it is not saved yet. */
export const LATE_MS = 2000;
const RETRY = "bpals-retry";
/** Heard by whatever waits to be tried again. */
const TRY_AGAIN = new Set([408, 425, 429, 500, 502, 503, 504]);

/** Write the message of the room as a sentence: others may follow it. */
function sentence(words) {
  return `${words.charAt(0).toUpperCase()}${words.slice(1)}${/[.!?]$/.test(words) ? "" : "."}`;
}

/** Ask; `patience_ms` is how long a reply may take, and `signal` ends the waiting sooner. */
export async function ask(method, path, body, { patience_ms = PATIENCE_MS, signal } = {}) {
  let response;
  let reply;
  const stop = new AbortController();
  const timer = setTimeout(() => stop.abort(), patience_ms);
  signal?.addEventListener("abort", () => stop.abort());
  try {
    response = await fetch(path, {
      method,
      credentials: "same-origin",
      cache: "no-store",
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: stop.signal,
    });
    reply = await response.json().catch(() => null);
  } catch {
    throw new Unreached("The room cannot be reached.");
  } finally {
    clearTimeout(timer);
  }
  if (response.ok) {
    if (reply === null) throw new Unreached("The reply did not come whole.");
    return reply;
  }
  if (response.status === 401) throw new LoggedOut("You are logged out.");
  if (TRY_AGAIN.has(response.status)) throw new Unreached(sentence(reply?.error?.message ?? "The room is busy."));
  throw new Denied(response.status, reply);
}

/** Wait so long, or less: until the browser says that the line is back, or somebody wants it tried now. */
export function pause(milliseconds) {
  const over = new AbortController();
  return new Promise((resolve) => {
    onRetry(resolve, over.signal);
    setTimeout(resolve, milliseconds);
  }).finally(() => over.abort());
}

/** Do something whenever it is worth trying again at once. */
export function onRetry(work, signal) {
  for (const what of ["online", RETRY]) addEventListener(what, () => work(), { signal });
}

/** Have everything tried now that waits. */
export function retryNow() {
  dispatchEvent(new Event(RETRY));
}

/** Make a key that names one act, so that sent twice it is done once. */
export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
