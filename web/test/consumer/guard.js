// A guard: what is fed as state counts. onnxruntime-node ignores inputs that have default values, without a word.

/**
 * The tensors of the state whose change changes nothing in the next step: none, where all is well.
 * @param {import("onward-web").Trainer} trainer
 * @param {import("onward-web").Batch} batch
 * @param {Pick<typeof import("onward-web"), "readTensors" | "writeTensors">} files
 * @returns {Promise<string[]>}
 */
export async function ignoredStates(trainer, batch, { readTensors, writeTensors }) {
  const checkpoint = await trainer.save();
  const { tensors, metadata } = readTensors(checkpoint);
  const following = async (/** @type {Map<string, any>} */ state) => {
    await trainer.load(writeTensors(state, metadata));
    const { loss } = await trainer.step(batch);
    return `${loss} ${await trainer.save()}`;
  };
  const expected = await following(tensors);
  const found = [];
  for (const [name, tensor] of tensors) {
    const data = tensor.data.slice();
    data.forEach((value, index) => (data[index] = /** @type {any} */ (typeof value === "bigint" ? value + 1n : 2 * value + 0.5)));
    if ((await following(new Map([...tensors, [name, { ...tensor, data }]]))) === expected) found.push(name);
  }
  await trainer.load(checkpoint);
  return found;
}
