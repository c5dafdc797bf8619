"""A `torch.autograd.Function` inside of a module: its backward pass is followed along with its forward pass.

Exporters see the operations of `forward` only. So while a module is exported, each function runs both of its passes,
one after the other, on the same symbols, and three operators say which is which::

    y = forward(x)
    g = backward(Seed(y))
    y' = Own(y, x, Seed(y), Gradient(g))

To the module the result is y'. The gradient of x is then g with the gradient of y' for the seed: what is between them
is copied. Afterwards, Own is nothing but y, and nobody needs the rest.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import onnx
import onnx_ir as ir
import torch

from onward.autodiff.custom import nondifferentiable, vjp
from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.graph.cleanup import remove_unused
from onward.graph.nodes import attribute, subgraphs
from onward.graph.proto import from_proto, to_proto
from onward.torch.ortmodule._fallback import ORTModuleTorchModelException

_DOMAIN, _OWN, _SEED, _GRADIENT = "onward.torch", "Own", "Seed", "Gradient"
_RESULTS, _ARGUMENTS = "results", "arguments"  # how many inputs of an Own are which
# Their functions are followed by what they consist of: checkpoints, for instance, and our own graphs.
_FOLLOWED_INSIDE = ("torch", "onward")


class _Context:
    """The `ctx` of a function, without torch's own bookkeeping."""

    def __init__(self, args: Sequence[Any]) -> None:
        self.saved_tensors: tuple[Any, ...] = ()
        self.needs_input_grad = tuple(map(_requires_gradient, args))
        self._constant: list[Any] = []
        self._changed: list[Any] = []

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """For derivatives in the other direction, which nobody asks for here."""

    def set_materialize_grads(self, value: bool) -> None:
        """Nothing to choose: there is a gradient of each result, of zeros if it has no other."""

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self._constant += tensors

    def mark_dirty(self, *tensors: Any) -> None:
        self._changed += tensors

    def is_constant(self, result: Any) -> bool:
        return any(result is tensor for tensor in self._constant)

    def is_changed(self, result: Any) -> bool:
        return any(result is tensor for tensor in self._changed)


@contextlib.contextmanager
def own_gradients() -> Iterator[list[str]]:
    """Let this thread follow both passes of functions; yields a list that gets the names of those that were called."""
    called: list[str] = []
    with _replaced(lambda kind, forward: _both_passes(kind, forward, called)):
        yield called


@contextlib.contextmanager
def refused_functions() -> Iterator[None]:
    """Refuse functions, of which a graph would have the gradient of what they compute.

    That may be the same for the data of the first call only: to limit gradients does nothing to small ones.
    """
    with _replaced(_refusing):
        yield


@contextlib.contextmanager
def _replaced(replacement: Callable[[Any, Any], Any]) -> Iterator[None]:
    classes = [kind for kind in _all_functions(torch.autograd.Function) if "forward" in vars(kind)]
    if not torch.is_grad_enabled() or not hasattr(torch.onnx, "ops"):  # older releases of torch have no such operators
        classes = []
    before = [vars(kind)["forward"] for kind in classes]
    for kind in classes:
        kind.forward = staticmethod(replacement(kind, kind.forward))
    try:
        yield
    finally:
        for kind, forward in zip(classes, before, strict=True):
            kind.forward = forward


def _all_functions(base: Any) -> Iterator[Any]:
    for kind in base.__subclasses__():
        if kind.__module__.partition(".")[0] not in _FOLLOWED_INSIDE:
            yield kind
        yield from _all_functions(kind)


def _refusing(kind: Any, forward: Any) -> Any:
    own = threading.get_ident()

    def run(*given: Any) -> Any:
        if threading.get_ident() == own and any(map(_requires_gradient, given)):
            raise ORTModuleTorchModelException(f"the backward pass of {kind.__name__} cannot be followed")
        return forward(*given)

    return run


def _both_passes(kind: Any, forward: Any, called: list[str]) -> Any:
    own, inside = threading.get_ident(), [False]
    takes_context = kind.setup_context is torch.autograd.Function.setup_context

    def run(*given: Any) -> Any:
        if threading.get_ident() != own or inside[0]:
            return forward(*given)
        called.append(kind.__name__)
        args = given[1:] if takes_context else given
        context = _Context(args)
        inside[0] = True
        try:
            # What is changed in place is another value afterwards; gradients are those of the value before.
            arguments = [arg.clone() if _is_floating(arg) else arg for arg in args]
            returned = forward(context, *args) if takes_context else forward(*args)
            if not takes_context:
                kind.setup_context(context, args, returned)
            results = list(returned) if isinstance(returned, tuple) else [returned]
            # Where no argument requires gradients torch calls no backward pass, and some functions have none.
            if any(context.needs_input_grad):
                own_results = _own(kind, context, arguments, results)
            else:
                own_results = [_constant(result, context) for result in results]
        finally:
            inside[0] = False
        return tuple(own_results) if isinstance(returned, tuple) else own_results[0]

    return run


