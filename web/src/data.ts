/** Batches of a set of rows, in an order that a seed decides. */

import { tensorsOf, type Batch, type TensorLike } from "./feeds.js";
import type { Value } from "./manifest.js";
import { OnwardError, sizeOf, type Elements, type PlainTensor } from "./types.js";

/** Rows by name, each input with one more axis than a row; or batches, one after the other. */
export type Data = Batch | Iterable<Batch> | AsyncIterable<Batch> | (() => Iterable<Batch> | AsyncIterable<Batch>);

export interface Order {
  readonly batchSize: number;
  readonly shuffle: boolean;
  readonly seed: number;
}

/** The batches of one epoch. */
export async function* batches(data: Data, values: readonly Value[], order: Order, epoch: number): AsyncGenerator<Batch> {
  const given = typeof data === "function" ? data() : data;
  if (isIterable(given)) {
    yield* given;
    return;
  }
  const tensors = tensorsOf(given as Readonly<Record<string, TensorLike>>, values);
  const rows = rowsOf(tensors);
  const places = Array.from({ length: rows }, (_, row) => row);
  if (order.shuffle) shuffle(places, mulberry(order.seed * 0x9e3779b1 + epoch));
  for (let start = 0; start < rows; start += order.batchSize) {
    const chosen = places.slice(start, start + order.batchSize);
    yield Object.fromEntries([...tensors].map(([name, tensor]) => [name, taken(tensor, chosen)]));
  }
}

/** The number of batches of an epoch, where it is known. */
export function countOf(data: Data, values: readonly Value[], batchSize: number): number | null {
  if (typeof data === "function" || isIterable(data)) return Array.isArray(data) ? data.length : null;
  return Math.ceil(rowsOf(tensorsOf(data as Readonly<Record<string, TensorLike>>, values)) / batchSize);
}

function rowsOf(tensors: ReadonlyMap<string, PlainTensor>): number {
  const sizes = [...tensors].map(([name, { dims }]) => {
    if (dims.length === 0) throw new OnwardError(`the input ${name} has no rows: give it in batches`);
    return [name, dims[0]!] as const;
  });
  const [first] = sizes;
  if (first === undefined) throw new OnwardError("there is no data");
  for (const [name, size] of sizes) {
    if (size !== first[1]) throw new OnwardError(`${name} has ${size} rows, but ${first[0]} has ${first[1]}`);
  }
  if (first[1] === 0) throw new OnwardError("there are no rows to train with");
  return first[1];
}

function taken({ type, dims, data }: PlainTensor, rows: readonly number[]): PlainTensor {
  const size = sizeOf(dims.slice(1));
  const result = new (data.constructor as new (length: number) => Elements)(rows.length * size);
  rows.forEach((row, index) => result.set(data.subarray(row * size, (row + 1) * size) as never, index * size));
  return { type, dims: [rows.length, ...dims.slice(1)], data: result };
}

const isIterable = (data: unknown): data is Iterable<Batch> | AsyncIterable<Batch> =>
  typeof data === "object" && data !== null && (Symbol.iterator in data || Symbol.asyncIterator in data);

function shuffle(list: number[], random: () => number): void {
  for (let last = list.length - 1; last > 0; last--) {
    const other = Math.floor(random() * (last + 1));
    [list[last], list[other]] = [list[other]!, list[last]!];
  }
}

/** Numbers from 0 to 1, the same for the same seed everywhere: the generator called mulberry32. */
function mulberry(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
