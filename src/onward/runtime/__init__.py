"""Layer 3: runs training graphs. Needs numpy and onnxruntime only (llvmlite makes it faster); never onnx or onnx_ir."""
