import { expect, test } from "vitest";
import { parseManifest } from "../src/manifest.js";

const graph = { file: "step.onnx", bytes: 10, sha256: "00", parts: { structure: 6, inputs: 2 }, frozen: [] };
const scalar = (name: string, type = "float32") => ({ name, type, shape: [] });
const GOOD = {
  format: "onward.edge", version: 1, target: "wasm",
  files: { step: graph, eval: graph, inference: graph, checkpoint: { file: "checkpoint.safetensors", sha256: "00" }, frozen: null },
  optimizer: { name: "adamw", learning_rate: 0.001 }, schedule: null, classes: null,
  inputs: [{ name: "x", type: "float32", shape: ["batch", null, 2] }], targets: [{ name: "y", type: "int64", shape: ["batch"] }],
  outputs: [{ name: "z", type: "float32", shape: null }],
  loss: scalar("loss"), learning_rate: scalar("learning_rate"), step: scalar("step", "int64"), seed: { ...scalar("seed", "int64"), initial: 5 },
  state: [{ name: "w", role: "parameter", type: "float32", shape: [2], next: "w.updated" }],
  evaluation: { inputs: ["x", "w"], outputs: [] }, inference: { inputs: ["x", "w"], outputs: [] },
};
const parse = (content: unknown) => parseManifest(new TextEncoder().encode(typeof content === "string" ? content : JSON.stringify(content)));

test("a manifest is read as it is", () => expect(parse(GOOD)).toEqual(GOOD));

test.each<[string, unknown, string]>([
  ["no JSON", "<!doctype html>", "manifest.json is damaged: "],
  ["no object", [], "manifest.json is damaged: it is no object"],
  ["other files", { hello: 1 }, "this manifest.json was not written by onward.edge.export"],
  ["newer versions", { ...GOOD, version: 2 }, "has version 2, but this onward-web reads 1: update it"],
  ["lists that are missing", { ...GOOD, state: undefined }, "state is no list"],
  ["paths", { ...GOOD, files: { ...GOOD.files, step: { ...graph, file: "../x" } } }, "manifest.json.files.step is damaged: ../x is no name of a file"],
  ["addresses", { ...GOOD, files: { ...GOOD.files, checkpoint: { file: "http://x/y", sha256: "" } } }, "http://x/y is no name of a file"],
  ["parts beyond the file", { ...GOOD, files: { ...GOOD.files, eval: { ...graph, bytes: 7 } } }, "its parts are longer than the file"],
  ["unknown types", { ...GOOD, inputs: [{ name: "x", type: "bfloat16", shape: [] }] }, "x is bfloat16, which onward-web does not support"],
  ["shapes that are none", { ...GOOD, inputs: [{ name: "x", type: "float32", shape: [-1] }] }, "manifest.json.inputs[0] is damaged: its shape is none"],
  ["open sizes of states", { ...GOOD, state: [{ ...GOOD.state[0], shape: ["n"] }] }, "shape is no list of sizes"],
  ["states that nothing follows", { ...GOOD, state: [{ ...GOOD.state[0], next: 3 }] }, "next is no text"],
  ["rates that are none", { ...GOOD, optimizer: { name: "sgd", learning_rate: "much" } }, "learning_rate is no number"],
  // JSON of Python has whole numbers of any length, JavaScript would round them.
  ["seeds that lost digits", JSON.stringify(GOOD).replace('"initial":5', `"initial":${2n ** 60n + 1n}`), "initial is no whole number that JavaScript is sure of"],
])("refused: %s", (_, content, message) => expect(() => parse(content)).toThrow(message));
