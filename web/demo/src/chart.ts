/** The loss of each step, as it falls. */

import { found, svg } from "./elements.js";

const WIDTH = 600, HEIGHT = 180;
const SMOOTHING = 0.75; // of the bold line; the pale one has every step
const MOST = 1200; // steps that are shown

export class Chart {
  private readonly root = found<SVGSVGElement>("chart");
  private readonly pale = svg("path", { class: "pale" });
  private readonly area = svg("path", { class: "area" });
  private readonly bold = svg("path", { class: "bold" });
  private readonly end = found("chart-end");
  private losses: number[] = [];

  constructor() {
    this.root.append(this.area, this.pale, this.bold);
  }

  /** All losses so far; `expected` steps have room, so that the line grows into the picture. */
  show(losses: readonly number[], expected = 0): void {
    this.losses = losses.slice(-MOST);
    const span = Math.max(this.losses.length, Math.min(expected, MOST), 2) - 1;
    const top = Math.max(0.1, ...this.losses) * 1.08;
    const at = (loss: number, step: number) => `${((step / span) * WIDTH).toFixed(1)} ${(HEIGHT * (1 - loss / top)).toFixed(1)}`;
    const line = (values: readonly number[]) => values.map((loss, step) => (step ? "L" : "M") + at(loss, step)).join("");
    const smooth = smoothed(this.losses);
    const last = this.losses.length - 1;
    this.pale.setAttribute("d", line(this.losses));
    this.bold.setAttribute("d", line(smooth));
    this.area.setAttribute("d", last > 0 ? `${line(smooth)}L${at(0, last)}L${at(0, 0)}Z` : "");
    found("chart-top").textContent = last >= 0 ? top.toFixed(top < 1 ? 2 : 1) : "";
    found("chart-steps").textContent = last >= 0 ? `${this.losses.length} steps` : "";
    this.mark(smooth.at(-1), last / span, top);
    this.root.closest(".chart")!.classList.toggle("is-empty", last < 0);
  }

  private mark(loss: number | undefined, x: number, top: number): void {
    this.end.hidden = loss === undefined;
    if (loss === undefined) return;
    this.end.style.left = `${x * 100}%`;
    this.end.style.top = `${(1 - loss / top) * 100}%`;
  }
}

function smoothed(losses: readonly number[]): number[] {
  let mean = losses[0] ?? 0;
  return losses.map((loss) => (mean = SMOOTHING * mean + (1 - SMOOTHING) * loss));
}
