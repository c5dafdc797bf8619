/**
 * The first step on a graphics processor is made a second time by the main one, and must come out alike: some providers
 * and drivers compute wrong numbers without a word.
 */

import type { Manifest, StateValue } from "./manifest.js";
import { OnwardError, fromFloat16, type PlainTensor } from "./types.js";

type Tensors = ReadonlyMap<string, PlainTensor>;

/** How far results may be apart, by the largest of their tensor, and by the largest of all tensors of their kind. */
const OWN = 1e-2, OTHERS = 1e-4;

/** Refuse results of a step that differ from those of the processor. */
export function compare(manifest: Manifest, before: Tensors, found: Tensors, expected: Tensors): void {
  const { loss, outputs, state } = manifest;
  const slots = [...new Set(state.flatMap(({ role, slot }) => (role === "slot" ? [slot ?? ""] : [])))];
  const values = (list: readonly StateValue[]) => list.map(({ name, next }) => ({ name, next, before: before.get(name)! }));
  const groups = [
    [{ name: loss.name, next: loss.name, before: null }],
    outputs.map(({ name }) => ({ name, next: name, before: null })),
    values(state.filter(({ role }) => role === "buffer")),
    // What an optimizer divides by its own size, such as Adam, turns rounding errors into whole steps: then slots have to do.
    ...(slots.length === 0 ? [values(state.filter(({ role }) => role === "parameter"))] : []),
    ...slots.map((kind) => values(state.filter(({ role, slot }) => role === "slot" && (slot ?? "") === kind))),
  ];
  for (const group of groups) {
    const changes = group.map((value) => ({ name: value.name, ...difference(found.get(value.next)!, expected.get(value.next)!, value.before) }));
    const largest = Math.max(0, ...changes.map(({ size }) => size));
    for (const { name, apart, size } of changes) {
      if (!(apart <= OWN * size + OTHERS * largest + 1e-30)) {
        throw new OnwardError(
          `WebGPU computes ${name} wrongly here (it is off by ${apart.toPrecision(2)}, of ${size.toPrecision(2)}): use the newest onnxruntime-web, or {ep: "wasm"}`);
      }
    }
  }
}

/** How far a tensor is from the expected one, and how large that is; what it was before counts as 0. */
function difference(found: PlainTensor, expected: PlainTensor, before: PlainTensor | null): { apart: number; size: number } {
  const at = ({ type, data }: PlainTensor, index: number) => (type === "float16" ? fromFloat16(Number(data[index])) : Number(data[index]));
  let [apart, size] = found.data.length === expected.data.length ? [0, 0] : [Infinity, 0];
  for (let index = 0; index < expected.data.length; index++) {
    const wanted = at(expected, index), distance = Math.abs(at(found, index) - wanted);
    if (!(distance <= apart) && found.data.length === expected.data.length) apart = Number.isNaN(distance) ? Infinity : distance;
    size = Math.max(size, Math.abs(wanted - (before === null ? 0 : at(before, index))));
  }
  return { apart, size };
}
