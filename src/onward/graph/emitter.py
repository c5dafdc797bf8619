"""Emit ONNX nodes by calling operators as Python functions: ``op.Where(op.Greater(y, 0), dy, 0)``.

The emitter knows names, literals, dtypes and opset differences; it knows no mathematics. Calls are always written in
the operator's modern form (axes, splits and pads as inputs). In an older opset, where these were attributes, constant
ones are turned into attributes; where a form does not exist at all, NeedsOpsetError says which opset has it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onward.errors import OnwardError
from onward.graph.nodes import all_values
from onward.graph.opsets import NeedsOpsetError, all_schemas, schema
from onward.graph.propagation import propagate_shape

Operand = Any  # ir.Value | bool | int | float | Sequence | np.ndarray | None

_REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSumSquare"
).split()

# Inputs that used to be attributes: operator -> (opset since which they are inputs, {input index: attribute name}).
_FORMER_ATTRIBUTES: dict[str, tuple[int, dict[int, str]]] = {
    "ReduceSum": (13, {1: "axes"}),
    "Squeeze": (13, {1: "axes"}),
    "Unsqueeze": (13, {1: "axes"}),
    "Split": (13, {1: "split"}),
    "Slice": (10, {1: "starts", 2: "ends", 3: "axes"}),
    "Pad": (11, {1: "pads", 2: "value"}),
    "Clip": (11, {1: "min", 2: "max"}),
    "TopK": (10, {1: "k"}),
    "DFT": (20, {2: "axis"}),
    **{name: (18, {1: "axes"}) for name in _REDUCTIONS},
}

# Values of an attribute that are newer than the attribute: (operator, attribute, value) -> opset.
_VALUE_SINCE = {
    (operator, "reduction", value): 18 for operator in ("ScatterElements", "ScatterND") for value in ("max", "min")
}


class Emitter:
    """Appends nodes to `graph`; attribute access on it names the operator to emit."""

    def __init__(self, graph: ir.Graph, opset: int, *, root: Emitter | None = None) -> None:
        self.graph = graph
        self.opset = opset
        # Subgraphs share the names and the constants of the main graph, where constants are visible to all.
        self._root: Emitter = self if root is None else root
        if root is None:
            self._constants: dict[tuple[ir.DataType, tuple[int, ...], bytes], ir.Value] = {}
            self._counters: dict[str, int] = {}
            self._taken = {value.name for value in all_values(graph)} | {node.name for node in graph.all_nodes()}
        self._scope = "onward"
        self._tokens: list[Any] = []  # one for each `with op:` that is open; they nest

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        if not op_type[:1].isupper():
            raise AttributeError(op_type)
        return functools.partial(self.emit, op_type)

    def __enter__(self) -> Emitter:
        self._tokens.append(_activate(self))
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._tokens.pop())

    @contextlib.contextmanager
    def scope(self, prefix: str) -> Iterator[None]:
        """Nodes emitted inside are called ``<prefix>/<Op>``."""
        previous, self._scope = self._scope, prefix
        try:
            yield
        finally:
            self._scope = previous

    def emit(self, op_type: str, *operands: Operand, outputs: int = 1, **attributes: Any) -> Any:
        """Append one node of the default domain; returns its output, or a tuple of them when `outputs` > 1."""
        modern = (list(operands), attributes)
        inputs, attributes = self._in_form_of_opset(op_type, operands, attributes)
        spec = self._schema_for(op_type, inputs, attributes, modern)
        values = self._literals_to_constants(spec, inputs)
        name = self.unique_name(f"{self._scope}/{op_type}")
        node = ir.node(
            op_type,
            values,
            attributes={key: value for key, value in attributes.items() if value is not None},
            num_outputs=outputs,
            name=name,
        )
        for index, output in enumerate(node.outputs):
            output.name = name if index == 0 else self.unique_name(f"{name}.{index}")
            self.set_dtype(output)
        if outputs == 1:
            propagate_shape(node)
        self.graph.append(node)
        return node.outputs[0] if outputs == 1 else tuple(node.outputs)

    def custom(
        self, domain: str, op_type: str, *operands: Operand, like: ir.Value | Sequence[ir.Value], **attributes: Any
    ) -> Any:
        """Append a node of another domain, for rules of custom operators that have a kernel for their gradient.

        `like` has the type and shape of its output; several outputs are returned as a tuple.
        """
        results = [like] if isinstance(like, ir.Value) else list(like)
        values = [x if x is None or isinstance(x, ir.Value) else self.constant(x) for x in operands]
        name = self.unique_name(f"{self._scope}/{op_type}")
        node = ir.node(op_type, values, attributes=attributes, domain=domain, num_outputs=len(results), name=name)
        for index, (output, result) in enumerate(zip(node.outputs, results, strict=True)):
            output.name = name if index == 0 else self.unique_name(f"{name}.{index}")
            output.type, output.shape = result.type, None if result.shape is None else result.shape.copy()
        self._root.graph.opset_imports.setdefault(domain, 1)
        self.graph.append(node)
        return node.outputs[0] if isinstance(like, ir.Value) else tuple(node.outputs)

    def set_dtype(self, output: ir.Value) -> None:
        """Give the output of a node the dtype that its schema promises."""
        node, index = output.producer(), output.index()
        assert node is not None
        assert index is not None
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        dtype = _output_dtype(schema(node.op_type, self.opset), index, node.inputs, attributes)
        if dtype is not None:
            output.type = ir.TensorType(dtype)

    def constant(self, value: Any, dtype: ir.DataType | None = None) -> ir.Value:
        """An initializer holding `value`; equal constants are shared."""
        array = np.asarray(value, dtype=None if dtype is None else dtype.numpy())
        if dtype is None:
            dtype = ir.DataType.from_numpy(array.dtype)
        key = (dtype, array.shape, array.tobytes())
        root = self._root
        if key not in root._constants:
            tensor = ir.tensor(np.ascontiguousarray(array).reshape(array.shape), dtype=dtype)
            root._constants[key] = Emitter.initializer(self, _constant_name(array, dtype), tensor)
        return root._constants[key]

    def initializer(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        """A new initializer of the main graph; a name that is taken gets a number."""
        tensor.name = self.unique_name(name)
        kind = ir.TensorType(tensor.dtype)
        value = ir.Value(name=tensor.name, shape=ir.Shape(tensor.shape.numpy()), type=kind, const_value=tensor)
        self._root.graph.register_initializer(value)
        return value

    def unique_name(self, wanted: str) -> str:
        """`wanted`, or `wanted_<n>` with the smallest free n."""
        root = self._root
        name, count = wanted, root._counters.get(wanted, 0)
        while name in root._taken:
            count += 1
            name = f"{wanted}_{count}"
        root._counters[wanted] = count
        root._taken.add(name)
        return name

    def _in_form_of_opset(
        self, op_type: str, operands: Sequence[Operand], attributes: dict[str, Any]
    ) -> tuple[list[Operand], dict[str, Any]]:
        since, former = _FORMER_ATTRIBUTES.get(op_type, (0, {}))
        if self.opset >= since:
            return list(operands), attributes
        inputs, attributes = [], dict(attributes)
        for index, operand in enumerate(operands):
            if index not in former:
                inputs.append(operand)
            elif isinstance(operand, ir.Value):
                raise NeedsOpsetError(op_type, since)
            elif operand is not None:
                attributes[former[index]] = operand.tolist() if isinstance(operand, np.ndarray) else operand
        if self.opset < 11 and min(attributes.get("axes") or (0,)) < 0:
            raise NeedsOpsetError(op_type, 11)  # before, axes were not counted from the end
        return inputs, attributes

    def _schema_for(
        self,
        op_type: str,
        inputs: Sequence[Operand],
        attributes: dict[str, Any],
        modern: tuple[list[Operand], dict[str, Any]],
    ) -> onnx.defs.OpSchema:
        current = schema(op_type, self.opset)
        for key, value in attributes.items():
            since = _VALUE_SINCE.get((op_type, key, value)) if isinstance(value, str) else None
            if since is not None and since > self.opset:
                raise NeedsOpsetError(op_type, since)
        if _accepts(current, inputs, attributes):
            return current
        # What were attributes in this opset may be inputs in the one that has the rest.
        forms = ((inputs, attributes), modern)
        later = [
            s for s in all_schemas(op_type) if s.since_version > self.opset and any(_accepts(s, *f) for f in forms)
        ]
        if not later:
            types = [str(x.dtype) if isinstance(x, ir.Value) else repr(x) for x in inputs]
            newest = max(all_schemas(op_type), key=lambda s: s.since_version)
            raise OnwardError(
                f"no opset has {op_type}({', '.join(types)}) with attributes {sorted(attributes)}; it takes "
                f"({', '.join(formal.name for formal in newest.inputs)}) and attributes {sorted(newest.attributes)}"
            )
        raise NeedsOpsetError(op_type, min(s.since_version for s in later))

    def _literals_to_constants(self, spec: onnx.defs.OpSchema, inputs: Sequence[Operand]) -> list[ir.Value | None]:
        values: list[ir.Value | None] = []
        for index, operand in enumerate(inputs):
            if operand is None or isinstance(operand, ir.Value):
                values.append(operand)
            else:
                values.append(self.constant(operand, _literal_dtype(spec, index, operand, inputs)))
        while values and values[-1] is None:
            values.pop()
        return values


# Arithmetic on ir.Value (`dy * (1 - y * y)`) goes to the emitter that is active in this thread or task.
_current: ContextVar[Emitter | None] = ContextVar("onward_emitter", default=None)


class _Arithmetic:
    """onnx_ir has one process-wide hook for arithmetic; this one looks up the active emitter and else steps aside."""

    previous: Any = None

    def __getattr__(self, op_type: str) -> Any:
        emitter = _current.get()
        if emitter is not None:
            return getattr(emitter, op_type)
        if self.previous is None:
            raise TypeError("arithmetic on ONNX values needs an active builder: use `with op:`")
        return getattr(self.previous, op_type)


_arithmetic = _Arithmetic()


def _activate(emitter: Emitter) -> Any:
    previous = ir.set_value_magic_handler(_arithmetic)
    if previous is not _arithmetic:
        _arithmetic.previous = previous
    return _current.set(emitter)


def _formal(spec: onnx.defs.OpSchema, index: int) -> onnx.defs.OpSchema.FormalParameter:
    return spec.inputs[min(index, len(spec.inputs) - 1)]


@functools.cache
def _allowed_types(op_type: str, version: int, index: int) -> frozenset[str]:
    return frozenset(_formal(onnx.defs.get_schema(op_type, version), index).types)


def _accepts(spec: onnx.defs.OpSchema, inputs: Sequence[Operand], attributes: dict[str, Any]) -> bool:
    if not spec.min_input <= len(inputs) <= spec.max_input or not attributes.keys() <= spec.attributes.keys():
        return False
    return all(
        f"tensor({_TYPE_NAMES[operand.dtype]})" in _allowed_types(spec.name, spec.since_version, index)
        for index, operand in enumerate(inputs)
        if isinstance(operand, ir.Value) and isinstance(operand.type, ir.TensorType) and operand.dtype in _TYPE_NAMES
    )


_TYPE_NAMES = {
    dtype: {"FLOAT": "float", "DOUBLE": "double"}.get(dtype.name, dtype.name.lower())
    for dtype in ir.DataType
    if dtype.name != "UNDEFINED"
}
_TYPES_BY_NAME = {f"tensor({name})": dtype for dtype, name in _TYPE_NAMES.items()}
_FLOATS = (float, np.floating)


def _literal_dtype(spec: onnx.defs.OpSchema, index: int, literal: Any, inputs: Sequence[Operand]) -> ir.DataType | None:
    """A literal takes the dtype of its neighbour; None keeps an array's own dtype."""
    formal = _formal(spec, index)
    for other_index, other in enumerate(inputs):
        if isinstance(other, ir.Value) and _formal(spec, other_index).type_str == formal.type_str:
            return other.dtype
    if isinstance(literal, np.ndarray):
        return None
    if len(formal.types) == 1:
        return _TYPES_BY_NAME[next(iter(formal.types))]
    first = next(iter(np.asarray(literal).flat), 0)
    if isinstance(first, (bool, np.bool_)):
        return ir.DataType.BOOL
    return ir.DataType.FLOAT if isinstance(first, _FLOATS) else ir.DataType.INT64


def _output_dtype(
    spec: onnx.defs.OpSchema, index: int, inputs: Sequence[ir.Value | None], attributes: dict[str, Any]
) -> ir.DataType | None:
    if spec.name == "Cast":
        return ir.DataType(attributes["to"])
    if spec.name == "ConstantOfShape":
        value = attributes.get("value")
        return ir.DataType.FLOAT if value is None else value.dtype
    if not spec.outputs:
        return None
    formal = spec.outputs[min(index, len(spec.outputs) - 1)]
    for position, value in enumerate(inputs):
        if value is not None and _formal(spec, position).type_str == formal.type_str:
            return value.dtype
    return _TYPES_BY_NAME.get(next(iter(formal.types))) if len(formal.types) == 1 else None


def _constant_name(array: np.ndarray, dtype: ir.DataType) -> str:
    if array.size <= 4:
        text = "x".join(str(element) for element in array.flatten().tolist())
        return f"const/{text or 'empty'}:{_TYPE_NAMES[dtype]}"
    return f"const/{'x'.join(map(str, array.shape))}:{_TYPE_NAMES[dtype]}"
