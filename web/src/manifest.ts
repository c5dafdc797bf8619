/** What manifest.json of an exported folder says; `onward.edge.export` in Python writes it. */

import { OnwardError, type ElementType } from "./types.js";

const FORMAT = "onward.edge";
const VERSION = 1;

/** A size, the name of one that is known only when data comes, or null where it has no name. */
export type Dim = number | string | null;

export interface Value {
  readonly name: string;
  readonly type: ElementType;
  readonly shape: readonly Dim[] | null;
}

export interface StateValue extends Value {
  readonly role: "parameter" | "slot" | "buffer";
  readonly shape: readonly number[];
  /** The output of the step that replaces it. */
  readonly next: string;
  /** What each element begins with, where the checkpoint does not have it. */
  readonly initial?: number;
}

export interface GraphFile {
  readonly file: string;
  readonly bytes: number;
  readonly sha256: string;
  readonly parts: { readonly structure: number; readonly inputs: number };
  /** The names of the frozen weights that it uses. */
  readonly frozen: readonly string[];
}

export interface FrozenTensor extends Value {
  readonly shape: readonly number[];
  readonly offset: number;
  readonly bytes: number;
}

export interface Schedule {
  readonly name: string;
  readonly [option: string]: unknown;
}

export interface Manifest {
  readonly format: string;
  readonly version: number;
  readonly target: "wasm" | "webgpu" | "native";
  readonly files: {
    readonly step: GraphFile;
    readonly eval: GraphFile;
    readonly inference: GraphFile;
    readonly checkpoint: { readonly file: string; readonly sha256: string };
    readonly frozen: { readonly file: string; readonly sha256: string; readonly tensors: readonly FrozenTensor[] } | null;
  };
  readonly optimizer: { readonly name: string; readonly learning_rate: number };
  readonly schedule: Schedule | null;
  readonly classes: readonly string[] | null;
  readonly inputs: readonly Value[];
  readonly targets: readonly Value[];
  readonly outputs: readonly Value[];
  readonly loss: Value;
  readonly predictions: readonly string[];
  readonly activation: string | null;
  readonly learning_rate: Value;
  readonly step: Value;
  readonly seed: (Value & { readonly initial: number }) | null;
  readonly state: readonly StateValue[];
  readonly evaluation: { readonly inputs: readonly string[]; readonly outputs: readonly Value[] };
  readonly inference: { readonly inputs: readonly string[]; readonly outputs: readonly Value[] };
}

export function parseManifest(bytes: Uint8Array): Manifest {
  let content: Manifest;
  try {
    content = JSON.parse(new TextDecoder().decode(bytes));
  } catch (error) {
    throw new OnwardError(`manifest.json is damaged: ${(error as Error).message}`);
  }
  if (content?.format !== FORMAT) throw new OnwardError(`this manifest.json was not written by onward.edge.export`);
  if (content.version > VERSION) {
    throw new OnwardError(`manifest.json has version ${content.version}, but this onward-web reads ${VERSION}: update it`);
  }
  return content;
}
