/** The checkpoint of artifacts: a safetensors file with parameters, and slots of the optimizer where they were saved. */

import type { ArtifactsManifest } from "./artifacts.js";
import { Part } from "./document.js";
import { readTensors } from "./safetensors.js";
import { OnwardError, TYPES, sizeOf, type PlainTensor } from "./types.js";

const FORMAT = "onward.checkpoint";

interface Content {
  /** Parameters and running statistics, by name. */
  readonly tensors: ReadonlyMap<string, PlainTensor>;
  /** Slots, as `slot/parameter`. */
  readonly slots: ReadonlyMap<string, PlainTensor>;
  /** Updates so far. */
  readonly step: number;
  /** What Dropout draws from. */
  readonly seed: bigint;
  readonly passes: bigint;
  /** Where the file has one. */
  readonly learningRate: number | null;
}

export class Checkpoint implements Content {
  declare readonly tensors: Content["tensors"];
  declare readonly slots: Content["slots"];
  declare readonly step: number;
  declare readonly seed: bigint;
  declare readonly passes: bigint;
  declare readonly learningRate: number | null;

  private constructor(content: Content) {
    Object.assign(this, content);
  }

  with(changed: Partial<Content>): Checkpoint {
    return new Checkpoint({ ...(this as Content), ...changed });
  }

  static read(file: Uint8Array, manifest: ArtifactsManifest): Checkpoint {
    const { tensors, metadata } = readTensors(file);
    if (metadata.format !== FORMAT) throw new OnwardError("this is no checkpoint of generate_artifacts");
    const said = (key: string) => (metadata[key] === undefined ? null : Part.parse(new TextEncoder().encode(metadata[key]), `the checkpoint's ${key}`));
    const random = said("random"), optimizer = said("optimizer");
    return new Checkpoint({
      tensors: new Map(manifest.parameters.map(({ name, type, shape }) => [name, checked(name, tensors.get(name), type, shape)])),
      slots: slotsOf(tensors, manifest, optimizer !== null),
      step: optimizer === null ? 0 : optimizer.whole("step"),
      seed: BigInt(random === null ? 0 : random.whole("seed")),
      passes: BigInt(random === null ? 0 : random.whole("passes")),
      learningRate: optimizer !== null && optimizer.has("learning_rate") ? optimizer.number("learning_rate") : null,
    });
  }
}

function slotsOf(tensors: ReadonlyMap<string, PlainTensor>, { optimizer }: ArtifactsManifest, saved: boolean): Map<string, PlainTensor> {
  const wanted = optimizer === null ? [] : optimizer.inputs.filter(({ role }) => role === "slot");
  return new Map(wanted.map(({ type, shape, of, slot }) => {
    const dims = shape as readonly number[];
    if (saved) return [`${slot}/${of}`, checked(`optimizer/${slot}/${of}`, tensors.get(`optimizer/${slot}/${of}`), type, dims)];
    const data = (new TYPES[type].array(sizeOf(dims)) as Float32Array).fill(optimizer!.slots[slot!]!.initial);
    return [`${slot}/${of}`, { type, dims, data }];
  }));
}

function checked(name: string, tensor: PlainTensor | undefined, type: string, shape: readonly number[]): PlainTensor {
  if (tensor === undefined) throw new OnwardError(`the checkpoint has no ${name}: it belongs to another model or optimizer`);
  if (tensor.type !== type || String(tensor.dims) !== String(shape)) {
    throw new OnwardError(`${name} in the checkpoint is ${tensor.type} [${tensor.dims}], but the models take ${type} [${shape}]`);
  }
  return tensor;
}
