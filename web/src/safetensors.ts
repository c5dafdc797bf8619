/** Files of tensors: 8 bytes with the length of a header, the header (JSON), and the bytes of the tensors. */

import { OnwardError, TYPES, bytesOf, sizeOf, typeOfSafetensors, type PlainTensor } from "./types.js";

export interface TensorFile {
  readonly tensors: Map<string, PlainTensor>;
  readonly metadata: Readonly<Record<string, string>>;
}

interface Entry {
  dtype: string;
  shape: number[];
  data_offsets: [number, number];
}

/** Read a file; its tensors are copies. */
export function readTensors(file: Uint8Array): TensorFile {
  const header = readHeader(file);
  const start = 8 + header.length;
  const { __metadata__: metadata = {}, ...rest } = header.content;
  const tensors = new Map<string, PlainTensor>();
  // The format demands that tensors fill the file one after the other: no overlaps, no holes.
  const entries = Object.entries(rest).map(([name, entry]) => [name, checked(name, entry)] as const);
  entries.sort(([, a], [, b]) => a.data_offsets[0] - b.data_offsets[0] || a.data_offsets[1] - b.data_offsets[1]);
  let position = 0;
  for (const [name, { dtype, shape, data_offsets: [from, to] }] of entries) {
    const type = typeOfSafetensors(dtype, name);
    const { array } = TYPES[type];
    if (from !== position || to - from !== sizeOf(shape) * array.BYTES_PER_ELEMENT) {
      throw new OnwardError(`the tensor file is damaged: ${name}, ${dtype} [${shape}], cannot be at ${from} to ${to}`);
    }
    if (start + to > file.byteLength) throw new OnwardError("the tensor file is truncated; use another copy of it");
    const bytes = file.slice(start + from, start + to); // aligned, as the view below needs
    tensors.set(name, { type, dims: shape, data: new array(bytes.buffer as ArrayBuffer, 0, sizeOf(shape)) });
    position = to;
  }
  if (start + position !== file.byteLength) throw new OnwardError("the tensor file is damaged: it is longer than its tensors");
  return { tensors, metadata: textsOf(metadata) };
}

function readHeader(file: Uint8Array): { length: number; content: Record<string, unknown> } {
  const damaged = () => new OnwardError("this is not a safetensors file");
  if (file.byteLength < 10) throw damaged();
  const length = Number(new DataView(file.buffer, file.byteOffset, 8).getBigUint64(0, true));
  if (length > file.byteLength - 8) throw damaged();
  try {
    const content: unknown = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(file.subarray(8, 8 + length)));
    if (typeof content === "object" && content !== null && !Array.isArray(content)) return { length, content: content as Record<string, unknown> };
  } catch {
    // Whatever it is, it is none.
  }
  throw damaged();
}

function checked(name: string, entry: unknown): Entry {
  const { dtype, shape, data_offsets: offsets } = (entry ?? {}) as Partial<Entry>;
  if (typeof dtype !== "string" || !isCounts(shape) || !isCounts(offsets) || offsets.length !== 2) {
    throw new OnwardError(`the tensor file is damaged: what it says of ${name} is no description of a tensor`);
  }
  return { dtype, shape, data_offsets: offsets as [number, number] };
}

const isCounts = (list: unknown): list is number[] =>
  Array.isArray(list) && list.every((item) => Number.isSafeInteger(item) && item >= 0);

function textsOf(metadata: unknown): Record<string, string> {
  if (typeof metadata !== "object" || metadata === null || !Object.values(metadata).every((text) => typeof text === "string")) {
    throw new OnwardError("the tensor file is damaged: its metadata are no texts");
  }
  return metadata as Record<string, string>;
}

/** The bytes of a file with these tensors. */
export function writeTensors(tensors: ReadonlyMap<string, PlainTensor>, metadata: Readonly<Record<string, string>>): Uint8Array {
  // Without a prototype: a tensor may be called __proto__.
  const header: Record<string, unknown> = Object.assign(Object.create(null), { __metadata__: metadata });
  // Wide types first, so that every tensor is aligned.
  const ordered = [...tensors].sort(([, a], [, b]) => b.data.BYTES_PER_ELEMENT - a.data.BYTES_PER_ELEMENT);
  let position = 0;
  for (const [name, { type, dims, data }] of ordered) {
    header[name] = { dtype: TYPES[type].safetensors, shape: dims, data_offsets: [position, (position += data.byteLength)] };
  }
  const text = new TextEncoder().encode(JSON.stringify(header));
  const padded = text.length + (-text.length & 7);
  const file = new Uint8Array(8 + padded + position).fill(32, 8, 8 + padded);
  new DataView(file.buffer).setBigUint64(0, BigInt(padded), true);
  file.set(text, 8);
  position = 8 + padded;
  for (const [, { data }] of ordered) {
    file.set(bytesOf(data), position);
    position += data.byteLength;
  }
  return file;
}
