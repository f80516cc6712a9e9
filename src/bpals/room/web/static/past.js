// A reader's own last readings: what was marked, by the number of the case, each to be amended.

import { ask } from "./api.js";
import { byId, choose, make } from "./page.js";
import { readable } from "./sheet.js";

function when(seconds) {
  const at = new Date(seconds * 1000);
  const today = at.toDateString() === new Date().toDateString();
  const clock = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return today ? clock : `${at.toLocaleDateString()} ${clock}`;
}

/** Say what was found; what was left unmarked is stored as absent, or of an unreadable film as unreadable. */
function found(verdicts, quality) {
  const silent = ["absent", quality === "unreadable" ? quality : ""];
  const marked = Object.entries(verdicts).filter(([, verdict]) => !silent.includes(verdict));
  const words = marked.map(([finding, verdict]) => `${readable(finding)} ${verdict}`).sort();
  if (quality === "unreadable") words.push("film unreadable");
  return words.join(", ") || "nothing found";
}

/** Write the blind read, the one after the reveal and the amendment, each by its name where there is more than one. */
function summary({ blind, second, amended, marked, quality }) {
  const first = found(blind, quality);
  if (!second && !amended) return first;
  const words = [`Blind: ${first}.`];
  if (second) words.push(`Second: ${found(second, quality) === first ? "the same" : found(second, quality)}.`);
  if (amended) words.push(`Amended: ${found(marked, quality)}.`);
  return words.join(" ");
}

function row(reading) {
  const name = `case ${reading.case_no}`;
  return make(
    "tr",
    {},
    make("th", { scope: "row" }, String(reading.case_no)),
    make("td", {}, when(reading.locked)),
    make("td", {}, summary(reading)),
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
