/** The parts of the page that show what the network reads. */

import { found, html, svg } from "./elements.js";
import { pathOf } from "./pad.js";
import { SIDE } from "./picture.js";
import { highest, type Lesson } from "./reader.js";

export const WANTED = 5; // drawings of a symbol that make a lesson

/** The picture as the network sees it. */
export function showSeen(picture: Float32Array | null): void {
  const squares = Array.from(picture ?? [], (ink, square) => svg("rect", {
    x: square % SIDE, y: Math.floor(square / SIDE), width: 1.02, height: 1.02, opacity: ink,
  }));
  found("seen").replaceChildren(...squares);
}

/** A bar for each class that has a name. */
export class Bars {
  private fills: HTMLElement[] = [];

  name(names: readonly string[]): void {
    const bars = names.map((name) => {
      const fill = html("span", { class: "fill" });
      const item = html("li", {}, html("span", { class: "track" }, fill), html("span", { class: "name" }, name));
      return { fill, item };
    });
    this.fills = bars.map(({ fill }) => fill);
    found("bars").replaceChildren(...bars.map(({ item }) => item));
  }

  show(probabilities: Float32Array | null): void {
    const best = probabilities === null ? -1 : highest(probabilities);
    this.fills.forEach((fill, index) => {
      const probability = probabilities?.[index] ?? 0;
      const item = fill.closest("li")!;
      fill.style.transform = `scaleY(${probability.toFixed(3)})`;
      item.classList.toggle("is-best", index === best);
      item.title = probabilities === null ? "" : percent(probability);
    });
  }
}

/** The class in large letters, and how sure the network is. */
export function showVerdict(name: string | null, probability: number, meant: string | null): void {
  const glyph = found("glyph"), verdict = found("verdict");
  const shown = name ?? "·";
  if (glyph.textContent !== shown) {
    glyph.textContent = shown;
    glyph.classList.remove("is-new");
    void glyph.offsetWidth; // so that the animation begins anew
    glyph.classList.add("is-new");
  }
  glyph.classList.toggle("is-wrong", name !== null && meant !== null && meant !== name);
  glyph.classList.toggle("is-right", name !== null && meant === name);
  if (name === null) verdict.replaceChildren("Draw, and it reads.");
  else verdict.replaceChildren(html("strong", {}, `It reads ${name}`), meant === null || meant === name ? howSure(probability) : `you say ${meant}`);
}

function howSure(probability: number): string {
  if (probability > 0.995) return "and has no doubt";
  return `${percent(probability)} sure`;
}

/** The drawings that were kept, each with what the network reads in it now, and free places up to five. */
export function showLessons(
  lessons: readonly Lesson[], readings: readonly Float32Array[], names: readonly string[], remove: (index: number) => void,
): void {
  const tiles = lessons.map(({ label, strokes }, index) => {
    const read = readings[index] === undefined ? null : highest(readings[index]);
    const isRight = read === label;
    const ink = svg("svg", { viewBox: "-15 0 130 100", "aria-hidden": "true" }, ...strokes.map((stroke) => svg("path", { class: "ink", d: pathOf(stroke) })));
    const said = read === null ? "…" : isRight ? `reads ${names[read]} ✓` : `reads ${names[read] ?? "?"}`;
    const button = html("button", { type: "button", "aria-label": `Remove drawing ${index + 1}, a ${names[label]}` }, "×");
    button.addEventListener("click", () => remove(index));
    return html("li", { class: `lesson ${read === null ? "" : isRight ? "is-right" : "is-wrong"}` },
      ink, html("p", {}, `a ${names[label]}`), html("p", { class: "says" }, said), button);
  });
  const free = Array.from({ length: Math.max(0, WANTED - lessons.length) }, (_, index) =>
    html("li", { class: "lesson is-free", "aria-hidden": "true" }, String(lessons.length + index + 1)));
  found("lessons").replaceChildren(...tiles, ...free);
}

/** A program that reads the drawing with the file that is downloaded. */
export function programOf(names: readonly string[], picture: Float32Array, reading: string): string {
  const ink = Array.from(picture, (value) => Math.round(value * 16));
  const rows = Array.from({ length: SIDE / 2 }, (_, row) => `    ${ink.slice(row * 2 * SIDE, (row + 1) * 2 * SIDE).join(", ")},`);
  return [
    "import numpy as np",
    "import onnxruntime",
    "",
    `names = ${JSON.stringify(names)}`,
    "drawing = np.array([  # yours, 8 x 8 squares with 0 to 16 pixels of ink",
    ...rows,
    "])",
    "",
    'session = onnxruntime.InferenceSession("my-digits.onnx")',
    "image = (drawing / 16).astype(np.float32).reshape(1, 1, 8, 8)",
    'scores = session.run(None, {"image": image})[0]',
    `print(names[scores.argmax()])  # ${reading}`,
    "",
  ].join("\n");
}

export const percent = (share: number): string => `${Math.round(share * 100)} %`;
