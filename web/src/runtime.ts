/** The part of ONNX Runtime that training needs, in whichever package it is. */

import { OnwardError, type Elements, type ElementType, type PlainTensor } from "./types.js";

/** What both onnxruntime-web and onnxruntime-node export. */
export interface Ort {
  readonly InferenceSession: {
    create(model: Uint8Array, options?: any): Promise<OrtSession>;
  };
  readonly Tensor: new (type: any, data: any, dims?: readonly number[]) => OrtTensor;
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
  run(feeds: Record<string, any>): Promise<Record<string, any>>;
  release?(): Promise<void>;
}

const isNode = typeof process !== "undefined" && process.versions?.node !== undefined && typeof window === "undefined";

/** The package that fits where this runs. */
export async function defaultOrt(): Promise<Ort> {
  try {
    if (!isNode) return (await import("onnxruntime-web")) as unknown as Ort;
    const name = "onnxruntime-node"; // a variable, so that bundlers for browsers do not look for it
    const found = await import(/* @vite-ignore */ name);
    return (found.InferenceSession === undefined ? found.default : found) as Ort;
  } catch (error) {
    const name = isNode ? "onnxruntime-node" : "onnxruntime-web";
    throw new OnwardError(`install ${name}, or give the package as {ort}: ${(error as Error).message}`);
  }
}

/** Models that run one at a time: neither package runs a session twice at once. */
export class Graph {
  private constructor(private readonly ort: Ort, private readonly session: OrtSession, private readonly name: string) {}

  static async open(ort: Ort, model: Uint8Array, options: object, name: string): Promise<Graph> {
    try {
      return new Graph(ort, await ort.InferenceSession.create(model, options), name);
    } catch (error) {
      throw new OnwardError(`onnxruntime cannot load ${name}: ${messageOf(error)}`);
    }
  }

  /** All outputs for these inputs; inputs that the graph does not take are left out. */
  async run(values: ReadonlyMap<string, PlainTensor>): Promise<Map<string, PlainTensor>> {
    const feeds: Record<string, OrtTensor> = {};
    for (const name of this.session.inputNames) {
      const value = values.get(name);
      if (value === undefined) throw new OnwardError(`${this.name} takes ${name}, which nobody has given`);
      feeds[name] = new this.ort.Tensor(value.type, value.data, value.dims);
    }
    let results: Record<string, OrtTensor>;
    try {
      // All outputs, none given in advance: onnxruntime-node 1.20 mixes a part of them up, wasm writes wrong ones.
      results = await this.session.run(feeds);
    } catch (error) {
      throw new OnwardError(explained(messageOf(error), this.name));
    }
    const found = new Map<string, PlainTensor>();
    for (const [name, { type, dims, data }] of Object.entries(results)) {
      found.set(name, { type: type as ElementType, dims, data: data as Elements });
    }
    return found;
  }

  async release(): Promise<void> {
    await this.session.release?.();
  }
}

/** Nodes that refuse something are called after what they want; onnxruntime quotes the name. */
function explained(said: string, name: string): string {
  const refused = /Name:'check: (.+?)(?:_\d+)?' Status Message/.exec(said);
  return refused === null ? `${name} could not run: ${said}` : `${refused[1]}. (${name} could not run: ${said})`;
}

const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));
