// What is refused, and in which words: `node refuse.mjs <package> <folder of a perceptron>`.
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { OnwardError, Trainer, writeTensors } from "../dist/index.js";
import { runtime } from "./runtime.mjs";

const [name, folder] = process.argv.slice(2);
const ort = await runtime(name);
const trainer = await Trainer.load(folder, { ort });
const [{ name: x }] = trainer.manifest.inputs, [{ name: y }] = trainer.manifest.targets;
const batch = (input, labels) => ({ [x]: input, [y]: labels });
const good = batch(new Float32Array(20), [0, 1]);
const files = Object.fromEntries(readdirSync(folder).map((file) => [file, new Uint8Array(readFileSync(join(folder, file)))]));
const before = await trainer.save();
const once = [good].values();

const cases = {
  classes: () => trainer.step(batch(new Float32Array(20), [0, 3])),
  shapes: () => trainer.step(batch([[1, 2, 3, 4], [5, 6, 7, 8]], [0, 1])),
  rates: () => trainer.step(good, { learningRate: NaN }),
  losses: () => trainer.step(batch(new Float32Array(20).fill(NaN), [0, 1])),
  "changed files": async () => {
    const other = files["step.onnx"].slice();
    other[other.length >> 1] ^= 1;
    await (await Trainer.load({ ...files, "step.onnx": other }, { ort })).step(good);
  },
  "other checkpoints": () => trainer.load(writeTensors(new Map(), { format: "another" })),
  "truncated checkpoints": () => Trainer.load(folder, { ort, checkpoint: before.subarray(0, before.length - 1) }),
  "missing files": () => Trainer.load({ "step.onnx": files["step.onnx"] }, { ort }),
  "generators used twice": () => trainer.fit(once, { epochs: 2 }),
  "batch sizes": () => trainer.fit(good, { batchSize: 0 }),
  disposed: async () => {
    const unchanged = Buffer.from(before).equals(await trainer.save());
    if (trainer.stepCount !== 1 || unchanged) throw new Error("one step should have happened, by the generator");
    await trainer.dispose();
    await trainer.dispose();
    await trainer.predict({ [x]: new Float32Array(10) });
  },
};
const said = {};
for (const [what, attempt] of Object.entries(cases)) {
  try {
    await attempt();
    said[what] = "nothing";
  } catch (error) {
    said[what] = error instanceof OnwardError ? error.message : `not an OnwardError: ${error?.stack}`;
  }
}
console.log(JSON.stringify(said));
