/** What callers give, as the tensors that a model takes; whatever does not fit is refused with its name. */

import type { Value } from "./manifest.js";
import { OnwardError, TYPES, sizeOf, type ElementType, type Elements, type PlainTensor } from "./types.js";

type Nested = number | bigint | boolean | readonly Nested[];

/** A tensor of any runtime, a typed array, or numbers in arrays of any depth. */
export type TensorLike = Nested | ArrayBufferView | { readonly data: unknown; readonly dims: readonly number[]; readonly type?: string };

export type Batch = Readonly<Record<string, TensorLike>>;

/** The tensors of a batch, in the order of `values`. */
export function tensorsOf(batch: Batch, values: readonly Value[]): Map<string, PlainTensor> {
  const known = values.map(({ name }) => name);
  for (const name of Object.keys(batch)) {
    if (!known.includes(name)) throw new OnwardError(`there is no input ${name}; a batch has ${known.join(", ")}`);
  }
  return new Map(values.map((value) => {
    const given = batch[value.name];
    if (given === undefined || given === null) throw new OnwardError(`the input ${value.name} is missing; a batch has ${known.join(", ")}`);
    return [value.name, tensorOf(given, value)];
  }));
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
  if (ArrayBuffer.isView(given)) return { data: given as unknown as Numbers, dims: null };
  if (Array.isArray(given)) {
    const dims: number[] = [];
    const data: (number | bigint | boolean)[] = [];
    flatten(given, 0, dims, data, value.name);
    // A flat list stands for a tensor of any shape, as a typed array does.
    return { data, dims: dims.length === 1 && value.shape !== null && value.shape.length !== 1 ? null : dims };
  }
  const tensor = given as { data: unknown; dims: readonly number[]; type?: string };
  if (tensor.data === undefined || !Array.isArray(tensor.dims)) {
    throw new OnwardError(`the input ${value.name} is neither a tensor, nor a typed array, nor numbers`);
  }
  if (tensor.type === "float16" && value.type !== "float16") {
    throw new OnwardError(`the input ${value.name} is float16, but the model takes ${value.type}`);
  }
  return { data: tensor.data as Numbers, dims: tensor.dims };
}

function flatten(list: readonly Nested[], depth: number, dims: number[], data: (number | bigint | boolean)[], name: string): void {
  if (dims.length === depth) dims.push(list.length);
  if (dims[depth] !== list.length) throw new OnwardError(`the lists of the input ${name} have different lengths`);
  for (const item of list) {
    if (Array.isArray(item)) flatten(item, depth + 1, dims, data, name);
    else if (dims.length !== depth + 1) throw new OnwardError(`the lists of the input ${name} have different depths`);
    else data.push(item as number | bigint | boolean);
  }
}

/** The shape of so many elements, where the model leaves at most one size open. */
function completed({ name, shape }: Value, length: number): number[] {
  if (shape === null) return [length];
  const open = shape.filter((size) => typeof size !== "number").length;
  const rest = shape.reduce<number>((product, size) => product * (typeof size === "number" ? size : 1), 1);
  if (open > 1) throw new OnwardError(`give the input ${name} with its shape, as {data, dims}: the model takes [${shape}]`);
  return shape.map((size) => (typeof size === "number" ? size : rest === 0 ? 0 : length / rest));
}

function check({ name, shape }: Value, dims: readonly number[], length: number): void {
  const fits = shape === null ||
    (shape.length === dims.length && shape.every((size, axis) => typeof size !== "number" || size === dims[axis]));
  if (!fits || !dims.every((size) => Number.isInteger(size) && size >= 0)) {
    throw new OnwardError(`the input ${name} must have the shape [${shape}], not [${dims}]`);
  }
  if (sizeOf(dims) !== length) throw new OnwardError(`the input ${name} has ${length} numbers, which are not [${dims}]`);
}

function converted(data: Numbers, { name, type }: Value): Elements {
  const { array } = TYPES[type];
  if (data instanceof array) return data as Elements;
  if (type === "float16") throw new OnwardError(`the input ${name} must be a Uint16Array of float16 numbers`);
  const result = new array(data.length);
  const wide = type === "int64" || type === "uint64";
  for (let i = 0; i < data.length; i++) {
    const element = data[i]!;
    if (!isFloating(type) && typeof element === "number" && !Number.isInteger(element)) {
      throw new OnwardError(`the input ${name} takes whole numbers (${type}), not ${element}`);
    }
    result[i] = (wide ? BigInt(element) : Number(element)) as never;
  }
  return result;
}

const isFloating = (type: ElementType): boolean => type.startsWith("float");
