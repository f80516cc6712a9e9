// When a reading was changed elsewhere: both versions side by side, and the reader says which counts.

import { byId, choose, make } from "./page.js";
import { readable } from "./sheet.js";

function lines(answer, findings) {
  const boxes = (name) => answer.boxes.filter((box) => box.finding === name).length;
  const rows = findings.map(({ name }) => [
    readable(name),
    [answer.verdicts[name] ?? "no verdict", boxes(name) ? `${boxes(name)} box` : ""].filter(Boolean).join(", "),
  ]);
  rows.push(["Note", answer.note || "none"], ["Film quality", answer.quality ?? "not said"]);
  rows.push(["Devices", answer.devices ?? "not said"]);
  return rows;
}

/** Show both and give `here` or `there`; a reading that is locked elsewhere cannot be written over. */
export async function settleConflict(here, current) {
  const dialog = byId("conflict");
  const open = current.state === "leased";
  const mine = here ? lines(here, current.findings) : [];
  const theirs = lines(current.answer, current.findings);
  const rows = theirs.map(([what, there], at) => {
    const ours = mine[at]?.[1] ?? there;
    const about = ours === there ? {} : { class: "unlike" };
    const mark = ours === there ? "same" : "differs";
    const head = make("th", { scope: "row" }, what);
    return make("tr", about, head, make("td", {}, ours), make("td", {}, there), make("td", {}, mark));
  });
  byId("conflict-rows").replaceChildren(...rows);
  byId("conflict-words").textContent = open
    ? "This case was changed in another window after you opened it here. Nothing was overwritten. Which version counts?"
    : "This case was locked in another window. What is written here cannot be stored any more as the blind read.";
  byId("keep-here").hidden = !open || !here;
  let choice = "";
  // Escape is a key of the reading too: it must not throw away what was marked.
  while (!choice) choice = await choose(dialog);
  return choice;
}
