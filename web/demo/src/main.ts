/** The page: what is drawn is read at once; what is kept can be learned; what was learned stays. */

import { Chart } from "./chart.js";
import { found } from "./elements.js";
import { Labels } from "./labels.js";
import { Memory } from "./memory.js";
import { Pad } from "./pad.js";
import { pictureOf } from "./picture.js";
import { Reader, highest, type Lesson, type Round } from "./reader.js";
import { Bars, WANTED, percent, programOf, showLessons, showSeen, showVerdict } from "./views.js";

const ROUND_MS = 70; // a round is shown at least so long: faster than one can watch is no use
const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;

const [keep, train, undo, clear, download, forget, copy] = ["keep", "train", "undo", "clear", "download", "forget", "copy"]
  .map((id) => found<HTMLButtonElement>(id)) as [HTMLButtonElement, HTMLButtonElement, HTMLButtonElement, HTMLButtonElement, HTMLButtonElement, HTMLButtonElement, HTMLButtonElement];

class Page {
  private lessons: Lesson[] = [];
  private losses: number[] = [];
  private training: AbortController | null = null;
  private readonly chart = new Chart();
  private readonly bars = new Bars();
  private readonly pad = new Pad(found<SVGSVGElement>("pad"), () => this.drawn(), () => void this.keep());
  private readonly labels: Labels;
  private isReading = false;
  private isStale = false;
  private announcement = 0;
  private shown: { picture: Float32Array; name: string } | null = null;

  constructor(private readonly reader: Reader, private readonly memory: Memory) {
    this.labels = new Labels(reader.classCount, () => this.relabelled(), () => this.pad.focus());
    undo.addEventListener("click", () => this.pad.undo());
    clear.addEventListener("click", () => this.pad.clear());
    keep.addEventListener("click", () => void this.keep());
    train.addEventListener("click", () => void (this.training === null ? this.train() : this.training.abort()));
    download.addEventListener("click", () => void this.download());
    copy.addEventListener("click", () => void this.copy());
    forget.addEventListener("click", () => void this.forget());
  }

  async begin(): Promise<void> {
    const [notes, checkpoint] = await Promise.all([this.memory.notes(), this.memory.checkpoint()]);
    if (notes !== null) {
      this.labels.symbols = notes.symbols;
      [this.lessons, this.losses] = [[...notes.lessons], [...notes.losses]];
    }
    if (checkpoint !== null) await this.restore(checkpoint);
    found("size").textContent = `A convolutional network of ${this.reader.size.toLocaleString("en")} numbers`;
    this.relabelled();
    this.chart.show(this.losses);
    await this.readAll();
    download.disabled = forget.disabled = false;
    if (this.reader.stepCount > 0) say(`Welcome back. It remembers ${this.reader.stepCount} steps of training.`);
  }

  private async restore(checkpoint: Uint8Array): Promise<void> {
    try {
      await this.reader.restore(checkpoint);
    } catch (error) {
      await this.memory.forget();
      say(`What it had learned cannot be read any more: ${(error as Error).message}`);
    }
  }

  // Reading ------------------------------------------------------------------------------------------------------------

  private drawn(): void {
    undo.disabled = clear.disabled = this.pad.isEmpty;
    this.updateButtons();
    void this.read();
  }

  /** Read the drawing; of all that changes while the network is busy, only the last state counts. */
  private async read(): Promise<void> {
    this.isStale = true;
    if (this.isReading) return;
    this.isReading = true;
    while (this.isStale) {
      this.isStale = false;
      const picture = pictureOf(this.pad.drawing);
      showSeen(picture);
      this.show(picture, picture === null ? null : (await this.reader.read([picture]))[0]!);
    }
    this.isReading = false;
  }

  private show(picture: Float32Array | null, probabilities: Float32Array | null): void {
    this.bars.show(probabilities);
    if (picture === null || probabilities === null) return showVerdict(null, 0, null);
    const best = highest(probabilities), name = this.labels.names[best] ?? "?"; // a symbol without a name
    const { chosen, names } = this.labels;
    showVerdict(name, probabilities[best]!, chosen === null ? null : names[chosen]!);
    this.showProgram(picture, name);
    window.clearTimeout(this.announcement); // to screen readers, when the pen rests
    this.announcement = window.setTimeout(() => announce(`It reads ${name}, ${percent(probabilities[best]!)} sure`), 700);
  }

  private showProgram(picture: Float32Array, name: string): void {
    this.shown = { picture, name };
    found("program").textContent = programOf(this.labels.names, picture, name);
  }

  /** Read the drawing, all that was kept, and the digits of others. */
  private async readAll(): Promise<void> {
    const pictures = this.lessons.map(({ strokes }) => pictureOf(strokes)!);
    const [readings, strangers] = await Promise.all([this.reader.read(pictures), this.reader.test()]);
    showLessons(this.lessons, readings, this.labels.names, (index) => void this.remove(index));
    const right = this.lessons.filter(({ label }, index) => highest(readings[index]!) === label).length;
    found("own").replaceChildren(this.lessons.length ? `${right}` : "–", small(this.lessons.length ? ` of ${this.lessons.length}` : ""));
    found("strangers").replaceChildren(`${((100 * strangers) / this.reader.testedCount).toFixed(1)}`, small(` % of ${this.reader.testedCount}`));
    if (this.losses.length) found("loss").textContent = mean(this.losses.slice(-8)).toPrecision(2);
    if (this.pad.isEmpty && pictures.length) this.showProgram(pictures.at(-1)!, this.labels.names[highest(readings.at(-1)!)] ?? "?");
    await this.read();
  }

  // Teaching -----------------------------------------------------------------------------------------------------------

