/** The state of a training: parameters, running statistics and slots, as checkpoints and as one flat buffer. */

import type { Manifest, StateValue, Value } from "./manifest.js";
import { readTensors, writeTensors } from "./safetensors.js";
import { OnwardError, TYPES, bytesOf, sizeOf, toFloat16, type PlainTensor } from "./types.js";

const FORMAT = "onward.edge.state";

export interface State {
  readonly tensors: ReadonlyMap<string, PlainTensor>;
  /** Updates so far. */
  readonly step: number;
  /** What Dropout draws from, together with the step; null where nothing is drawn. */
  readonly seed: bigint | null;
}

/** The state as a safetensors file, from which every language continues. */
export function written({ tensors, step, seed }: State): Uint8Array {
  return writeTensors(tensors, { format: FORMAT, step: String(step), ...(seed !== null && { seed: String(seed) }) });
}

/** The state in such a file, if it belongs to this training. */
export function read(file: Uint8Array, manifest: Manifest): State {
  if (!(file instanceof Uint8Array)) throw new OnwardError("a checkpoint is a Uint8Array, the bytes that `save` gave");
  const { tensors, metadata } = readTensors(file);
  if (metadata.format !== FORMAT) throw new OnwardError("this is no checkpoint of an exported folder");
  const step = Number(whole(metadata.step ?? "0", "step"));
  const initial = manifest.seed === null ? null : BigInt(manifest.seed.initial);
  return {
    tensors: new Map(manifest.state.map((entry) => [entry.name, tensorOf(entry, tensors.get(entry.name), step)])),
    step,
    seed: initial === null || metadata.seed === undefined ? initial : whole(metadata.seed, "seed"),
  };
}

function whole(text: string, what: string): bigint {
  if (!/^-?\d{1,19}$/.test(text) || (what === "step" && (text.startsWith("-") || text.length > 15))) {
    throw new OnwardError(`the checkpoint is damaged: its ${what} is ${text.slice(0, 40)}`);
  }
  return BigInt(text);
}

function tensorOf({ name, type, shape, initial }: StateValue, saved: PlainTensor | undefined, step: number): PlainTensor {
  if (saved === undefined) {
    if (initial === undefined || step > 0) throw new OnwardError(`the checkpoint has no ${name}: it belongs to another model or optimizer`);
    return { type, dims: shape, data: (new TYPES[type].array(sizeOf(shape)) as Float32Array).fill(initial) };
  }
  if (saved.type !== type || String(saved.dims) !== String(shape)) {
    throw new OnwardError(`${name} in the checkpoint is ${saved.type} [${saved.dims}], but the folder has ${type} [${shape}]`);
  }
  return saved;
}

/** These tensors, one after the other. */
export function flattened(values: readonly Value[], tensors: ReadonlyMap<string, PlainTensor>): Float32Array {
  const flat = new Float32Array(lengthOf(values));
  let position = 0;
  for (const { name } of values) {
    const data = tensors.get(name)!.data as Float32Array;
    flat.set(data, position);
    position += data.length;
  }
  return flat;
}

/** The inverse of `flattened`. */
export function unflattened(values: readonly Value[], flat: Float32Array): Map<string, PlainTensor> {
  const length = lengthOf(values);
  if (!(flat instanceof Float32Array) || flat.length !== length) {
    throw new OnwardError(`the parameters are a Float32Array of ${length} numbers, not ${(flat as Float32Array | undefined)?.length}`);
  }
  let position = 0;
  return new Map(values.map(({ name, type, shape }) => {
    const dims = shape as readonly number[];
    return [name, { type, dims, data: flat.slice(position, (position += sizeOf(dims))) }];
  }));
}

function lengthOf(values: readonly Value[]): number {
  const other = values.find(({ type }) => type !== "float32");
  if (other !== undefined) throw new OnwardError(`${other.name} is ${other.type}: only float32 parameters make one buffer`);
  return values.reduce((sum, { shape }) => sum + sizeOf(shape as readonly number[]), 0);
}

/** The weights that a part of a shared file holds. */
export function tensorAt(content: Uint8Array, { type, dims, offset, bytes }: PlainPlace): PlainTensor {
  if (offset + bytes > content.byteLength) throw new OnwardError("the file of frozen weights is shorter than manifest.json says");
  const own = bytesOf(content).slice(offset, offset + bytes); // aligned, as the view below needs
  return { type, dims, data: new TYPES[type].array(own.buffer as ArrayBuffer, 0, sizeOf(dims)) };
}

export interface PlainPlace {
  readonly type: PlainTensor["type"];
  readonly dims: readonly number[];
  readonly offset: number;
  readonly bytes: number;
}

/** A tensor with one element, of the shape that the model wants. */
export function scalar({ type, shape }: Value, value: number | bigint): PlainTensor {
  const data = new TYPES[type].array(1);
  data[0] = (type === "int64" ? BigInt(value) : type === "float16" ? toFloat16(Number(value)) : Number(value)) as never;
  return { type, dims: (shape ?? []).map(() => 1), data };
}
