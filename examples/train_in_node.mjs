// Train in Node with what `onward.training_step` made: the step, its initial state, and data from anywhere.
//
//   npm install onnxruntime-node
//   node train_in_node.mjs step.onnx step.safetensors data.safetensors trained.safetensors [steps] [learning rate]
//
// The data file has a tensor for each input of the model and each target. In a browser the loop is the same with
// `import * as ort from "onnxruntime-web"`.
import { readFileSync, writeFileSync } from "node:fs";

const ort = await import(process.env.ORT_PACKAGE ?? "onnxruntime-node");

// The types of safetensors: what onnxruntime calls them, and the arrays that hold them.
const TYPES = {
  F32: ["float32", Float32Array], F64: ["float64", Float64Array], F16: ["float16", Uint16Array],
  I64: ["int64", BigInt64Array], I32: ["int32", Int32Array], U8: ["uint8", Uint8Array], BOOL: ["bool", Uint8Array],
};

function readTensors(path) {
  const { buffer, byteOffset, byteLength } = readFileSync(path);
  const file = buffer.slice(byteOffset, byteOffset + byteLength);
  const start = 8 + Number(new DataView(file).getBigUint64(0, true));
  const { __metadata__: metadata, ...header } = JSON.parse(new TextDecoder().decode(file.slice(8, start)));
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets: [from, to] }] of Object.entries(header)) {
    const [type, Elements] = TYPES[dtype];
    tensors[name] = new ort.Tensor(type, new Elements(file.slice(start + from, start + to)), shape);
  }
  return { tensors, metadata };
}

function writeTensors(path, tensors, metadata) {
  const names = Object.fromEntries(Object.entries(TYPES).map(([dtype, [type]]) => [type, dtype]));
  const header = { __metadata__: metadata };
  // Wide types first, so that every tensor is aligned.
  const ordered = Object.entries(tensors).sort(([, a], [, b]) => b.data.BYTES_PER_ELEMENT - a.data.BYTES_PER_ELEMENT);
  let position = 0;
  for (const [name, { type, dims, data }] of ordered) {
    header[name] = { dtype: names[type], shape: dims, data_offsets: [position, (position += data.byteLength)] };
  }
  const text = new TextEncoder().encode(JSON.stringify(header));
  const padding = new Uint8Array(-text.length & 7).fill(32);
  const length = new BigUint64Array([BigInt(text.length + padding.length)]);
  const parts = [length, text, padding, ...ordered.map(([, tensor]) => tensor.data)];
  writeFileSync(path, Buffer.concat(parts.map((part) => Buffer.from(part.buffer, part.byteOffset, part.byteLength))));
}

const [model, start, data, trained, steps = "100", rate = "0.05"] = process.argv.slice(2);
const session = await ort.InferenceSession.create(model);
const { tensors: state, metadata } = readTensors(start);
const { links } = JSON.parse(metadata["onward.signature"]); // which output is the next value of which input
const { tensors: batch } = readTensors(data);
const learningRate = new ort.Tensor("float32", Float32Array.of(Number(rate)), []);

const losses = [];
for (let number = 1; number <= Number(steps); number++) {
  const step = new ort.Tensor("int64", BigInt64Array.of(BigInt(number)), []);
  const results = await session.run({ ...batch, ...state, learning_rate: learningRate, step });
  for (const [name, tensor] of Object.entries(results)) {
    if (name in links) state[links[name]] = tensor;
  }
  losses.push(results[session.outputNames[0]].data[0]);
}
writeTensors(trained, state, metadata);
console.log(JSON.stringify(losses));
