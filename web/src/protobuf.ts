/**
 * Put weights into a serialized model without a library that reads ONNX: messages of protobuf merge when their bytes are
 * put one after the other, so a model followed by a message with initializers is a model that has them.
 */

import { TYPES, bytesOf, type PlainTensor } from "./types.js";

// Field numbers of onnx.proto.
const MODEL_GRAPH = 7;
const GRAPH_INITIALIZER = 5;
const TENSOR_DIMS = 1, TENSOR_TYPE = 2, TENSOR_NAME = 8, TENSOR_RAW_DATA = 9;

const VARINT = 0, BYTES = 2;

/** The model, with these initializers. */
export function withInitializers(model: Uint8Array, tensors: Iterable<readonly [string, PlainTensor]>): Uint8Array {
  const graph: Uint8Array[] = [];
  for (const [name, tensor] of tensors) graph.push(...message(GRAPH_INITIALIZER, initializer(name, tensor)));
  return joined([model, ...message(MODEL_GRAPH, graph)]);
}

function initializer(name: string, { type, dims, data }: PlainTensor): Uint8Array[] {
  return [
    ...dims.map((size) => joined([key(TENSOR_DIMS, VARINT), varint(size)])),
    joined([key(TENSOR_TYPE, VARINT), varint(TYPES[type].onnx)]),
    ...message(TENSOR_NAME, [new TextEncoder().encode(name)]),
    ...message(TENSOR_RAW_DATA, [bytesOf(data)]),
  ];
}

/** A field of bytes: its key, its length, and its parts, which are not copied. */
function message(field: number, parts: readonly Uint8Array[]): Uint8Array[] {
  const length = parts.reduce((sum, part) => sum + part.byteLength, 0);
  return [joined([key(field, BYTES), varint(length)]), ...parts];
}

const key = (field: number, wireType: number): Uint8Array => varint(field * 8 + wireType);

function varint(value: number): Uint8Array {
  const bytes: number[] = [];
  while (value >= 128) {
    bytes.push((value % 128) | 128);
    value = Math.floor(value / 128); // not a shift: sizes may need more than 32 bits
  }
  bytes.push(value);
  return Uint8Array.from(bytes);
}

function joined(parts: readonly Uint8Array[]): Uint8Array {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.byteLength, 0));
  let position = 0;
  for (const part of parts) {
    whole.set(part, position);
    position += part.byteLength;
  }
  return whole;
}
