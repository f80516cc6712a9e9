// The reading page: a case is read blind and locked, what is known is revealed, a second verdict is given; then the next.

import { ask, LoggedOut } from "./api.js";
import { Casebook, filmOf } from "./casebook.js";
import { Clock } from "./clock.js";
import { settleConflict } from "./conflict.js";
import { FindingList } from "./findings.js";
import { Keys } from "./keys.js";
import { Outbox } from "./outbox.js";
import { announce, byId, choose, keepFocus, toggle } from "./page.js";
import { FilmStore, Panes } from "./panes.js";
import { summary } from "./reveal.js";
import { Sheet, spoken } from "./sheet.js";
import { FilmTools } from "./tools.js";

const CALM_MS = 600;
/** So long after the reveal Enter does nothing: a second press of the lock must not store a second verdict. */
const NOTE_MS = 600;
const ASK_AGAIN_MS = 3000;

const WORDS = {
  blind: "Blind read: what the dataset says is shown after you save.",
  locking: "Locking.",
  second: "Locked. Now that you see what is known: your second verdict.",
  amend: "You amend a case that is locked: the first read stays, this one is stored beside it with your reason.",
};
const SENDING = {
  saved: () => "All saved",
  sending: () => "Saving",
  waiting: (count) => `No connection: ${count} not yet sent, kept in this browser`,
  loggedout: (count) => `Logged out: ${count} not yet sent, kept in this browser. Log in again`,
  conflict: () => "Changed in another window",
};

