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
export function typeOfSafetensors(dtype: string, name: string): ElementType {
  for (const [type, { safetensors }] of Object.entries(TYPES)) {
    if (safetensors === dtype) return type as ElementType;
  }
  throw new OnwardError(`the tensor ${name} is ${dtype}, which JavaScript has no arrays for`);
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

/** The bits of the float16 number that is nearest to this one; of two, the even one. */
export function toFloat16(value: number): number {
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0, size = Math.abs(value);
  if (Number.isNaN(value)) return 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  // Of the numbers with this exponent, those of float16 are so far apart; below 2^-14 all are equally far.
  const exponent = Math.max(-14, Math.floor(Math.log2(size || 1e-9)));
  const quotient = size / 2 ** (exponent - 10), floor = Math.floor(quotient), rest = quotient - floor;
  const steps = floor + (rest > 0.5 || (rest === 0.5 && floor % 2 === 1) ? 1 : 0);
  // 1024 steps are the next exponent: its bits follow by themselves.
  return sign | (((exponent + 14) << 10) + steps);
}

/** The number that these bits of float16 are. */
export function fromFloat16(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction > 0 ? NaN : sign * Infinity;
  return sign * (exponent === 0 ? fraction * 2 ** -24 : (1024 + fraction) * 2 ** (exponent - 25));
}

/** Whether this is Node and not a browser, nor a page that a test in Node pretends to be. */
export const isNode = typeof process !== "undefined" && process.versions?.node !== undefined && typeof window === "undefined";

/** The number of elements of a shape. */
export const sizeOf = (dims: readonly number[]): number => dims.reduce((product, size) => product * size, 1);

/** The bytes of an array, without copying them. */
export const bytesOf = (data: ArrayBufferView): Uint8Array =>
  new Uint8Array(data.buffer as ArrayBuffer, data.byteOffset, data.byteLength);
