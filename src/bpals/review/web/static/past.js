// A reader's own last readings: what he marked, by the number of the case, each to be amended.

import { ask } from "./api.js";
import { byId, choose, make } from "./page.js";
import { spoken } from "./sheet.js";

function when(seconds) {
  const at = new Date(seconds * 1000);
  const today = at.toDateString() === new Date().toDateString();
  const clock = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return today ? clock : `${at.toLocaleDateString()} ${clock}`;
}

function said({ marked, quality }) {
  const found = Object.entries(marked).filter(([, verdict]) => verdict !== "absent");
  const words = found.map(([finding, verdict]) => `${spoken(finding)} ${verdict}`);
  if (quality === "unreadable") words.push("film unreadable");
  return words.join(", ") || "nothing found";
}

function row(reading) {
  const amended = reading.amended ? ", amended" : "";
  const name = `case ${reading.case_no}`;
  return make(
    "tr",
    {},
    make("th", { scope: "row" }, String(reading.case_no)),
    make("td", {}, when(reading.locked)),
    make("td", {}, `${said(reading)}${amended}`),
    make("td", {}, make("button", { value: reading.reading_id, "aria-label": `Amend ${name}` }, "Amend")),
  );
}

/** Show them, and give the reading that is to be amended, or "". */
export async function choosePast() {
  const { readings } = await ask("GET", "/api/readings");
  byId("past-rows").replaceChildren(...readings.map(row));
  byId("past-words").textContent = readings.length
    ? "An amendment is stored beside the first read, with your reason."
    : "There is none yet that you could amend.";
  byId("past-table").hidden = !readings.length;
  return choose(byId("past"));
}
