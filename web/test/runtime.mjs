// The onnxruntime of that name, as a module of either kind.
export async function runtime(name) {
  const found = await import(name);
  const ort = found.InferenceSession === undefined ? found.default : found;
  if (name.startsWith("onnxruntime-web")) ort.env.wasm.numThreads = 1;
  return ort;
}
