/** The training that an exported folder describes: its state, and what can be done with it. */

import { batches, countOf, type Data } from "./data.js";
import { labelledTensorsOf, tensorsOf, type Batch } from "./feeds.js";
import { parseManifest, type GraphFile, type Manifest, type Schedule, type Value } from "./manifest.js";
import { withInitializers } from "./protobuf.js";
import { Queue } from "./queue.js";
import { Graph, ortOf, type Environment, type Ort } from "./runtime.js";
import { rateOf, type Rate } from "./schedules.js";
import { sourceOf, verified, type Files, type Source } from "./source.js";
import { flattened, read, scalar, tensorAt, unflattened, written, type State } from "./state.js";
import { compare } from "./trial.js";
import { OnwardError, fromFloat16, type PlainTensor } from "./types.js";

export interface LoadOptions {
  /**
   * The package onnxruntime-web or onnxruntime-node, or the address of its module, which a worker on a page without a
   * bundler needs; by default the installed one that fits.
   */
  readonly ort?: Ort | string | URL;
  /** Settings of onnxruntime-web, such as `{wasm: {numThreads: 1, wasmPaths: "/ort/"}}`. */
  readonly env?: Environment;
  /** The execution provider: "wasm", "webgpu", "cpu". By default what the folder was exported for. */
  readonly ep?: string;
  /** On WebGPU, make the first step on the processor too, and refuse to train where they differ: true. */
  readonly verify?: boolean;
  /** More options of the sessions. */
  readonly session?: object;
  /** What `save` gave; without it training begins anew. */
  readonly checkpoint?: Uint8Array;
}

export interface StepResult {
  readonly loss: number;
  readonly outputs: Readonly<Record<string, PlainTensor>>;
}

export interface Progress {
  readonly epoch: number;
  /** Updates so far, over all calls. */
  readonly step: number;
  /** Steps of this call: done, and all of them where that is known. */
  readonly done: number;
  readonly total: number | null;
  readonly loss: number;
  readonly learningRate: number;
}

export interface FitOptions {
  /** How often to go over the data: 1. */
  readonly epochs?: number;
  /** Rows in a batch, where rows are given: 32. */
  readonly batchSize?: number;
  /** Whether rows come in another order in each epoch: the one that Python's Trainer has for the same seed. */
  readonly shuffle?: boolean;
  readonly seed?: number;
  /** The number of the first epoch, for whoever continues; with the seed it decides the order. */
  readonly firstEpoch?: number;
  readonly learningRate?: number;
  /** A rate for each step, by the number of updates before it, over all calls. */
  readonly schedule?: Schedule | Rate;
  /** Stops the training after the step that runs; what it has learned stays. */
  readonly signal?: AbortSignal;
  readonly onProgress?: (progress: Progress) => void;
}

export interface FitResult {
  readonly losses: readonly number[];
  readonly stopped: boolean;
}

export class Training {
  private readonly rate: Rate;
  private readonly graphs = new Map<string, Promise<Graph>>();
  private readonly queue = new Queue();

  private constructor(
    readonly manifest: Manifest,
    private readonly source: Source,
    private readonly ort: Ort,
    private readonly options: object,
    private state: State,
    private doubtful: boolean,
  ) {
    const { schedule, optimizer } = manifest;
    this.rate = schedule === null ? () => optimizer.learning_rate : rateOf(schedule);
  }

  static async load(where: string | URL | Files, options: LoadOptions = {}): Promise<Training> {
    const source = sourceOf(where);
    const manifest = parseManifest(await source("manifest.json"));
    const ep = options.ep ?? (manifest.target === "webgpu" ? "webgpu" : undefined);
    const state = read(options.checkpoint ?? (await verified(source, manifest.files.checkpoint)), manifest);
    const ort = await ortOf(options.ort, ep, options.env);
    const settings = { ...(ep && { executionProviders: [ep] }), ...options.session };
    return new Training(manifest, source, ort, settings, state, ep === "webgpu" && (options.verify ?? true));
  }

  /** Updates so far. */
  get stepCount(): number {
    return this.state.step;
  }

  /** The rate of the next step, by the schedule of the folder if it has one. */
  get learningRate(): number {
    return this.rate(this.state.step);
  }

