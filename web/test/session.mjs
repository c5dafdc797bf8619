// Train with artifacts: `node session.mjs <package> <folder> <checkpoint> <data.safetensors> <settings> <out>`.
import { readFileSync, writeFileSync } from "node:fs";
import { OnwardError, TrainingSession, readTensors, writeTensors } from "../dist/index.js";
import { runtime } from "./runtime.mjs";

const [name, folder, checkpointState, file, settings, out] = process.argv.slice(2);
const { steps, accumulated } = JSON.parse(settings);
const ort = await runtime(name);
const models = {
  ort, checkpointState,
  trainModel: `${folder}/my_training_model.onnx`, evalModel: `${folder}/my_eval_model.onnx`, optimizerModel: `${folder}/my_optimizer_model.onnx`,
};
const session = await TrainingSession.create(models);
const { x, labels } = Object.fromEntries(readTensors(new Uint8Array(readFileSync(file))).tensors);
const rows = (from, to) => ({
  x: new ort.Tensor("float32", x.data.slice(from * 5, to * 5), [to - from, 5]),
  labels: new ort.Tensor("int64", labels.data.slice(from, to), [to - from]),
});
const whole = rows(0, 8);
const [LOSS] = session.trainingOutputNames;

const said = {};
async function refused(what, attempt) {
  try {
    await attempt();
    said[what] = "nothing";
  } catch (error) {
    said[what] = error instanceof OnwardError ? error.message : `not an OnwardError: ${error?.stack}`;
  }
}
await refused("early", () => session.runOptimizerStep());

const losses = [], evaluated = [];
const evaluate = async () => (await session.runEvalStep(whole, [LOSS]))[LOSS].data[0];
for (let step = 0; step < steps; step++) {
  session.learningRate = step < 4 ? 0.05 : 0.01;
  for (let part = 0; part < accumulated; part++) losses.push((await session.runTrainStep(rows(4 * part, 4 * part + 4)))[LOSS].data[0]);
  await session.runOptimizerStep();
  await session.lazyResetGrad();
  evaluated.push(await evaluate());
}

const trainable = await session.getContiguousParameters(true), all = await session.getContiguousParameters(false);
const flat = ({ data }) => ({ type: "float32", dims: [data.length], data });
writeFileSync(out, writeTensors(new Map([["trainable", flat(trainable)], ["all", flat(all)]]), {}));
const bytes = (data) => new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
await session.loadParametersBuffer(bytes(trainable.data.map((value, index) => value + Math.sin(index))));
const changed = await evaluate();
await session.loadParametersBuffer(bytes(all.data), false);
const restored = await evaluate();

await refused("labels", () => session.runTrainStep({ ...whole, labels: [0, 1, 2, 3, 0, 0, 0, 0] }));
await refused("missing", () => session.runTrainStep({ x: whole.x }));
await refused("fetches", () => session.runEvalStep(whole, [LOSS, "z"]));
await refused("buffer", () => session.loadParametersBuffer(new Uint8Array(12)));
await refused("swapped", () => TrainingSession.create({ ...models, evalModel: models.trainModel }));
await refused("without", async () => (await TrainingSession.create({ ...models, optimizerModel: undefined })).runOptimizerStep());
await refused("manifest", () => TrainingSession.create({ ...models, trainModel: new Uint8Array(readFileSync(models.trainModel)) }));
const sizes = { trainable: await session.getParametersSize(true), all: await session.getParametersSize(false) };
const names = {
  training: [session.trainingInputNames, session.trainingOutputNames], evaluation: [session.evalInputNames, session.evalOutputNames],
};
await session.release();
await refused("released", () => session.runTrainStep(whole));
console.log(JSON.stringify({ losses, evaluated, changed, restored, sizes, names, said }));
