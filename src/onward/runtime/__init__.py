"""Layer 3: runs training graphs. Needs numpy, onnxruntime and safetensors only; never onnx or onnx_ir."""