  /** One update by a batch: the model's inputs and the targets of the loss, by name. */
  step(batch: Batch, { learningRate }: { readonly learningRate?: number } = {}): Promise<StepResult> {
    return this.queue.run(() => this.update(batch, learningRate ?? this.learningRate));
  }

  private async update(batch: Batch, learningRate: number): Promise<StepResult> {
    const { manifest, state } = this;
    if (!(learningRate >= 0 && learningRate < Infinity)) {
      throw new OnwardError(`the learning rate must be a finite number that is not negative, not ${learningRate}`);
    }
    const values = new Map([...state.tensors, ...labelledTensorsOf(batch, manifest.inputs, manifest.targets)]);
    values.set(manifest.learning_rate.name, scalar(manifest.learning_rate, learningRate));
    values.set(manifest.step.name, scalar(manifest.step, state.step + 1));
    if (manifest.seed !== null && state.seed !== null) values.set(manifest.seed.name, scalar(manifest.seed, state.seed));
    const results = await (await this.graph("step")).run(values);
    if (this.doubtful) await this.tryAlso(values, results);
    const result = this.result(results);
    if (!Number.isFinite(result.loss)) {
      throw new OnwardError(
        `the loss of step ${state.step + 1} is ${result.loss}, and nothing was changed by it: lower the learning rate (${learningRate}), or look at the data`);
    }
    // All at once: a step has happened as a whole, or not.
    this.state = { ...state, tensors: new Map(manifest.state.map(({ name, next }) => [name, results.get(next)!])), step: state.step + 1 };
    return result;
  }

  /** Make the same step on the processor, and compare. */
  private async tryAlso(values: ReadonlyMap<string, PlainTensor>, results: ReadonlyMap<string, PlainTensor>): Promise<void> {
    const graph = await this.open("step", { ...this.options, executionProviders: ["wasm"] });
    try {
      compare(this.manifest, this.state.tensors, results, await graph.run(values));
    } finally {
      await graph.release();
    }
    this.doubtful = false;
  }

  /** Loss and outputs of a batch; nothing changes. */
  evaluate(batch: Batch): Promise<StepResult> {
    return this.queue.run(async () => {
      const given = labelledTensorsOf(batch, this.manifest.inputs, this.manifest.targets);
      return this.result(await (await this.graph("eval")).run(new Map([...this.state.tensors, ...given])));
    });
  }

  /** The outputs of the model. */
  predict(inputs: Batch): Promise<Readonly<Record<string, PlainTensor>>> {
    return this.queue.run(async () => {
      const given = tensorsOf(inputs, this.manifest.inputs);
      return Object.fromEntries(await (await this.graph("inference")).run(new Map([...this.state.tensors, ...given])));
    });
  }

  /** Train over data, epoch by epoch. */
  async fit(data: Data, options: FitOptions = {}): Promise<FitResult> {
    const { epochs = 1, batchSize = 32, shuffle = true, seed = 0, firstEpoch = 0, signal, onProgress } = options;
    for (const [name, value, least] of [["epochs", epochs, 1], ["batchSize", batchSize, 1], ["firstEpoch", firstEpoch, 0]] as const) {
      if (!Number.isSafeInteger(value) || value < least) throw new OnwardError(`${name} is a whole number from ${least} on, not ${value}`);
    }
    if (!Number.isSafeInteger(seed)) throw new OnwardError(`seed is a whole number, not ${seed}`);
    const rate = this.rateFor(options);
    const values = [...this.manifest.inputs, ...this.manifest.targets];
    const count = countOf(data, values, batchSize);
    const total = count === null ? null : count * epochs;
    const losses: number[] = [];
    for (let epoch = firstEpoch; epoch < firstEpoch + epochs; epoch++) {
      const before = losses.length;
      for await (const batch of batches(data, values, { batchSize, shuffle, seed }, epoch)) {
        if (signal?.aborted) return { losses, stopped: true };
        const learningRate = rate(this.stepCount);
        const { loss } = await this.step(batch, { learningRate });
        losses.push(loss);
        onProgress?.({ epoch, step: this.stepCount, done: losses.length, total, loss, learningRate });
      }
      if (losses.length === before) {
        throw new OnwardError(`epoch ${epoch} had no data to train with; a generator can be used once only: give a function that makes one`);
      }
    }
    return { losses, stopped: false };
  }

