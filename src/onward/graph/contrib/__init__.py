"""onnxruntime's own operators (`com.microsoft`), rewritten to standard ones before anything is differentiated.

Optimizers and exporters fuse parts of a model into them. One module for each family holds a function ``(op, node)`` for
each operator, in the notation of rules; `rewriting` walks through a model.
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
from onward.graph.contrib.registry import REFUSED, REWRITERS, Rewriter, refusal
from onward.graph.contrib.rewriting import adopt, adopt_proto, rewrite

__all__ = [
    "REFUSED",
    "REWRITERS",
    "Rewriter",
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
    "refusal",
    "rewrite",
    "rotary",
    "standard",
]
