/** The training that an exported folder describes: its state, and what can be done with it. */

import { batches, countOf, type Data } from "./data.js";
import { tensorsOf, type Batch } from "./feeds.js";
import { parseManifest, type GraphFile, type Manifest, type Schedule, type StateValue, type Value } from "./manifest.js";
import { withInitializers } from "./protobuf.js";
import { Graph, defaultOrt, type Ort } from "./runtime.js";
import { readTensors, writeTensors } from "./safetensors.js";
import { rateOf, type Rate } from "./schedules.js";
import { sourceOf, type Files, type Source } from "./source.js";
import { OnwardError, TYPES, bytesOf, sizeOf, type PlainTensor } from "./types.js";

const STATE_FORMAT = "onward.edge.state";

export interface LoadOptions {
  /** The package onnxruntime-web or onnxruntime-node; by default the one that fits. */
  readonly ort?: Ort;
  /** The execution provider: "wasm", "webgpu", "cpu". By default what the folder was exported for. */
  readonly ep?: string;
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
  readonly epochs?: number;
  readonly batchSize?: number;
  readonly shuffle?: boolean;
  readonly seed?: number;
  readonly learningRate?: number;
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
  private state = new Map<string, PlainTensor>();
  private count = 0;
  private seed: bigint | null;
  private readonly rate: Rate;
  private readonly graphs = new Map<string, Promise<Graph>>();
  private last: Promise<unknown> = Promise.resolve();
  private disposed = false;

  private constructor(
    readonly manifest: Manifest,
    private readonly source: Source,
    private readonly ort: Ort,
    private readonly options: object,
  ) {
    this.seed = manifest.seed === null ? null : BigInt(manifest.seed.initial);
    const { schedule, optimizer } = manifest;
    this.rate = schedule === null ? () => optimizer.learning_rate : rateOf(schedule);
  }

  static async load(where: string | URL | Files, options: LoadOptions = {}): Promise<Training> {
    const source = sourceOf(where);
    const manifest = parseManifest(await source("manifest.json"));
    const ort = options.ort ?? (await defaultOrt());
    const ep = options.ep ?? (manifest.target === "webgpu" ? "webgpu" : undefined);
    const training = new Training(manifest, source, ort, { ...(ep && { executionProviders: [ep] }), ...options.session });
    training.load(options.checkpoint ?? (await source(manifest.files.checkpoint.file)));
    return training;
  }

  /** Updates so far. */
  get stepCount(): number {
    return this.count;
  }

  /** The rate of the next step, by the schedule of the folder if it has one. */
  get learningRate(): number {
    return this.rate(this.count);
  }

  /** One update by a batch: the model's inputs and the targets of the loss, by name. */
  step(batch: Batch, { learningRate }: { readonly learningRate?: number } = {}): Promise<StepResult> {
    return this.alone(() => this.update(batch, learningRate ?? this.learningRate));
  }

  private async update(batch: Batch, learningRate: number): Promise<StepResult> {
    const { manifest } = this;
    if (!(learningRate >= 0 && learningRate < Infinity)) {
      throw new OnwardError(`the learning rate must be a finite number that is not negative, not ${learningRate}`);
    }
    const values = new Map([...this.state, ...tensorsOf(batch, [...manifest.inputs, ...manifest.targets])]);
    values.set(manifest.learning_rate.name, scalar(manifest.learning_rate, learningRate));
    values.set(manifest.step.name, scalar(manifest.step, this.count + 1));
    if (manifest.seed !== null && this.seed !== null) values.set(manifest.seed.name, scalar(manifest.seed, this.seed));
    const results = await (await this.graph("step")).run(values);
    const state = new Map(manifest.state.map(({ name, next }) => [name, results.get(next)!]));
    // All at once: a step has happened as a whole, or not.
    this.state = state;
    this.count += 1;
    return this.result(results);
  }

  /** Loss and outputs of a batch; nothing changes. */
  evaluate(batch: Batch): Promise<StepResult> {
    return this.alone(async () => {
      const given = tensorsOf(batch, [...this.manifest.inputs, ...this.manifest.targets]);
      return this.result(await (await this.graph("eval")).run(new Map([...this.state, ...given])));
    });
  }

