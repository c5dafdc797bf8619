import { describe, expect, test } from "vitest";
import { batches, countOf, type Data, type Order } from "../src/data.js";
import type { Batch } from "../src/feeds.js";
import type { Value } from "../src/manifest.js";
import { permutation } from "../src/random.js";
import type { PlainTensor } from "../src/types.js";
import numbers from "./numbers.json" with { type: "json" };

const VALUES: Value[] = [
  { name: "x", type: "float32", shape: ["batch", 2] },
  { name: "y", type: "int64", shape: ["batch"] },
];
const rows = (count: number): Batch => ({ x: Float32Array.from({ length: 2 * count }, (_, i) => i), y: Array.from({ length: count }, (_, i) => i) });

async function labels(data: Data, order: Order, epoch = 0): Promise<number[][]> {
  const found: number[][] = [];
  for await (const batch of batches(data, VALUES, order, epoch)) {
    const { x, y } = batch as Record<string, PlainTensor>;
    expect(x!.dims).toEqual([y!.dims[0], 2]);
    expect(Array.from(x!.data, Number)).toEqual(Array.from(y!.data, Number).flatMap((row) => [2 * row, 2 * row + 1]));
    found.push(Array.from(y!.data, Number));
  }
  return found;
}

test.each(numbers.orders)("the order of seed $seed, epoch $epoch is numpy's", ({ seed, epoch, order }) => {
  expect([...permutation(seed, epoch, order.length)]).toEqual(order);
});

describe("rows", () => {
  const order = { batchSize: 4, shuffle: false, seed: 0 };

  test("come in batches, the last one shorter", async () => {
    expect(await labels(rows(10), order)).toEqual([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]);
    expect(countOf(rows(10), VALUES, 4)).toBe(3);
  });

  test("are shuffled as Python's Trainer does it", async () => {
    const [{ seed, epoch, order: expected }] = numbers.orders as [(typeof numbers.orders)[0]];
    expect((await labels(rows(expected.length), { batchSize: 3, shuffle: true, seed }, epoch)).flat()).toEqual(expected);
  });

  test("must be as many everywhere", async () => {
    await expect(labels({ ...rows(4), y: [1, 2, 3] }, order)).rejects.toThrow("y has 3 rows, but x has 4");
    await expect(labels(rows(0), order)).rejects.toThrow("there are no rows to train with");
    await expect(labels({ x: new Float32Array(4) }, order)).rejects.toThrow("the input y is missing; a batch has x, y");
  });
});

test("batches come as they are: of lists, of generators, and of functions that make them", async () => {
  const all = [...Array(3).keys()].map((y) => ({ y }));
  const seen = async (data: Data): Promise<unknown[]> => {
    const found: unknown[] = [];
    for await (const batch of batches(data, VALUES, { batchSize: 1, shuffle: true, seed: 0 }, 0)) found.push(batch);
    return found;
  };
  async function* lazy(): AsyncGenerator<Batch> {
    yield* all;
  }
  for (const data of [all, all.values(), lazy(), lazy, () => all]) expect(await seen(data as Data)).toEqual(all);
  expect([countOf(all, VALUES, 1), countOf(lazy(), VALUES, 1), countOf(lazy, VALUES, 1)]).toEqual([3, null, null]);
});
