/** The part of ONNX Runtime that training needs, in whichever package it is. */

import { OnwardError, isNode, type Elements, type ElementType, type PlainTensor } from "./types.js";

/** What both onnxruntime-web and onnxruntime-node export. */
export interface Ort {
  readonly InferenceSession: {
    create(model: Uint8Array, options?: any): Promise<OrtSession>;
  };
  readonly Tensor: new (type: any, data: any, dims?: readonly number[]) => OrtTensor;
  readonly env?: object;
}

export interface OrtTensor {
  readonly type: string;
  readonly dims: readonly number[];
  readonly data: unknown;
  dispose?(): void;
}

export interface OrtSession {
  readonly inputNames: readonly string[];
  readonly outputNames: readonly string[];
  run(feeds: Record<string, any>, options?: any): Promise<Record<string, any>>;
  release?(): Promise<void>;
}

/** Options that make other packages of it, or of the files of wasm: see onnxruntime-web's `env`. */
export type Environment = Readonly<Record<string, unknown>>;

/** The package that was given, or whose address was given, or the one that fits where this runs. */
export async function ortOf(given: Ort | string | URL | undefined, ep: string | undefined, env: Environment = {}): Promise<Ort> {
  const ort = typeof given === "string" || given instanceof URL ? await loaded(String(given)) : given ?? (await defaultOrt(ep));
  if (typeof ort?.InferenceSession?.create !== "function") throw new OnwardError("{ort} is neither onnxruntime-web nor onnxruntime-node");
  merge((ort.env ?? {}) as Record<string, unknown>, env);
  return ort;
}

async function defaultOrt(ep: string | undefined): Promise<Ort> {
  const name = isNode ? "onnxruntime-node" : "onnxruntime-web";
  try {
    if (isNode) return await loaded(name);
    // The part for processors has half the size of the whole package.
    return (ep === "webgpu" ? await import("onnxruntime-web/webgpu") : await import("onnxruntime-web/wasm")) as unknown as Ort;
  } catch (error) {
    throw new OnwardError(`install ${name}, or give the package, or its address, as {ort}: ${messageOf(error)}`);
  }
}

/** By a variable, so that bundlers for browsers do not look for it. */
async function loaded(name: string): Promise<Ort> {
  const found = await import(/* @vite-ignore */ /* webpackIgnore: true */ name);
  return (found.InferenceSession === undefined ? found.default : found) as Ort;
}

function merge(target: Record<string, unknown>, options: Environment): void {
  for (const [key, value] of Object.entries(options)) {
    const inner = target[key];
    if (typeof inner === "object" && inner !== null && typeof value === "object" && value !== null && !Array.isArray(value)) {
      merge(inner as Record<string, unknown>, value as Environment);
    } else target[key] = value;
  }
}

/** Models that run one at a time: neither package runs a session twice at once. */
export class Graph {
  private constructor(private readonly ort: Ort, private readonly session: OrtSession, private readonly name: string) {}

  /** A session for a model; `required` must be among its inputs, or what is fed for them would count for nothing. */
  static async open(ort: Ort, model: Uint8Array, options: object, name: string, required: readonly string[] = []): Promise<Graph> {
    let session: OrtSession;
    try {
      session = await ort.InferenceSession.create(model, options);
    } catch (error) {
      throw new OnwardError(`onnxruntime cannot load ${name}: ${messageOf(error)}`);
    }
    const ignored = required.find((input) => !session.inputNames.includes(input));
    if (ignored !== undefined) {
      throw new OnwardError(`${name} does not take ${ignored} as an input that must be given: export the model with onward.edge.export`);
    }
    return new Graph(ort, session, name);
  }

  get inputNames(): readonly string[] {
    return this.session.inputNames;
  }

  get outputNames(): readonly string[] {
    return this.session.outputNames;
  }

  /** All outputs for these inputs; inputs that the graph does not take are left out. */
  async run(values: ReadonlyMap<string, PlainTensor>, options?: object): Promise<Map<string, PlainTensor>> {
    const feeds: Record<string, OrtTensor> = Object.create(null);
    for (const name of this.session.inputNames) {
      const value = values.get(name);
      if (value === undefined) throw new OnwardError(`${this.name} takes ${name}, which nobody has given`);
      feeds[name] = new this.ort.Tensor(value.type, value.data, value.dims);
    }
    let results: Record<string, OrtTensor>;
    try {
      // All outputs, none given in advance: onnxruntime-node 1.20 mixes a part of them up, wasm writes wrong ones.
      results = await this.session.run(feeds, options ?? {});
    } catch (error) {
      throw new OnwardError(explained(messageOf(error), this.name));
    }
    return new Map(Object.entries(results).map(([name, { type, dims, data }]) => [name, { type: type as ElementType, dims, data: plain(data) }]));
  }

  async release(): Promise<void> {
    await this.session.release?.();
  }
}

/** The data of a result; of float16, as the bits that all runtimes take. */
function plain(data: unknown): Elements {
  if (data?.constructor.name !== "Float16Array") return data as Elements;
  const { buffer, byteOffset, length } = data as Uint16Array;
  return new Uint16Array(buffer, byteOffset, length);
}

/** Nodes that refuse something are called after what they want; onnxruntime quotes the name, but in wasm. */
function explained(said: string, name: string): string {
  const refused = /Name:'check: (.+?)(?:_\d+)?' Status Message/.exec(said);
  if (refused !== null) return `${refused[1]}. (${name} could not run: ${said})`;
  // A C++ exception that an older onnxruntime-web did not catch: the address of it.
  const why = /^\d+$/.test(said) ? "one of its operators refuses what it was given; a newer onnxruntime-web, or onnxruntime-node, says which" : said;
  return `${name} could not run: ${why}`;
}

const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));
