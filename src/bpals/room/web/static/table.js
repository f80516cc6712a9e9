// A table of numbers that scrolls by itself where it is wider than the page.

import { make } from "./page.js";

/**
 * Make a table: columns are [head, what a row shows, "number" or ""]; the first one heads its row.
 * `instead` may say of a row why it has no figures, in the place of the columns from `from` on.
 */
export function table(caption, rows, columns, { instead = () => "", from = columns.length } = {}) {
  const head = columns.map(([name, , kind]) => make("th", { scope: "col", class: kind }, name));
  const body = rows.map((row) => {
    const words = instead(row);
    const shown = words ? columns.slice(0, from) : columns;
    const cells = shown.map(([, show, kind], at) =>
      make(at ? "td" : "th", at ? { class: kind } : { scope: "row" }, ...[show(row)].flat().map((part) => part.nodeType ? part : String(part))),
    );
    if (words) cells.push(make("td", { class: "few", colspan: columns.length - from }, words));
    return make("tr", {}, ...cells);
  });
  const parts = [make("caption", {}, caption), make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body)];
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, make("table", {}, ...parts));
}
