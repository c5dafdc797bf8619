/** What callers give, as the tensors that a model takes; whatever does not fit is refused with its name. */

import type { Target, Value } from "./manifest.js";
import { OnwardError, TYPES, sizeOf, toFloat16, type ElementType, type Elements, type PlainTensor } from "./types.js";

type Nested = number | bigint | boolean | readonly Nested[];

/** A tensor of any runtime, a typed array, or numbers in arrays of any depth. */
export type TensorLike = Nested | ArrayBufferView | { readonly data: unknown; readonly dims: readonly number[]; readonly type?: string };

export type Batch = Readonly<Record<string, TensorLike>>;

/** The tensors of a batch, in the order of `values`. */
export function tensorsOf(batch: Batch, values: readonly Value[]): Map<string, PlainTensor> {
  const known = values.map(({ name }) => name).join(", ");
  if (typeof batch !== "object" || batch === null) throw new OnwardError(`a batch is an object with ${known}, not ${batch}`);
  for (const name of Object.keys(batch)) {
    if (!values.some((value) => value.name === name)) throw new OnwardError(`there is no input ${name}; a batch has ${known}`);
  }
  return new Map(values.map((value) => {
    const given = Object.hasOwn(batch, value.name) ? batch[value.name] : undefined;
    if (given === undefined || given === null) throw new OnwardError(`the input ${value.name} is missing; a batch has ${known}`);
    return [value.name, tensorOf(given, value)];
  }));
}

/** The tensors of a batch with targets, which must be as many as the inputs, and classes that there are. */
export function labelledTensorsOf(batch: Batch, inputs: readonly Value[], targets: readonly Target[]): Map<string, PlainTensor> {
  const tensors = tensorsOf(batch, [...inputs, ...targets]);
  for (const [name, { dims }] of tensors) {
    if (sizeOf(dims) === 0) throw new OnwardError(`there is nothing in ${name}, of shape [${dims}]; leave empty batches out`);
  }
  for (const target of targets) {
    checkSizes(target, tensors, inputs);
    checkLabels(target, tensors.get(target.name)!);
  }
  return tensors;
}

/** Compare the sizes of a target with those of inputs that the model gives the same name. */
function checkSizes(target: Target, tensors: ReadonlyMap<string, PlainTensor>, inputs: readonly Value[]): void {
  tensors.get(target.name)!.dims.forEach((size, axis) => {
    const symbol = target.shape?.[axis];
    if (typeof symbol !== "string") return;
    const others = inputs.flatMap(({ name, shape }) =>
      (shape ?? []).flatMap((dim, place) => (dim === symbol ? [{ name, size: tensors.get(name)!.dims[place]! }] : [])));
    // A name that the inputs use for two sizes says nothing.
    if (new Set(others.map((other) => other.size)).size === 1 && others[0]!.size !== size) {
      throw new OnwardError(`${target.name} has ${size} as ${symbol}, but ${others[0]!.name} has ${others[0]!.size}; these must be equal`);
    }
  });
}

/** Labels are whole numbers below the number of classes. wasm's own errors do not say which node refused them. */
function checkLabels({ name, labels }: Target, { data }: PlainTensor): void {
  if (labels === undefined) return;
  for (const element of data) {
    const label = Number(element);
    if ((label < 0 || label >= labels.classes) && label !== labels.ignored) {
      const ignored = labels.ignored === null ? "" : `, or ${labels.ignored} to be ignored`;
      throw new OnwardError(`the labels ${name} must be from 0 to ${labels.classes - 1}${ignored}, but there is ${label}`);
    }
  }
}

function tensorOf(given: TensorLike, value: Value): PlainTensor {
  const { data, dims } = flattened(given, value);
  const shape = dims ?? completed(value, data.length);
  check(value, shape, data.length);
  return { type: value.type, dims: shape, data: converted(data, value) };
}

type Numbers = ArrayLike<number | bigint | boolean>;

function flattened(given: TensorLike, value: Value): { data: Numbers; dims: readonly number[] | null } {
  if (typeof given === "number" || typeof given === "bigint" || typeof given === "boolean") return { data: [given], dims: [] };
  if (isNumbers(given)) return { data: given, dims: null };
  if (Array.isArray(given)) {
    const dims: number[] = [];
    const data: (number | bigint | boolean)[] = [];
    flatten(given, 0, dims, data, value.name);
    // A flat list stands for a tensor of any shape, as a typed array does.
    return { data, dims: dims.length === 1 && value.shape !== null && value.shape.length !== 1 ? null : dims };
  }
  const { data, dims, type } = given as { data?: unknown; dims?: readonly number[]; type?: string };
  if (!Array.isArray(dims) || !(isNumbers(data) || Array.isArray(data))) {
    throw new OnwardError(`the input ${value.name} is neither a tensor, nor a typed array, nor numbers`);
  }
  if ((type === "float16") !== (value.type === "float16") && data instanceof Uint16Array && type !== undefined) {
    throw new OnwardError(`the input ${value.name} is ${type}, but the model takes ${value.type}`);
  }
  return { data: data as Numbers, dims };
}

