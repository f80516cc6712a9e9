// What is drawn over a film, in pixels of the film: boxes with their finding's name, and a ruler with its length.
// Meaning is never in colour alone: a box carries its name, the chosen one is thicker, the one being drawn is dashed.

const DARK = "rgba(0, 0, 0, .75)";
const LIGHT = "#ffe08a";
const CHOSEN = "#ffffff";
const FONT = "600 14px system-ui, sans-serif";

/** Measure a ruler: in millimetres where the film says how far its pixels are apart, else in pixels. */
export function rulerLength({ a, b }, spacing) {
  const across = b.x - a.x;
  const down = b.y - a.y;
  if (!spacing) return `${Math.hypot(across, down).toFixed(0)} px`;
  return `${Math.hypot(across * spacing[1], down * spacing[0]).toFixed(1)} mm`;
}

function twice(pen, width, colour, draw) {
  pen.lineWidth = width + 3;
  pen.strokeStyle = DARK;
  draw();
  pen.lineWidth = width;
  pen.strokeStyle = colour;
  draw();
}

function label(pen, text, x, y) {
  pen.font = FONT;
  const wide = pen.measureText(text).width + 10;
  pen.fillStyle = DARK;
  pen.fillRect(x, y - 20, wide, 20);
  pen.fillStyle = CHOSEN;
  pen.textBaseline = "middle";
  pen.fillText(text, x + 5, y - 10);
}

function drawBox(pen, place, box, { chosen = false, dashed = false } = {}) {
  const [x, y] = place(box.x, box.y);
  const [right, bottom] = place(box.x + box.width, box.y + box.height);
  pen.setLineDash(dashed ? [8, 5] : []);
  twice(pen, chosen ? 3 : 2, chosen ? CHOSEN : LIGHT, () => pen.strokeRect(x, y, right - x, bottom - y));
  pen.setLineDash([]);
  if (box.name) label(pen, box.name, Math.min(x, right), Math.min(y, bottom));
}

function drawRuler(pen, place, ruler, spacing) {
  const ends = [place(ruler.a.x, ruler.a.y), place(ruler.b.x, ruler.b.y)];
  twice(pen, 2, LIGHT, () => {
    pen.beginPath();
    pen.moveTo(...ends[0]);
    pen.lineTo(...ends[1]);
    for (const [x, y] of ends) {
      pen.moveTo(x - 5, y);
      pen.lineTo(x + 5, y);
      pen.moveTo(x, y - 5);
      pen.lineTo(x, y + 5);
    }
    pen.stroke();
  });
  label(pen, rulerLength(ruler, spacing), ends[1][0] + 8, ends[1][1] + 10);
}

/** Draw all marks anew; `place` turns a place on the film into one on the canvas. */
export function drawMarks(pen, place, { boxes, ruler, placing, spacing }) {
  pen.clearRect(0, 0, pen.canvas.width, pen.canvas.height);
  for (const box of boxes) drawBox(pen, place, box, { chosen: box.chosen });
  if (ruler) drawRuler(pen, place, ruler, spacing);
  if (placing?.kind === "ruler") drawRuler(pen, place, placing, spacing);
  if (placing?.kind === "box") drawBox(pen, place, { ...between(placing), name: placing.name }, { dashed: true });
}

/** Give the box between two corners. */
export function between({ a, b }) {
  return {
    x: Math.min(a.x, b.x),
    y: Math.min(a.y, b.y),
    width: Math.abs(b.x - a.x),
    height: Math.abs(b.y - a.y),
  };
}
