"""Layer 1: reverse-mode differentiation of ONNX graphs."""
