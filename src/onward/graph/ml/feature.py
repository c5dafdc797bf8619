"""Operators on features: scaled, normalised, filled in, chosen, joined."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.ml.content import numbers, setting
from onward.graph.ml.domain import rewrites
from onward.graph.nodes import attribute
from onward.graph.rewriting.registry import RefusedError
from onward.graph.shapes import dims, rank

_FLOAT = ir.DataType.FLOAT


@rewrites("Scaler", reads="offset scale")
def scaler(op: Builder, node: ir.Node) -> ir.Value:
    """y = (x - offset) scale, computed in double for doubles, and a float then."""
    x = node.inputs[0]
    assert x is not None
    offset, scale = numbers(node, "offset"), numbers(node, "scale")
    if offset.size != scale.size or not scale.size:
        raise RefusedError(f"it has {offset.size} offsets and {scale.size} scales")
    if scale.size > 1:
        _require_rows(x)
    wide = ir.DataType.DOUBLE if x.dtype == ir.DataType.DOUBLE else _FLOAT
    o, s = (setting(op, node, name, values) for name, values in (("offset", offset), ("scale", scale)))
    return op.cast((op.cast(x, wide) - op.cast(o, wide)) * op.cast(s, wide), _FLOAT)


def _require_rows(x: ir.Value) -> None:
    """Kernels count features along the second axis, and then go through all elements in turn."""
    if rank(x) > 2:
        raise RefusedError(f"its input has rank {rank(x)}, and a matrix of rows is expected")


@rewrites("Normalizer", reads="norm")
def normalizer(op: Builder, node: ir.Node) -> ir.Value:
    """Each row over its largest element, the sum of its absolute values or its length; one where that is 0 stays."""
    x = node.inputs[0]
    assert x is not None
    x = op.cast(x, _FLOAT)
    norm = attribute(node, "norm", "MAX")
    if norm == "MAX":
        return x / _or_one(op, op.ReduceMax(x, [-1], keepdims=1))
    if norm == "L1":
        return x / _or_one(op, op.ReduceSum(op.Abs(x), [-1], keepdims=1))
    if norm == "L2":
        return x / op.Sqrt(_or_one(op, op.ReduceSum(x * x, [-1], keepdims=1)))
    raise RefusedError(f"its norm {norm!r} is not known")


def _or_one(op: Builder, x: ir.Value) -> ir.Value:
    return op.Where(op.Equal(x, 0), 1, x)


@rewrites("Imputer", reads="imputed_value_floats imputed_value_int64s replaced_value_float replaced_value_int64")
def imputer(op: Builder, node: ir.Node) -> ir.Value:
    """x, with a value for each feature, or one for all, where it equals the value that stands for a missing one."""
    x = node.inputs[0]
    assert x is not None
    if x.dtype == _FLOAT:
        values, missing = numbers(node, "imputed_value_floats"), attribute(node, "replaced_value_float", 0.0)
    elif x.dtype == ir.DataType.INT64:
        values = np.array(attribute(node, "imputed_value_int64s", ()), np.int64)
        missing = attribute(node, "replaced_value_int64", 0)
    else:
        raise RefusedError(f"its input is of type {x.dtype}, for which onnxruntime has no kernel")
    if not values.size:
        raise RefusedError(f"it has no values for an input of type {x.dtype}")
    if values.size > 1:
        _require_rows(x)
        features = (dims(x) or (None,))[-1]
        values = values if features in (None, values.size) or isinstance(features, str) else values[:1]
    found = op.IsNaN(x) if math.isnan(missing) else op.Equal(x, missing)
    return op.Where(found, setting(op, node, "imputed_values", values), x)


@rewrites("ArrayFeatureExtractor")
def array_feature_extractor(op: Builder, node: ir.Node) -> ir.Value:
    """The chosen elements of the last axis; a vector is taken for one row."""
    x, indices = node.inputs
    assert x is not None
    assert indices is not None
    flat = indices if dims(indices) is not None and rank(indices) == 1 else op.Reshape(indices, [-1])
    if rank(x) == 1:
        return op.Unsqueeze(op.Gather(x, flat, axis=0), [0])
    return op.Gather(x, flat, axis=rank(x) - 1)


@rewrites("FeatureVectorizer", reads="inputdimensions")
def feature_vectorizer(op: Builder, node: ir.Node) -> ir.Value:
    """The features of all inputs beside each other, cut off or filled up with zeros to the sizes that are given."""
    sizes: tuple[int, ...] = attribute(node, "inputdimensions", ())
    if len(sizes) != len(node.inputs):
        raise RefusedError(f"it has {len(node.inputs)} inputs and {len(sizes)} inputdimensions")
    parts = [_features(op, x, size) for x, size in zip(node.inputs, sizes, strict=True) if x is not None]
    return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=1)


def _features(op: Builder, x: ir.Value, size: int) -> ir.Value:
    """`x` as float [N, size]."""
    x = op.cast(x, _FLOAT)
    x = op.Unsqueeze(x, [0]) if rank(x) == 1 else x if rank(x) == 2 else op.Flatten(x, axis=1)
    known = dims(x)
    if known is not None and known[1] == size:
        return x
    return op.Slice(op.Pad(x, [0, 0, 0, size]), [0], [size], [1])


@rewrites("Binarizer", reads="threshold")
def binarizer(op: Builder, node: ir.Node) -> ir.Value:
    """1 above the threshold, else 0."""
    x = node.inputs[0]
    assert x is not None
    assert x.dtype is not None
    return op.cast(op.Greater(x, attribute(node, "threshold", 0.0)), x.dtype)
