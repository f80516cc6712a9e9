// A chart of errors found per reading, beside what reading at random would have found. Styled by class alone.

import { count, several, span } from "./numbers.js";
import { make } from "./page.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDEST = 960;
const HIGH = 300;
const EDGE = { left: 48, right: 20, top: 14, bottom: 44 };
const TICK_EVERY = 70;
/** Pixels between numbers under the chart, at least. */

function draw(name, about = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(about)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** Give round numbers from 0 to just past the largest, at most so many. */
function ticks(most, parts = 5) {
  const rough = Math.max(1, most) / parts;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].find((each) => each * power >= rough) * power);
  return Array.from({ length: Math.ceil(most / step) + 1 }, (_, at) => at * step);
}

/** Say what a line is, beside a piece of it. */
function entry(name, words) {
  const piece = name === "band" ? draw("rect", { class: name, width: 28, height: 14, y: 1 }) : draw("line", { class: name, x2: 28, y1: 8, y2: 8 });
  return make("li", {}, draw("svg", { class: "piece", width: 28, height: 16, "aria-hidden": "true" }, piece), words);
}

function legend(last) {
  const entries = [entry("found", `found: ${count(last.found)}`)];
  if (last.random !== null && last.random !== undefined) {
    entries.push(entry("random", `as many pairs at random: ${last.random.toFixed(1)}`));
    entries.push(entry("band", `its 95 % interval: ${last.random_low.toFixed(1)} to ${last.random_high.toFixed(1)}`));
  }
  return make("ul", { class: "legend" }, ...entries);
}

/** Say what the chart rests on; the rate and its ends are those of the table. */
function caption(last, whole) {
  const found = `${several(last.found, "error")} found in ${several(last.reads, "reading")}, which settled ${several(last.pairs, "pair")}.`;
  if (last.random === null || last.random === undefined) {
    return `${found} What reading at random would have found is not known yet: too few films were drawn at random.`;
  }
  const rate = span(whole.rate, whole.low, whole.high);
  return `${found} At random is the error rate in the last line of the table below, ${rate}, of as many pairs.`;
}

/** Draw it as wide as its place, so that its words have the size of the page's. */
export function curve(series, whole, place) {
  const wide = Math.max(240, Math.min(WIDEST, place));
  const known = series.filter((row) => row.random !== null && row.random !== undefined);
  const most = Math.max(1, ...series.map((row) => Math.max(row.found, row.random_high ?? 0)));
  const across = ticks(Math.max(...series.map((row) => row.reads)), Math.max(2, Math.floor(wide / TICK_EVERY)));
  const up = ticks(most);
  const x = (reads) => EDGE.left + (reads / across.at(-1)) * (wide - EDGE.left - EDGE.right);
  const y = (found) => HIGH - EDGE.bottom - (found / up.at(-1)) * (HIGH - EDGE.top - EDGE.bottom);
  const line = (rows, name) => rows.map((row) => `${x(row.reads).toFixed(1)},${y(row[name]).toFixed(1)}`);
  const words = caption(series.at(-1), whole);
  const parts = [draw("title", {}, words)];
  for (const found of up) {
    parts.push(draw("line", { class: "grid", x1: EDGE.left, x2: wide - EDGE.right, y1: y(found), y2: y(found) }));
    parts.push(draw("text", { class: "tick-y", x: EDGE.left - 8, y: y(found) + 4 }, count(found)));
  }
  for (const reads of across) parts.push(draw("text", { class: "tick-x", x: x(reads), y: HIGH - EDGE.bottom + 18 }, count(reads)));
  parts.push(draw("text", { class: "tick-x", x: x(across.at(-1) / 2), y: HIGH - 6 }, "readings"));
  if (known.length) {
    const band = [...line(known, "random_low"), ...line([...known].reverse(), "random_high")];
    parts.push(draw("polygon", { class: "band", points: band.join(" ") }));
    parts.push(draw("polyline", { class: "random", points: line(known, "random").join(" ") }));
  }
  parts.push(draw("polyline", { class: "found", points: line(series, "found").join(" ") }));
  const chart = draw("svg", { class: "chart", viewBox: `0 0 ${wide} ${HIGH}`, width: wide, height: HIGH, role: "img", "aria-label": words }, ...parts);
  return make("figure", {}, legend(series.at(-1)), chart, make("figcaption", {}, words));
}
