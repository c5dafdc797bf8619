"""What `onnxruntime.training.experimental` has."""

from onward.experimental.gradient_graph import export_gradient_graph

__all__ = ["export_gradient_graph"]
