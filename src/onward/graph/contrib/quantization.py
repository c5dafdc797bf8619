"""Frozen weights of few bits, and the forms of QuantizeLinear from before the standard had the types."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.contrib.activation import with_bias
from onward.graph.contrib.registry import RefusedError, rewrites
from onward.graph.nodes import attribute, constant_of, input_at


@rewrites("QuantizeLinear", "DequantizeLinear", reads="axis")
def quantize_linear(op: Builder, node: ir.Node) -> ir.Value:
    return op.emit(node.op_type, *node.inputs, axis=attribute(node, "axis", 1))


@rewrites(
    "MatMulNBits",
    reads="K N accuracy_level bits block_size",
    only={"weight_prepacked": 0},
    without={4: "g_idx"},
    needs="weights or zero points that are not constants; bits other than 2, 4 and 8",
)
def matmul_n_bits(op: Builder, node: ir.Node) -> ir.Value:
    """y = x w' + bias with w = (q - zero point) scale, block by block along the rows of w [N, K].

    The quantised weight stays as it is, now in the form of the standard; like any quantised weight it is frozen.
    """
    x, packed, scales, zero_points, _, bias = (input_at(node, index) for index in range(6))
    weight = _dequantized(op, node, packed, scales, zero_points)
    return with_bias(op, op.MatMul(x, op.Transpose(weight, perm=[1, 0])), bias)


def _dequantized(
    op: Builder, node: ir.Node, packed: ir.Value | None, scales: ir.Value | None, zero_points: ir.Value | None
) -> ir.Value:
    rows, columns, block = (attribute(node, name, 0) for name in ("N", "K", "block_size"))
    bits = attribute(node, "bits", 4)
    if bits not in (2, 4, 8):
        raise RefusedError(f"its attribute bits is {bits}; 2, 4 and 8 are supported")
    blocks = -(-columns // block)
    quantised = _unpacked(packed, "B", bits).reshape(rows, blocks * block)[:, :columns]
    assert scales is not None
    assert scales.dtype is not None
    if zero_points is not None and zero_points.dtype == scales.dtype:
        return _with_float_zero_points(op, quantised, scales, zero_points, block)
    if zero_points is None:
        zeros = np.full((rows, blocks), 2 ** (bits - 1), np.uint8)
    else:
        zeros = _unpacked(zero_points, "zero_points", bits).reshape(rows, -1)[:, :blocks]
    # The standard's type of four bits also holds two.
    dtype = ir.DataType.UINT8 if bits == 8 else ir.DataType.UINT4
    weight = op.constant(quantised, dtype)
    known = constant_of(scales)
    if known is not None and known.ndim == 1:
        scales = op.constant(known.reshape(rows, blocks), scales.dtype)
    return op.DequantizeLinear(weight, scales, op.constant(zeros, dtype), axis=1, block_size=block)


def _with_float_zero_points(
    op: Builder, quantised: np.ndarray, scales: ir.Value, zero_points: ir.Value, block: int
) -> ir.Value:
    """The standard has integer zero points only, so the weight is computed here."""
    known = [constant_of(value) for value in (scales, zero_points)]
    if known[0] is None or known[1] is None:
        raise RefusedError("its scales or zero points are not constants")
    rows, columns = quantised.shape
    wide = [array.astype(np.float32).reshape(rows, -1) for array in known if array is not None]
    scale, zero = (np.repeat(array, block, axis=1)[:, :columns] for array in wide)
    weight = (quantised.astype(np.float32) - zero) * scale
    return op.constant(weight, scales.dtype)


def _unpacked(value: ir.Value | None, name: str, bits: int) -> np.ndarray:
    """The numbers in the bytes of a constant, those in the lower bits first."""
    packed = constant_of(value)
    if packed is None:
        raise RefusedError(f"its input {name} is not a constant")
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return (packed[..., None] >> shifts & (2**bits - 1)).astype(np.uint8).reshape(*packed.shape[:-1], -1)
