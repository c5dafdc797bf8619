/** The element types of tensors: what ONNX Runtime, safetensors and ONNX call them, and the arrays that hold them. */

export type ElementType =
  | "float32" | "float64" | "float16" | "int64" | "int32" | "int16" | "int8"
  | "uint64" | "uint32" | "uint16" | "uint8" | "bool";

export type Elements =
  | Float32Array | Float64Array | Uint16Array | BigInt64Array | BigUint64Array
  | Int32Array | Int16Array | Int8Array | Uint32Array | Uint8Array;

interface ElementsConstructor {
  readonly BYTES_PER_ELEMENT: number;
  new (length: number): Elements;
  new (buffer: ArrayBuffer, byteOffset?: number, length?: number): Elements;
}

interface Description {
  readonly safetensors: string;
  /** The number of the type in onnx.proto. */
  readonly onnx: number;
  readonly array: ElementsConstructor;
}

const describe = (safetensors: string, onnx: number, array: unknown): Description =>
  ({ safetensors, onnx, array: array as ElementsConstructor });

export const TYPES: Readonly<Record<ElementType, Description>> = {
  float32: describe("F32", 1, Float32Array),
  float64: describe("F64", 11, Float64Array),
  float16: describe("F16", 10, Uint16Array),
  int64: describe("I64", 7, BigInt64Array),
  int32: describe("I32", 6, Int32Array),
  int16: describe("I16", 5, Int16Array),
  int8: describe("I8", 3, Int8Array),
  uint64: describe("U64", 13, BigUint64Array),
  uint32: describe("U32", 12, Uint32Array),
  uint16: describe("U16", 4, Uint16Array),
  uint8: describe("U8", 2, Uint8Array),
  bool: describe("BOOL", 9, Uint8Array),
};

/** The type that safetensors calls so. */
export function typeOfSafetensors(name: string): ElementType {
  for (const [type, { safetensors }] of Object.entries(TYPES)) {
    if (safetensors === name) return type as ElementType;
  }
  throw new OnwardError(`tensors of type ${name} are not supported`);
}

/** A tensor as plain data: it passes between threads, and no runtime is needed to make one. */
export interface PlainTensor {
  readonly type: ElementType;
  readonly dims: readonly number[];
  readonly data: Elements;
}

/** What goes wrong because of what the caller gave, in words for the caller. */
export class OnwardError extends Error {
  override readonly name = "OnwardError";
}

/** The number of elements of a shape. */
export const sizeOf = (dims: readonly number[]): number => dims.reduce((product, size) => product * size, 1);

/** The bytes of an array, without copying them. */
export const bytesOf = (data: ArrayBufferView): Uint8Array =>
  new Uint8Array(data.buffer as ArrayBuffer, data.byteOffset, data.byteLength);
