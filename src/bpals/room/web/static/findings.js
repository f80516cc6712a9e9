// The list of findings with their verdicts, and what belongs to the one that was marked last.

import { byId, keepFocus, make, toggle } from "./page.js";
import { SIGNS, readable, VERDICTS } from "./sheet.js";
import { knownWords, knownDetail } from "./reveal.js";

export class FindingList {
  #rows = new Map();
  #known = new Map();

  constructor(list, detail, { onMark, onCycle, onConfidence, onBox, onUnbox }) {
    this.list = list;
    this.detail = detail;
    this.does = { onMark, onCycle, onConfidence, onBox, onUnbox };
    this.chosen = null;
    keepFocus(list);
    keepFocus(detail);
    byId("confidence").addEventListener("change", (event) => {
      if (this.chosen) this.does.onConfidence(this.chosen, Number(event.target.value));
    });
    byId("unsure").addEventListener("click", () => this.chosen && this.does.onConfidence(this.chosen, null));
    byId("draw-box").addEventListener("click", () => this.does.onBox());
    byId("remove-boxes").addEventListener("click", () => this.chosen && this.does.onUnbox(this.chosen));
  }

  /** List the findings of a case anew. */
  show(findings) {
    this.findings = findings;
    this.chosen = null;
    this.#known = new Map();
    this.#rows = new Map(findings.map((finding) => [finding.name, this.#row(finding)]));
    this.list.replaceChildren(...Array.from(this.#rows.values(), (row) => row.item));
  }

  #row({ name, key }) {
    const sign = make("span", { class: "sign" });
    const cycle = make(
      "button",
      { type: "button", class: "name", "aria-keyshortcuts": key || null, click: () => this.does.onCycle(name) },
      make("kbd", {}, (key ?? "").toUpperCase()),
      make("span", { class: "finding-name" }, readable(name)),
      sign,
    );
    const choices = VERDICTS.map((verdict) =>
      make(
        "button",
        {
          type: "button",
          class: `choice ${verdict}`,
          title: verdict,
          "aria-label": `${readable(name)} ${verdict}`,
          "aria-pressed": "false",
          "data-verdict": verdict,
          click: () => this.does.onMark(name, verdict),
        },
        SIGNS[verdict],
      ),
    );
    const group = make("span", { class: "choices", role: "group", "aria-label": readable(name) }, ...choices);
    const known = make("p", { class: "known", hidden: true });
    return { item: make("li", { "data-finding": name }, cycle, group, known), cycle, sign, choices, known };
  }

  /** Choose the finding that boxes and confidence are about. */
  choose(finding) {
    this.chosen = finding;
  }

  /** Show what is written. */
  update(answer, { closed }) {
    for (const [name, row] of this.#rows) {
      const verdict = answer.verdicts[name];
      row.item.className = verdict ?? "open";
      row.item.toggleAttribute("data-chosen", name === this.chosen);
      const boxes = answer.boxes.filter((box) => box.finding === name).length;
      const more = boxes ? `, ${boxes} box${boxes > 1 ? "es" : ""}` : "";
      row.sign.textContent = verdict ? `${SIGNS[verdict]} ${verdict}${more}` : "";
      row.cycle.setAttribute("aria-label", `${readable(name)}: ${verdict ?? "no verdict"}${more}`);
      for (const button of [row.cycle, ...row.choices]) button.disabled = closed;
      for (const choice of row.choices) {
        choice.setAttribute("aria-pressed", String(choice.dataset.verdict === verdict));
      }
    }
    this.#updateDetail(answer, closed);
  }

  #updateDetail(answer, closed) {
    toggle(this.detail, this.chosen !== null);
    if (this.chosen === null) return;
    const verdict = answer.verdicts[this.chosen];
    const sure = answer.confidence[this.chosen];
    byId("detail-name").textContent = readable(this.chosen);
    byId("confidence").value = sure ?? 50;
    byId("confidence").disabled = closed || !verdict;
    byId("confidence-words").textContent = sure === undefined ? "not said" : `${sure} %`;
    byId("unsure").disabled = closed || sure === undefined;
    byId("draw-box").disabled = closed;
    byId("remove-boxes").disabled = closed || !answer.boxes.some((box) => box.finding === this.chosen);
    const known = this.#known.get(this.chosen);
    byId("known-detail").replaceChildren(...(known ? knownDetail(known) : []));
  }

  /** Show under each finding what is stored of the blind read, and what is known without the reader. */
  reveal(pairs, { verdicts, quality, second }, marked) {
    const otherwise = quality === "unreadable" ? "unreadable" : "absent";
    this.#known = new Map(pairs.map((pair) => [pair.finding, pair]));
    for (const [name, row] of this.#rows) {
      const unmarked = !Object.hasOwn(marked, name) && verdicts[name] === otherwise;
      const more = { unmarked, second: second?.[name] };
      row.known.replaceChildren(...knownWords(this.#known.get(name), verdicts[name], more));
      toggle(row.known, true);
    }
  }
}
