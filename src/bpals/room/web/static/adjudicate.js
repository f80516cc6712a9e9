// Settling what readers disagree about: their answers side by side without names, the film, and one verdict per finding.
// An adjudicator settles; in a discussion the readers are asked again, round by round.

import { ask, LATE_MS, newKey, onRetry, pause, REPLY_MS, retryNow, Unreached } from "./api.js";
import { Keys } from "./keys.js";
import { announce, byId, choose, keepFocus, make, toggle } from "./page.js";
import { FilmStore, Panes } from "./panes.js";
import { NOT_SAVED } from "./sending.js";
import { SIGNS, readable, VERDICTS } from "./sheet.js";
import { FilmTools } from "./tools.js";

const TRY_AGAIN_MS = 2000;
const HOW = {
  adjudicator: "my own verdict",
  majority: "what most readers said",
  consensus: "what all agreed on in the end",
};

/** Give the verdict of more than half of the readers, or null. */
function majorityOf(opinions) {
  const counts = VERDICTS.map((verdict) => [verdict, opinions.filter((each) => each.verdict === verdict).length]);
  const [verdict, count] = counts.sort((a, b) => b[1] - a[1])[0];
  return 2 * count > opinions.length ? verdict : null;
}

class SettlingPage {
  constructor() {
    this.rounds = byId("main").dataset.rounds === "yes";
    this.base = this.rounds ? "/api/rounds" : "/api/adjudication";
    this.panes = new Panes(byId("panes"), byId("strip"), new FilmStore());
    this.tools = new FilmTools(this.panes, { boxName: () => null, onBox: () => {} });
    this.keys = new Keys(document.querySelectorAll("#help [data-key]"), {
      act: (does, event) => this.act(does, event),
      mark: (finding, shift) => this.#cycle(finding, shift),
      placing: () => Boolean(this.panes.active?.placing),
    });
    this.findingKeys = JSON.parse(byId("main").dataset.keys);
    this.#wire();
  }

  async next() {
    this.case = null;
    toggle(byId("written"), false);
    toggle(byId("nothing"), false);
    this.panes.clear();
    this.#notice("");
    try {
      const handed = await ask("POST", `${this.base}/next`, {});
      if (handed.case) this.#show(handed.case);
      else this.#nothing(byId("main").dataset.none);
    } catch (error) {
      this.#nothing(error.message);
    }
  }

