import { describe, expect, test } from "vitest";
import { labelledTensorsOf, tensorsOf, type TensorLike } from "../src/feeds.js";
import type { Target, Value } from "../src/manifest.js";
import { fromFloat16, toFloat16, type ElementType } from "../src/types.js";

const PICTURE: Value = { name: "x", type: "float32", shape: ["batch", 1, 2] };
const tensor = (given: TensorLike, value: Partial<Value> = {}) => tensorsOf({ x: given }, [{ ...PICTURE, ...value }]).get("x")!;
const whole = (given: TensorLike, type: ElementType = "int64") => tensor(given, { type, shape: ["batch"] });

describe("the same tensor", () => {
  test.each<[string, TensorLike]>([
    ["nested lists", [[[1, 2]], [[3, 4]]]],
    ["a flat list", [1, 2, 3, 4]],
    ["a typed array", new Float32Array([1, 2, 3, 4])],
    ["another typed array", new Uint8Array([1, 2, 3, 4])],
    ["bigints", [1n, 2n, 3n, 4n]],
    ["a tensor", { data: new Float64Array([1, 2, 3, 4]), dims: [2, 1, 2], type: "float64" }],
  ])("of %s", (_, given) => {
    expect(tensor(given)).toEqual({ type: "float32", dims: [2, 1, 2], data: new Float32Array([1, 2, 3, 4]) });
  });

  test("arrays of the right type are not copied", () => {
    const data = new Float32Array(4);
    expect(tensor(data).data).toBe(data);
  });

  test("numbers where int64 is wanted", () => {
    expect(whole([1, -2, 3n, true])).toEqual({ type: "int64", dims: [4], data: new BigInt64Array([1n, -2n, 3n, 1n]) });
    expect(tensor(7, { type: "int64", shape: [] }).data).toEqual(new BigInt64Array([7n]));
    expect(whole([2n ** 63n - 1n]).data[0]).toBe(2n ** 63n - 1n);
  });

  test("an unknown shape takes what comes", () => {
    expect(tensor([[1, 2]], { shape: null }).dims).toEqual([1, 2]);
    expect(tensor(new Float32Array(3), { shape: null }).dims).toEqual([3]);
  });
});

describe("refused", () => {
  const cases: [string, () => unknown, string][] = [
    ["unknown inputs", () => tensorsOf({ x: [1], z: [1] }, [PICTURE]), "there is no input z; a batch has x"],
    ["missing inputs", () => tensorsOf({}, [PICTURE]), "the input x is missing; a batch has x"],
    ["inputs that objects inherit", () => tensorsOf({}, [{ ...PICTURE, name: "constructor" }]), "the input constructor is missing"],
    ["no batch", () => tensorsOf(null as never, [PICTURE]), "a batch is an object with x, not null"],
    ["wrong sizes", () => tensor([[[1, 2, 3]]]), "the input x must have the shape [batch, 1, 2], not [1, 1, 3]"],
    ["wrong ranks", () => tensor([[1, 2]]), "the input x must have the shape [batch, 1, 2], not [1, 2]"],
    ["wrong lengths", () => tensor(new Float32Array(5)), "the input x has 5 numbers, which do not make [batch, 1, 2]"],
    ["tensors of wrong lengths", () => tensor({ data: new Float32Array(5), dims: [2, 1, 2] }), "the input x has 5 numbers, which are not [2, 1, 2]"],
    ["sizes that are none", () => tensor({ data: new Float32Array(3), dims: [1.5, 1, 2] }), "must have the shape [batch, 1, 2], not [1.5, 1, 2]"],
    ["flat data for several open sizes", () => tensor([1, 2], { shape: ["a", "b", 1] }), "give the input x with its shape, as {data, dims}: the model takes [a, b, 1]"],
    ["ragged lists", () => tensor([[[1, 2]], [[3]]]), "the lists of the input x have different lengths"],
    ["lists of different depths", () => tensor([[[1, 2]], [3]]), "the lists of the input x have different depths"],
    ["numbers before lists", () => tensor([1, [2, 3]], { shape: null }), "the lists of the input x have different depths"],
    ["fractions as whole numbers", () => whole([1, 1.5]), "the input x takes whole numbers (int64), not 1.5"],
    ["NaN as a whole number", () => whole([NaN]), "the input x takes whole numbers (int64), not NaN"],
    ["fractions in typed arrays", () => whole(new Float32Array([0.5]), "int32"), "the input x takes whole numbers (int32), not 0.5"],
    ["infinity as a whole number", () => whole([Infinity]), "the input x takes whole numbers (int64), not Infinity"],
    ["numbers that lost digits", () => whole([2 ** 60]), "takes whole numbers that JavaScript is sure of, or bigint (int64), not 115292150460684"],
    ["what would wrap around", () => whole([256], "uint8"), "the input x takes uint8, from 0 to 255, not 256"],
    ["negative numbers without a sign", () => whole([-1], "uint32"), "the input x takes uint32, from 0 to 4294967295, not -1"],
    ["bigints that are too long", () => whole([2n ** 63n]), "the input x takes int64, from"],
    ["other numbers as booleans", () => whole([2], "bool"), "the input x takes bool, from 0 to 1, not 2"],
    ["null, which is no 0", () => tensor([null, 1] as never), "the input x takes numbers, not null"],
    ["holes", () => tensor([1, undefined] as never), "the input x takes numbers, not undefined"],
    ["texts", () => tensor(["1", "2"] as never), 'the input x takes numbers, not "1"'],
    ["views without elements", () => tensor(new DataView(new ArrayBuffer(8))), "the input x is neither a tensor, nor a typed array, nor numbers"],
    ["functions", () => tensor((() => 1) as never), "the input x is neither a tensor, nor a typed array, nor numbers"],
    ["bits of float16 as numbers", () => tensor({ data: new Uint16Array(2), dims: [1, 1, 2], type: "float16" }), "the input x is float16, but the model takes float32"],
  ];
  test.each(cases)("%s", (_, make, message) => expect(make).toThrow(message));
});

