import { expect, test } from "vitest";
import type { Manifest } from "../src/manifest.js";
import { compare } from "../src/trial.js";
import type { PlainTensor } from "../src/types.js";

const tensor = (...numbers: number[]): PlainTensor => ({ type: "float32", dims: [numbers.length], data: new Float32Array(numbers) });
const manifest = (slots: boolean) => ({
  loss: { name: "loss" }, outputs: [{ name: "y" }],
  state: [
    { name: "w", role: "parameter", next: "w1" }, { name: "b", role: "parameter", next: "b1" },
    ...(slots ? [{ name: "w.mu", role: "slot", slot: "mu", next: "w.mu1" }, { name: "b.mu", role: "slot", slot: "mu", next: "b.mu1" }] : []),
  ],
}) as unknown as Manifest;
const BEFORE = new Map([["w", tensor(1, 2)], ["b", tensor(0)], ["w.mu", tensor(0, 0)], ["b.mu", tensor(0)]]);
const AFTER = { loss: tensor(1), y: tensor(3, 4), w1: tensor(1.1, 1.9), b1: tensor(0.1), "w.mu1": tensor(0.5, -0.5), "b.mu1": tensor(1e-8) };
const check = (slots: boolean, found: Partial<typeof AFTER>) => () =>
  compare(manifest(slots), BEFORE, new Map(Object.entries({ ...AFTER, ...found })), new Map(Object.entries(AFTER)));

test("roundings pass, also those that an optimizer makes large", () => {
  expect(check(true, { "w.mu1": tensor(0.5001, -0.5) })).not.toThrow();
  expect(check(true, { "b.mu1": tensor(-1e-8), b1: tensor(-0.1) })).not.toThrow();
  expect(check(false, { w1: tensor(1.1001, 1.9) })).not.toThrow();
});

test.each<[boolean, Partial<typeof AFTER>, string]>([
  [true, { loss: tensor(1.1) }, "loss"],
  [true, { y: tensor(3, NaN) }, "y"],
  [true, { y: tensor(3) }, "y"],
  [true, { "w.mu1": tensor(0, 0) }, "w.mu"],
  [true, { "b.mu1": tensor(0.3) }, "b.mu"],
  [false, { w1: tensor(1, 2) }, "w"],
])("wrong numbers are refused: %s %o", (slots, found, name) => {
  expect(check(slots, found)).toThrow(`WebGPU computes ${name} wrongly here (it is off by `);
});
