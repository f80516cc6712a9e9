// What a reader writes about one case, with every step back and forth.

export const VERDICTS = ["present", "uncertain", "absent", "unreadable"];
export const SIGNS = { present: "+", uncertain: "?", absent: "−", unreadable: "×" };
const QUALITIES = ["good", "limited", "unreadable"];
const DEVICES = ["present", "absent"];
const CONFIDENCE_STEP = 25;

const EMPTY = { verdicts: {}, confidence: {}, boxes: [], note: "", quality: null, devices: null };

/** Give what comes after a word, and nothing after the last. */
function following(words, word) {
  return words[words.indexOf(word) + 1] ?? null;
}

function without(table, name) {
  return Object.fromEntries(Object.entries(table).filter(([each]) => each !== name));
}

export class Sheet extends EventTarget {
  #past = [];
  #future = [];

  constructor(answer) {
    super();
    this.answer = { ...EMPTY, ...answer };
  }

  get canUndo() {
    return this.#past.length > 0;
  }

  get canRedo() {
    return this.#future.length > 0;
  }

  #change(change, what) {
    this.#past.push(this.answer);
    this.#future = [];
    this.answer = { ...this.answer, ...change };
    this.dispatchEvent(new CustomEvent("change", { detail: what }));
  }

  undo() {
    if (!this.canUndo) return false;
    this.#future.push(this.answer);
    this.answer = this.#past.pop();
    this.dispatchEvent(new CustomEvent("change", { detail: "Undone." }));
    return true;
  }

  redo() {
    if (!this.canRedo) return false;
    this.#past.push(this.answer);
    this.answer = this.#future.pop();
    this.dispatchEvent(new CustomEvent("change", { detail: "Done again." }));
    return true;
  }

  /** Give a finding a verdict, or none; what hung on the verdict goes with it. */
  mark(finding, verdict) {
    const verdicts = without(this.answer.verdicts, finding);
    if (verdict) verdicts[finding] = verdict;
    const change = { verdicts };
    if (!verdict) change.confidence = without(this.answer.confidence, finding);
    if (verdict !== "present" && verdict !== "uncertain") change.boxes = this.#boxesOfOthers(finding);
    this.#change(change, `${readable(finding)}: ${verdict ?? "no verdict"}.`);
  }

  cycle(finding) {
    this.mark(finding, following(VERDICTS, this.answer.verdicts[finding]));
  }

  /** Mark every finding that has no verdict as absent. */
  markRest(findings) {
    const left = findings.filter((finding) => !this.answer.verdicts[finding]);
    if (!left.length) return;
    const verdicts = { ...this.answer.verdicts, ...Object.fromEntries(left.map((name) => [name, "absent"])) };
    this.#change({ verdicts }, `${left.length} findings marked absent.`);
  }

  setConfidence(finding, percent) {
    const confidence = without(this.answer.confidence, finding);
    if (percent !== null) confidence[finding] = percent;
    const words = percent === null ? "not said" : `${percent} %`;
    this.#change({ confidence }, `Confidence of ${readable(finding)}: ${words}.`);
  }

  stepConfidence(finding, direction) {
    const now = this.answer.confidence[finding];
    const next = now === undefined ? (direction > 0 ? 75 : 25) : now + direction * CONFIDENCE_STEP;
    this.setConfidence(finding, Math.min(100, Math.max(0, next)));
  }

  addBox(finding, box) {
    const rounded = Object.fromEntries(Object.entries(box).map(([side, px]) => [side, Math.round(px * 10) / 10]));
    const change = { boxes: [...this.answer.boxes, { finding, ...rounded }] };
    if (!["present", "uncertain"].includes(this.answer.verdicts[finding])) {
      change.verdicts = { ...this.answer.verdicts, [finding]: "present" };
    }
    this.#change(change, `Box around ${readable(finding)}.`);
  }

  removeBoxes(finding) {
    this.#change({ boxes: this.#boxesOfOthers(finding) }, `Boxes of ${readable(finding)} removed.`);
  }

  #boxesOfOthers(finding) {
    return this.answer.boxes.filter((box) => box.finding !== finding);
  }

  setNote(note) {
    if (note !== this.answer.note) this.#change({ note }, "");
  }

  setQuality(quality) {
    this.#change({ quality }, `Film quality: ${quality ?? "not said"}.`);
  }

  cycleQuality() {
    this.setQuality(following(QUALITIES, this.answer.quality));
  }

  setDevices(devices) {
    this.#change({ devices }, `Devices: ${devices ?? "not said"}.`);
  }

  cycleDevices() {
    this.setDevices(following(DEVICES, this.answer.devices));
  }
}

/** Write a finding's name as one says it. */
export function readable(finding) {
  return finding.replaceAll("_", " ");
}
