/** `Trainer`: training in this thread, or in a worker so that the page stays responsive; the same methods for both. */

import type { Data } from "./data.js";
import type { Batch } from "./feeds.js";
import type { Manifest } from "./manifest.js";
import type { Method, Request, Response } from "./messages.js";
import type { Files } from "./source.js";
import { Training, type FitOptions, type FitResult, type LoadOptions, type Progress, type StepResult } from "./training.js";
import { OnwardError, type PlainTensor } from "./types.js";

export interface TrainerOptions extends LoadOptions {
  /**
   * Train in a worker: `true` starts the package's own; a `Worker` is used as it is, for bundlers and pages that have
   * to say themselves where its file is (it runs the module `onward-web/worker`).
   */
  readonly worker?: boolean | Worker;
}

/** Where the training is, and how to ask it for something. */
interface Home {
  readonly manifest: Manifest;
  stepCount(): number;
  learningRate(): number;
  call(method: Method, args: readonly unknown[]): Promise<unknown>;
  fit(data: Data, options: FitOptions): Promise<FitResult>;
  close(): void;
}

export class Trainer {
  private constructor(private readonly home: Home) {}

  /** Open what `onward.edge.export` wrote: a URL, a folder (in Node), or its files by name. */
  static async load(where: string | URL | Files, options: TrainerOptions = {}): Promise<Trainer> {
    const { worker = false, ...rest } = options;
    return new Trainer(worker === false ? await here(where, rest) : await afar(where, rest, worker));
  }

  /** What manifest.json says: inputs, targets, classes, and all the rest. */
  get manifest(): Manifest {
    return this.home.manifest;
  }

  /** Updates so far. */
  get stepCount(): number {
    return this.home.stepCount();
  }

  /** The rate of the next step, where none is given. */
  get learningRate(): number {
    return this.home.learningRate();
  }

  /** One update by a batch: the model's inputs and the targets of the loss, by name. */
  step(batch: Batch, options: { readonly learningRate?: number } = {}): Promise<StepResult> {
    return this.home.call("step", [batch, options]) as Promise<StepResult>;
  }

  /** Train over data, epoch by epoch; see `FitOptions`. */
  fit(data: Data, options: FitOptions = {}): Promise<FitResult> {
    return this.home.fit(data, options);
  }

  /** Loss and outputs of a batch; nothing changes. */
  evaluate(batch: Batch): Promise<StepResult> {
    return this.home.call("evaluate", [batch]) as Promise<StepResult>;
  }

  /** The outputs of the model. */
  predict(inputs: Batch): Promise<Readonly<Record<string, PlainTensor>>> {
    return this.home.call("predict", [inputs]) as Promise<Readonly<Record<string, PlainTensor>>>;
  }

  /** The bytes of an ordinary .onnx file: the model with its weights as they are now. */
  exportModel(): Promise<Uint8Array> {
    return this.home.call("exportModel", []) as Promise<Uint8Array>;
  }

  /** The state as a safetensors file, from which every language continues. */
  save(): Promise<Uint8Array> {
    return this.home.call("save", []) as Promise<Uint8Array>;
  }

  /** Continue from what `save` gave, here or in another language. */
  load(checkpoint: Uint8Array): Promise<void> {
    return this.home.call("load", [checkpoint]) as Promise<void>;
  }

  /** All parameters as one buffer: what rounds of federated training exchange. */
  getParameters(): Promise<Float32Array> {
    return this.home.call("getParameters", []) as Promise<Float32Array>;
  }

  /** The inverse of `getParameters`. */
  setParameters(flat: Float32Array): Promise<void> {
    return this.home.call("setParameters", [flat]) as Promise<void>;
  }

  /** Free what the sessions hold, and end the worker. */
  async dispose(): Promise<void> {
    try {
      await this.home.call("dispose", []);
    } finally {
      this.home.close();
    }
  }
}

async function here(where: string | URL | Files, options: LoadOptions): Promise<Home> {
  const training = await Training.load(where, options);
  return {
    manifest: training.manifest,
    stepCount: () => training.stepCount,
    learningRate: () => training.learningRate,
    call: async (method, args) => (training[method] as (...args: any[]) => unknown).apply(training, [...args]),
    fit: (data, settings) => training.fit(data, settings),
    close: () => undefined,
  };
}

