/** What manifest.json of an exported folder says; `onward.edge.export` in Python writes it. */

import { checkFile, checkValue, Part } from "./document.js";
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

/** A target of the loss; labels say how many classes there are, and which label counts for nothing. */
export interface Target extends Value {
  readonly labels?: { readonly classes: number; readonly ignored: number | null };
}

export interface StateValue extends Value {
  readonly role: "parameter" | "slot" | "buffer";
  readonly shape: readonly number[];
  /** The output of the step that replaces it. */
  readonly next: string;
  /** The parameter that a slot of the optimizer belongs to, and its name. */
  readonly parameter?: string;
  readonly slot?: string;
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
  readonly targets: readonly Target[];
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
  const content = Part.parse(bytes, "manifest.json");
  if (content.get("format") !== FORMAT) throw new OnwardError("this manifest.json was not written by onward.edge.export");
  const version = content.whole("version");
  if (version > VERSION) throw new OnwardError(`manifest.json has version ${version}, but this onward-web reads ${VERSION}: update it`);
  checkFiles(content.part("files"));
  content.part("optimizer").rate("learning_rate");
  for (const key of ["inputs", "targets", "outputs"]) content.list(key).forEach(checkValue);
  for (const key of ["loss", "learning_rate", "step"]) checkValue(content.part(key));
  if (content.has("seed")) checkValue(content.part("seed")).whole("initial");
  for (const key of ["evaluation", "inference"]) {
    content.part(key).texts("inputs");
    content.part(key).list("outputs").forEach(checkValue);
  }
  for (const entry of content.list("state")) {
    checkValue(entry).sizes("shape");
    entry.text("next");
    if (entry.has("initial")) entry.number("initial");
  }
  if (content.has("classes")) content.texts("classes");
  return content.value as Manifest;
}

function checkFiles(files: Part): void {
  for (const key of ["step", "eval", "inference"]) {
    const file = checkFile(files.part(key));
    const [size, structure, inputs] = [file.whole("bytes"), file.part("parts").whole("structure"), file.part("parts").whole("inputs")];
    if (structure + inputs > size) throw file.damaged("its parts are longer than the file");
    file.texts("frozen");
  }
  checkFile(files.part("checkpoint"));
  if (!files.has("frozen")) return;
  for (const tensor of checkFile(files.part("frozen")).list("tensors")) {
    checkValue(tensor).sizes("shape");
    tensor.whole("offset");
    tensor.whole("bytes");
  }
}
