/** The side of the worker: one training, and requests to it. Start it as a module: `new Worker(url, {type: "module"})`. */

import type { Data } from "./data.js";
import { buffersIn, type Method, type Request, type Response } from "./messages.js";
import { Training, type FitOptions } from "./training.js";
import { OnwardError } from "./types.js";

/** What a worker, or a port of a worker thread in Node, has. */
interface Port {
  postMessage(message: Response, transfer?: ArrayBuffer[]): void;
}

/** Answer requests that come from a page. */
export function serve(port: Port, listen: (handle: (request: Request) => void) => void): void {
  let training: Training | null = null;
  const running = new Map<number, AbortController>();

  async function answer(request: Request): Promise<unknown> {
    if (request.method === "open") {
      training = await Training.load(request.where, request.options);
      return training.manifest;
    }
    if (request.method === "abort") return running.get(request.fit)?.abort();
    if (training === null) throw new OnwardError("the worker has no training yet");
    if (request.method === "fit") return fit(training, request.id, request.args as [Data, FitOptions]);
    const method = training[request.method as Exclude<Method, "fit">] as (...args: any[]) => unknown;
    return method.apply(training, [...request.args]);
  }

  async function fit(training: Training, id: number, [data, options]: [Data, FitOptions]): Promise<unknown> {
    const control = new AbortController();
    running.set(id, control);
    try {
      return await training.fit(data, {
        ...options,
        signal: control.signal,
        onProgress: (progress) => port.postMessage({ id, kind: "progress", progress, ...standing() }),
      });
    } finally {
      running.delete(id);
    }
  }

  const standing = () => ({ stepCount: training?.stepCount ?? 0, learningRate: training?.learningRate ?? 0 });

  listen((request) => {
    const { id } = request;
    answer(request).then(
      // What a step gives are copies of their own; state is not sent, so that nothing is taken from it.
      (value) => port.postMessage({ id, kind: "result", value, ...standing() }, buffersIn(value)),
      (error: unknown) => {
        const message = error instanceof Error ? error.message : String(error);
        port.postMessage({ id, kind: "error", message, known: error instanceof OnwardError, ...standing() });
      },
    );
  });
}

declare const self: Port & { onmessage: ((event: { data: Request }) => void) | null; importScripts?: unknown };

if (typeof self !== "undefined" && typeof window === "undefined" && typeof self.postMessage === "function") {
  serve(self, (handle) => {
    self.onmessage = (event) => handle(event.data);
  });
}
