import { expect, test } from "vitest";
import { withInitializers } from "../src/protobuf.js";

const hex = (bytes: Uint8Array) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join(" ");

test("initializers follow the model as a second message of its graph", () => {
  const model = new Uint8Array([0x08, 0x09]); // ir_version: 9
  const data = new Float32Array([1]);
  const whole = withInitializers(model, [["w", { type: "float32", dims: [1, 1], data }]]);
  // graph { initializer { dims: 1 dims: 1 data_type: FLOAT name: "w" raw_data: 1.0 } }, by the field numbers of onnx.proto
  expect(hex(whole)).toBe("08 09 3a 11 2a 0f 08 01 08 01 10 01 42 01 77 4a 04 00 00 80 3f");
});

test("sizes take as many bytes as they need", () => {
  const whole = withInitializers(new Uint8Array(0), [["w", { type: "uint8", dims: [300], data: new Uint8Array(300) }]]);
  expect(hex(whole.subarray(0, 17))).toBe("3a ba 02 2a b7 02 08 ac 02 10 02 42 01 77 4a ac 02");
  expect(whole.length).toBe(3 + 0x13a);
});

test("no initializers are an empty graph, which changes nothing", () => {
  expect(hex(withInitializers(new Uint8Array([0x08, 0x09]), []))).toBe("08 09 3a 00");
});
