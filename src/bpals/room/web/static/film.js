// A film in memory: every grey value it has, smaller copies of it, and the table that says how bright a value is shown.
// The same arithmetic as images/rendition.py, in the same doubles: both give the same pixels.

const OPAQUE = 0xff000000;

/** Round as numpy does: a half goes to the even neighbour. */
function roundToEven(x) {
  const below = Math.floor(x);
  if (x - below !== 0.5) return Math.round(x);
  return below % 2 === 0 ? below : below + 1;
}

/** Give, for each value a film can have, the pixel that shows it. */
export function lookupTable(bits, window, level, inverted) {
  const table = new Uint32Array(1 << Math.max(8, bits));
  const black = level - window / 2;
  for (let value = 0; value < table.length; value += 1) {
    const bright = Math.min(1, Math.max(0, (value - black) / window));
    let grey = roundToEven(bright * 255);
    if (inverted) grey = 255 - grey;
    table[value] = (OPAQUE | (grey * 0x010101)) >>> 0;
  }
  return table;
}

/** Halve a picture: each value is the mean of four; a last odd line or column is its own neighbour. */
function halve({ values, width, height }) {
  const across = (width + 1) >> 1;
  const down = (height + 1) >> 1;
  const smaller = new values.constructor(across * down);
  for (let y = 0; y < down; y += 1) {
    const top = 2 * y * width;
    const bottom = Math.min(2 * y + 1, height - 1) * width;
    for (let x = 0; x < across; x += 1) {
      const left = 2 * x;
      const right = Math.min(left + 1, width - 1);
      const sum = values[top + left] + values[top + right] + values[bottom + left] + values[bottom + right];
      smaller[y * across + x] = (sum + 2) >> 2;
    }
  }
  return { values: smaller, width: across, height: down };
}

/** Undo how grey16 is written: high bytes, low bytes, folded differences along each line. */
export function unfold(bytes, width, height) {
  const count = width * height;
  if (bytes.length !== 2 * count) throw new Error("The film came incomplete.");
  const values = new Uint16Array(count);
  for (let y = 0, at = 0; y < height; y += 1) {
    let value = 0;
    for (let x = 0; x < width; x += 1, at += 1) {
      const folded = (bytes[at] << 8) | bytes[at + count];
      value = (value + ((folded >> 1) ^ -(folded & 1))) & 0xffff;
      values[at] = value;
    }
  }
  return values;
}

async function decodePng(blob) {
  const bitmap = await createImageBitmap(blob, { colorSpaceConversion: "none", premultiplyAlpha: "none" });
  const canvas = document.createElement("canvas");
  canvas.width = bitmap.width;
  canvas.height = bitmap.height;
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.drawImage(bitmap, 0, 0);
  bitmap.close();
  const pixels = pen.getImageData(0, 0, canvas.width, canvas.height).data;
  const values = new Uint8Array(pixels.length / 4);
  for (let at = 0; at < values.length; at += 1) values[at] = pixels[4 * at];
  return values;
}

export class Film {
  constructor(about, values) {
    this.about = about;
    this.width = about.width;
    this.height = about.height;
    this.sizes = [{ values, width: about.width, height: about.height }];
  }

  /** Give the film halved so many times. */
  halved(times) {
    while (this.sizes.length <= times) this.sizes.push(halve(this.sizes[this.sizes.length - 1]));
    return this.sizes[times];
  }

  /** Give the darkest and the brightest value that is there. */
  extremes() {
    if (!this.ends) {
      let low = Infinity;
      let high = -Infinity;
      for (const value of this.sizes[0].values) {
        if (value < low) low = value;
        if (value > high) high = value;
      }
      this.ends = [low, high];
    }
    return this.ends;
  }
}

/** Fetch a film and decode it; `onProgress` gets the share that has come. */
export async function loadFilm(url, { signal, onProgress } = {}) {
  const response = await fetch(url, { signal, credentials: "same-origin" });
  if (!response.ok) {
    const reply = await response.json().catch(() => ({}));
    throw new FilmRefused(reply.error?.message ?? `The film did not come (${response.status}).`, response.status);
  }
  const about = JSON.parse(response.headers.get("X-Film"));
  const bytes = await readAll(response, onProgress);
  if (about.kind === "grey16") return new Film(about, unfold(bytes, about.width, about.height));
  return new Film(about, await decodePng(new Blob([bytes], { type: "image/png" })));
}

export class FilmRefused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function readAll(response, onProgress) {
  // A packed film says how long it is packed, and comes unpacked: then nobody knows the share.
  const packed = response.headers.has("Content-Encoding");
  const whole = packed ? 0 : Number(response.headers.get("Content-Length"));
  const pieces = [];
  let come = 0;
  const reader = response.body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    pieces.push(value);
    come += value.length;
    if (onProgress) onProgress(come, whole);
  }
  const bytes = new Uint8Array(come);
  let at = 0;
  for (const piece of pieces) {
    bytes.set(piece, at);
    at += piece.length;
  }
  return bytes;
}
