// The worker loads onnxruntime when it knows which part of it is wanted, which needs modules.
export default { worker: { format: "es" } };