  private rateFor({ schedule, learningRate }: FitOptions): Rate {
    if (schedule !== undefined && learningRate !== undefined) throw new OnwardError("give a learningRate or a schedule, not both");
    if (schedule !== undefined) return rateOf(schedule);
    return learningRate === undefined ? this.rate : () => learningRate;
  }

  /** The bytes of an ordinary .onnx file: the model with its weights as they are now. */
  exportModel(): Promise<Uint8Array> {
    return this.queue.run(async () => {
      const { files, inference, state } = this.manifest;
      const model = await verified(this.source, files.inference);
      const weights = state.filter(({ role, name }) => role !== "slot" && inference.inputs.includes(name));
      const own = weights.map(({ name }) => [name, this.state.tensors.get(name)!] as const);
      return withInitializers(model.subarray(0, files.inference.parts.structure), [...own, ...(await this.frozen(files.inference))]);
    });
  }

  /** The state as a safetensors file, from which every language continues. */
  save(): Promise<Uint8Array> {
    return this.queue.run(async () => written(this.state));
  }

  /** Continue from what `save` gave, here or in another language. */
  load(checkpoint: Uint8Array): Promise<void> {
    return this.queue.run(async () => {
      this.state = read(checkpoint, this.manifest);
    });
  }

  /** All parameters, one after the other in the order of the manifest. */
  getParameters(): Promise<Float32Array> {
    return this.queue.run(async () => flattened(this.parameters(), this.state.tensors));
  }

  /** The inverse of `getParameters`. */
  setParameters(flat: Float32Array): Promise<void> {
    return this.queue.run(async () => {
      this.state = { ...this.state, tensors: new Map([...this.state.tensors, ...unflattened(this.parameters(), flat)]) };
    });
  }

  /** Free what the sessions hold; nothing else can be done afterwards. */
  async dispose(): Promise<void> {
    await this.queue.close(async () => {
      for (const graph of this.graphs.values()) await (await graph).release();
      this.graphs.clear();
    });
  }

  private parameters(): Value[] {
    return this.manifest.state.filter(({ role }) => role === "parameter");
  }

  private graph(what: "step" | "eval" | "inference"): Promise<Graph> {
    let graph = this.graphs.get(what);
    if (graph === undefined) {
      graph = this.open(what);
      this.graphs.set(what, graph);
      graph.catch(() => this.graphs.delete(what)); // so that it can be tried again
    }
    return graph;
  }

  private async open(what: "step" | "eval" | "inference", options = this.options): Promise<Graph> {
    const { files, evaluation, inference, state } = this.manifest;
    const file = files[what];
    const content = await verified(this.source, file);
    if (content.byteLength !== file.bytes) {
      throw new OnwardError(`${file.file} has ${content.byteLength} bytes, not the ${file.bytes} that manifest.json says: export the folder again`);
    }
    const { structure, inputs } = file.parts;
    const model = file.frozen.length === 0 ? content : withInitializers(content.subarray(0, structure + inputs), await this.frozen(file));
    const names = state.map(({ name }) => name);
    const fed = what === "step" ? names : names.filter((name) => (what === "eval" ? evaluation : inference).inputs.includes(name));
    return Graph.open(this.ort, model, options, file.file, fed);
  }

  private async frozen(file: GraphFile): Promise<[string, PlainTensor][]> {
    const shared = this.manifest.files.frozen;
    if (shared === null || file.frozen.length === 0) return [];
    const content = await verified(this.source, shared);
    return shared.tensors.filter(({ name }) => file.frozen.includes(name))
      .map(({ name, shape, ...place }) => [name, tensorAt(content, { ...place, dims: shape })]);
  }

  private result(results: ReadonlyMap<string, PlainTensor>): StepResult {
    const { loss, outputs } = this.manifest;
    const { type, data } = results.get(loss.name)!;
    return {
      loss: type === "float16" ? fromFloat16(Number(data[0])) : Number(data[0]),
      outputs: Object.fromEntries(outputs.map(({ name }) => [name, results.get(name)!])),
    };
  }
}
