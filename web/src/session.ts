/** `TrainingSession`: what onnxruntime-web's training API had, over files of `generate_artifacts(..., plain_tensors=True)`. */

import { parseArtifacts, type ArtifactsManifest, type Border, type ModelFile, type RoleValue } from "./artifacts.js";
import { labelledTensorsOf, type Batch } from "./feeds.js";
import type { Value } from "./manifest.js";
import { Queue } from "./queue.js";
import { Graph, ortOf, type Ort, type OrtTensor } from "./runtime.js";
import { Checkpoint } from "./checkpoint.js";
import { contentOf, verify } from "./source.js";
import { flattened, scalar, unflattened } from "./state.js";
import { OnwardError, bytesOf, type PlainTensor } from "./types.js";

/** An address, or in Node a path; or the bytes themselves. */
export type URIorBuffer = string | Uint8Array;

export interface TrainingSessionCreateOptions {
  readonly checkpointState: URIorBuffer;
  readonly trainModel: URIorBuffer;
  readonly optimizerModel?: URIorBuffer;
  readonly evalModel?: URIorBuffer;
  /** manifest.json; where `trainModel` is an address, by default what is beside it. */
  readonly manifest?: URIorBuffer;
  /** The package onnxruntime-web or onnxruntime-node; by default the one that fits. */
  readonly ort?: Ort;
}

/** The outputs that are wanted: their names, or tensors that take them in. */
export type Fetches = readonly string[] | Readonly<Record<string, OrtTensor | null>>;

/** Tensors of onnxruntime, by name. */
export type Values = Readonly<Record<string, OrtTensor>>;

interface Graphs {
  readonly training: Graph;
  readonly evaluation: Graph | null;
  readonly optimizer: Graph | null;
}

export class TrainingSession {
  /** The rate of the next optimizer step. */
  learningRate: number;

  private readonly queue = new Queue();
  private gradients = new Map<string, PlainTensor>();
  private resets = true;

  private constructor(
    private readonly manifest: ArtifactsManifest,
    private readonly ort: Ort,
    private readonly graphs: Graphs,
    private checkpoint: Checkpoint,
  ) {
    this.learningRate = checkpoint.learningRate ?? manifest.optimizer?.learning_rate ?? 0;
  }

  /** Load models and checkpoint; the evaluation and the optimizer model may be left out. */
  static async create(trainingOptions: TrainingSessionCreateOptions, sessionOptions: object = {}): Promise<TrainingSession> {
    const { checkpointState, trainModel, optimizerModel, evalModel } = trainingOptions;
    const manifest = parseArtifacts(await bytes(trainingOptions.manifest ?? beside(trainModel)));
    const { files, training, evaluation, optimizer } = manifest;
    const [first] = (sessionOptions as { executionProviders?: readonly (string | { name: string })[] }).executionProviders ?? [];
    const ort = await ortOf(trainingOptions.ort, typeof first === "object" ? first.name : first);
    const open = async (model: URIorBuffer | undefined, file: ModelFile | null, border: Border | null) =>
      model === undefined ? null : graph(ort, await bytes(model), file, border, sessionOptions);
    const checkpoint = Checkpoint.read(await bytes(checkpointState), manifest);
    const graphs = {
      training: (await open(trainModel, files.training_model, training))!,
      evaluation: await open(evalModel, files.eval_model, evaluation),
      optimizer: await open(optimizerModel, files.optimizer_model, optimizer),
    };
    return new TrainingSession(manifest, ort, graphs, checkpoint);
  }

  /** What the caller feeds to a training step. */
  get trainingInputNames(): readonly string[] {
    return given(this.manifest.training).map(({ name }) => name);
  }

  get trainingOutputNames(): readonly string[] {
    return shown(this.manifest.training).map(({ name }) => name);
  }

  /** Empty without an evaluation model. */
  get evalInputNames(): readonly string[] {
    return this.graphs.evaluation === null ? [] : given(this.manifest.evaluation).map(({ name }) => name);
  }

  get evalOutputNames(): readonly string[] {
    return this.graphs.evaluation === null ? [] : shown(this.manifest.evaluation).map(({ name }) => name);
  }

  /** Let the gradients of the next training step replace those that there are, instead of being added to them. */
  lazyResetGrad(): Promise<void> {
    return this.queue.run(async () => {
      this.resets = true;
    });
  }

