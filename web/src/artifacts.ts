/** What manifest.json of `onward.artifacts.generate_artifacts(..., plain_tensors=True)` says. */

import { checkFile, checkValue, Part } from "./document.js";
import type { Target, Value } from "./manifest.js";
import { OnwardError } from "./types.js";

const FORMAT = "onward.artifacts";
const VERSION = 1;

/** An input or output of a graph, and what it is for. */
export interface RoleValue extends Target {
  readonly role: string;
  /** The parameter, or the input, that it belongs to. */
  readonly of?: string;
  readonly slot?: string;
}

export interface Border {
  readonly inputs: readonly RoleValue[];
  readonly outputs: readonly RoleValue[];
}

export interface ModelFile {
  readonly file: string;
  readonly sha256: string;
  readonly external: readonly string[];
}

export interface Parameter extends Value {
  readonly shape: readonly number[];
  readonly trainable: boolean;
}

export interface ArtifactsManifest {
  readonly files: {
    readonly training_model: ModelFile;
    readonly eval_model: ModelFile;
    readonly optimizer_model: ModelFile | null;
  };
  readonly parameters: readonly Parameter[];
  readonly training: Border;
  readonly evaluation: Border;
  readonly optimizer: (Border & {
    readonly learning_rate: number;
    readonly slots: Readonly<Record<string, { readonly initial: number }>>;
  }) | null;
}

export function parseArtifacts(bytes: Uint8Array): ArtifactsManifest {
  const content = Part.parse(bytes, "manifest.json");
  if (content.get("format") !== FORMAT) {
    throw new OnwardError("this manifest.json was not written by generate_artifacts(..., plain_tensors=True)");
  }
  const version = content.whole("version");
  if (version > VERSION) throw new OnwardError(`manifest.json has version ${version}, but this onward-web reads ${VERSION}: update it`);
  const files = content.part("files");
  for (const key of ["training_model", "eval_model", "optimizer_model"]) {
    if (key !== "optimizer_model" || files.has(key)) checkFile(files.part(key)).texts("external");
  }
  for (const parameter of content.list("parameters")) checkValue(parameter).sizes("shape");
  for (const key of ["training", "evaluation", "optimizer"]) {
    if (key === "optimizer" && !content.has(key)) continue;
    for (const side of ["inputs", "outputs"]) for (const value of content.part(key).list(side)) checkValue(value).text("role");
  }
  if (content.has("optimizer")) checkOptimizer(content.part("optimizer"));
  return content.value as ArtifactsManifest;
}

function checkOptimizer(optimizer: Part): void {
  optimizer.rate("learning_rate");
  for (const value of optimizer.list("inputs").filter((input) => input.get("role") === "slot")) {
    value.sizes("shape");
    value.text("of");
    optimizer.part("slots").part(value.text("slot")).number("initial");
  }
}
