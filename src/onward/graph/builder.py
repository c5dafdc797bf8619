"""The builder `op`: the emitter plus the compositions that every rule, loss and optimizer needs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Sequence

import numpy as np
import onnx_ir as ir

from onward.graph.emitter import Emitter, Operand
from onward.graph.opsets import NeedsOpsetError, all_schemas, schema
from onward.graph.shapes import Dim, dims, same_dims, static_shape, target_in_numbers


class Builder(Emitter):
    """Emits operators, and shapes values after other values whatever is known of their dimensions."""

    def __init__(self, graph: ir.Graph, opset: int, *, root: Builder | None = None) -> None:
        super().__init__(graph, opset, root=root)
        self._shape_values: dict[ir.Value, ir.Value] = {}
        self._ones: dict[tuple[Dim, ir.DataType], ir.Value] = {}
        # The values through which derivatives flow while a graph is differentiated; see `carries`.
        self.carrying: Collection[ir.Value] | None = None

    def __enter__(self) -> Builder:
        super().__enter__()
        return self

    def subgraph(self, graph: ir.Graph) -> Builder:
        """A builder for the body of an If, Loop or Scan; it shares names and constants with this one."""
        root = self._root
        assert isinstance(root, Builder)
        inner = Builder(graph, self.opset, root=root)
        inner._scope = self._scope
        return inner

    def aside(self, graph: ir.Graph) -> Builder:
        """A builder for a graph of its own, to be moved here later; it names nodes as this one does now."""
        builder = Builder(graph, self.opset)
        builder._scope = self._scope
        return builder

    def forward_output(self, node: ir.Node, index: int) -> ir.Value:
        """An optional output of a forward node (mask, indices, mean), added to the node when it is absent."""
        if index >= schema(node.op_type, self.opset, node.domain).max_output:
            later = [s.since_version for s in all_schemas(node.op_type, node.domain) if s.max_output > index]
            raise NeedsOpsetError(node.op_type, min(version for version in later if version > self.opset))
        if index >= len(node.outputs):
            node.resize_outputs(index + 1)
        for between in node.outputs[:index]:
            between.name = between.name or ""
        output = node.outputs[index]
        if not output.name:
            output.name = self.unique_name(f"{node.name or node.outputs[0].name}/output_{index}")
            self.set_dtype(output)
        return output

    def carries(self, x: ir.Value) -> bool:
        """Whether a derivative with respect to `x` is of any use.

        Rules need not ask: what nobody uses is removed. But nothing can be removed from the outputs of a loop.
        """
        return self.carrying is None or x in self.carrying

    def map_sequences(self, function: Callable[..., ir.Value], *sequences: ir.Value) -> ir.Value:
        """A sequence of ``function(op, *elements)`` for the elements of sequences of equal length."""
        inputs = []
        for index, sequence in enumerate(sequences):
            assert sequence.dtype is not None
            name = self.unique_name(f"{self._scope}/SequenceMap/element_{index}")
            inputs.append(ir.Value(name=name, type=ir.TensorType(sequence.dtype)))
        body = ir.Graph(inputs, [], nodes=[], name="element")
        inner = self.subgraph(body)
        with inner:
            result = function(inner, *inputs)
        body.outputs.append(result)
        mapped: ir.Value = self.SequenceMap(*sequences, body=body)
        mapped.type = None if result.type is None else ir.SequenceType(result.type)
        return mapped

    def add(self, *terms: ir.Value) -> ir.Value:
        """The sum of tensors, or of sequences element by element."""
        if isinstance(terms[0].type, ir.SequenceType):
            return functools.reduce(lambda a, b: self.map_sequences(lambda op, x, y: op.Add(x, y), a, b), terms)
        return self.Add(*terms) if len(terms) == 2 else self.Sum(*terms)

    # Shapes as values -------------------------------------------------------------------------------------------

    def shape(self, x: ir.Value) -> ir.Value:
        """The shape of `x` as int64 `[rank]`: a constant when it is known, else computed once at run time."""
        known = static_shape(x)
        if known is not None:
            return self.constant(known, ir.DataType.INT64)
        if x not in self._shape_values:
            self._shape_values[x] = self.Shape(x)
        return self._shape_values[x]

    def dim(self, x: ir.Value, axis: int) -> ir.Value:
        """The size of one axis of `x` as int64 `[1]`."""
        known = dims(x)
        size = None if known is None else known[axis]
        if isinstance(size, int):
            return self.constant([size], ir.DataType.INT64)
        return self.Gather(self.shape(x), [axis], axis=0)

    def size(self, x: ir.Value, axes: Sequence[int] | None = None) -> ir.Value:
        """The number of elements of `x` (along `axes`) as an int64 scalar."""
        known = dims(x)
        if known is not None:
            sizes = known if axes is None else [known[axis] for axis in axes]
            if all(isinstance(size, int) for size in sizes):
                return self.constant(math.prod(size for size in sizes if isinstance(size, int)), ir.DataType.INT64)
        if axes is None:
            return self.Size(x)
        return self.ReduceProd(self.Gather(self.shape(x), np.array(axes, np.int64), axis=0), keepdims=0)

    # Casting and filling ----------------------------------------------------------------------------------------

    def cast(self, x: ir.Value, dtype: ir.DataType) -> ir.Value:
        """`x` as `dtype`, without a node when it has that type already."""
        return x if x.dtype == dtype else self.Cast(x, to=int(dtype))

    def full(self, shape: Operand, value: float, dtype: ir.DataType) -> ir.Value:
        """A tensor filled with one value; `shape` is a list of sizes or an int64 value."""
        tensor = ir.tensor(np.array([value], dtype.numpy()), dtype=dtype)
        return self.ConstantOfShape(self._shape_operand(shape), value=tensor)

    def ones(self, x: ir.Value, axis: int) -> ir.Value:
        """A vector of ones for an axis of `x`, in its type; the same one for all axes whose sizes have one name."""
        assert x.dtype is not None
        size = (dims(x) or (None,))[axis]
        if isinstance(size, int):
            return self.constant(np.ones(size), x.dtype)
        vector = self._ones.get((size, x.dtype))
        if vector is None:
            vector = self.Expand(self.constant(1.0, x.dtype), self.dim(x, axis))
            vector.shape = ir.Shape([size])
            if size is not None:
                self._ones[size, x.dtype] = vector
        return vector

    def zeros_like(self, x: ir.Value) -> ir.Value:
        return self._filled_like(x, 0)

    def ones_like(self, x: ir.Value) -> ir.Value:
        return self._filled_like(x, 1)

    def _filled_like(self, x: ir.Value, value: float) -> ir.Value:
        assert x.dtype is not None
        if static_shape(x) == ():
            return self.constant(value, x.dtype)
        filled = self.full(self.shape(x), value, x.dtype)
        filled.shape = None if x.shape is None else x.shape.copy()
        return filled

    # Moving between shapes --------------------------------------------------------------------------------------

    def reshape(self, x: ir.Value, shape: Operand, *, exact: bool = False) -> ir.Value:
        """`x` reshaped; `shape` is a list of sizes (at most one -1) or an int64 value.

        `exact` says that there is no -1, so that a size which turns out to be 0 at run time is that and not "as in x".
        """
        wanted = shape if isinstance(shape, ir.Value) else tuple(int(size) for size in shape)
        if isinstance(wanted, tuple):
            if static_shape(x) == wanted:
                return x
            if 0 in wanted:
                return self.Reshape(x, np.array(wanted, np.int64), allowzero=1)
        # Older opsets cannot say it.
        allowzero = {"allowzero": 1} if exact and isinstance(wanted, ir.Value) and self.opset >= 14 else {}
        return self.Reshape(x, self._shape_operand(shape), **allowzero)

    def reshape_like(self, x: ir.Value, like: ir.Value) -> ir.Value:
        """`x` with the shape of `like`, which has as many elements."""
        if same_dims(dims(x), dims(like)):
            return x
        shape = static_shape(like)
        if shape is not None:
            return self.reshape(x, shape)
        target = target_in_numbers(dims(x), dims(like))
        return self.reshape(x, self.shape(like), exact=True) if target is None else self.Reshape(x, target)

    def expand_like(self, x: ir.Value, like: ir.Value) -> ir.Value:
        """`x` broadcast to the shape of `like`."""
        return x if same_dims(dims(x), dims(like)) else self.Expand(x, self.shape(like))

    def sum_to(self, x: ir.Value, target: ir.Value, wide: Sequence[Dim] | None) -> ir.Value:
        """Undo broadcasting: sum `x` of dimensions `wide` down to the shape of `target`, which broadcasts to them.

        Where it is not known whether an axis was broadcast, the axes to sum are found at run time.
        """
        narrow = dims(target)
        if same_dims(wide, narrow):
            return x
        if wide is None or narrow is None:
            return self._sum_to_unknown_rank(x, target)
        if x.shape is None:
            x.shape = ir.Shape(wide)  # those who come later may want to know, too
        extra = len(wide) - len(narrow)
        leading = list(range(extra))
        stretched = [axis + extra for axis, dim in enumerate(narrow) if dim == 1 and wide[axis + extra] != 1]
        if not any(_may_be_broadcast(dim, wide[axis + extra]) for axis, dim in enumerate(narrow)):
            if not stretched:
                return self.ReduceSum(x, leading, keepdims=0) if leading else x
            summed = self.ReduceSum(x, leading + stretched, keepdims=1)
        else:
            if self.opset < 13:
                raise NeedsOpsetError("ReduceSum", 13)
            ones = self.Reshape(self.NonZero(self.Equal(self.shape(target), 1)), [-1])
            axes = self.Concat(leading, self.Add(ones, extra), axis=0) if leading else ones
            summed = self.ReduceSum(x, axes, keepdims=1, noop_with_empty_axes=1)
        return self.Squeeze(summed, leading) if leading else summed

    def _sum_to_unknown_rank(self, x: ir.Value, target: ir.Value) -> ir.Value:
        shape = self.shape(target)
        extra = self.Sub(self.Shape(self.Shape(x)), self.Shape(shape))
        padded = self.Concat(self.full(extra, 1, ir.DataType.INT64), shape, axis=0)
        axes = self.Reshape(self.NonZero(self.Equal(padded, 1)), [-1])
        return self.Reshape(self.ReduceSum(x, axes, keepdims=1, noop_with_empty_axes=1), shape)

    def _shape_operand(self, shape: Operand) -> ir.Value:
        return shape if isinstance(shape, ir.Value) else self.constant(shape, ir.DataType.INT64)


def _may_be_broadcast(narrow: Dim, wide: Dim) -> bool:
    return not isinstance(narrow, int) and (narrow is None or narrow != wide)
