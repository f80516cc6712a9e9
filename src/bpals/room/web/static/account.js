// The account page: one's password and sessions; for an admin, who may enter.

import { ask } from "./api.js";
import { byId, make, toggle } from "./page.js";

const admin = byId("main").dataset.admin === "1";

function say(words) {
  byId("words").textContent = words;
}

/** Do something, say what came of it, and show everything anew. */
async function act(work) {
  try {
    say((await work()) ?? "");
  } catch (error) {
    say(error.message);
  }
  await show().catch((error) => say(error.message));
}

function time(seconds) {
  return new Date(seconds * 1000).toLocaleString();
}

function table(caption, heads, rows) {
  const head = make("tr", {}, ...heads.map((name) => make("th", { scope: "col" }, name)));
  return make("table", {}, make("caption", {}, caption), make("thead", {}, head), make("tbody", {}, ...rows));
}

function button(words, about, work) {
  return make("button", { type: "button", "aria-label": `${words} ${about}`, click: () => act(work) }, words);
}

function sessionRow(session) {
  const where = session.this ? "this browser" : "another browser";
  return make("tr", {}, make("th", { scope: "row" }, where), make("td", {}, time(session.began)), make("td", {}, time(session.ends)));
}

function ways(account) {
  const named = [account.password && "password", account.totp && "code", account.subject && "OIDC"].filter(Boolean);
  return named.join(", ") || "a link";
}

function accountRow(account) {
  const path = `/api/accounts/${account.account_id}`;
  const change = async (body, words) => {
    await ask("POST", path, body);
    return `${account.name} ${words}.`;
  };
  const link = async () => {
    showLink(account.name, (await ask("POST", `${path}/link`)).link);
  };
  const state = account.disabled
    ? button("Reopen account", account.name, () => change({ disabled: false }, "may enter again"))
    : button("Close account", account.name, () => change({ disabled: true }, "may not enter any more, and is logged out"));
  const cells = [account.role, ways(account), account.disabled ? "no" : "yes"].map((text) => make("td", {}, text));
  const acts = make("td", {}, state, account.disabled ? null : button("Link", `for ${account.name}`, link));
  return make("tr", {}, make("th", { scope: "row" }, account.name), ...cells, acts);
}

/** Show a link; it is shown once, and works once. */
function showLink(name, link) {
  byId("link").replaceChildren(`Give this link to ${name}. It works once, for 15 minutes: `, make("code", {}, link));
  toggle(byId("link"), true);
}

async function show() {
  const { sessions } = await ask("GET", "/api/sessions");
  byId("sessions").replaceChildren(table("Newest first", ["Where", "Since", "Ends at the latest"], sessions.map(sessionRow)));
  if (!admin) return;
  const { accounts } = await ask("GET", "/api/accounts");
  const heads = ["Name", "Role", "Enters by", "May enter", "Change"];
  byId("accounts").replaceChildren(table("By name", heads, accounts.map(accountRow)));
}

byId("password").addEventListener("submit", (event) => {
  event.preventDefault();
  act(async () => {
    await ask("POST", "/password", { old: byId("old").value, new: byId("new").value });
    event.target.reset();
    return "Your password is changed.";
  });
});

byId("end").addEventListener("click", () =>
  act(async () => {
    const { ended } = await ask("POST", "/api/sessions/end-others");
    return ended ? `${ended} logged out.` : "There was no other.";
  }),
);

byId("add")?.addEventListener("submit", (event) => {
  event.preventDefault();
  act(async () => {
    const name = byId("name").value;
    const made = await ask("POST", "/api/accounts", { name, role: byId("role").value });
    event.target.reset();
    showLink(name, made.link);
    return `${name} may enter.`;
  });
});

show().catch((error) => say(error.message));
