/** Train ONNX models in browsers and in Node, on stock ONNX Runtime, with what `onward.edge.export` wrote in Python. */

export type { Data } from "./data.js";
export type { Batch, TensorLike } from "./feeds.js";
export type { Manifest, Schedule, StateValue, Value } from "./manifest.js";
export type { Environment, Ort, OrtTensor } from "./runtime.js";
export { readTensors, writeTensors, type TensorFile } from "./safetensors.js";
export { rateOf, type Rate } from "./schedules.js";
export { TrainingSession, type Fetches, type TrainingSessionCreateOptions, type URIorBuffer, type Values } from "./session.js";
export type { Files } from "./source.js";
export { Trainer, type TrainerOptions } from "./trainer.js";
export type { FitOptions, FitResult, LoadOptions, Progress, StepResult } from "./training.js";
export { OnwardError, type ElementType, type PlainTensor } from "./types.js";
