// Fit rows, and stop another fit: `node fit.mjs <package> <folder> <rows.safetensors> <options>`.
import { readFileSync } from "node:fs";
import { Trainer, readTensors } from "../dist/index.js";
import { runtime } from "./runtime.mjs";

const [name, folder, data, options] = process.argv.slice(2);
const trainer = await Trainer.load(folder, { ort: await runtime(name) });
const rows = Object.fromEntries(readTensors(new Uint8Array(readFileSync(data))).tensors);
const rates = [], epochs = [];
const { losses } = await trainer.fit(rows, {
  ...JSON.parse(options),
  onProgress: ({ learningRate, epoch }) => {
    rates.push(learningRate);
    epochs.push(epoch);
  },
});
const control = new AbortController();
const stopped = await trainer.fit(rows, { epochs: 5, signal: control.signal, onProgress: ({ done }) => done === 2 && control.abort() });
await trainer.dispose();
console.log(JSON.stringify({ losses, rates, epochs, stopped: { ...stopped, losses: stopped.losses.length } }));