  /** Loss and gradients of a batch; gradients add up until `lazyResetGrad`. */
  runTrainStep(feeds: Batch, options?: object): Promise<Values>;
  runTrainStep(feeds: Batch, fetches: Fetches, options?: object): Promise<Values>;
  runTrainStep(feeds: Batch, fetches?: Fetches | object, options?: object): Promise<Values> {
    return this.queue.run(async () => {
      const { training } = this.manifest;
      const [wanted, settings] = wishes(training, fetches, options);
      const found = await this.graphs.training.run(this.inputs(training, feeds), settings);
      const after = new Map(this.checkpoint.tensors);
      const gradients = new Map<string, PlainTensor>();
      for (const { name, role, of } of training.outputs) {
        if (role === "gradient") gradients.set(of!, found.get(name)!);
        if (role === "buffer") after.set(of!, found.get(name)!);
      }
      // All at once: a step has happened as a whole, or not.
      this.gradients = gradients;
      this.resets = false;
      this.checkpoint = this.checkpoint.with({ tensors: after, passes: this.checkpoint.passes + 1n });
      return this.values(found, wanted);
    });
  }

  /** Change the parameters by their gradients, at the rate `learningRate`. */
  runOptimizerStep(options: object = {}): Promise<void> {
    return this.queue.run(async () => {
      const { optimizer } = this.manifest;
      if (optimizer === null || this.graphs.optimizer === null) throw new OnwardError("there is no optimizer model: give `optimizerModel`");
      if (this.gradients.size === 0) throw new OnwardError("there are no gradients yet: run a training step first");
      if (!(this.learningRate >= 0 && this.learningRate < Infinity)) {
        throw new OnwardError(`the learning rate must be a finite number that is not negative, not ${this.learningRate}`);
      }
      const found = await this.graphs.optimizer.run(this.inputs(optimizer, null), options);
      const [tensors, slots] = [new Map(this.checkpoint.tensors), new Map(this.checkpoint.slots)];
      for (const { name, role, of, slot } of optimizer.outputs) {
        if (role === "parameter") tensors.set(of!, found.get(name)!);
        if (role === "slot") slots.set(`${slot}/${of}`, found.get(name)!);
      }
      this.checkpoint = this.checkpoint.with({ tensors, slots, step: this.checkpoint.step + 1 });
    });
  }

  /** Loss and outputs of a batch; nothing changes. */
  runEvalStep(feeds: Batch, options?: object): Promise<Values>;
  runEvalStep(feeds: Batch, fetches: Fetches, options?: object): Promise<Values>;
  runEvalStep(feeds: Batch, fetches?: Fetches | object, options?: object): Promise<Values> {
    return this.queue.run(async () => {
      const { evaluation } = this.manifest;
      if (this.graphs.evaluation === null) throw new OnwardError("there is no evaluation model: give `evalModel`");
      const [wanted, settings] = wishes(evaluation, fetches, options);
      return this.values(await this.graphs.evaluation.run(this.inputs(evaluation, feeds), settings), wanted);
    });
  }

  /** The number of elements of all parameters. */
  async getParametersSize(trainableOnly = true): Promise<number> {
    return flattened(this.parameters(trainableOnly), this.checkpoint.tensors).length;
  }

  /** All parameters, one after the other: a float32 tensor of one axis. */
  getContiguousParameters(trainableOnly = true): Promise<OrtTensor> {
    return this.queue.run(async () => {
      const flat = flattened(this.parameters(trainableOnly), this.checkpoint.tensors);
      return new this.ort.Tensor("float32", flat, [flat.length]);
    });
  }

  /** The inverse of `getContiguousParameters`: the bytes of its numbers. */
  loadParametersBuffer(array: Uint8Array, trainableOnly = true): Promise<void> {
    return this.queue.run(async () => {
      if (!(array instanceof Uint8Array) || array.byteLength % 4 !== 0) throw new OnwardError("the parameters are the bytes of float32 numbers, as a Uint8Array");
      const parameters = this.parameters(trainableOnly);
      const loaded = unflattened(parameters, new Float32Array(bytesOf(array).slice().buffer as ArrayBuffer));
      const fed = new Set(this.manifest.training.inputs.map(({ name }) => name));
      for (const [name, { data }] of loaded) {
        const before = this.checkpoint.tensors.get(name)!.data as Float32Array;
        if (!fed.has(name) && data.some((value, index) => value !== before[index])) {
          throw new OnwardError(`${name} is a part of the models, where other values would change nothing: leave it as it is`);
        }
      }
      this.checkpoint = this.checkpoint.with({ tensors: new Map([...this.checkpoint.tensors, ...loaded]) });
    });
  }

  /** Free what the sessions hold; nothing else can be done afterwards. */
  release(): Promise<void> {
    return this.queue.close(async () => {
      for (const graph of Object.values(this.graphs) as (Graph | null)[]) await graph?.release();
    });
  }