def _own(kind: Any, context: _Context, arguments: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """The results with the gradient of the function's own."""
    places = [i for i, result in enumerate(results) if _is_floating(result) and not context.is_constant(result)]
    seeds = {i: _symbol(_SEED, results[i]) for i in places}
    zeros = {
        i: torch.zeros(result.shape, dtype=result.dtype)  # not like the result: torch.export loses what nobody uses
        for i, result in enumerate(results)
        if isinstance(result, torch.Tensor) and i not in seeds
    }
    gradients = kind.backward(context, *((seeds | zeros).get(i) for i in range(len(results))))
    gradients = gradients if isinstance(gradients, (tuple, list)) else [gradients]
    pairs = [
        (argument, _symbol(_GRADIENT, _fitted(gradient, argument)))
        for argument, gradient in zip(arguments, gradients, strict=False)  # more than arguments, if they are None
        if _is_floating(argument) and gradient is not None
    ]
    ends = [results[i] for i in places]
    inputs = [*ends, *(x for x, _ in pairs), *seeds.values(), *(g for _, g in pairs)]
    marked = torch.onnx.ops.symbolic_multi_out(
        f"{_DOMAIN}::{_OWN}",
        inputs,
        {_RESULTS: len(ends), _ARGUMENTS: len(pairs)},
        dtypes=[end.dtype for end in ends],
        shapes=[end.shape for end in ends],
        version=1,
    )
    by_place = dict(zip(places, marked, strict=True))
    found = [by_place.get(i, _constant(result, context)) for i, result in enumerate(results)]
    # An argument that was changed in place is the result itself, wherever the module uses it from now on.
    return [old.copy_(new) if context.is_changed(old) else new for old, new in zip(results, found, strict=True)]


def _constant(result: Any, context: _Context) -> Any:
    return result.detach() if _is_floating(result) and not context.is_changed(result) else result


def _symbol(name: str, like: torch.Tensor) -> torch.Tensor:
    return torch.onnx.ops.symbolic(f"{_DOMAIN}::{name}", (like,), dtype=like.dtype, shape=like.shape, version=1)


def _fitted(gradient: torch.Tensor, argument: torch.Tensor) -> torch.Tensor:
    """As torch takes what a backward pass returns: summed up to the shape of the argument, and of its type."""
    if gradient.shape != argument.shape:
        gradient = gradient.sum_to_size(argument.shape)
    return gradient.to(argument.dtype)


def _requires_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


nondifferentiable(_SEED, _GRADIENT, domain=_DOMAIN)


@vjp(_OWN, domain=_DOMAIN)
def _own_rule(op: Builder, node: ir.Node, *dys: ir.Value | None) -> list[ir.Value | None]:
    """dx = backward(dy), copied from what leads from the seeds to the gradients."""
    results, arguments = attribute(node, _RESULTS, 0), attribute(node, _ARGUMENTS, 0)
    seeds, gradients = node.inputs[results + arguments :][:results], node.inputs[2 * results + arguments :]
    copies: dict[ir.Value | None, ir.Value | None] = {}
    for seed, dy, y in zip(seeds, dys, node.outputs, strict=True):
        copies[seed] = op.zeros_like(y) if dy is None else dy
    for step in _steps(node, gradients, set(seeds)):
        if any(value in copies for value in step.inputs):
            _copy(op, node, step, copies)
    return [*[None] * results, *(copies.get(g, g) for g in gradients), *[None] * (results + arguments)]


def _steps(own: ir.Node, ends: Sequence[ir.Value | None], starts: set[ir.Value | None]) -> list[ir.Node]:
    """The nodes that the ends are computed by, back to the starts, in their order."""
    found: set[ir.Node] = set()
    open_ends = [*ends]
    while open_ends:
        value = open_ends.pop()
        producer = None if value is None or value in starts else value.producer()
        if producer is not None and producer not in found:
            found.add(producer)
            open_ends += producer.inputs
    assert own.graph is not None
    return [node for node in own.graph if node in found]


def _copy(op: Builder, own: ir.Node, node: ir.Node, copies: dict[ir.Value | None, ir.Value | None]) -> None:
    inputs = [copies.get(value, value) for value in node.inputs]
    if (node.domain, node.op_type) == (_DOMAIN, _GRADIENT):
        copies[node.outputs[0]] = inputs[0]
        return
    if (node.domain, node.op_type) == (_DOMAIN, _OWN):  # a function that this one calls in its backward pass
        copies.update(zip(node.outputs, inputs, strict=False))
        return
    if any(True for _ in subgraphs(node)):
        raise OnwardError(f"the backward pass of a torch.autograd.Function has a loop or a branch ({node.op_type})")
    name = f"grad/{own.name}/{node.op_type}"
    new = ir.Node(
        node.domain,
        node.op_type,
        inputs,
        list(node.attributes.values()),
        num_outputs=len(node.outputs),
        name=op.unique_name(name),
    )
    for old, output in zip(node.outputs, new.outputs, strict=True):
        output.name, output.type = op.unique_name(name), old.type
        output.shape = None if old.shape is None else old.shape.copy()
        copies[old] = output
    op.graph.append(new)


def without_own_gradients(model: ir.Model) -> None:
    """Replace each Own by what it is the result of, in place; nobody uses the backward pass any more."""
    owns = [node for node in model.graph if (node.domain, node.op_type) == (_DOMAIN, _OWN)]
    for own in owns:
        for y, result in zip(own.inputs, list(own.outputs), strict=False):
            assert y is not None
            same = ir.node("Identity", [y], name=f"{own.name}/{result.name}")
            name, result.name = result.name, None
            output = same.outputs[0]
            output.name, output.type, output.shape = name, result.type, result.shape
            model.graph.insert_before(own, same)
            ir.convenience.replace_all_uses_with(result, output, replace_graph_outputs=True)
        model.graph.remove(own, safe=True)
    if owns:
        remove_unused(model)


def lowered(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same without such operators, for which there is no kernel."""
    if not any(node.domain == _DOMAIN and node.op_type in (_OWN, _SEED, _GRADIENT) for node in proto.graph.node):
        return proto
    model = from_proto(proto)
    without_own_gradients(model)
    return to_proto(model)