  private relabelled(): void {
    this.bars.name(this.labels.names);
    if (this.shown !== null) this.showProgram(this.shown.picture, this.shown.name);
    this.updateButtons();
    void this.read();
  }

  private updateButtons(): void {
    const { chosen, names } = this.labels;
    const count = this.lessons.filter(({ label }) => label === chosen).length;
    const isReady = !this.pad.isEmpty && chosen !== null && this.training === null;
    keep.disabled = !isReady;
    keep.classList.toggle("is-ready", isReady);
    keep.textContent = chosen === null ? "Keep this drawing" : `Keep as a ${names[chosen]}${count < WANTED ? ` (${count + 1} of ${WANTED})` : ""}`;
    train.disabled = this.lessons.length === 0;
    const drawings = this.lessons.length === 1 ? "1 drawing" : `${this.lessons.length} drawings`;
    train.textContent = this.training !== null ? "Stop" : this.lessons.length ? `Train on ${drawings}` : "Train";
  }

  private async keep(): Promise<void> {
    if (this.pad.isEmpty || this.training !== null) return;
    const label = this.labels.chosen;
    if (label === null) return say("Say first what it is: choose a digit, or name a symbol of your own.");
    this.lessons.push({ label, strokes: this.pad.drawing.map((stroke) => stroke.map(([x, y]) => [x, y] as const)) });
    this.pad.clear();
    await this.lessonsChanged();
    const count = this.lessons.filter((lesson) => lesson.label === label).length;
    say(count < WANTED ? `${count} of ${WANTED}: draw it again.` : "That should do. Press train.");
  }

  private async remove(index: number): Promise<void> {
    if (this.training !== null) return;
    this.lessons.splice(index, 1);
    await this.lessonsChanged();
    this.pad.focus();
  }

  private async lessonsChanged(): Promise<void> {
    this.updateButtons();
    await this.readAll();
    await this.keepNotes();
  }

  private keepNotes(): Promise<void> {
    return this.memory.keepNotes({ symbols: this.labels.symbols, lessons: this.lessons, losses: this.losses.slice(-2000) });
  }

  private async train(): Promise<void> {
    const control = (this.training = new AbortController());
    const before = this.losses.length;
    document.body.classList.add("is-training");
    this.updateButtons();
    try {
      let began = performance.now();
      await this.reader.learn(this.lessons, control.signal, async (round) => {
        await this.roundDone(round, before, performance.now() - began);
        began = performance.now();
      });
      await this.memory.keepCheckpoint(await this.reader.save());
      await this.keepNotes();
      say(`${this.losses.length - before} steps: the loss went from ${this.losses[before]!.toPrecision(2)} to ${mean(this.losses.slice(-8)).toPrecision(2)}. ${this.memory.lasts ? "Kept in this browser." : ""}`);
    } catch (error) {
      say(`It could not go on: ${(error as Error).message}`);
    } finally {
      this.training = null;
      document.body.classList.remove("is-training");
      this.updateButtons();
    }
  }

  private async roundDone({ losses, total }: Round, before: number, took: number): Promise<void> {
    this.losses.push(...losses);
    this.chart.show(this.losses, before + total * losses.length);
    found("pace").replaceChildren((took / Math.max(1, losses.length)).toFixed(1), small(" ms"));
    await this.readAll();
    if (!isStill) await new Promise((resolve) => setTimeout(resolve, Math.max(0, ROUND_MS - took)));
  }

  // Taking along -------------------------------------------------------------------------------------------------------

  private async download(): Promise<void> {
    const model = await this.reader.exportModel();
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([model as BlobPart], { type: "application/octet-stream" }));
    link.download = "my-digits.onnx";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    say(`${Math.round(model.byteLength / 1024)} kB, with all it has learned.`);
  }

  private async copy(): Promise<void> {
    try {
      await navigator.clipboard.writeText(found("program").textContent ?? "");
      say("Copied.");
    } catch {
      say("The browser does not let a page copy here: select the text.");
    }
  }

  private async forget(): Promise<void> {
    if (forget.dataset.sure === undefined) {
      forget.dataset.sure = "";
      forget.textContent = "Forget everything?";
      setTimeout(() => this.unsure(), 4000);
      return;
    }
    this.unsure();
    this.training?.abort();
    await this.memory.forget();
    await this.reader.forget();
    [this.lessons, this.losses, this.labels.symbols] = [[], [], []];
    for (const id of ["loss", "pace"]) found(id).textContent = "–";
    this.chart.show(this.losses);
    this.pad.clear();
    this.relabelled();
    await this.readAll();
    say("Forgotten. It reads as strangers taught it.");
  }

  private unsure(): void {
    delete forget.dataset.sure;
    forget.textContent = "Start over";
  }
}

const mean = (numbers: readonly number[]): number => numbers.reduce((sum, number) => sum + number, 0) / Math.max(1, numbers.length);

function small(text: string): HTMLElement {
  const element = document.createElement("small");
  element.textContent = text;
  return element;
}

let hiding = 0;

/** To everybody, for a while. */
function say(text: string): void {
  const status = found("status");
  status.textContent = text;
  status.classList.add("is-shown");
  window.clearTimeout(hiding);
  hiding = window.setTimeout(() => status.classList.remove("is-shown"), 4500);
}

/** To screen readers only. */
function announce(text: string): void {
  const status = found("status");
  if (!status.classList.contains("is-shown")) status.textContent = text;
}

async function main(): Promise<void> {
  try {
    const reader = await Reader.open(document.baseURI);
    const page = new Page(reader, await Memory.open(reader.fingerprint));
    await page.begin();
    document.body.dataset.ready = "";
  } catch (error) {
    found("verdict").textContent = `This page cannot begin: ${(error as Error).message}`;
    throw error;
  }
}

void main();
