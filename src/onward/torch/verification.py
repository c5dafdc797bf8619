"""Compare a model with its module: the exporters have been wrong before."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onward.autodiff.gradient import gradient
from onward.errors import ExporterWarning, InvalidModelError, OnwardError
from onward.graph.finish import LARGEST_PROTO
from onward.graph.statistics import own_statistics
from onward.runtime.session import open_session
from onward.torch.inputs import Inputs
from onward.torch.mode import preserved, training_mode
from onward.training.modes import running_statistics, switch_to_evaluation, trains_batch_statistics

if TYPE_CHECKING:
    from torch import Tensor, nn

# Of the largest element. Rounding gives 1e-5 at most; an axis or a constant that is wrong, as much as there is.
_TOLERANCE = 1e-2


def verify(model: ir.Model, module: nn.Module, inputs: Inputs) -> None:
    """Run both on twice the batch, so that a size that was fixed shows.

    In training mode too, where layers normalise by the batch, unless something is dropped at random.
    """
    import torch

    if torch.bfloat16 in {tensor.dtype for tensor in (*inputs.tensors, *module.parameters(), *module.buffers())}:
        return  # which numpy does not have, nor onnxruntime on most processors
    if sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value) > LARGEST_PROTO:
        return  # onnxruntime would need it in files
    longer = inputs.repeated(2)
    _warn_of_memory(model, module, longer)
    opset, nodes = model.opset_imports[""], list(model.graph.all_nodes())
    if any(trains_batch_statistics(node, opset) for node in nodes) and all(n.op_type != "Dropout" for n in nodes):
        trained = model.clone()
        own_statistics(trained)
        with preserved(module), training_mode(module):
            _compare(trained, module, longer, " in training mode")
    evaluated = model.clone()
    switch_to_evaluation(evaluated)
    module.eval()
    compared = _compare(evaluated, module, longer)
    if compared is not None:
        _verify_gradients(evaluated, module, *compared)


def _warn_of_memory(model: ir.Model, module: nn.Module, inputs: Inputs) -> None:
    """Warn of tensors that the module changes when it is called, other than those that a model changes too."""
    import torch

    with preserved(module), training_mode(module), torch.no_grad():
        # What is written need not be another number: estimates may have converged.
        before = [(name, tensor, tensor._version) for name, tensor in _tensors(module)]
        _called(module, inputs)
        now = dict(_tensors(module))
        changed = [
            name for name, tensor, version in before if now.get(name) is not tensor or tensor._version != version
        ]
    known = {value.name for value in running_statistics(model.graph, model.opset_imports[""])}
    unknown = [name for name in changed if name not in known and name.rpartition(".")[2] != "num_batches_tracked"]
    if unknown:
        warnings.warn(
            f"{type(module).__name__} changes {', '.join(map(repr, unknown))} whenever it is called in training mode, "
            "which ONNX has no form for: in the model they stay as they are. ORTModule trains such modules as torch "
            "does.",
            ExporterWarning,
            stacklevel=5,
        )


def _called(module: nn.Module, inputs: Inputs) -> Any:
    args, kwargs = inputs.call
    try:
        return module(*args, **kwargs)
    except Exception as error:  # modules raise what they like
        raise OnwardError(
            f"{type(module).__name__} takes the example, but not one of twice as many rows ({_in_one_line(error)}): "
            "the first axis of its arguments is no batch. Try dynamic_batch=False, or say by dynamic_axes which axes "
            "may have any size."
        ) from error


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Buffers, and parameters: the rows of an Embedding with a largest norm are changed, too."""
    return [*module.named_buffers(), *module.named_parameters()]


def _compare(
    model: ir.Model, module: nn.Module, inputs: Inputs, mode: str = ""
) -> tuple[list[Tensor], dict[str, np.ndarray]] | None:
    """Compare what both return, and return what the module does and what the model was given; None if it cannot run."""
    import torch
    from torch.utils import _pytree as pytree

    with torch.enable_grad():
        leaves, _ = pytree.tree_flatten(_called(module, inputs))
    returned = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if any(leaf.dtype == torch.bfloat16 for leaf in returned):
        return None
    expected = [leaf.detach().cpu().numpy() for leaf in returned]
    try:
        session = open_session(ir.to_proto(model).SerializeToString())
    except InvalidModelError as error:  # no kernel for a type, for instance
        warnings.warn(f"the model was not compared with the module: {error}", ExporterWarning, stacklevel=5)
        return None
    taken = {value.name for value in session.get_inputs()}
    feeds = {n: x.detach().cpu().numpy() for n, x in zip(inputs.names, inputs.tensors, strict=True) if n in taken}
    try:
        results = session.run(None, feeds)
    except Exception as error:  # onnxruntime's exceptions have no common base but this
        raise OnwardError(_message(module, f"does not take a batch of another size ({_in_one_line(error)})")) from error
    for name, got, wanted in zip([o.name for o in session.get_outputs()], results, expected, strict=False):
        scale = np.abs(wanted, dtype=np.float64).max(initial=1e-3) if wanted.dtype != bool else 1.0
        if got.shape != wanted.shape:
            raise OnwardError(_message(module, f"gives {name!r} the shape {list(got.shape)}, not {list(wanted.shape)}"))
        worst = np.abs(got.astype(np.float64) - wanted.astype(np.float64)).max(initial=0.0) / scale
        if not worst < _TOLERANCE and np.isfinite(wanted).all():
            raise OnwardError(_message(module, f"differs in {name!r} by {worst:.1e} of the largest element{mode}"))
    return returned, feeds


