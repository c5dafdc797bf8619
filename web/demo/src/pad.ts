/** Where one draws: with a finger, a pen, a mouse, or the keys of a keyboard. */

import type { Point, Stroke } from "./picture.js";
import { svg } from "./elements.js";

/** The pad is a square of 100 by 100, whatever its size on the screen. */
const SIDE = 100, MARGIN = 4;
const KEY_STEP = 4;
const DIRECTIONS: Readonly<Record<string, Point>> = {
  ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
};

/** Lines through the points, rounded where they meet. */
export function pathOf(stroke: Stroke): string {
  const [first, ...rest] = stroke;
  if (first === undefined) return "";
  const last = rest.at(-1) ?? first;
  const middle = (a: Point, b: Point) => `${round((a[0] + b[0]) / 2)} ${round((a[1] + b[1]) / 2)}`;
  const curves = rest.slice(0, -1).map((point, i) => `Q${round(point[0])} ${round(point[1])} ${middle(point, rest[i + 1]!)}`);
  return `M${round(first[0])} ${round(first[1])}${curves.join("")}L${round(last[0])} ${round(last[1])}`;
}

const round = (value: number): number => Math.round(value * 10) / 10;

export class Pad {
  private strokes: Point[][] = [];
  private readonly paths: SVGPathElement[] = [];
  private readonly cursor = svg("circle", { class: "cursor", r: 3.2 });
  private pen: Point = [SIDE / 2, SIDE / 4];
  private isDown = false;
  private pointer: number | null = null;
  private readonly pressed = new Set<string>();

  /** `onChange` is called while one draws, `onKeep` when Enter says that a drawing is whole. */
  constructor(private readonly root: SVGSVGElement, private readonly onChange: () => void, private readonly onKeep: () => void) {
    root.append(this.cursor);
    root.addEventListener("pointerdown", (event) => this.touch(event));
    root.addEventListener("pointermove", (event) => this.move(event));
    for (const end of ["pointerup", "pointercancel"] as const) root.addEventListener(end, (event) => this.lift(event));
    root.addEventListener("keydown", (event) => this.press(event));
    // A pointer that comes to the pad focuses it, too, and takes the mark away.
    root.addEventListener("focus", () => root.classList.add("by-keys"));
    root.addEventListener("keyup", (event) => this.pressed.delete(event.key));
    root.addEventListener("blur", () => this.leave());
    this.show();
  }

  get drawing(): readonly Stroke[] {
    return this.strokes;
  }

  get isEmpty(): boolean {
    return this.strokes.length === 0;
  }

  clear(): void {
    this.strokes = [];
    this.paths.splice(0).forEach((path) => path.remove());
    this.isDown = false;
    this.pen = [SIDE / 2, SIDE / 4];
    this.changed();
  }

  undo(): void {
    this.strokes.pop();
    this.paths.pop()?.remove();
    this.isDown = false;
    this.changed();
  }

  focus(): void {
    this.root.focus();
  }

  private touch(event: PointerEvent): void {
    if (this.pointer !== null || event.button !== 0) return;
    event.preventDefault(); // no selection, no scrolling
    this.root.focus({ preventScroll: true });
    this.root.classList.remove("by-keys");
    this.root.setPointerCapture(event.pointerId);
    this.pointer = event.pointerId;
    this.begin(this.placeOf(event));
  }

  private move(event: PointerEvent): void {
    if (event.pointerId !== this.pointer) return;
    const events = event.getCoalescedEvents?.() ?? [];
    for (const each of events.length ? events : [event]) this.extend(this.placeOf(each));
    this.changed();
  }

  private lift(event: PointerEvent): void {
    if (event.pointerId !== this.pointer) return;
    this.pointer = null;
    this.changed();
  }

  private press(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { key } = event;
    this.root.classList.add("by-keys");
    if (key in DIRECTIONS) this.steer(key, event.shiftKey ? KEY_STEP / 4 : KEY_STEP);
    else if (key === " ") this.toggle();
    else if (key === "Enter") this.onKeep();
    else if (key === "Backspace") this.undo();
    else if (key === "Escape" || key === "Delete") this.clear();
    else return;
    event.preventDefault();
  }

  /** Two arrows at once go diagonally. */
  private steer(key: string, step: number): void {
    this.pressed.add(key);
    let [x, y] = this.pen;
    for (const each of this.pressed) {
      x += DIRECTIONS[each]![0] * step;
      y += DIRECTIONS[each]![1] * step;
    }
    this.pen = inside([x, y]);
    if (this.isDown) this.extend(this.pen);
    this.changed();
  }

  private toggle(): void {
    this.isDown = !this.isDown;
    if (this.isDown) this.begin(this.pen);
    else this.changed();
  }

  private leave(): void {
    this.pressed.clear();
    this.isDown = false;
    this.show();
  }

  private begin(point: Point): void {
    this.strokes.push([point]);
    const path = svg("path", { class: "ink" });
    this.paths.push(path);
    this.root.insertBefore(path, this.cursor);
    this.pen = point;
    this.changed();
  }

  private extend(point: Point): void {
    this.strokes.at(-1)?.push(point);
    this.pen = point;
  }

  private placeOf(event: PointerEvent): Point {
    const { left, top, width, height } = this.root.getBoundingClientRect();
    return inside([((event.clientX - left) / width) * SIDE, ((event.clientY - top) / height) * SIDE]);
  }

  private changed(): void {
    this.show();
    this.onChange();
  }

  private show(): void {
    const last = this.strokes.length - 1;
    if (last >= 0) this.paths[last]!.setAttribute("d", pathOf(this.strokes[last]!));
    this.cursor.setAttribute("cx", String(this.pen[0]));
    this.cursor.setAttribute("cy", String(this.pen[1]));
    this.root.classList.toggle("pen-down", this.isDown);
    this.root.parentElement?.classList.toggle("is-empty", this.isEmpty);
  }
}

const inside = ([x, y]: Point): Point => [clamp(x), clamp(y)];
const clamp = (value: number): number => Math.min(SIDE - MARGIN, Math.max(MARGIN, value));