  /** The outputs of the model. */
  predict(inputs: Batch): Promise<Readonly<Record<string, PlainTensor>>> {
    return this.alone(async () => {
      const given = tensorsOf(inputs, this.manifest.inputs);
      return Object.fromEntries(await (await this.graph("inference")).run(new Map([...this.state, ...given])));
    });
  }

  /** Train over data, epoch by epoch. */
  async fit(data: Data, options: FitOptions = {}): Promise<FitResult> {
    const { epochs = 1, batchSize = 32, shuffle = true, seed = 0, signal, onProgress } = options;
    if (!(Number.isInteger(batchSize) && batchSize > 0)) throw new OnwardError(`batchSize is a whole number above 0, not ${batchSize}`);
    const values = [...this.manifest.inputs, ...this.manifest.targets];
    const count = countOf(data, values, batchSize);
    const total = count === null ? null : count * epochs;
    const begin = this.count;
    const schedule = options.schedule === undefined ? null : rateOf(options.schedule);
    const losses: number[] = [];
    for (let epoch = 0; epoch < epochs; epoch++) {
      for await (const batch of batches(data, values, { batchSize, shuffle, seed }, epoch)) {
        if (signal?.aborted) return { losses, stopped: true };
        const learningRate = schedule !== null ? schedule(this.count - begin) : options.learningRate ?? this.learningRate;
        const { loss } = await this.step(batch, { learningRate });
        if (!Number.isFinite(loss)) {
          throw new OnwardError(`the loss of step ${this.count} is ${loss}: lower the learning rate (${learningRate}), or look at the data`);
        }
        losses.push(loss);
        onProgress?.({ epoch, step: this.count, done: losses.length, total, loss, learningRate });
      }
    }
    if (losses.length === 0) throw new OnwardError("there was no data to train with; a generator can be used once only");
    return { losses, stopped: false };
  }

  /** The bytes of an ordinary .onnx file: the model with its weights as they are now. */
  exportModel(): Promise<Uint8Array> {
    return this.alone(async () => {
      const { files, inference, state } = this.manifest;
      const model = await this.source(files.inference.file);
      const weights = state.filter(({ role, name }) => role !== "slot" && inference.inputs.includes(name));
      const own = weights.map(({ name }) => [name, this.state.get(name)!] as const);
      return withInitializers(model.subarray(0, files.inference.parts.structure), [...own, ...(await this.frozen(files.inference))]);
    });
  }

  /** The state as a safetensors file, from which every language continues. */
  save(): Promise<Uint8Array> {
    return this.alone(async () => {
      const metadata: Record<string, string> = { format: STATE_FORMAT, step: String(this.count) };
      if (this.seed !== null) metadata.seed = String(this.seed);
      return writeTensors(this.state, metadata);
    });
  }

  /** Continue from what `save` gave, here or in another language. */
  load(checkpoint: Uint8Array): void {
    const { tensors, metadata } = readTensors(checkpoint);
    if (metadata.format !== STATE_FORMAT) throw new OnwardError("this is no checkpoint of an exported folder");
    const count = Number(metadata.step);
    if (!Number.isInteger(count) || count < 0) throw new OnwardError(`the checkpoint is damaged: its step is ${metadata.step}`);
    this.state = new Map(this.manifest.state.map((entry) => [entry.name, beginning(entry, tensors.get(entry.name), count)]));
    this.count = count;
    if (this.seed !== null && metadata.seed !== undefined) this.seed = BigInt(metadata.seed);
  }

  /** All parameters, one after the other in the order of the manifest. */
  getParameters(): Float32Array {
    const parameters = this.parameters();
    const flat = new Float32Array(parameters.reduce((sum, { shape }) => sum + sizeOf(shape), 0));
    let position = 0;
    for (const { name, shape } of parameters) {
      flat.set(this.state.get(name)!.data as Float32Array, position);
      position += sizeOf(shape);
    }
    return flat;
  }

