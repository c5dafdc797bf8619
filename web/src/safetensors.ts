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
  const { __metadata__: metadata = {}, ...entries } = header.content;
  const tensors = new Map<string, PlainTensor>();
  // The format demands that tensors fill the file one after the other: no overlaps, no holes.
  const ordered = Object.entries(entries as Record<string, Entry>).sort(([, a], [, b]) => a.data_offsets[0] - b.data_offsets[0]);
  let position = 0;
  for (const [name, { dtype, shape, data_offsets: [from, to] }] of ordered) {
    const type = typeOfSafetensors(dtype);
    const { array } = TYPES[type];
    if (from !== position || to - from !== sizeOf(shape) * array.BYTES_PER_ELEMENT) {
      throw new OnwardError(`the tensor file is damaged: ${name}, ${dtype} [${shape}], cannot be at ${from} to ${to}`);
    }
    if (start + to > file.byteLength) throw new OnwardError("the tensor file is truncated; use another copy of it");
    const bytes = file.slice(start + from, start + to); // aligned, as the view below needs
    tensors.set(name, { type, dims: shape, data: new array(bytes.buffer as ArrayBuffer, 0, sizeOf(shape)) });
    position = to;
  }
  return { tensors, metadata: metadata as Record<string, string> };
}

function readHeader(file: Uint8Array): { length: number; content: Record<string, unknown> } {
  const damaged = () => new OnwardError("this is not a safetensors file");
  if (file.byteLength < 10) throw damaged();
  const length = Number(new DataView(file.buffer, file.byteOffset, 8).getBigUint64(0, true));
  if (length > file.byteLength - 8) throw damaged();
  try {
    return { length, content: JSON.parse(new TextDecoder().decode(file.subarray(8, 8 + length))) };
  } catch {
    throw damaged();
  }
}

/** The bytes of a file with these tensors. */
export function writeTensors(tensors: ReadonlyMap<string, PlainTensor>, metadata: Readonly<Record<string, string>>): Uint8Array {
  const header: Record<string, unknown> = { __metadata__: metadata };
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