  private parameters(trainableOnly: boolean): Value[] {
    return this.manifest.parameters.filter(({ trainable }) => trainable || !trainableOnly);
  }

  /** All that a graph takes: what the caller gives, and what is kept here. */
  private inputs({ inputs }: Border, feeds: Batch | null): Map<string, PlainTensor> {
    const { tensors, slots, step, seed, passes } = this.checkpoint;
    const own = (role: string) => inputs.filter((value) => value.role === role);
    const values = feeds === null ? new Map<string, PlainTensor>() : labelledTensorsOf(feeds, own("input"), own("target"));
    const numbers: Record<string, number | bigint> = { reset: Number(this.resets), seed, pass: passes, learning_rate: this.learningRate, step: step + 1 };
    for (const value of inputs) {
      const { name, role, of, slot } = value;
      if (role in numbers) values.set(name, scalar(value, numbers[role]!));
      else if (role === "slot") values.set(name, slots.get(`${slot}/${of}`)!);
      else if (role === "gradient") values.set(name, this.gradients.get(of!) ?? nothing(value, tensors.get(of!)!));
      else if (role === "parameter" || role === "buffer") values.set(name, tensors.get(name)!);
    }
    return values;
  }

  private values(found: ReadonlyMap<string, PlainTensor>, wanted: Readonly<Record<string, OrtTensor | null>>): Values {
    return Object.fromEntries(Object.entries(wanted).map(([name, place]) => {
      const { type, dims, data } = found.get(name)!;
      if (place === null) return [name, new this.ort.Tensor(type, data, dims)];
      if (place.type !== type || String(place.dims) !== String(dims)) {
        throw new OnwardError(`the output ${name} is ${type} [${dims}], which a tensor of ${place.type} [${place.dims}] cannot take in`);
      }
      (place.data as Float32Array).set(data as Float32Array);
      return [name, place];
    }));
  }
}

const given = ({ inputs }: Border): RoleValue[] => inputs.filter(({ role }) => role === "input" || role === "target");

const shown = ({ outputs }: Border): RoleValue[] => outputs.filter(({ role }) => role === "loss" || role === "output");

/** Gradients before there are any. */
function nothing({ type }: RoleValue, { dims, data }: PlainTensor): PlainTensor {
  return { type, dims, data: new (data.constructor as new (length: number) => PlainTensor["data"])(data.length) };
}

/** Which outputs are wanted, and the options of the run: the second argument may be either. */
function wishes(border: Border, second: Fetches | object | undefined, third: object | undefined): [Record<string, OrtTensor | null>, object] {
  const names = shown(border).map(({ name }) => name);
  const all = () => Object.fromEntries(names.map((name) => [name, null]));
  if (second === undefined || second === null) return [all(), third ?? {}];
  const chosen: Record<string, OrtTensor | null> = Array.isArray(second) ? Object.fromEntries(second.map((name) => [name, null])) : (second as Record<string, OrtTensor | null>);
  const known = Object.keys(chosen).filter((name) => names.includes(name));
  if (!Array.isArray(second) && known.length === 0) return [all(), second];
  const unknown = Object.keys(chosen).find((name) => !names.includes(name));
  if (unknown !== undefined) throw new OnwardError(`there is no output ${unknown}; there are ${names.join(", ")}`);
  if (known.length === 0) throw new OnwardError("`fetches` cannot be empty: leave it out for all outputs");
  return [chosen, third ?? {}];
}

async function graph(ort: Ort, model: Uint8Array, file: ModelFile | null, border: Border | null, options: object): Promise<Graph> {
  if (file === null || border === null) throw new OnwardError("an optimizer model was given, but manifest.json knows of none");
  if (file.external.length > 0) throw new OnwardError(`${file.file} has its weights in ${file.external.join(", ")}, which cannot be read here`);
  await verify(model, file);
  return Graph.open(ort, model, options, file.file, border.inputs.map(({ name }) => name));
}

const bytes = async (given: URIorBuffer): Promise<Uint8Array> => (typeof given === "string" ? contentOf(given) : given);

/** The address of manifest.json, which has the prefix that the training model has. */
function beside(model: URIorBuffer): string {
  const found = typeof model === "string" ? /^(.*?)training_model\.onnx([?#].*)?$/.exec(model) : null;
  if (found === null) throw new OnwardError("give `manifest`, the manifest.json that generate_artifacts(..., plain_tensors=True) wrote");
  return `${found[1]}manifest.json${found[2] ?? ""}`;
}
