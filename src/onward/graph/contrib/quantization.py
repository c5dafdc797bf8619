"""Frozen weights of few bits, and the forms of QuantizeLinear from before the standard had the types."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.contrib.activation import with_bias
from onward.graph.contrib.domain import rewrites
from onward.graph.nodes import attribute, constant_of, input_at
from onward.graph.parameters import mark_table
from onward.graph.rewriting.registry import RefusedError
from onward.graph.shapes import dims, rank


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


@rewrites(
    "GatherBlockQuantized",
    reads="bits block_size gather_axis quantize_axis",
    needs="another axis than the first to gather and the last to quantise; rows that are not whole blocks; float8",
)
def gather_block_quantized(op: Builder, node: ir.Node) -> ir.Value:
    """Rows of a quantised table: (q - zero point) scale, block by block; only rows that are asked for are unpacked."""
    data, indices, scales, zero_points = (input_at(node, index) for index in range(4))
    assert data is not None
    assert indices is not None
    assert scales is not None
    assert scales.dtype is not None
    axes = attribute(node, "gather_axis", 0), attribute(node, "quantize_axis", 1)
    if rank(data) != 2 or axes[0] not in (0, -2) or axes[1] not in (1, -1):
        raise RefusedError(
            f"it gathers along axis {axes[0]} what is quantised along axis {axes[1]}; only rows of tables"
        )
    table, zeros, bits = _table(op, node, data, zero_points)
    block = attribute(node, "block_size", 128)
    known = [(dims(value) or [None])[-1] for value in (table, scales)]
    if not isinstance(known[0], int) or not isinstance(known[1], int) or known[0] * (8 // bits) != known[1] * block:
        raise RefusedError("its rows are not whole blocks, or of unknown size")
    mark_table(scales, "scale of GatherBlockQuantized")
    rows = op.Gather(table, indices, axis=0)
    if bits < 8:
        parts = [op.BitwiseAnd(op.BitShift(rows, shift, direction="RIGHT"), 2**bits - 1) for shift in range(0, 8, bits)]
        rows = op.Concat(*(op.Unsqueeze(part, [-1]) for part in parts), axis=-1)
    leading = [0] * rank(indices)
    blocks = op.cast(op.Reshape(rows, [*leading, known[1], block]), scales.dtype)
    if isinstance(zeros, ir.Value):
        # Bytes may hold more zero points than there are blocks.
        zero = op.Slice(op.Gather(zeros, indices, axis=0), [0], [known[1]], [-1])
        centred = blocks - op.cast(op.Unsqueeze(zero, [-1]), scales.dtype)
    else:
        centred = blocks - zeros
    scaled = centred * op.Unsqueeze(op.Gather(scales, indices, axis=0), [-1])
    return op.Reshape(scaled, [*leading, known[1] * block])


def _table(
    op: Builder, node: ir.Node, data: ir.Value, zero_points: ir.Value | None
) -> tuple[ir.Value, ir.Value | int, int]:
    """Packed bytes, zero points and bits of a table; signed numbers of four bits are moved up by 8."""
    if data.dtype == ir.DataType.UINT8:
        bits = attribute(node, "bits", 4)
        if zero_points is None:
            return data, 2 ** (bits - 1), bits
        return data, op.constant(_unpacked(zero_points, "zero_points", bits)), bits
    if data.dtype not in (ir.DataType.INT4, ir.DataType.UINT4):
        raise RefusedError(f"its data are of type {data.dtype}; bytes and integers of four bits are supported")
    known = constant_of(data)
    if known is None or known.shape[1] % 2:
        raise RefusedError("its data are not a constant with rows of whole bytes")
    offset = 8 if data.dtype == ir.DataType.INT4 else 0
    shifted = (known.astype(np.int16) + offset).astype(np.uint8)
    table = op.constant(shifted[:, ::2] | shifted[:, 1::2] << 4)
    if zero_points is None:
        return table, offset, 4
    zeros = constant_of(zero_points)
    if zeros is None:
        raise RefusedError("its zero points are not a constant")
    return table, op.constant((zeros.astype(np.int16) + offset).astype(np.uint8)), 4


def _unpacked(value: ir.Value | None, name: str, bits: int) -> np.ndarray:
    """The numbers in the bytes of a constant, those in the lower bits first."""
    packed = constant_of(value)
    if packed is None:
        raise RefusedError(f"its input {name} is not a constant")
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return (packed[..., None] >> shifts & (2**bits - 1)).astype(np.uint8).reshape(*packed.shape[:-1], -1)
