// The progress page: tables and one chart of what the room counts; asked for again every so often.

import { ask } from "./api.js";
import { curve } from "./curve.js";
import { between, count, points, rounded, several } from "./numbers.js";
import { byId, make } from "./page.js";
import { readable } from "./sheet.js";
import { table } from "./table.js";

const AGAIN_MS = 30_000;
const SOON_MS = 1500;
/** While newer numbers are being worked out. */

function section(name, ...parts) {
  return make("section", {}, make("h2", {}, name), ...parts);
}

function words(text) {
  return make("p", { class: "words" }, text);
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

function errors(rows, least) {
  const meaning = "The error rate is that of all claims, by what is settled of the films that were drawn at random.";
  const rule = least ? ` It is shown from ${least.films} such films on, unless its interval is wider than ${least.width * 100} points.` : "";
  const shown = table("Label errors that readers confirmed, and the error rate with its 95 % interval", rows, [
    ["Finding", (row) => readable(row.finding), ""],
    ["Errors", (row) => count(row.confirmed), "number"],
    ["Error rate", (row) => (row.enough ? between(row, "rate", points) : `too few reads yet (${count(row.films ?? 0)})`), "number"],
    ["Films at random", (row) => count(row.films ?? 0), "number"],
    ["Errors of presences", (row) => count(row.present), "number"],
    ["Errors of absences", (row) => count(row.absent), "number"],
    ["Settled", (row) => count(row.settled), "number"],
    ["Not settled", (row) => count(row.open), "number"],
    ["Claims", (row) => count(row.claims), "number"],
  ]);
  return section("Errors found", words(`${meaning}${rule}`), shown);
}

function agreement(numbers) {
  const figure = (name) => (row) => between(row, row[name] === undefined ? "fleiss" : name);
  const columns = [
    ["Pairs", (row) => count(row.n), "number"],
    ["Share agreed", figure("agreement"), "number"],
    ["positive", figure("positive"), "number"],
    ["negative", figure("negative"), "number"],
    ["kappa", figure("kappa"), "number"],
    ["AC1", figure("ac1"), "number"],
    ["alpha", figure("alpha"), "number"],
  ];
  const finding = ["Finding", (row) => readable(row.finding), ""];
  const reader = ["Reader", (row) => row.first, ""];
  const parts = [
    ["Readers among each other, with 95 % intervals", numbers.agreement, finding, "films"],
    ["Each reader against the consensus, with 95 % intervals", numbers.against, reader, "films"],
    ["Each reader on films read twice, with 95 % intervals", numbers.within, reader, "repeats"],
  ]
    .filter(([, rows]) => rows?.length)
    .map(([caption, rows, first, what]) => {
      const instead = (row) => (row.enough ? "" : `too few ${what} (${count(row.patients ?? 0)})`);
      return table(caption, rows, [first, ...columns], { instead, from: 2 });
    });
  if (!parts.length) return section("Agreement", words("Two readers of one film are needed before there is any."));
  const least = numbers.least ? ` Films of fewer than ${numbers.least.patients} patients are too few to say anything.` : "";
  const meaning = "Positive and negative agreement: of what one says is there, or is not there, the share of which the other says the same.";
  const both = numbers.against?.length ? " A consensus of two readers is the verdict of both, so each agrees with it." : "";
  return section("Agreement", words(`${meaning}${both}${least}`), ...parts);
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

/** Say which findings a lesson changed: so many trusts, so many flags. */
function changed(lesson) {
  const names = Object.entries(lesson.findings).map(([finding, { trust, flag }]) => {
    const what = [trust && several(trust, "trust"), flag && several(flag, "flag")].filter(Boolean);
    return `${readable(finding)} (${what.join(", ")})`;
  });
  return `${names.join(", ") || "none"}.`;
}

function lessons(rows) {
  return table("What each lesson used and changed", rows, [
    ["When", (row) => new Date(row.at).toLocaleString(), ""],
    ["Readings used", (row) => count(row.readings), "number"],
    ["Verdicts", (row) => count(row.reads), "number"],
    ["Findings changed", changed, "prose"],
    ["Flags changed", (row) => count(row.changed.flag), "number"],
    ["Signal", (row) => make("code", {}, row.version.replace(/^sha256:/, "").slice(0, 12)), ""],
  ]);
}

function learning(learner, given) {
  const every = learner.every ? `What is read teaches the signal every ${count(learner.every)} locked readings.` : "";
  const done = `${several(given.length, "lesson")} so far, ${several(learner.waiting, "reading")} ${learner.waiting === 1 ? "waits" : "wait"} for the next.`;
  const parts = [words(`${every} ${done} ${learner.running ? "One is being given now." : ""}`)];
  if (learner.failure) parts.push(make("p", { class: "error" }, `The last lesson failed, and cost nothing: ${learner.failure}`));
  if (given.length) parts.push(lessons(given));
  return section("Learning", ...parts);
}

/** Show what there is; a part that is missing is left out. */
function draw(numbers) {
  const parts = [];
  if (numbers.counts) parts.push(figures(numbers.counts));
  if (numbers.stopping?.words) parts.push(words(`${numbers.stopping.words[0].toUpperCase()}${numbers.stopping.words.slice(1)}.`));
  if (numbers.series?.length) {
    const chart = curve(numbers.series, numbers.errors?.at(-1), byId("numbers").clientWidth);
    parts.push(section("Errors found per reading, against reading at random", chart));
  }
  if (numbers.errors?.length) parts.push(errors(numbers.errors, numbers.least));
  if (numbers.pace?.length) parts.push(pace(numbers.pace));
  if (numbers.agreement || numbers.against || numbers.within) parts.push(agreement(numbers));
  if (numbers.learner) parts.push(learning(numbers.learner, numbers.lessons ?? []));
  const notices = (numbers.notices ?? []).map((notice) => make("li", {}, String(notice.message ?? notice)));
  if (notices.length) parts.push(section("What was left out", make("ul", {}, ...notices)));
  byId("numbers").replaceChildren(...parts);
  byId("words").textContent = state(numbers, parts.length);
}

function state(numbers, shown) {
  if (numbers.failure) return `The numbers could not be worked out: ${numbers.failure}`;
  if (numbers.ready === false) return "The numbers are being worked out.";
  if (!shown) return "Nothing was read yet.";
  return numbers.fresh === false ? "Newer numbers are being worked out." : `As of ${new Date().toLocaleTimeString()}.`;
}

let last = { numbers: null, wide: 0 };

async function refresh() {
  let wait = AGAIN_MS;
  try {
    const numbers = document.hidden ? null : await ask("GET", "/api/progress");
    if (numbers) show(numbers);
    if (numbers?.fresh === false) wait = SOON_MS;
  } catch (error) {
    byId("words").textContent = `${error.message} It is asked for again.`;
  }
  setTimeout(refresh, wait);
}

function show(numbers) {
  last = { numbers, wide: byId("numbers").clientWidth };
  draw(numbers);
}

/** The chart is as wide as the page. */
addEventListener("resize", () => last.numbers && last.wide !== byId("numbers").clientWidth && show(last.numbers));

refresh();