  /** The inverse of `getParameters`. */
  setParameters(flat: Float32Array): void {
    const parameters = this.parameters();
    const size = parameters.reduce((sum, { shape }) => sum + sizeOf(shape), 0);
    if (flat.length !== size) throw new OnwardError(`the model has ${size} numbers, not ${flat.length}`);
    let position = 0;
    for (const { name, type, shape } of parameters) {
      const data = flat.slice(position, (position += sizeOf(shape)));
      this.state.set(name, { type, dims: shape, data });
    }
  }

  /** Free what the sessions hold; nothing else can be done afterwards. */
  async dispose(): Promise<void> {
    await this.alone(async () => {
      this.disposed = true;
      for (const graph of this.graphs.values()) await (await graph).release();
      this.graphs.clear();
      this.state.clear();
    });
  }

  private parameters(): StateValue[] {
    const found = this.manifest.state.filter(({ role }) => role === "parameter");
    const other = found.find(({ type }) => type !== "float32");
    if (other !== undefined) throw new OnwardError(`${other.name} is ${other.type}: only float32 parameters make one buffer`);
    return found;
  }

  private graph(what: "step" | "eval" | "inference"): Promise<Graph> {
    let graph = this.graphs.get(what);
    if (graph === undefined) {
      graph = this.open(this.manifest.files[what]);
      this.graphs.set(what, graph);
      graph.catch(() => this.graphs.delete(what)); // so that it can be tried again
    }
    return graph;
  }

  private async open(file: GraphFile): Promise<Graph> {
    const content = await this.source(file.file);
    if (content.byteLength !== file.bytes) {
      throw new OnwardError(`${file.file} has ${content.byteLength} bytes, not the ${file.bytes} that manifest.json says: export the folder again`);
    }
    const { structure, inputs } = file.parts;
    const model = file.frozen.length === 0 ? content : withInitializers(content.subarray(0, structure + inputs), await this.frozen(file));
    return Graph.open(this.ort, model, this.options, file.file);
  }

  private async frozen(file: GraphFile): Promise<[string, PlainTensor][]> {
    const shared = this.manifest.files.frozen;
    if (shared === null || file.frozen.length === 0) return [];
    const content = await this.source(shared.file);
    return shared.tensors.filter(({ name }) => file.frozen.includes(name)).map(({ name, type, shape, offset, bytes }) => {
      const { array } = TYPES[type];
      const data = new array(content.slice(offset, offset + bytes).buffer as ArrayBuffer, 0, bytes / array.BYTES_PER_ELEMENT);
      return [name, { type, dims: shape, data }];
    });
  }

  private result(results: ReadonlyMap<string, PlainTensor>): StepResult {
    const { loss, outputs } = this.manifest;
    return {
      loss: Number(results.get(loss.name)!.data[0]),
      outputs: Object.fromEntries(outputs.map(({ name }) => [name, results.get(name)!])),
    };
  }

  /** Run after all that was asked for before: sessions run one thing at a time, and a step needs the state of the last. */
  private alone<T>(work: () => Promise<T>): Promise<T> {
    const turn = this.last.then(() => {
      if (this.disposed) throw new OnwardError("this training was disposed of");
      return work();
    });
    this.last = turn.catch(() => undefined);
    return turn;
  }
}

function scalar({ type }: Value, value: number | bigint): PlainTensor {
  const data = new TYPES[type].array(1);
  data[0] = (type === "int64" ? BigInt(value) : Number(value)) as never;
  return { type, dims: [], data };
}

function beginning({ name, type, shape, initial }: StateValue, saved: PlainTensor | undefined, count: number): PlainTensor {
  if (saved === undefined) {
    if (initial === undefined || count > 0) throw new OnwardError(`the checkpoint has no ${name}: it belongs to another model or optimizer`);
    return { type, dims: shape, data: (new TYPES[type].array(sizeOf(shape)) as Float32Array).fill(initial) };
  }
  if (saved.type !== type || String(saved.dims) !== String(shape)) {
    throw new OnwardError(`${name} in the checkpoint is ${saved.type} [${saved.dims}], but the folder has ${type} [${shape}]`);
  }
  return { type, dims: saved.dims, data: new (saved.data.constructor as any)(bytesOf(saved.data).slice().buffer) };
}