async function afar(where: string | URL | Files, options: LoadOptions, given: true | Worker): Promise<Home> {
  const { ort } = options;
  if (ort !== undefined && typeof ort !== "string" && !(ort instanceof URL)) {
    throw new OnwardError("a worker loads onnxruntime itself: leave {ort} out, or give the address of its module");
  }
  if (typeof Worker === "undefined") throw new OnwardError("there are no workers here: in Node, onnxruntime-node computes in threads of its own");
  const remote = new Remote(given === true ? new Worker(new URL("./worker.js", import.meta.url), { type: "module" }) : given);
  // A worker has another place to start from: addresses have to be whole.
  const whole = <T>(place: T): string | Exclude<T, string | URL> =>
    typeof place === "string" || place instanceof URL ? new URL(place, globalThis.location?.href).href : (place as Exclude<T, string | URL>);
  try {
    const settings = { ...options, ...(ort !== undefined && { ort: whole(ort) }) };
    const manifest = (await remote.ask({ method: "open", where: whole(where), options: settings })) as Manifest;
    return {
      manifest,
      stepCount: () => remote.stepCount,
      learningRate: () => remote.learningRate,
      call: (method, args) => remote.ask({ method, args }),
      fit: (data, settings) => remote.fit(data, settings),
      close: () => remote.close(),
    };
  } catch (error) {
    remote.close();
    throw error;
  }
}

type WithoutId<T> = T extends unknown ? Omit<T, "id"> : never;

interface Waiting {
  resolve(value: unknown): void;
  reject(error: Error): void;
  onProgress?(progress: Progress): void;
}

/** The page's side of a worker. */
class Remote {
  stepCount = 0;
  learningRate = 0;
  private next = 0;
  private closed = false;
  private readonly waiting = new Map<number, Waiting>();

  constructor(private readonly worker: Worker) {
    worker.onmessage = (event: MessageEvent<Response>) => this.take(event.data);
    worker.onmessageerror = () => this.fail("a message of the worker cannot be read");
    worker.onerror = (event: ErrorEvent) => this.fail(`the worker failed: ${event.message ?? "its file could not be loaded"}`);
  }

  ask(request: WithoutId<Request>, onProgress?: (progress: Progress) => void): Promise<unknown> {
    if (this.closed) {
      return request.method === "dispose" ? Promise.resolve() : Promise.reject(new OnwardError("this training was disposed of"));
    }
    const id = this.next++;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject, ...(onProgress && { onProgress }) });
      try {
        this.worker.postMessage({ id, ...request });
      } catch (error) {
        this.waiting.delete(id);
        reject(new OnwardError(`this cannot be sent to the worker: ${(error as Error).message}`));
      }
    });
  }

  async fit(data: Data, options: FitOptions): Promise<FitResult> {
    const { signal, onProgress, ...settings } = options;
    if (typeof data === "function" || typeof options.schedule === "function" || isLazy(data)) {
      throw new OnwardError("functions and generators cannot be sent to a worker: give the rows, a list of batches, a schedule by name");
    }
    if (signal?.aborted) return { losses: [], stopped: true };
    const fit = this.next;
    const stop = () => void this.ask({ method: "abort", fit }).catch(() => undefined);
    signal?.addEventListener("abort", stop, { once: true });
    try {
      return (await this.ask({ method: "fit", args: [data, settings] }, onProgress)) as FitResult;
    } finally {
      signal?.removeEventListener("abort", stop);
    }
  }

  /** End the worker; whoever waits for it waits no longer. */
  close(): void {
    if (this.closed) return;
    this.closed = true;
    this.worker.terminate();
    this.fail("this training was disposed of");
  }

  private take(response: Response): void {
    const waiting = this.waiting.get(response.id);
    if (waiting === undefined) return;
    ({ stepCount: this.stepCount, learningRate: this.learningRate } = response);
    if (response.kind === "progress") {
      waiting.onProgress?.(response.progress);
      return;
    }
    this.waiting.delete(response.id);
    if (response.kind === "error") waiting.reject(response.known ? new OnwardError(response.message) : new Error(response.message));
    else waiting.resolve(response.value);
  }

  private fail(message: string): void {
    for (const { reject } of this.waiting.values()) reject(new OnwardError(message));
    this.waiting.clear();
  }
}

const isLazy = (data: object): boolean =>
  !Array.isArray(data) && (Symbol.iterator in data || Symbol.asyncIterator in data);
