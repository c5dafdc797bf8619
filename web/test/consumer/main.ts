/** A page as users write them: tests drive it through `window.page`. */

import { OnwardError, Trainer, readTensors, writeTensors, type Batch, type FitResult, type PlainTensor, type Progress, type TrainerOptions } from "onward-web";
import { CheckpointStore } from "onward-web/indexeddb";
import { ignoredStates } from "./guard.js";

type Run = { losses: number[]; stepCount: number };

let trainer: Trainer;
let batch: Batch;

async function fetched(address: string): Promise<Uint8Array> {
  return new Uint8Array(await (await fetch(address)).arrayBuffer());
}

function repeated(rows: Batch, times: number): Batch {
  return Object.fromEntries(Object.entries(rows as Record<string, PlainTensor>).map(([name, { type, dims, data }]) => {
    const copies = new (data.constructor as new (length: number) => PlainTensor["data"])(data.length * times);
    for (let i = 0; i < times; i++) copies.set(data as never, i * data.length);
    return [name, { type, dims: [dims[0]! * times, ...dims.slice(1)], data: copies }];
  }));
}

const page = {
  async open(folder: string, options: TrainerOptions): Promise<number> {
    batch = Object.fromEntries(readTensors(await fetched(`${folder}/batch`)).tensors);
    trainer = await Trainer.load(`${folder}/folder`, options);
    return trainer.stepCount;
  },

  async steps(count: number): Promise<Run> {
    const losses: number[] = [];
    for (let i = 0; i < count; i++) losses.push((await trainer.step(batch)).loss);
    return { losses, stepCount: trainer.stepCount };
  },

  async guard(): Promise<string[]> {
    return ignoredStates(trainer, batch, { readTensors, writeTensors });
  },

  /** Train with a batch so many times as large while the page counts its turns: what blocks it makes a long pause. */
  async responsive(epochs: number, times: number): Promise<{ pause: number; milliseconds: number; progress: number }> {
    const large = repeated(batch, times);
    await trainer.evaluate(large); // so that memory is there
    let [last, pause, progress, running] = [performance.now(), 0, 0, true];
    const tick = () => {
      const now = performance.now();
      [pause, last] = [Math.max(pause, now - last), now];
      if (running) setTimeout(tick, 4);
    };
    tick();
    const start = performance.now();
    await trainer.fit([large], { epochs, onProgress: () => void progress++ });
    running = false;
    return { pause, milliseconds: performance.now() - start, progress };
  },

  async stopped(after: number): Promise<{ result: FitResult; last: number; stepCount: number }> {
    const control = new AbortController();
    let last = 0;
    const onProgress = ({ done }: Progress) => {
      last = done;
      if (done === after) control.abort();
    };
    const result = await trainer.fit([batch], { epochs: 100_000, signal: control.signal, onProgress });
    return { result, last, stepCount: trainer.stepCount };
  },

  async errorOf(feeds: Record<string, number[]>): Promise<{ message: string; known: boolean }> {
    try {
      await trainer.step(feeds);
    } catch (error) {
      return { message: (error as Error).message, known: error instanceof OnwardError };
    }
    return { message: "", known: false };
  },

  async failure(work: "function" | "missing" | "disposed"): Promise<string> {
    try {
      if (work === "function") await trainer.fit(() => [batch]);
      if (work === "missing") await Trainer.load("/nowhere", { worker: true });
      if (work === "disposed") await trainer.step(batch);
    } catch (error) {
      return (error as Error).message;
    }
    return "";
  },

  async keep(name: string): Promise<number> {
    const store = await CheckpointStore.open("tests");
    const checkpoint = await trainer.save();
    await store.put(name, checkpoint);
    store.close();
    return checkpoint.byteLength;
  },

  async resume(name: string): Promise<number | null> {
    const store = await CheckpointStore.open("tests");
    const checkpoint = await store.get(name);
    store.close();
    if (checkpoint === null) return null;
    await trainer.load(checkpoint);
    return trainer.stepCount;
  },

  async forget(name: string): Promise<boolean> {
    const store = await CheckpointStore.open("tests");
    await store.delete(name);
    const left = await store.get(name);
    store.close();
    return left === null;
  },

  async model(): Promise<number[]> {
    return Array.from(await trainer.exportModel());
  },

  async checkpoint(): Promise<number[]> {
    return Array.from(await trainer.save());
  },

  async dispose(): Promise<void> {
    await trainer.dispose();
    await trainer.dispose();
  },
};

declare global {
  interface Window {
    page: typeof page;
  }
}
window.page = page;
