/** What a page and the worker that trains for it say to each other. */

import type { Files } from "./source.js";
import type { LoadOptions, Progress } from "./training.js";

/** The methods of `Training` that can be asked for from afar. */
export type Method =
  | "step" | "evaluate" | "predict" | "fit" | "exportModel" | "save" | "load" | "getParameters" | "setParameters" | "dispose";

export type Request =
  | { readonly id: number; readonly method: "open"; readonly where: string | Files; readonly options: LoadOptions }
  | { readonly id: number; readonly method: Method; readonly args: readonly unknown[] }
  | { readonly id: number; readonly method: "abort"; readonly fit: number };

/** What every answer says: where the training is. */
interface Standing {
  readonly id: number;
  readonly stepCount: number;
  readonly learningRate: number;
}

export type Response = Standing & (
  | { readonly kind: "result"; readonly value: unknown }
  | { readonly kind: "error"; readonly message: string; readonly known: boolean }
  | { readonly kind: "progress"; readonly progress: Progress }
);

/** The buffers in a result, which move to the other side instead of being copied. */
export function buffersIn(value: unknown, found: ArrayBuffer[] = []): ArrayBuffer[] {
  if (ArrayBuffer.isView(value)) {
    if (value.buffer instanceof ArrayBuffer && !found.includes(value.buffer)) found.push(value.buffer);
  } else if (typeof value === "object" && value !== null) {
    for (const inner of Object.values(value)) buffersIn(inner, found);
  }
  return found;
}
