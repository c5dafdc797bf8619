"""What `onnxruntime.training.ortmodule.experimental` has."""
