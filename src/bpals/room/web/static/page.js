// Small things that every page of the room does: make elements of text, never of markup, and say things aloud.

/** Make an element: properties that are functions listen, others become attributes; children are elements or text. */
export function make(name, about = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(about)) {
    if (typeof value === "function") element.addEventListener(key, value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function byId(id) {
  return document.getElementById(id);
}

/** Show or hide, for everybody. */
export function toggle(element, shown) {
  element.hidden = !shown;
}

/** Say something to those who listen; the same words twice are said twice. */
export function announce(words) {
  const live = byId("live");
  live.textContent = "";
  if (words) setTimeout(() => (live.textContent = words), 50);
}

/** Open a dialog and give what it was closed with: the value of the button, or "" for Escape. */
export function choose(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  dialog.scrollTop = 0;
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true });
  });
}

/** Keep the focus where it is when a button is clicked with the mouse, so that the keys go on working. */
export function keepFocus(element) {
  element.addEventListener("mousedown", (event) => event.target.closest("button") && event.preventDefault());
}

export function percent(share) {
  return share === null || share === undefined ? "–" : `${Math.round(share * 100)} %`;
}