const isNumbers = (data: unknown): data is Numbers & ArrayBufferView => ArrayBuffer.isView(data) && !(data instanceof DataView);

function flatten(list: readonly Nested[], depth: number, dims: number[], data: (number | bigint | boolean)[], name: string): void {
  if (dims.length === depth) dims.push(list.length);
  if (dims[depth] !== list.length) throw new OnwardError(`the lists of the input ${name} have different lengths`);
  for (const item of list) {
    if (Array.isArray(item)) {
      if (data.length > 0 && dims.length === depth + 1) throw new OnwardError(`the lists of the input ${name} have different depths`);
      flatten(item, depth + 1, dims, data, name);
    } else if (dims.length !== depth + 1) throw new OnwardError(`the lists of the input ${name} have different depths`);
    else data.push(item as number | bigint | boolean);
  }
}

/** The shape of so many elements, where the model leaves at most one size open. */
function completed({ name, shape }: Value, length: number): number[] {
  if (shape === null) return [length];
  const open = shape.filter((size) => typeof size !== "number").length;
  const rest = shape.reduce<number>((product, size) => product * (typeof size === "number" ? size : 1), 1);
  if (open > 1) throw new OnwardError(`give the input ${name} with its shape, as {data, dims}: the model takes ${written(shape)}`);
  const size = rest === 0 ? 0 : length / rest;
  if (open === 1 && !Number.isInteger(size)) {
    throw new OnwardError(`the input ${name} has ${length} numbers, which do not make ${written(shape)}`);
  }
  return shape.map((dim) => (typeof dim === "number" ? dim : size));
}

function check({ name, shape }: Value, dims: readonly number[], length: number): void {
  const fits = shape === null ||
    (shape.length === dims.length && shape.every((size, axis) => typeof size !== "number" || size === dims[axis]));
  if (!fits || !dims.every((size) => Number.isInteger(size) && size >= 0)) {
    throw new OnwardError(`the input ${name} must have the shape ${written(shape)}, not [${dims.join(", ")}]`);
  }
  if (sizeOf(dims) !== length) throw new OnwardError(`the input ${name} has ${length} numbers, which are not [${dims.join(", ")}]`);
}

const written = (shape: Value["shape"]): string => (shape === null ? "of any rank" : `[${shape.map((size) => size ?? "?").join(", ")}]`);

function converted(data: Numbers, { name, type }: Value): Elements {
  const { array } = TYPES[type];
  if (data instanceof array) return data as Elements;
  // What runtimes that have it take for float16; its bits are those of a Uint16Array.
  if (type === "float16" && data.constructor.name === "Float16Array") {
    const { buffer, byteOffset, length } = data as unknown as Uint16Array;
    return new Uint16Array(buffer, byteOffset, length);
  }
  const result = new array(data.length);
  for (let i = 0; i < data.length; i++) result[i] = element(data[i], name, type) as never;
  return result;
}

const LIMITS: Partial<Record<ElementType, readonly [bigint, bigint]>> = {
  int64: [-(2n ** 63n), 2n ** 63n - 1n], int32: [-(2n ** 31n), 2n ** 31n - 1n], int16: [-32768n, 32767n], int8: [-128n, 127n],
  uint64: [0n, 2n ** 64n - 1n], uint32: [0n, 2n ** 32n - 1n], uint16: [0n, 65535n], uint8: [0n, 255n], bool: [0n, 1n],
};

/** A number as an element of this type; typed arrays by themselves would wrap around, or make 0 of what is none. */
function element(given: unknown, name: string, type: ElementType): number | bigint {
  if (typeof given !== "number" && typeof given !== "bigint" && typeof given !== "boolean") {
    throw new OnwardError(`the input ${name} takes numbers, not ${given === null ? "null" : typeof given === "string" ? `"${given}"` : typeof given}`);
  }
  const limits = LIMITS[type];
  if (limits === undefined) return type === "float16" ? toFloat16(Number(given)) : Number(given);
  if (typeof given === "number" && !Number.isSafeInteger(given)) {
    const kind = Number.isInteger(given) ? "whole numbers that JavaScript is sure of, or bigint" : "whole numbers";
    throw new OnwardError(`the input ${name} takes ${kind} (${type}), not ${given}`);
  }
  const [least, most] = limits, whole = BigInt(given);
  if (whole < least || whole > most) throw new OnwardError(`the input ${name} takes ${type}, from ${least} to ${most}, not ${given}`);
  return type === "int64" || type === "uint64" ? whole : Number(whole);
}
