// What is shown after the lock: what the dataset says, how far that is trusted and why, and what the judges answered.

import { make, percent } from "./page.js";
import { readable } from "./sheet.js";

const FLAGS = {
  likely_mislabelled: "likely mislabelled",
  suspect: "suspect",
  hard: "hard to judge",
  unverified: "unverified",
  trusted: "trusted",
  unjudged: "no judge answered",
  rejected: "rejected by readers",
  confirmed: "confirmed by readers",
};
const SURE = 0.9;
const EVEN = 0.5;

/** Say in words how far a label is trusted: what its whole interval allows, not what its middle promises. */
export function trustWords({ trust, trust_low: low, trust_high: high, flag }) {
  // Without expert knowledge a trust only ranks, and every label is one of these: no word on right or wrong then.
  if (flag === "unverified") return "unverified";
  if (flag === "hard") return "uncertain";
  const [least, most] = [low ?? trust, high ?? trust];
  if (least >= SURE) return "probably right";
  if (most <= 1 - SURE) return "probably wrong";
  if (least > EVEN) return "more likely right than wrong";
  if (most < EVEN) return "more likely wrong than right";
  return "uncertain";
}

function trustText(pair) {
  const { trust, trust_low: low, trust_high: high } = pair;
  if (trust === null) return "Nobody could say how far to trust it.";
  const between = low === null || high === null ? "" : ` (95 % interval ${percent(low)} to ${percent(high)})`;
  return `Trust ${percent(trust)}${between}: ${trustWords(pair)}.`;
}

/** Say whether label and verdict contradict each other. */
export function differs(pair, verdict) {
  return ["present", "absent"].includes(pair.says) && ["present", "absent"].includes(verdict) && pair.says !== verdict;
}

function trustLine(pair) {
  const { trust, trust_low: low, trust_high: high } = pair;
  if (trust === null) return "trust unknown";
  const between = low === null || high === null ? "" : ` (${Math.round(low * 100)} to ${percent(high)})`;
  return `trust ${percent(trust)}${between}: ${trustWords(pair)}`;
}

/** Say what is stored; a finding that was left unmarked means what the study says, a second verdict stands apart. */
function readWords(verdict, { unmarked, second }) {
  if (second) return `Your blind read: ${verdict}, your second: ${second}`;
  return unmarked ? `Your read: unmarked, so ${verdict}` : `Your read: ${verdict}`;
}

/** One line under a finding: what is stored, and what is known without the reader. */
export function knownWords(pair, verdict, more) {
  const read = make("span", { class: "stored" }, readWords(verdict, more));
  if (!pair) return [read, " · ", make("b", {}, "No label")];
  const parts = [read, " · ", make("b", {}, pair.says ? `Label ${pair.says}` : "No label"), ` · ${trustLine(pair)}`];
  if (pair.flag && !["trusted", "unverified"].includes(pair.flag)) {
    parts.push(" ", make("span", { class: `flag ${pair.flag}` }, FLAGS[pair.flag] ?? pair.flag));
  }
  const whose = more.second ? "your blind read" : "your read";
  if (differs(pair, verdict)) parts.push(" ", make("span", { class: "differs" }, `differs from ${whose}`));
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

const CHANGED = "The signal has changed since you saw it: label and trust are shown as they are now.";

/** Say what else is stored of the blind read, and whether something else was revealed then. */
export function storedWords({ quality, devices }, changed) {
  const stored = `Stored of your blind read: film quality ${quality ?? "not said"}, devices ${devices ?? "not said"}.`;
  return changed ? `${stored} ${CHANGED}` : stored;
}

/** Name the findings that this film was not drawn for, where a study asks for no others. */
export function undrawnWords(all, asked) {
  const names = all.filter(({ name }) => !asked.some((each) => each.name === name)).map(({ name }) => readable(name));
  return names.length ? `Not drawn for this study, so not asked: ${names.join(", ")}.` : "";
}

/** One sentence over the list. */
export function summary(pairs, verdicts) {
  const names = pairs.filter((pair) => differs(pair, verdicts[pair.finding])).map((pair) => readable(pair.finding));
  if (!names.length) return "No label contradicts your read.";
  const count = names.length === 1 ? "1 label contradicts" : `${names.length} labels contradict`;
  return `${count} your read: ${names.join(", ")}.`;
}
