// How numbers are written on the progress page: with their noun, their interval, or the reason why there is none.

import { make } from "./page.js";

export function count(value) {
  return value === null || value === undefined ? "–" : Number(value).toLocaleString("en");
}

/** Write a number with its noun: 1 lesson, 2 lessons. */
export function several(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

export function rounded(value, places = 2) {
  return value === null || value === undefined ? "–" : Number(value).toFixed(places);
}

export function points(share) {
  return `${(share * 100).toFixed(1)} %`;
}

/** Write a share with its ends, in one line. */
export function span(value, low, high, write = points) {
  return `${write(value)} (${write(low)} to ${write(high)})`;
}

/** Write a figure and under it its interval; a dash where it is not defined. */
export function between(row, name, write = rounded) {
  const [low, high] = name === "rate" ? [row.low, row.high] : [row[`${name}_low`], row[`${name}_high`]];
  if (row[name] === null || row[name] === undefined) return ["–"];
  const ends = low === null || low === undefined ? [] : [make("small", { class: "ends" }, `${write(low)} to ${write(high)}`)];
  return [write(row[name]), ...ends];
}
