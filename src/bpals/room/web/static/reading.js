// The reading page: a case is read blind and locked, what is known is revealed, a second verdict is given; then the next.

import { ask, LoggedOut, pause } from "./api.js";
import { Casebook, filmOf } from "./casebook.js";
import { Clock } from "./clock.js";
import { settleConflict } from "./conflict.js";
import { FindingList } from "./findings.js";
import { Keys } from "./keys.js";
import { Outbox } from "./outbox.js";
import { announce, byId, choose, keepFocus, toggle } from "./page.js";
import { FilmStore, Panes } from "./panes.js";
import { choosePast } from "./past.js";
import { storedWords, summary, undrawnWords } from "./reveal.js";
import { NOT_SAVED, SendingLine } from "./sending.js";
import { Sheet, readable } from "./sheet.js";
import { FilmTools } from "./tools.js";

const CALM_MS = 600;
/** So long after the reveal Enter does nothing: a second press of the lock must not store a second verdict. */
const NOTE_MS = 600;
const ASK_AGAIN_MS = 3000;
const SOON_MS = 1000;

const WORDS = {
  blind: "Blind read: what the dataset says is shown after you save.",
  locking: "Locking.",
  second: "What do you say now?",
  amend: "You amend a case that is locked: the first read stays, this one is stored beside it with your reason.",
};

class ReadingPage {
  constructor() {
    this.store = new FilmStore();
    this.panes = new Panes(byId("panes"), byId("strip"), this.store);
    this.book = new Casebook(this.store);
    this.clock = new Clock();
    this.sending = new SendingLine();
    this.behind = false; // Whether a case was left whose lock the room had not yet answered: it is revealed first.
    this.left = []; // What Undo can bring back when nothing is left to undo on this case, the last one last.
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
    await this.#resume();
  }

  // Cases

  /** Show the case that the room hands out, with words about what came before it. */
  async nextCase(words = "") {
    this.#closeCase("The next case is coming.");
    this.behind = false;
    for (;;) {
      try {
        const handed = await this.book.next();
        if (handed.reading) this.showCase(handed.reading, handed.reveal, words);
        else this.#nothing(handed.why, handed.why_code, words);
        return this.sending.offerRetry(false);
      } catch (error) {
        if (error instanceof LoggedOut) return location.assign("/login?next=/read");
        byId("phase").textContent = `${error.message} It is tried again.`;
        if (error.status) return this.#nothing(error.message);
        this.sending.offerRetry(true);
        await pause(ASK_AGAIN_MS);
      }
    }
  }

  /** Go on: with the case that was fetched ahead if there is one, else with what the room hands out. */
  async advance(words = "") {
    const ready = this.book.take();
    if (!ready) return this.#resume(words);
    this.showCase(ready, null, words);
    await this.outbox.drained();
    if (this.reading?.reading_id === ready.reading_id) this.book.topUp(ready).catch(() => {});
  }

