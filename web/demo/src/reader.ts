/** The network that reads: what it sees in a picture, and how it learns from drawings. It lives in a worker. */

import { Trainer } from "onward-web";
import { SIDE, pictureOf, redrawn, type Stroke } from "./picture.js";

/** A drawing, and the class that it was meant to be. */
export interface Lesson {
  readonly label: number;
  readonly strokes: readonly Stroke[];
}

/** How it goes, after each round over all that is learned. */
export interface Round {
  readonly losses: readonly number[];
  readonly done: number;
  readonly total: number;
}

interface Digits {
  readonly pictures: Float32Array;
  readonly labels: Int32Array;
}

const ROUNDS = 20;
const VERSIONS = 8; // of each drawing, so that a hand that is not a machine's is recognised again
const BATCH = 32;
const SQUARES = SIDE * SIDE;
const FULL = 16; // pixels with ink in a square

export class Reader {
  private constructor(
    private readonly trainer: Trainer,
    private readonly untaught: Uint8Array,
    private readonly remembered: Digits,
    private readonly tested: Digits,
  ) {}

  static async open(base: string | URL): Promise<Reader> {
    const [trainer, remembered, tested] = await Promise.all([
      Trainer.load(new URL("model/", base), { worker: true }),
      digitsAt(new URL("remembered.bin", base)),
      digitsAt(new URL("tested.bin", base)),
    ]);
    return new Reader(trainer, await trainer.save(), remembered, tested);
  }

  /** Tells this model from others, whose checkpoints do not fit it. */
  get fingerprint(): string {
    return this.trainer.manifest.files.checkpoint.sha256.slice(0, 16);
  }

  get classCount(): number {
    return this.trainer.manifest.classes!.length;
  }

  /** How many numbers it learns. */
  get size(): number {
    const parameters = this.trainer.manifest.state.filter(({ role }) => role === "parameter");
    return parameters.reduce((sum, { shape }) => sum + shape.reduce((product, size) => product * size, 1), 0);
  }

  get stepCount(): number {
    return this.trainer.stepCount;
  }

  /** Digits of others that it was never trained with. */
  get testedCount(): number {
    return this.tested.labels.length;
  }

  /** The probability of each class, for each picture. */
  async read(pictures: readonly Float32Array[]): Promise<Float32Array[]> {
    if (pictures.length === 0) return [];
    const scores = await this.scores(joined(pictures));
    return pictures.map((_, row) => softmax(scores.subarray(row * this.classCount, (row + 1) * this.classCount)));
  }

  /** How many of the digits of others it still reads. */
  async test(): Promise<number> {
    const scores = await this.scores(this.tested.pictures);
    return this.tested.labels.reduce((sum, label, row) => {
      const own = scores.subarray(row * this.classCount, (row + 1) * this.classCount);
      return sum + Number(highest(own) === label);
    }, 0);
  }

  /** Learn from drawings, without forgetting the digits of others. Stops after the round in which `signal` says so. */
  async learn(lessons: readonly Lesson[], signal: AbortSignal, afterRound: (round: Round) => Promise<void>): Promise<void> {
    const { pictures, labels } = this.curriculum(lessons);
    const { inputs, targets } = this.trainer.manifest;
    const rows = { [inputs[0]!.name]: pictures, [targets[0]!.name]: labels };
    for (let done = 1; done <= ROUNDS && !signal.aborted; done++) {
      const { losses } = await this.trainer.fit(rows, { batchSize: BATCH, seed: this.trainer.stepCount, signal });
      await afterRound({ losses, done, total: ROUNDS });
    }
  }

  /** The model as an ordinary .onnx file. */
  exportModel(): Promise<Uint8Array> {
    return this.trainer.exportModel();
  }

  save(): Promise<Uint8Array> {
    return this.trainer.save();
  }

  restore(checkpoint: Uint8Array): Promise<void> {
    return this.trainer.load(checkpoint);
  }

  /** As it was before anybody taught it. */
  forget(): Promise<void> {
    return this.trainer.load(this.untaught.slice());
  }

  private curriculum(lessons: readonly Lesson[]): Digits {
    const pictures = [this.remembered.pictures], labels = [...this.remembered.labels];
    for (const { label, strokes } of lessons) {
      for (let version = 0; version < VERSIONS; version++) {
        const picture = pictureOf(version === 0 ? strokes : redrawn(strokes, Math.random));
        if (picture === null) continue;
        pictures.push(picture);
        labels.push(label);
      }
    }
    return { pictures: joined(pictures), labels: Int32Array.from(labels) };
  }

  private async scores(pictures: Float32Array): Promise<Float32Array> {
    const { inputs, inference } = this.trainer.manifest;
    const outputs = await this.trainer.predict({ [inputs[0]!.name]: pictures });
    return outputs[inference.outputs[0]!.name]!.data as Float32Array;
  }
}

/** The place of the highest of some numbers. */
export function highest(numbers: ArrayLike<number>): number {
  let best = 0;
  for (let i = 1; i < numbers.length; i++) if (numbers[i]! > numbers[best]!) best = i;
  return best;
}

/** 65 bytes for each digit: its label, and how many of the pixels of each square have ink. */
async function digitsAt(url: URL): Promise<Digits> {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url} cannot be had: ${response.status} ${response.statusText}`);
  const bytes = new Uint8Array(await response.arrayBuffer());
  const count = bytes.length / (SQUARES + 1);
  const pictures = new Float32Array(count * SQUARES), labels = new Int32Array(count);
  for (let row = 0; row < count; row++) {
    const start = row * (SQUARES + 1);
    labels[row] = bytes[start]!;
    for (let square = 0; square < SQUARES; square++) pictures[row * SQUARES + square] = bytes[start + 1 + square]! / FULL;
  }
  return { pictures, labels };
}

function joined(pictures: readonly Float32Array[]): Float32Array {
  const whole = new Float32Array(pictures.reduce((sum, picture) => sum + picture.length, 0));
  let position = 0;
  for (const picture of pictures) {
    whole.set(picture, position);
    position += picture.length;
  }
  return whole;
}

function softmax(scores: Float32Array): Float32Array {
  const top = scores[highest(scores)]!;
  const powers = scores.map((score) => Math.exp(score - top));
  const sum = powers.reduce((total, power) => total + power, 0);
  return powers.map((power) => power / sum);
}