describe("targets", () => {
  const INPUT: Value = { name: "x", type: "float32", shape: ["batch", 2] };
  const LABELS: Target = { name: "y", type: "int64", shape: ["batch"], labels: { classes: 3, ignored: null } };
  const check = (y: TensorLike, target: Partial<Target> = {}) => () =>
    labelledTensorsOf({ x: new Float32Array(4), y }, [INPUT], [{ ...LABELS, ...target }]);

  test("that are classes pass", () => {
    expect(check([0, 2])).not.toThrow();
    expect(check([0, -100], { labels: { classes: 3, ignored: -100 } })).not.toThrow();
    expect(check([0, 7], { labels: undefined } as never)).not.toThrow();
  });

  test("that are no classes are refused", () => {
    expect(check([0, 3])).toThrow("the labels y must be from 0 to 2, but there is 3");
    expect(check([-1, 0])).toThrow("the labels y must be from 0 to 2, but there is -1");
    expect(check([3, 0], { labels: { classes: 3, ignored: -100 } })).toThrow("from 0 to 2, or -100 to be ignored, but there is 3");
  });

  test("that are more or fewer than the inputs are refused", () => {
    expect(check([0])).toThrow("y has 1 as batch, but x has 2; these must be equal");
  });

  test("of nothing are refused", () => {
    expect(() => labelledTensorsOf({ x: [], y: [] }, [INPUT], [LABELS])).toThrow("there is nothing in x, of shape [0,2]; leave empty batches out");
  });
});

test("float16 numbers are the nearest ones", () => {
  const halves: [number, number][] = [
    [0, 0], [-0, 0x8000], [1, 0x3c00], [-2, 0xc000], [65504, 0x7bff], [65519, 0x7bff], [65520, 0x7c00], [-Infinity, 0xfc00],
    [2 ** -24, 1], [2 ** -25, 0], [1.5 * 2 ** -24, 2], [2 ** -14, 0x0400], [1 + 2 ** -11, 0x3c00], [1 + 3 * 2 ** -11, 0x3c02], [0.1, 0x2e66],
  ];
  for (const [value, bits] of halves) expect(toFloat16(value), String(value)).toBe(bits);
  expect(toFloat16(NaN)).toBe(0x7e00);
  const all = Array.from({ length: 0x7c00 }, (_, bits) => bits);
  expect(all.filter((bits) => toFloat16(fromFloat16(bits)) !== bits)).toEqual([]);
  expect(whole([1, 0.1], "float16").data).toEqual(new Uint16Array([0x3c00, 0x2e66]));
});
