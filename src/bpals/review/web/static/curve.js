// A chart of errors found per reading, beside what reading at random would have found. Styled by class alone.

import { make } from "./page.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDE = 720;
const HIGH = 300;
const EDGE = { left: 56, right: 150, top: 14, bottom: 44 };

function draw(name, about = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(about)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** Give round numbers from 0 to just past the largest. */
function ticks(most) {
  const rough = Math.max(1, most) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].find((each) => each * power >= rough) * power);
  return Array.from({ length: Math.ceil(most / step) + 1 }, (_, at) => at * step);
}

export function curve(series) {
  const told = series.filter((row) => row.random !== null && row.random !== undefined);
  const most = Math.max(1, ...series.map((row) => Math.max(row.found, row.random_high ?? row.random ?? 0)));
  const across = ticks(Math.max(...series.map((row) => row.reads)));
  const up = ticks(most);
  const x = (reads) => EDGE.left + (reads / across.at(-1)) * (WIDE - EDGE.left - EDGE.right);
  const y = (found) => HIGH - EDGE.bottom - (found / up.at(-1)) * (HIGH - EDGE.top - EDGE.bottom);
  const line = (rows, name) => rows.map((row) => `${x(row.reads).toFixed(1)},${y(row[name]).toFixed(1)}`);
  const last = series.at(-1);
  const title = `${last.found} errors found in ${last.reads} readings` + (told.length ? `; at random about ${last.random?.toFixed(1) ?? "an unknown number"}` : "");
  const parts = [draw("title", {}, `${title}.`)];
  for (const found of up) {
    parts.push(draw("line", { class: "grid", x1: EDGE.left, x2: WIDE - EDGE.right, y1: y(found), y2: y(found) }));
    parts.push(draw("text", { class: "tick-y", x: EDGE.left - 8, y: y(found) + 4 }, String(found)));
  }
  for (const reads of across) parts.push(draw("text", { class: "tick-x", x: x(reads), y: HIGH - EDGE.bottom + 18 }, String(reads)));
  parts.push(draw("text", { class: "tick-x", x: x(across.at(-1) / 2), y: HIGH - 8 }, "readings"));
  if (told.length) {
    const band = [...line(told, "random_low"), ...line([...told].reverse(), "random_high")];
    if (told[0].random_low !== undefined) parts.push(draw("polygon", { class: "band", points: band.join(" ") }));
    parts.push(draw("polyline", { class: "random", points: line(told, "random").join(" ") }));
    parts.push(draw("text", { class: "label", x: x(told.at(-1).reads) + 6, y: y(told.at(-1).random) + 4 }, "at random"));
  }
  parts.push(draw("polyline", { class: "found", points: line(series, "found").join(" ") }));
  parts.push(draw("text", { class: "label strong", x: x(last.reads) + 6, y: y(last.found) + 4 }, "in this order"));
  const chart = draw("svg", { class: "chart", viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": `${title}.` }, ...parts);
  return make("figure", {}, chart, make("figcaption", {}, `${title}. The band is the 95 % interval of the error rate.`));
}
