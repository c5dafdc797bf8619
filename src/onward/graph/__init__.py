"""Layer 0: everything that knows how onnx and onnx_ir work."""
