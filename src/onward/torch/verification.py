"""Compare a model with its module: the exporters have been wrong before."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onward.errors import ExporterWarning, InvalidModelError, OnwardError
from onward.graph.finish import LARGEST_PROTO
from onward.runtime.session import open_session
from onward.torch.inputs import Inputs
from onward.training.modes import switch_to_evaluation

if TYPE_CHECKING:
    from torch import nn

# Of the largest element. Rounding gives 1e-5 at most; an axis or a constant that is wrong, as much as there is.
_TOLERANCE = 1e-2


def verify(model: ir.Model, module: nn.Module, inputs: Inputs) -> None:
    """Run both in evaluation mode, on twice the batch, so that a size that was fixed shows."""
    import torch
    from torch.utils import _pytree as pytree

    if torch.bfloat16 in {tensor.dtype for tensor in (*inputs.tensors, *module.parameters(), *module.buffers())}:
        return  # which numpy does not have, nor onnxruntime on most processors
    evaluated = model.clone()
    switch_to_evaluation(evaluated)
    if sum(v.const_value.nbytes for v in evaluated.graph.initializers.values() if v.const_value) > LARGEST_PROTO:
        return  # onnxruntime would need it in files
    longer = inputs.repeated(2)
    module.eval()
    args, kwargs = longer.call
    with torch.no_grad():
        leaves, _ = pytree.tree_flatten(module(*args, **kwargs))
    expected = [leaf.detach().cpu().numpy() for leaf in leaves if isinstance(leaf, torch.Tensor)]
    try:
        session = open_session(ir.to_proto(evaluated).SerializeToString())
    except InvalidModelError as error:  # no kernel for a type, for instance
        warnings.warn(f"the model was not compared with the module: {error}", ExporterWarning, stacklevel=3)
        return
    taken = {value.name for value in session.get_inputs()}
    feeds = {n: x.detach().cpu().numpy() for n, x in zip(longer.names, longer.tensors, strict=True) if n in taken}
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
            raise OnwardError(_message(module, f"differs in {name!r} by {worst:.1e} of the largest element"))


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _message(module: nn.Module, what: str) -> str:
    return (
        f"the model that torch exported of {type(module).__name__} {what}. A value that follows from the arguments may "
        "have been fixed; try dynamic_batch=False, or the other exporter. verify=False leaves this check out."
    )
