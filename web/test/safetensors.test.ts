import { describe, expect, test } from "vitest";
import { readTensors, writeTensors } from "../src/safetensors.js";
import type { PlainTensor } from "../src/types.js";

function file(header: unknown, data = new Uint8Array(0), length?: number): Uint8Array {
  const text = typeof header === "string" ? new TextEncoder().encode(header) : new TextEncoder().encode(JSON.stringify(header));
  const bytes = new Uint8Array(8 + text.length + data.length);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(length ?? text.length), true);
  bytes.set(text, 8);
  bytes.set(data, 8 + text.length);
  return bytes;
}

const EIGHT = new Uint8Array([0, 0, 128, 63, 0, 0, 0, 64]); // 1 and 2

test("there and back", () => {
  const tensors = new Map<string, PlainTensor>([
    ["flags", { type: "bool", dims: [3], data: new Uint8Array([1, 0, 1]) }],
    ["weights", { type: "float32", dims: [2, 1], data: new Float32Array([1, 2]) }],
    ["steps", { type: "int64", dims: [], data: new BigInt64Array([7n]) }],
    ["nothing", { type: "float32", dims: [0, 4], data: new Float32Array(0) }],
    ["__proto__", { type: "float16", dims: [1], data: new Uint16Array([0x3c00]) }],
    ["ümläute", { type: "float64", dims: [1], data: new Float64Array([0.1]) }],
  ]);
  const bytes = writeTensors(tensors, { step: "3" });
  const found = readTensors(bytes);
  expect(found.metadata).toEqual({ step: "3" });
  expect(new Map([...found.tensors].sort())).toEqual(new Map([...tensors].sort()));
  // A file inside of another buffer, at any place.
  const inside = new Uint8Array(bytes.length + 3);
  inside.set(bytes, 3);
  expect(readTensors(inside.subarray(3)).tensors.get("weights")!.data).toEqual(new Float32Array([1, 2]));
});

test("the bytes are those of the format", () => {
  const bytes = writeTensors(new Map([["a", { type: "float32", dims: [2], data: new Float32Array([1, 2]) }]]), {});
  const length = Number(new DataView(bytes.buffer).getBigUint64(0, true));
  expect((8 + length) % 8).toBe(0);
  expect(JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)))).toEqual({
    __metadata__: {}, a: { dtype: "F32", shape: [2], data_offsets: [0, 8] },
  });
  expect(bytes.subarray(8 + length)).toEqual(EIGHT);
});

describe("refused", () => {
  const entry = { dtype: "F32", shape: [2], data_offsets: [0, 8] };
  test.each<[string, Uint8Array, string]>([
    ["what is too short", new Uint8Array(9), "this is not a safetensors file"],
    ["lengths beyond the file", file({}, EIGHT, 1000), "this is not a safetensors file"],
    ["headers that are no JSON", file("{oops}"), "this is not a safetensors file"],
    ["headers that are no objects", file("[1,2,3]"), "this is not a safetensors file"],
    ["truncated data", file({ a: entry }, EIGHT.subarray(4)), "truncated"],
    ["more data than tensors", file({ a: entry }, new Uint8Array(12)), "it is longer than its tensors"],
    ["holes", file({ a: { ...entry, data_offsets: [4, 12] } }, new Uint8Array(12)), "a, F32 [2], cannot be at 4 to 12"],
    ["wrong sizes", file({ a: { ...entry, shape: [3] } }, EIGHT), "a, F32 [3], cannot be at 0 to 8"],
    ["negative sizes", file({ a: { ...entry, shape: [-1, -2] } }, EIGHT), "what it says of a is no description of a tensor"],
    ["entries that are none", file({ a: null }, EIGHT), "what it says of a is no description of a tensor"],
    ["types that JavaScript lacks", file({ a: { ...entry, dtype: "BF16", shape: [4] } }, EIGHT), "the tensor a is BF16"],
    ["metadata that are no texts", file({ __metadata__: { step: 3 } }), "its metadata are no texts"],
  ])("%s", (_, bytes, message) => expect(() => readTensors(bytes)).toThrow(message));
});