class ReadingPage {
  constructor() {
    this.store = new FilmStore();
    this.panes = new Panes(byId("panes"), byId("strip"), this.store);
    this.book = new Casebook(this.store);
    this.clock = new Clock();
    this.outbox = new Outbox(byId("main").dataset.account, {
      onState: (state, count) => this.#showSending(state, count),
      onConflict: (item, current) => this.#settle(item, current),
      onDenied: (item, error) => this.#denied(item, error),
    });
    this.list = new FindingList(byId("findings"), byId("detail"), {
      onMark: (finding, verdict) => this.mark(finding, verdict),
      onCycle: (finding) => this.cycle(finding),
      onConfidence: (finding, percent) => this.open && this.sheet.setConfidence(finding, percent),
      onBox: () => this.tools.act("box"),
      onUnbox: (finding) => this.open && this.sheet.removeBoxes(finding),
    });
    this.tools = new FilmTools(this.panes, { boxName: () => this.#boxName(), onBox: (box) => this.#box(box) });
    this.keys = new Keys(document.querySelectorAll("#help [data-key]"), {
      act: (does, event) => this.act(does, event),
      mark: (finding, shift) => (shift ? this.mark(finding, "absent") : this.cycle(finding)),
      placing: () => Boolean(this.panes.active?.placing),
    });
    this.#wire();
  }

  /** Whether something may be written now. */
  get open() {
    return ["blind", "second", "amend"].includes(this.phase);
  }

  async start() {
    await this.outbox.adopt();
    await this.#drained();
    await this.nextCase();
  }

  // Cases

  async nextCase() {
    this.#closeCase("The next case is coming.");
    for (;;) {
      try {
        const handed = await this.book.next();
        if (handed.reading) this.showCase(handed.reading, handed.reveal);
        else this.#nothing(handed.why, handed.why_code);
        return;
      } catch (error) {
        if (error instanceof LoggedOut) return location.assign("/login?next=/read");
        byId("phase").textContent = `${error.message} It is tried again.`;
        if (error.status) return this.#nothing(error.message);
        await pause(ASK_AGAIN_MS);
      }
    }
  }

  /** Go on: with the case that was fetched ahead if there is one, else with what the room hands out. */
  async advance() {
    this.before = this.reading;
    const ready = this.book.take();
    if (!ready) {
      this.#closeCase("The next case is coming.");
      await this.#drained();
      return this.nextCase();
    }
    this.showCase(ready, null);
    await this.#drained();
    if (this.reading?.reading_id === ready.reading_id) this.book.topUp(ready).catch(() => {});
  }

  showCase(reading, reveal) {
    this.reading = reading;
    this.sheet = new Sheet(reading.answer);
    this.sheet.addEventListener("change", (event) => this.#changed(event.detail));
    this.outbox.learn(reading.reading_id, reading.version);
    this.list.show(reading.findings);
    this.keys.findings = reading.findings;
    const title = `Case ${reading.case_no}`;
    byId("case").textContent = this.book.of ? `${title} of about ${this.book.of}` : title;
    document.title = document.title.replace(/^[^·]*/, `${title} `);
    toggle(byId("nothing"), false);
    toggle(byId("written"), true);
    this.#notice("");
    this.panes.show(reading.films, (n) => filmOf(reading.reading_id, n), title);
    this.#enter(reveal ? "second" : "blind", reveal);
    this.#focusFilm();
    announce(`${title}. ${WORDS[this.phase]}`);
  }

  #enter(phase, reveal) {
    this.phase = phase;
    this.since = Date.now();
    const unmarked = this.reading.unmarked === "ask" ? "" : " Findings you leave unmarked are stored as absent.";
    byId("phase").textContent = WORDS[phase] + (phase === "blind" ? unmarked : "");
    byId("sheet").dataset.phase = phase;
    if (reveal) {
      const blind = this.#said(this.sheet.answer.verdicts);
      this.list.reveal(reveal.pairs, blind);
      byId("phase").textContent = `${WORDS.second} ${summary(reveal.pairs, blind)}`;
    }
    if (phase !== "locking") this.clock.begin(this.reading.reading_id + (phase === "blind" ? "" : `.${phase}`));
    byId("save").textContent = { second: "Save second verdict", amend: "Save amendment" }[phase] ?? "Save";
    toggle(byId("why"), phase === "amend");
    toggle(byId("back"), phase === "amend");
    toggle(byId("amend"), phase === "blind" && Boolean(this.before) && this.before.state !== "skipped");
    toggle(byId("skip"), phase === "blind");
    this.#update();
  }

  /** Add what an unmarked finding means. */
  #said(verdicts) {
    if (this.reading.unmarked === "ask") return verdicts;
    return { ...Object.fromEntries(this.reading.findings.map(({ name }) => [name, "absent"])), ...verdicts };
  }

  #closeCase(words) {
    this.phase = "none";
    this.reading = null;
    this.panes.clear();
    toggle(byId("written"), false);
    toggle(byId("nothing"), false);
    byId("case").textContent = "Reading";
    byId("phase").textContent = words;
  }

