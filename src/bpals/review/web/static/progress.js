// The progress page: tables and one chart of what the room counts; asked for again every so often.

import { ask } from "./api.js";
import { curve } from "./curve.js";
import { byId, make, percent } from "./page.js";
import { spoken } from "./sheet.js";

const AGAIN_MS = 30_000;
const SOON_MS = 1500;
/** While newer numbers are being worked out. */

function count(value) {
  return value === null || value === undefined ? "–" : Number(value).toLocaleString("en");
}

function rounded(value, places = 2) {
  return value === null || value === undefined ? "–" : Number(value).toFixed(places);
}

/** Write a number with its interval. */
function between(row, name, write) {
  if (row[name] === null || row[name] === undefined) return "–";
  const low = row[`${name}_low`] ?? row.low;
  const high = row[`${name}_high`] ?? row.high;
  const span = low === null || low === undefined ? "" : ` (${write(low)} to ${write(high)})`;
  return `${write(row[name])}${span}`;
}

function rate(row) {
  return between(row, "rate", (share) => `${(share * 100).toFixed(1)} %`);
}

function section(name, ...parts) {
  return make("section", {}, make("h2", {}, name), ...parts);
}

function words(text) {
  return make("p", { class: "words" }, text);
}

/** Make a table: columns are [head, what a row shows, "number" or ""]; the first one heads its row. */
function table(caption, rows, columns) {
  const head = columns.map(([name, , kind]) => make("th", { scope: "col", class: kind }, name));
  const body = rows.map((row) => {
    const cells = columns.map(([, show, kind], at) =>
      at ? make("td", { class: kind }, String(show(row))) : make("th", { scope: "row" }, String(show(row))),
    );
    return make("tr", {}, ...cells);
  });
  const shown = make("table", {}, make("caption", {}, caption), make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, shown);
}

function figures(counts) {
  const shown = [
    ["films read", counts.films],
    ["readings", counts.readings],
    ["verdicts", counts.reads],
    ["second verdicts", counts.second],
    ["hidden repeats", counts.repeats],
    ["readers", counts.readers],
    ["brought in from files", counts.imported],
  ].filter(([, value]) => value !== undefined && (value || value === 0));
  const list = shown.flatMap(([name, value]) => [make("div", {}, make("dt", {}, name), make("dd", {}, count(value)))]);
  return make("dl", { class: "figures" }, ...list);
}

function errors(rows, needed) {
  const parts = [
    table("Label errors that readers confirmed, and the error rate among all claims with its 95 % interval", rows, [
      ["Finding", (row) => spoken(row.finding), ""],
      ["Claims", (row) => count(row.claims), "number"],
      ["Read", (row) => count(row.settled), "number"],
      ["Errors", (row) => count(row.confirmed), "number"],
      ["said present", (row) => count(row.present), "number"],
      ["said absent", (row) => count(row.absent), "number"],
      ["Not settled", (row) => count(row.open), "number"],
      ["Error rate", rate, "number"],
    ]),
  ];
  if (needed?.finding) {
    const more = needed.more_readings ?? needed.more_pairs;
    const left = more === 0 ? "It is reached." : `About ${count(more)} more readings take it there.`;
    const width = `The widest interval is that of ${spoken(needed.finding)}, ${percent(needed.widest)} wide`;
    parts.push(words(`${width}; the target is ${percent(needed.target)}. ${more === null || more === undefined ? "" : left}`));
  }
  return section("Errors found", ...parts);
}

function agreement(told) {
  const parts = [];
  const columns = [
    ["Share agreed", (row) => between(row, "agreement", rounded), "number"],
    ["kappa", (row) => between(row, row.kappa === undefined ? "fleiss" : "kappa", rounded), "number"],
    ["AC1", (row) => between(row, "ac1", rounded), "number"],
  ];
  const alpha = ["alpha", (row) => between(row, "alpha", rounded), "number"];
  const n = ["Pairs", (row) => count(row.n), "number"];
  if (told.agreement?.length) {
    const first = ["Finding", (row) => spoken(row.finding ?? "all"), ""];
    parts.push(table("Readers among each other, with 95 % intervals", told.agreement, [first, n, ...columns, alpha]));
  }
  const reader = ["Reader", (row) => row.first, ""];
  if (told.against?.length) parts.push(table("Each reader against the consensus", told.against, [reader, n, ...columns]));
  if (told.within?.length) parts.push(table("Each reader on films read twice", told.within, [reader, n, ...columns]));
  return section("Agreement", ...(parts.length ? parts : [words("Two readers of one film are needed before there is any.")]));
}

function pace(rows) {
  return section(
    "Pace",
    table("How quickly films are read, in active time", rows, [
      ["Reader", (row) => row.reader, ""],
      ["Readings", (row) => count(row.readings), "number"],
      ["Hours", (row) => rounded(row.hours), "number"],
      ["Readings an hour", (row) => count(Math.round(row.per_hour)), "number"],
      ["Median seconds", (row) => rounded(row.median_s, 1), "number"],
    ]),
  );
}

function learning(learner) {
  const every = learner.every ? `What is read teaches the signal every ${count(learner.every)} locked readings.` : "";
  const done = `${count(learner.lessons)} lessons so far, ${count(learner.waiting)} readings wait for the next.`;
  const parts = [words(`${every} ${done} ${learner.running ? "One is being given now." : ""}`)];
  if (learner.failure) parts.push(make("p", { class: "error" }, `The last lesson failed, and cost nothing: ${learner.failure}`));
  return section("Learning", ...parts);
}

/** Show what there is; a part that is not told is left out. */
function draw(told) {
  const parts = [];
  if (told.counts) parts.push(figures(told.counts));
  if (told.stopping?.words) parts.push(words(`${told.stopping.words[0].toUpperCase()}${told.stopping.words.slice(1)}.`));
  if (told.series?.length) parts.push(section("Errors found per reading, against reading at random", curve(told.series)));
  if (told.errors?.length) parts.push(errors(told.errors, told.needed));
  if (told.pace?.length) parts.push(pace(told.pace));
  if (told.agreement || told.against || told.within) parts.push(agreement(told));
  if (told.learner) parts.push(learning(told.learner));
  const notices = (told.notices ?? []).map((notice) => make("li", {}, String(notice.message ?? notice)));
  if (notices.length) parts.push(section("What was left out", make("ul", {}, ...notices)));
  byId("numbers").replaceChildren(...parts);
  byId("words").textContent = state(told, parts.length);
}

function state(told, shown) {
  if (told.failure) return `The numbers could not be worked out: ${told.failure}`;
  if (told.ready === false) return "The numbers are being worked out.";
  if (!shown) return "Nothing was read yet.";
  return told.fresh === false ? "Newer numbers are being worked out." : `As of ${new Date().toLocaleTimeString()}.`;
}

async function refresh() {
  let wait = AGAIN_MS;
  try {
    const told = document.hidden ? null : await ask("GET", "/api/progress");
    if (told) draw(told);
    if (told?.fresh === false) wait = SOON_MS;
  } catch (error) {
    byId("words").textContent = `${error.message} It is asked for again.`;
  }
  setTimeout(refresh, wait);
}

refresh();
