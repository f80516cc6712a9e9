// Lets in who comes by a link: takes what the address carries, wipes it from the address, and posts it.

import { ask } from "./api.js";
import { byId, toggle } from "./page.js";

const post = byId("main").dataset.post;
const query = new URLSearchParams(location.search);
const body =
  post === "/enter"
    ? { token: location.hash.slice(1) }
    : { code: query.get("code") ?? "", state: query.get("state") ?? "" };
history.replaceState(null, "", location.pathname);
try {
  const reply = await ask("POST", post, body);
  location.replace(reply.next ?? "/read");
} catch (error) {
  const words = { LoggedOut: "This link was used, is too old, or never was. Ask for another." };
  byId("words").textContent = words[error.constructor.name] ?? error.message;
  toggle(byId("again"), true);
}