  #nothing(why, code = "") {
    this.#closeCase(why || "No case is waiting for you.");
    toggle(byId("bring-back"), code === "skipped");
    announce(byId("phase").textContent);
    toggle(byId("nothing"), true);
  }

  #focusFilm() {
    const canvas = this.panes.current;
    if (canvas && !document.querySelector("dialog[open]")) canvas.focus({ preventScroll: true });
  }

  // Writing

  mark(finding, verdict) {
    if (!this.open) return;
    this.list.choose(finding);
    this.sheet.mark(finding, verdict);
  }

  cycle(finding) {
    if (!this.open) return;
    this.list.choose(finding);
    this.sheet.cycle(finding);
  }

  #changed(words) {
    announce(words);
    this.#notice("");
    this.#update();
    if (this.phase === "blind" || this.phase === "second") this.#draft();
  }

  #draft() {
    this.outbox.add(this.reading.reading_id, "draft", { answer: this.sheet.answer });
  }

  #update() {
    const { answer } = this.sheet;
    this.list.update(answer, { closed: !this.open });
    for (const [id, chosen] of [["quality", answer.quality], ["devices", answer.devices]]) {
      for (const button of byId(id).querySelectorAll("button")) {
        button.setAttribute("aria-pressed", String(button.value === chosen));
        button.disabled = !this.open;
      }
    }
    if (document.activeElement !== byId("note")) byId("note").value = answer.note;
    byId("note").disabled = !this.open;
    byId("save").disabled = !this.open;
    byId("undo").disabled = !this.open || !(this.sheet.canUndo || this.#mayReturn());
    byId("redo").disabled = !this.open || !this.sheet.canRedo;
    const chosen = this.list.chosen;
    const boxes = answer.boxes.map((box) => ({ ...box, name: spoken(box.finding), chosen: box.finding === chosen }));
    if (this.panes.current) {
      this.panes.current.boxes = boxes;
      this.panes.current.redraw();
    }
  }

  #boxName() {
    if (!this.open) return null;
    if (!this.list.chosen) this.#notice("Mark the finding first: the box belongs to it.");
    return this.list.chosen && spoken(this.list.chosen);
  }

  #box(box) {
    if (this.open && this.list.chosen) this.sheet.addBox(this.list.chosen, box);
  }

  // Saving

  async save() {
    if (!this.open || Date.now() - this.since < (this.phase === "second" ? CALM_MS : 0)) return;
    this.#takeNote();
    const missing = this.reading.findings.filter(({ name }) => !this.sheet.answer.verdicts[name]);
    if (this.reading.unmarked === "ask" && missing.length) {
      return this.#notice(`${missing.length} findings have no verdict. Mark them, or press Shift Enter: they are absent.`);
    }
    if (this.phase === "amend") return this.#saveAmendment();
    const { reading, phase } = this;
    const act = phase === "blind" ? "lock" : "second";
    const sent = this.outbox.add(reading.reading_id, act, { answer: this.sheet.answer, spent: this.clock.spent() });
    sent.then(() => this.clock.end(reading.reading_id + (phase === "blind" ? "" : ".second")), () => {});
    if (phase === "second" || !this.book.study.reveal) return this.advance();
    this.#enter("locking");
    const reply = await sent.catch(() => null);
    if (this.reading !== reading) return;
    if (reply?.reveal) {
      this.#enter("second", reply.reveal);
      announce(byId("phase").textContent);
    } else if (reply) {
      if (reply.state === "released") announce("This case has all its readers by now. What you wrote is kept.");
      this.advance();
    }
  }

  async #saveAmendment() {
    const reason = byId("reason").value.trim();
    if (!reason) {
      byId("reason").focus();
      return this.#notice("Say why you amend it.");
    }
    const body = { answer: this.sheet.answer, reason };
    const reply = await this.outbox.add(this.reading.reading_id, "amend", body).catch(() => null);
    if (!reply) return;
    this.clock.end(`${this.reading.reading_id}.amend`);
    byId("reason").value = "";
    await this.nextCase();
    announce("The amendment is stored.");
  }

  async #amendBefore() {
    const reading = await this.book.reading(this.before.reading_id).catch((error) => this.#notice(error.message));
    if (!reading) return;
    this.before = null;
    this.showCase(reading, null);
    this.#enter("amend");
    announce(WORDS.amend);
  }

  async #skip() {
    if (this.phase !== "blind" || (await choose(byId("confirm-skip"))) !== "skip") return this.#focusFilm();
    const { reading } = this;
    this.outbox.add(reading.reading_id, "skip", {}).then(() => this.clock.end(reading.reading_id), () => {});
    await this.advance();
    this.before = { ...reading, state: "skipped" };
    this.#update();
  }

  /** A skip, or the lock before in a study that reveals nothing, can be taken back. */
  #mayReturn() {
    return this.phase === "blind" && this.before && (this.before.state === "skipped" || !this.book.study.reveal);
  }

  async #undo() {
    if (!this.open || this.sheet.undo()) return;
    if (!this.#mayReturn()) return announce("There is nothing to undo.");
    const { before } = this;
    this.before = null;
    const reply = await this.outbox.add(before.reading_id, "undo", {}).catch(() => null);
    if (!reply) return;
    if (this.reading) this.book.putBack({ ...this.reading, answer: this.sheet.answer });
    this.showCase(reply.reading, null);
  }

  #takeNote() {
    clearTimeout(this.noteTimer);
    this.sheet?.setNote(byId("note").value);
  }

  // What goes wrong

  async #settle(item, current) {
    const choice = await settleConflict(item.body.answer, current);
    if (choice === "here") return this.outbox.insist(item, current.version);
    this.outbox.giveWay(item.reading, current.version);
    if (this.reading?.reading_id === item.reading) await this.nextCase();
  }

  async #denied(item, error) {
    this.#notice(error.message);
    if (item.act === "draft" || this.reading?.reading_id !== item.reading) return;
    const words = error.message;
    await this.nextCase();
    this.#notice(words);
  }

  #notice(words) {
    byId("notice").textContent = words;
    toggle(byId("notice"), Boolean(words));
  }

  #showSending(state, count) {
    const shown = byId("sending");
    shown.dataset.state = state;
    shown.dataset.count = count;
    if (shown.textContent !== SENDING[state](count)) shown.textContent = SENDING[state](count);
    if (state === "saved") this.whenDrained?.();
  }

  /** Wait until the room has everything. */
  async #drained() {
    if (await this.outbox.pump()) return;
    await new Promise((resolve) => (this.whenDrained = resolve));
  }

  // Keys and buttons

  act(does, event) {
    if (this.tools.place(does)) return true;
    if (does === "save") return event?.repeat || this.save();
    const own = {
      rest: () => this.open && this.sheet.markRest(this.reading.findings.map(({ name }) => name)),
      undo: () => this.#undo(),
      redo: () => this.open && this.sheet.redo(),
      skip: () => this.#skip(),
      note: () => byId("note").focus(),
      quality: () => this.open && this.sheet.cycleQuality(),
      devices: () => this.open && this.sheet.cycleDevices(),
      less: () => this.#surer(-1),
      more: () => this.#surer(1),
      help: () => this.#help(),
      leave: () => this.#leave(),
    };
    return own[does] ? void own[does]() : this.tools.act(does);
  }

  #surer(direction) {
    const { chosen } = this.list;
    if (this.open && chosen && this.sheet.answer.verdicts[chosen]) this.sheet.stepConfidence(chosen, direction);
  }

  #leave() {
    if (document.activeElement?.matches("textarea, input, button, select")) this.#focusFilm();
    this.tools.act("leave");
  }

  async #help() {
    byId("keys-on").checked = this.keys.on;
    await choose(byId("help"));
    this.#focusFilm();
  }

  #wire() {
    for (const button of document.querySelectorAll("button[data-does]")) {
      button.addEventListener("click", () => this.act(button.dataset.does));
    }
    for (const group of document.querySelectorAll(".tools, .acts, fieldset")) keepFocus(group);
    byId("quality").addEventListener("click", ({ target }) => this.#flip("Quality", target.value));
    byId("devices").addEventListener("click", ({ target }) => this.#flip("Devices", target.value));
    byId("note").addEventListener("input", () => {
      clearTimeout(this.noteTimer);
      this.noteTimer = setTimeout(() => this.#takeNote(), NOTE_MS);
    });
    byId("note").addEventListener("blur", () => this.#takeNote());
    byId("keys-on").addEventListener("change", ({ target }) => (this.keys.on = target.checked));
    byId("ask-again").addEventListener("click", () => this.nextCase());
    byId("bring-back").addEventListener("click", async () => {
      await ask("POST", "/api/bring-back", {}).catch((error) => this.#notice(error.message));
      await this.nextCase();
    });
    byId("amend").addEventListener("click", () => this.#amendBefore());
    byId("back").addEventListener("click", () => this.nextCase());
    addEventListener("pagehide", () => this.open && this.#takeNote());
  }

  #flip(what, word) {
    if (!this.open || !word) return;
    this.sheet[`set${what}`](this.sheet.answer[what.toLowerCase()] === word ? null : word);
  }
}

function pause(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

new ReadingPage().start();
