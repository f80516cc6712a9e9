// What is shown after the lock: what the dataset says, how far that is trusted and why, and what the judges answered.

import { make, percent } from "./page.js";
import { spoken } from "./sheet.js";

const FLAGS = {
  likely_mislabelled: "likely mislabelled",
  suspect: "suspect",
  hard: "hard to judge",
  trusted: "trusted",
  unjudged: "not judged",
};
const TRUST_WORDS = [
  [0.9, "very probably right"],
  [0.7, "probably right"],
  [0.3, "in doubt"],
  [0.1, "probably wrong"],
  [0, "very probably wrong"],
];

/** Say in words how far a label is trusted. */
export function trustWords(trust) {
  return TRUST_WORDS.find(([least]) => trust >= least)[1];
}

function trustText({ trust, trust_low: low, trust_high: high }) {
  if (trust === null) return "Nobody could say how far to trust it.";
  const between = low === null || high === null ? "" : ` (95 % interval ${percent(low)} to ${percent(high)})`;
  return `Trust ${percent(trust)}${between}: ${trustWords(trust)}.`;
}

/** Say whether label and verdict contradict each other. */
export function differs(pair, verdict) {
  return ["present", "absent"].includes(pair.says) && ["present", "absent"].includes(verdict) && pair.says !== verdict;
}

function trustLine({ trust, trust_low: low, trust_high: high }) {
  if (trust === null) return "trust unknown";
  const between = low === null || high === null ? "" : ` (${Math.round(low * 100)} to ${percent(high)})`;
  return `trust ${percent(trust)}${between}: ${trustWords(trust)}`;
}

/** One line under a finding. */
export function knownWords(pair, verdict) {
  const parts = [make("b", {}, `Label ${pair.says ?? "silent"}`), ` · ${trustLine(pair)}`];
  if (pair.flag && pair.flag !== "trusted") {
    parts.push(" ", make("span", { class: `flag ${pair.flag}` }, FLAGS[pair.flag] ?? pair.flag));
  }
  if (differs(pair, verdict)) parts.push(" ", make("span", { class: "differs" }, "differs from your read"));
  return parts;
}

/** All that is known of one finding. */
export function knownDetail(pair) {
  const reasons = pair.reasons.map((reason) => make("li", {}, reason.replace(/^[\w]+: /, "")));
  const judges = pair.judges.map(({ judge, outcome, p_present: p }) =>
    make("tr", {}, make("th", { scope: "row" }, judge), make("td", {}, p === null ? outcome : `${percent(p)} present`)),
  );
  const shown = [make("h3", {}, "What is known without you"), make("p", {}, trustText(pair))];
  if (reasons.length) shown.push(make("ul", { class: "reasons" }, ...reasons));
  if (judges.length) {
    const caption = make("caption", {}, "What the judges answered");
    shown.push(make("table", { class: "judges" }, caption, make("tbody", {}, ...judges)));
  }
  return shown;
}

/** One sentence over the list. */
export function summary(pairs, verdicts) {
  const names = pairs.filter((pair) => differs(pair, verdicts[pair.finding])).map((pair) => spoken(pair.finding));
  if (!names.length) return "No label contradicts your read.";
  const count = names.length === 1 ? "1 label contradicts" : `${names.length} labels contradict`;
  return `${count} your read: ${names.join(", ")}.`;
}