  #nothing(words) {
    byId("phase").textContent = words;
    announce(words);
    toggle(byId("nothing"), true);
  }

  #show(disagreement) {
    this.case = disagreement;
    this.key = newKey();
    this.verdicts = {};
    this.how = {};
    const { disputes, round, rounds } = disagreement;
    const names = disputes.map(({ finding }) => readable(finding)).join(", ");
    byId("phase").textContent = this.rounds ? `Round ${round} of ${rounds}: ${names}.` : `Readers differ on ${names}.`;
    byId("note").value = "";
    byId("disputes").replaceChildren(...disputes.map((dispute, at) => this.#dispute(dispute, at)));
    const findings = disputes.map(({ finding }) => ({ name: finding, key: this.findingKeys[finding] }));
    this.keys.findings = findings;
    this.#takeUpAgain();
    this.panes.show(disagreement.films, (n) => `${this.base}/${disagreement.case_id}/films/${n}`, "Disputed case");
    toggle(byId("written"), true);
    this.panes.current?.focus({ preventScroll: true });
    announce(byId("phase").textContent);
  }

  #dispute({ finding, opinions, earlier }, at) {
    const key = this.findingKeys[finding];
    const legend = make("legend", {}, key ? make("kbd", {}, key.toUpperCase()) : null, ` ${readable(finding)}`);
    const heads = make("tr", {}, ...opinions.map((each) => make("th", { scope: "col" }, each.yours ? `${each.reader} (you)` : each.reader)));
    const cells = make("tr", {}, ...opinions.map((opinion) => make("td", { class: opinion.verdict }, ...opinionWords(opinion))));
    const table = make("table", { class: "opinions" }, make("thead", {}, heads), make("tbody", {}, cells));
    const verdicts = VERDICTS.map((verdict) => {
      const about = { type: "radio", name: `verdict${at}`, value: verdict, change: () => this.#take(finding, verdict) };
      return make("label", {}, make("input", about), ` ${SIGNS[verdict]} ${verdict}`);
    });
    const group = make("div", { class: "radios", role: "radiogroup", "aria-label": `Verdict on ${readable(finding)}` }, ...verdicts);
    const parts = [legend, table, ...before(earlier), group];
    if (!this.rounds) parts.push(this.#howChoice(finding, opinions, at));
    return make("fieldset", { class: "dispute", "data-finding": finding }, ...parts);
  }

  #howChoice(finding, opinions, at) {
    this.how[finding] = "adjudicator";
    const majority = majorityOf(opinions);
    const known = Object.entries(HOW).filter(([how]) => how !== "majority" || majority);
    const options = known.map(([how, words]) => make("option", { value: how }, words));
    const change = ({ target }) => {
      this.how[finding] = target.value;
      if (target.value === "majority") this.#take(finding, majority);
      this.#keep();
    };
    return make("p", {}, make("label", { for: `how${at}` }, "Recorded as "), make("select", { id: `how${at}`, change }, ...options));
  }

  /** Where this window keeps what is not sent yet; what readers say anew is another question, and begins anew. */
  get #place() {
    const { case_id, round, pinned } = this.case;
    return `bpals.settling.${case_id}.${round}.${JSON.stringify(pinned)}`;
  }

  #keep() {
    const { verdicts, how } = this;
    sessionStorage.setItem(this.#place, JSON.stringify({ verdicts, how, note: byId("note").value }));
  }

  /** Take up what was chosen in this window before a reload. */
  #takeUpAgain() {
    const kept = JSON.parse(sessionStorage.getItem(this.#place) ?? "null");
    if (!kept) return;
    byId("note").value = kept.note;
    for (const [finding, how] of Object.entries(kept.how)) {
      this.how[finding] = how;
      this.#fieldset(finding).querySelector("select").value = how;
    }
    for (const [finding, verdict] of Object.entries(kept.verdicts)) this.#take(finding, verdict);
  }

  #fieldset(finding) {
    return [...document.querySelectorAll(".dispute")].find((each) => each.dataset.finding === finding);
  }

  #take(finding, verdict) {
    this.verdicts[finding] = verdict;
    const place = this.#fieldset(finding);
    for (const input of place.querySelectorAll("input[type=radio]")) input.checked = input.value === verdict;
    const dispute = this.case.disputes.find((each) => each.finding === finding);
    const how = place.querySelector("select");
    if (how?.value === "majority" && majorityOf(dispute.opinions) !== verdict) {
      how.value = "adjudicator";
      this.how[finding] = "adjudicator";
    }
    this.#keep();
    this.#drawBoxes(finding);
    announce(`${readable(finding)}: ${verdict}.`);
  }

  #cycle(finding, shift) {
    if (!this.case || this.busy) return;
    const at = VERDICTS.indexOf(this.verdicts[finding]);
    this.#take(finding, shift ? "absent" : VERDICTS[(at + 1) % VERDICTS.length]);
  }

  #drawBoxes(chosen = null) {
    const canvas = this.panes.current;
    if (!canvas || !this.case) return;
    canvas.boxes = this.case.disputes.flatMap(({ finding, opinions }) =>
      opinions.flatMap(({ reader, boxes }) =>
        boxes.map((box) => ({ ...box, name: `${reader}: ${readable(finding)}`, chosen: finding === chosen })),
      ),
    );
    canvas.redraw();
  }

  async save() {
    if (!this.case || this.busy) return;
    const missing = this.case.disputes.filter(({ finding }) => !this.verdicts[finding]);
    if (missing.length) return this.#notice(`No verdict yet: ${missing.map(({ finding }) => readable(finding)).join(", ")}.`);
    this.#close(true);
    try {
      const saved = await this.#send();
      sessionStorage.removeItem(this.#place);
      announce("Settled.");
      await this.next();
      if (saved?.reply?.warning) this.#notice(saved.reply.warning);
    } catch (error) {
      if (error.status === 409) await this.next();
      this.#notice(error.status === 409 ? `${error.message} What the readers say now is shown.` : error.message);
    } finally {
      this.#close(false);
    }
  }

  /** While it is sent nothing of it can be changed. */
  #close(busy) {
    this.busy = busy;
    for (const element of byId("written").elements) element.disabled = busy;
  }

  /** Send until the room has it: the key makes sure that it is done once. */
  async #send() {
    const body = this.#body();
    for (;;) {
      const flight = new AbortController();
      const late = setTimeout(() => this.#waiting(true), LATE_MS);
      onRetry(() => flight.abort(), flight.signal);
      try {
        const about = { patience_ms: REPLY_MS, signal: flight.signal };
        const saved = await ask("POST", `${this.base}/${this.case.case_id}`, body, about);
        this.#waiting(false);
        return saved;
      } catch (error) {
        if (!(error instanceof Unreached)) {
          this.#waiting(false);
          throw error;
        }
        this.#waiting(true);
        if (!flight.signal.aborted) await pause(TRY_AGAIN_MS);
      } finally {
        clearTimeout(late);
        flight.abort();
      }
    }
  }

  #waiting(waits) {
    this.#notice(waits ? `${NOT_SAVED}. Leave this page open.` : "");
    toggle(byId("retry"), waits);
  }

  #body() {
    const note = byId("note").value;
    if (this.rounds) return { round: this.case.round, key: this.key, verdicts: this.verdicts, note };
    const settled = Object.entries(this.verdicts).map(([name, verdict]) => [name, { verdict, how: this.how[name] }]);
    return { pinned: this.case.pinned, key: this.key, verdicts: Object.fromEntries(settled), note };
  }

  #notice(words) {
    byId("notice").textContent = words;
    toggle(byId("notice"), Boolean(words));
  }

  act(does, event) {
    if (this.tools.place(does)) return true;
    if (does === "save") return event?.repeat || this.save();
    if (does === "note") return byId("note").focus();
    if (does === "help") return void this.#help();
    if (does === "leave" && document.activeElement?.matches("textarea, input, button, select")) {
      this.panes.current?.focus({ preventScroll: true });
    }
    return this.tools.act(does);
  }

  async #help() {
    byId("keys-on").checked = this.keys.on;
    await choose(byId("help"));
  }

  #wire() {
    for (const button of document.querySelectorAll("button[data-does]")) {
      button.addEventListener("click", () => this.act(button.dataset.does));
    }
    for (const group of document.querySelectorAll(".tools, .acts")) keepFocus(group);
    byId("keys-on").addEventListener("change", ({ target }) => (this.keys.on = target.checked));
    byId("ask-again").addEventListener("click", () => this.next());
    byId("retry").addEventListener("click", () => retryNow());
    byId("note").addEventListener("input", () => this.case && this.#keep());
    byId("written").addEventListener("submit", (event) => event.preventDefault());
    byId("panes").addEventListener("film-shown", () => this.#drawBoxes());
  }
}

function opinionWords({ verdict, confidence, note, boxes }) {
  const parts = [make("b", {}, `${SIGNS[verdict]} ${verdict}`)];
  if (confidence !== null && confidence !== undefined) parts.push(make("br"), `confidence ${confidence} %`);
  if (boxes.length) parts.push(make("br"), `${boxes.length} box${boxes.length > 1 ? "es" : ""} on the film`);
  if (note) parts.push(make("br"), make("q", { dir: "auto" }, note));
  return parts;
}

function before(earlier) {
  if (!earlier?.length) return [];
  const lines = earlier.map(({ reader, round, verdict, note }) =>
    make("li", { dir: "auto" }, `Round ${round}, ${reader}: ${verdict}${note ? `: ${note}` : ""}`),
  );
  return [make("details", {}, make("summary", {}, "The rounds before"), make("ul", {}, ...lines))];
}

new SettlingPage().next();