  /** Go on with what the room hands out, once it has everything that was written here. */
  async #resume(words = "") {
    this.#closeCase("The next case is coming.");
    await this.outbox.drained();
    await this.nextCase(words);
  }

  showCase(reading, reveal, words = "") {
    this.reading = reading;
    this.sheet = new Sheet(reading.answer);
    this.sheet.addEventListener("change", (event) => this.#changed(event.detail));
    this.outbox.learn(reading.reading_id, reading.version);
    this.list.show(reading.findings);
    this.keys.findings = reading.findings;
    const title = `Case ${reading.case_no}`;
    byId("case").textContent = this.book.of ? `${title} of about ${this.book.of}` : title;
    this.#title(title);
    toggle(byId("nothing"), false);
    toggle(byId("written"), true);
    this.#notice(words);
    this.panes.show(reading.films, (n) => filmOf(reading.reading_id, n), title);
    this.#enter(reveal ? "second" : "blind", reveal);
    if (reveal) return;
    byId("sheet").scrollTop = 0;
    scrollTo(0, 0);
    this.#focusFilm();
    announce(`${title}. ${WORDS[this.phase]}`);
  }

  #enter(phase, reveal) {
    this.phase = phase;
    this.since = Date.now();
    const unmarked = this.reading.unmarked === "ask" ? "" : " Findings you leave unmarked are stored as absent.";
    byId("phase").textContent = WORDS[phase] + (phase === "blind" ? unmarked : "");
    byId("sheet").dataset.phase = phase;
    for (const id of ["stored", "undrawn"]) toggle(byId(id), false);
    toggle(byId("meanwhile"), false);
    if (phase !== "locking") this.clock.begin(this.reading.reading_id + (phase === "blind" ? "" : `.${phase}`));
    byId("save").textContent = { second: "Save second verdict", amend: "Save amendment" }[phase] ?? "Save";
    toggle(byId("why"), phase === "amend");
    this.#askWhy("");
    toggle(byId("back"), phase === "amend");
    toggle(byId("skip"), phase === "blind");
    if (reveal) this.#reveal(reveal);
    this.#update();
    if (reveal || phase === "amend") this.#focusHeadline();
  }

  #reveal({ pairs, read, changed }) {
    this.list.reveal(pairs, read, this.sheet.answer.verdicts);
    if (this.phase === "second") byId("phase").textContent = `${summary(pairs, read.verdicts)} ${WORDS.second}`;
    const undrawn = undrawnWords(this.book.study.findings, this.reading.findings);
    byId("stored").textContent = storedWords(read, changed);
    byId("undrawn").textContent = undrawn;
    toggle(byId("stored"), true);
    toggle(byId("undrawn"), Boolean(undrawn));
  }

  /** Bring the sentence over the list on the screen and to those who listen. */
  #focusHeadline() {
    byId("case").scrollIntoView({ block: "start" });
    byId("phase").focus({ preventScroll: true });
  }

  #closeCase(words) {
    this.phase = "none";
    byId("sheet").dataset.phase = "none";
    this.reading = null;
    this.panes.clear();
    for (const id of ["written", "nothing", "stored", "meanwhile"]) toggle(byId(id), false);
    this.#title("Read");
    byId("case").textContent = "Reading";
    byId("phase").textContent = words;
  }

  #title(words) {
    document.title = document.title.replace(/^[^·]*/, `${words} `);
  }

  #nothing(why, code = "", words = "") {
    this.#closeCase(`${words} ${why || "No case is waiting for you."}`.trim());
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
    for (const id of ["save", "rest"]) byId(id).disabled = !this.open;
    byId("undo").disabled = !this.open || !(this.sheet.canUndo || this.#mayReturn());
    byId("redo").disabled = !this.open || !this.sheet.canRedo;
    this.#drawBoxes();
  }

  #drawBoxes() {
    if (!this.panes.current || !this.reading) return;
    const { chosen } = this.list;
    const boxes = this.sheet.answer.boxes.map((box) => ({ ...box, name: readable(box.finding), chosen: box.finding === chosen }));
    this.panes.current.boxes = boxes;
    this.panes.current.redraw();
  }

  #boxName() {
    if (!this.open) return null;
    if (!this.list.chosen) this.#notice("Mark the finding first: the box belongs to it.");
    return this.list.chosen && readable(this.list.chosen);
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
    if (phase === "blind" && !this.book.study.reveal) this.#leave(reading, "locked");
    if (phase === "second" || !this.book.study.reveal) return this.advance();
    this.#enter("locking");
    const reply = await sent.catch(() => null);
    if (this.reading !== reading) return;
    if (reply && this.behind) this.#resume();
    else if (reply?.reveal) this.#enter("second", reply.reveal);
    else if (reply) this.advance();
  }

  async #saveAmendment() {
    const reason = byId("reason").value.trim();
    if (!reason) return this.#askWhy("Say why you amend it.");
    const { reading } = this;
    const body = { answer: this.sheet.answer, reason };
    this.#enter("locking");
    const reply = await this.outbox.add(reading.reading_id, "amend", body).catch(() => null);
    if (!reply) return;
    this.clock.end(`${reading.reading_id}.amend`);
    byId("reason").value = "";
    await this.nextCase(`The amendment of case ${reading.case_no} is stored.`);
  }

  /** Say beside the reason that there is none, and bring both on the screen. */
  #askWhy(words) {
    byId("why-missing").textContent = words;
    toggle(byId("why-missing"), Boolean(words));
    if (!words) return;
    byId("why-missing").scrollIntoView({ block: "center" });
    byId("reason").focus({ preventScroll: true });
  }

  /** Let the reader choose one of his last readings, and open it to be amended. */
  async #lookBack() {
    if (this.phase === "locking") return;
    try {
      // What is on its way belongs to the list; without a connection the list still says what the room has.
      await Promise.race([this.outbox.drained(), pause(SOON_MS)]);
      const chosen = await choosePast();
      if (!chosen) return this.#focusFilm();
      const reading = await this.book.reading(chosen);
      const reveal = reading.revealed ? await this.book.reveal(chosen) : null;
      byId("reason").value = "";
      this.showCase(reading, null);
      this.#enter("amend", reveal);
    } catch (error) {
      this.#notice(error.message);
    }
  }

  #skip() {
    if (this.phase !== "blind") return;
    const { reading } = this;
    this.outbox.add(reading.reading_id, "skip", {}).then(() => this.clock.end(reading.reading_id), () => {});
    this.#leave(reading, "skipped");
    this.advance(`Case ${reading.case_no} is skipped. Undo (Z) brings it back.`);
  }

  /** Remember a case that Undo can bring back: one that was skipped, or the last lock where nothing is revealed. */
  #leave(reading, how) {
    const kept = how === "locked" ? this.left.filter((each) => each.how === "skipped") : this.left;
    this.left = [...kept, { reading_id: reading.reading_id, how }];
  }

  #mayReturn() {
    return this.phase === "blind" && this.left.length > 0 && !this.returning;
  }

  async #undo() {
    if (!this.open || this.sheet.undo()) return;
    if (!this.#mayReturn()) return announce("There is nothing to undo.");
    this.returning = true;
    const reply = await this.outbox.add(this.left.pop().reading_id, "undo", {}).catch(() => null);
    this.returning = false;
    if (!reply) return this.#update();
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
    await this.nextCase(error.message);
  }

  #notice(words) {
    byId("notice").textContent = words;
    toggle(byId("notice"), Boolean(words));
  }

  #showSending(state, count) {
    this.sending.show(state, count);
    if (this.open || !["waiting", "loggedout"].includes(state)) return;
    const why = state === "waiting" ? NOT_SAVED : "Not saved yet: you are logged out, log in again";
    byId("phase").textContent = `${why}. What you marked is kept in this browser.`;
    toggle(byId("meanwhile"), state === "waiting" && this.phase === "locking" && this.book.ready);
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
      past: () => this.#lookBack(),
      note: () => byId("note").focus(),
      quality: () => this.open && this.sheet.cycleQuality(),
      devices: () => this.open && this.sheet.cycleDevices(),
      less: () => this.#surer(-1),
      more: () => this.#surer(1),
      help: () => this.#help(),
      leave: () => this.#quit(),
    };
    return own[does] ? void own[does]() : this.tools.act(does);
  }

  #surer(direction) {
    const { chosen } = this.list;
    if (this.open && chosen && this.sheet.answer.verdicts[chosen]) this.sheet.stepConfidence(chosen, direction);
  }

  #quit() {
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
    byId("meanwhile").addEventListener("click", () => {
      this.behind = true;
      this.advance();
    });
    byId("reason").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.repeat && !event.isComposing) this.save();
    });
    byId("panes").addEventListener("film-shown", () => this.#drawBoxes());
    byId("back").addEventListener("click", () => this.#resume());
    addEventListener("pagehide", () => this.open && this.#takeNote());
  }

  #flip(what, word) {
    if (!this.open || !word) return;
    this.sheet[`set${what}`](this.sheet.answer[what.toLowerCase()] === word ? null : word);
  }
}

new ReadingPage().start();
