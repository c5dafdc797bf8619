// Times of steps in wasm: `node edge.mjs <folder> <batch.safetensors> <steps>` prints milliseconds as JSON.
import { readFileSync } from "node:fs";
import { Trainer, readTensors } from "../web/dist/index.js";
import { runtime } from "../web/test/runtime.mjs";

const [folder, data, steps] = process.argv.slice(2);
const ort = await runtime("onnxruntime-web");
const trainer = await Trainer.load(folder, { ort });
const batch = Object.fromEntries(readTensors(new Uint8Array(readFileSync(data))).tensors);
const times = [];
for (let i = 0; i < Number(steps); i++) {
  const start = performance.now();
  await trainer.step(batch);
  times.push(performance.now() - start);
}
await trainer.dispose();
console.log(JSON.stringify(times));
