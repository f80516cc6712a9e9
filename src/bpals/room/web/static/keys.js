// The keyboard: what the help lists is what is listened to, and each finding has its own key.

const WRITES = "textarea, select, input:not([type=checkbox], [type=radio], [type=button], [type=range])";
const PRESSED_BY_ENTER = "button, a[href], summary";
const MOVED_BY_ARROWS = "input[type=range], input[type=radio]";
const OFF = "bpals.keys.off";

/** Name a key as the help does: letters small, `Shift+` only where Shift does not already change the sign. */
function nameOf(event) {
  const letter = event.key.length === 1 && event.key.toLowerCase() !== event.key.toUpperCase();
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  return event.shiftKey && (letter || event.key.length > 1) ? `Shift+${key}` : key;
}

export class Keys {
  #tools = new Map();
  #findings = new Map();

  /** `rows` are the rows of the help; `act(does, event)` and `mark(finding, shift)` do things. */
  constructor(rows, { act, mark, placing }) {
    for (const row of rows) this.#tools.set(row.dataset.key, row.dataset.does);
    this.act = act;
    this.mark = mark;
    this.placing = placing;
    document.addEventListener("keydown", (event) => this.#press(event));
  }

  set findings(findings) {
    this.#findings = new Map(findings.filter(({ key }) => key).map(({ name, key }) => [key.toLowerCase(), name]));
  }

  get on() {
    return localStorage.getItem(OFF) === null;
  }

  set on(wanted) {
    if (wanted) localStorage.removeItem(OFF);
    else localStorage.setItem(OFF, "1");
  }

  #press(event) {
    const combined = (event.ctrlKey || event.altKey || event.metaKey) && !event.getModifierState("AltGraph");
    if (event.defaultPrevented || combined || document.querySelector("dialog[open]")) return;
    const name = nameOf(event);
    const target = event.target instanceof Element ? event.target : document.body;
    if (name !== "Escape" && (!this.on || target.matches(WRITES))) return;
    if (/Enter$/.test(name) && target.matches(PRESSED_BY_ENTER) && !this.placing()) return;
    if (name.includes("Arrow") && target.matches(MOVED_BY_ARROWS)) return;
    if (this.#done(name, event)) event.preventDefault();
  }

  #done(name, event) {
    const plain = name.replace("Shift+", "");
    if (this.#findings.has(plain) && !this.#tools.has(name)) {
      if (!event.repeat) this.mark(this.#findings.get(plain), name !== plain);
      return true;
    }
    if (!this.#tools.has(name)) return false;
    return this.act(this.#tools.get(name), event) !== false;
  }
}
