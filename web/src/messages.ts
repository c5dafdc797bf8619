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

export type Response =
  | { readonly id: number; readonly kind: "result"; readonly value: unknown; readonly stepCount: number; readonly learningRate: number }
  | { readonly id: number; readonly kind: "error"; readonly message: string; readonly known: boolean }
  | { readonly id: number; readonly kind: "progress"; readonly progress: Progress };

/** The buffers in a result, which move to the other side instead of being copied. */
export function buffersIn(value: unknown, found: ArrayBuffer[] = []): ArrayBuffer[] {
  if (ArrayBuffer.isView(value)) {
    if (value.buffer instanceof ArrayBuffer && !found.includes(value.buffer)) found.push(value.buffer);
  } else if (typeof value === "object" && value !== null) {
    for (const inner of Object.values(value)) buffersIn(inner, found);
  }
  return found;
}
