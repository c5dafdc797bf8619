// Train with an exported folder as a program would: `node train.mjs <package> <folder> <batch.safetensors> <out> <steps> [checkpoint]`.
// Prints losses as JSON; writes the state, the trained model, and what it predicts.
import { readFileSync, writeFileSync } from "node:fs";
import { Trainer, readTensors, writeTensors } from "../dist/index.js";
import { runtime } from "./runtime.mjs";

const [name, folder, data, out, steps, checkpoint] = process.argv.slice(2);
const ort = await runtime(name);

const trainer = await Trainer.load(folder, {
  ort,
  ...(checkpoint && { checkpoint: new Uint8Array(readFileSync(checkpoint)) }),
});
const batch = Object.fromEntries(readTensors(new Uint8Array(readFileSync(data))).tensors);
const inputs = Object.fromEntries(trainer.manifest.inputs.map(({ name }) => [name, batch[name]]));
const losses = [];
const memory = [];
for (let i = 1; i <= Number(steps); i++) {
  losses.push((await trainer.step(batch)).loss);
  if (i === Math.ceil(Number(steps) / 2) || i === Number(steps)) {
    globalThis.gc?.();
    await new Promise((resolve) => setTimeout(resolve, 100)); // buffers are freed after the collection that finds them
    globalThis.gc?.();
    memory.push(process.memoryUsage().rss);
  }
}
const evaluated = (await trainer.evaluate(batch)).loss;
writeFileSync(`${out}.safetensors`, await trainer.save());
writeFileSync(`${out}.onnx`, await trainer.exportModel());
writeFileSync(`${out}.outputs`, writeTensors(new Map(Object.entries(await trainer.predict(inputs))), {}));
// What is fed as state counts: other weights, another loss; another tensor of the state, another step.
const saved = await trainer.save();
const ignored = await ignoredStates(saved);
await trainer.load(saved);
const parameters = await trainer.getParameters();
await trainer.setParameters(parameters.map((value, index) => value + Math.sin(index)));
const changed = (await trainer.evaluate(batch)).loss;
await trainer.dispose();
console.log(JSON.stringify({ losses, evaluated, changed, ignored, memory }));

async function ignoredStates(checkpoint) {
  const { tensors, metadata } = readTensors(checkpoint);
  const following = async (state) => {
    await trainer.load(writeTensors(state, metadata));
    const { loss } = await trainer.step(batch);
    return [loss, Buffer.from(await trainer.save()).toString("base64")].join();
  };
  const expected = await following(tensors);
  const found = [];
  for (const [name, tensor] of tensors) {
    const other = { ...tensor, data: tensor.data.map((value) => 2 * value + 0.5) };
    if ((await following(new Map([...tensors, [name, other]]))) === expected) found.push(name);
  }
  return found;
}
