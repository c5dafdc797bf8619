"""onnxruntime's own operators (`com.microsoft`), rewritten to standard ones before anything is differentiated.

Optimizers and exporters fuse parts of a model into them. One module for each family holds a function ``(op, node)`` for
each operator, in the notation of rules.
"""

from onward.graph.contrib import (
    activation,
    attention,
    convolution,
    experimental,
    normalization,
    product,
    quantization,
    query_attention,
    rotary,
    standard,
)
from onward.graph.contrib.adoption import adopt, adopt_proto
from onward.graph.contrib.domain import MICROSOFT

__all__ = [
    "MICROSOFT",
    "activation",
    "adopt",
    "adopt_proto",
    "attention",
    "convolution",
    "experimental",
    "normalization",
    "product",
    "quantization",
    "query_attention",
    "rotary",
    "standard",
]
