// Train with an exported folder as a program would: `node train.mjs <package> <folder> <batch.safetensors> <out> <steps> [checkpoint]`.
// Prints losses as JSON; writes the state, the trained model, and what it predicts.
import { readFileSync, writeFileSync } from "node:fs";
import { Trainer, readTensors, writeTensors } from "../dist/index.js";
import { ignoredStates } from "./consumer/guard.js";
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
const ignored = await ignoredStates(trainer, batch, { readTensors, writeTensors });
const parameters = await trainer.getParameters();
await trainer.setParameters(parameters.map((value, index) => value + Math.sin(index)));
const changed = (await trainer.evaluate(batch)).loss;
await trainer.dispose();
console.log(JSON.stringify({ losses, evaluated, changed, ignored, memory }));
