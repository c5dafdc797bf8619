/** Batches of a set of rows, in the order in which Python's Trainer takes them, with the same seed. */

import { tensorsOf, type Batch, type TensorLike } from "./feeds.js";
import type { Value } from "./manifest.js";
import { permutation } from "./random.js";
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
  const places = order.shuffle ? permutation(order.seed, epoch, rows) : Uint32Array.from({ length: rows }, (_, row) => row);
  for (let start = 0; start < rows; start += order.batchSize) {
    const chosen = places.subarray(start, start + order.batchSize);
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

function taken({ type, dims, data }: PlainTensor, rows: Uint32Array): PlainTensor {
  const size = sizeOf(dims.slice(1));
  const result = new (data.constructor as new (length: number) => Elements)(rows.length * size);
  rows.forEach((row, index) => result.set(data.subarray(row * size, (row + 1) * size) as never, index * size));
  return { type, dims: [rows.length, ...dims.slice(1)], data: result };
}

const isIterable = (data: unknown): data is Iterable<Batch> | AsyncIterable<Batch> =>
  typeof data === "object" && data !== null && (Symbol.iterator in data || Symbol.asyncIterator in data);