def _verify_gradients(
    evaluated: ir.Model, module: nn.Module, returned: Sequence[Tensor], feeds: dict[str, np.ndarray]
) -> None:
    """Warn of parameters that torch trains differently: exporters write what is computed, and not what is detached."""
    outputs = [value.name or "" for value in evaluated.graph.outputs]
    ends = {n: x for n, x in zip(outputs, returned, strict=False) if x.requires_grad and x.is_floating_point()}
    known = evaluated.graph.initializers
    parameters = {n: p for n, p in module.named_parameters() if p.requires_grad and n in known}
    if not ends or not parameters or len(set(outputs)) < len(outputs):
        return
    seeds = {name: _cotangent(x) for name, x in ends.items()}
    got = _gradients_of_model(evaluated, list(parameters), seeds, feeds)
    if got is None:
        return
    wanted = _gradients_of_torch(ends, seeds, list(parameters.values()))
    floor = 1e-3 * max(np.abs(array).max(initial=0.0) for array in wanted)
    different = [
        name
        for name, ours, theirs in zip(parameters, got, wanted, strict=True)
        if not np.abs(ours - theirs).max(initial=0.0) <= _TOLERANCE * np.abs(theirs).max(initial=floor)
        and np.isfinite(theirs).all()
    ]
    if different:
        warnings.warn(
            f"torch gives {', '.join(map(repr, different))} of {type(module).__name__} another gradient than the model "
            "has: what is detached, computed under torch.no_grad() or by an autograd.Function, and the padding of an "
            "Embedding, is not written into ONNX. Freeze these parameters, or train them knowing that; verify=False "
            "leaves this check out.",
            ExporterWarning,
            stacklevel=5,
        )


def _cotangent(x: Tensor) -> np.ndarray:
    """Random numbers like an output; 1 for a single number, which `gradient` differentiates as it is."""
    dtype = x.detach().cpu().numpy().dtype
    if x.numel() == 1:
        return np.ones(tuple(x.shape), dtype)
    return np.random.default_rng(0).normal(size=tuple(x.shape)).astype(dtype)


def _gradients_of_torch(
    ends: dict[str, Tensor], seeds: dict[str, np.ndarray], parameters: list[nn.Parameter]
) -> list[np.ndarray]:
    import torch

    cotangents = [torch.from_numpy(seeds[name]).to(x.device) for name, x in ends.items()]
    found = torch.autograd.grad(list(ends.values()), parameters, cotangents, allow_unused=True)
    pairs = zip(found, parameters, strict=True)
    return [(torch.zeros_like(p) if g is None else g).detach().double().numpy(force=True) for g, p in pairs]


def _gradients_of_model(
    evaluated: ir.Model, names: list[str], seeds: dict[str, np.ndarray], feeds: dict[str, np.ndarray]
) -> list[np.ndarray] | None:
    """None where there are none: `onward.check` says why."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExporterWarning)  # of what `onward.check` will say
            model = gradient(evaluated, wrt=names, of=list(seeds))
        session = open_session(model.SerializeToString())
    except OnwardError:
        return None
    taken = {value.name for value in session.get_inputs()}
    given = {**feeds, **{f"{name}_grad": seed for name, seed in seeds.items()}}
    try:
        found = session.run([f"{name}_grad" for name in names], {n: x for n, x in given.items() if n in taken})
    except Exception:  # onnxruntime's exceptions have no common base but this; training will say it again
        return None
    return [array.astype(np.float64) for array in found]


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _message(module: nn.Module, what: str) -> str:
    return (
        f"the model that torch exported of {type(module).__name__} {what}. A value that follows from the arguments may "
        "have been fixed; try dynamic_batch=False, or the other exporter. verify=False leaves this check out."
    )
