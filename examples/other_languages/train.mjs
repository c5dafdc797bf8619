// Train a folder of `onward.edge.export` with onnxruntime-node alone: node train.mjs FOLDER [STEPS]
// (The package onward-web does all of this, and more. In a browser: fetch instead of readFileSync, onnxruntime-web.)
import { readFileSync } from "node:fs";
import { join } from "node:path";
import * as ort from "onnxruntime-node";

const [folder, steps = "20"] = process.argv.slice(2);
const manifest = JSON.parse(readFileSync(join(folder, "manifest.json"), "utf-8"));
const session = await ort.InferenceSession.create(join(folder, manifest.files.step.file));

const ARRAYS = { float32: Float32Array, float64: Float64Array, int32: Int32Array, int64: BigInt64Array };
const sizeOf = (shape) => shape.reduce((product, size) => product * size, 1);

/** A tensor of numbers, whatever JavaScript calls its integers. */
function tensor({ type }, numbers, shape) {
  const data = ARRAYS[type].from(numbers, type === "int64" ? BigInt : Number);
  return new ort.Tensor(type, data, shape);
}

// The checkpoint is a safetensors file: the length of a header, the header, and the bytes of the tensors.
const content = Uint8Array.from(readFileSync(join(folder, manifest.files.checkpoint.file))).buffer;
const start = 8 + Number(new DataView(content).getBigUint64(0, true));
const header = JSON.parse(new TextDecoder().decode(content.slice(8, start)));

/** Parameters and statistics begin as the checkpoint says, slots of the optimizer with a number. */
function initial(entry) {
  const { name, type, shape } = entry;
  if (!(name in header)) return tensor(entry, Array(sizeOf(shape)).fill(entry.initial), shape);
  const [begin, end] = header[name].data_offsets;
  return new ort.Tensor(type, new ARRAYS[type](content.slice(start + begin, start + end)), shape);
}

/** One update: the loss before it, and the state after it. */
async function step(state, batch, count) {
  const { learning_rate: rate, seed, optimizer } = manifest;
  const feeds = { ...state, ...batch, [rate.name]: tensor(rate, [optimizer.learning_rate], []) };
  feeds[manifest.step.name] = tensor(manifest.step, [count], []);
  if (seed) feeds[seed.name] = tensor(seed, [seed.initial], []); // what Dropout draws from
  const results = await session.run(feeds);
  const next = Object.fromEntries(manifest.state.map((entry) => [entry.name, results[entry.next]]));
  return { loss: results[manifest.loss.name].data[0], state: next };
}

// Your data belongs here: a tensor for each of manifest.inputs and manifest.targets.
const rows = 6;
const [x] = manifest.inputs, [target] = manifest.targets;
const shape = [rows, ...x.shape.slice(1)];
const batch = {
  [x.name]: tensor(x, Array.from({ length: sizeOf(shape) }, (_, i) => Math.sin(i)), shape),
  [target.name]: tensor(target, Array.from({ length: rows }, (_, i) => i % 3), [rows]),
};

let state = Object.fromEntries(manifest.state.map((entry) => [entry.name, initial(entry)]));
const changed = manifest.state.map((entry) => {
  const { data, dims } = state[entry.name];
  return [entry.name, tensor(entry, Array.from(data, (number) => number + 0.1), dims)];
});
const first = await step(state, batch, 1), other = await step(Object.fromEntries(changed), batch, 1);
if (first.loss === other.loss) throw new Error("the state that is fed does not count: this runtime ignores it");
for (let count = 1; count <= Number(steps); count++) {
  const result = await step(state, batch, count);
  state = result.state;
  console.log(result.loss);
}
