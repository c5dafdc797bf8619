"""The recipes of `onward.optim` as blocks; see there for the formulas.

An optimizer block makes the whole optimizer model, so it is called in an empty one::

    with onnxblock.empty_base():
        optimizer(training_block.parameters())
        model = optimizer.to_model_proto()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import onnx_ir as ir

from onward import optim
from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.graph.iteration import iterate
from onward.onnxblock import model_accessor
from onward.onnxblock.block import Block
from onward.onnxblock.onnxblock import ForwardBlock, Parameters
from onward.onnxblock.tracing import trace
from onward.plan import METADATA_KEY
from onward.training.update import coefficient_of_sequence, element_of, empty_sequence, optimizer_model

Betas = tuple[float, float]
Groups = Sequence[optim.Group]


class ClipGradNorm(Block):
    """All tensors of a sequence times min(1, max_norm / (norm of all of them + 1e-6))."""

    def __init__(self, max_norm: float) -> None:
        super().__init__()
        self.max_norm = max_norm
        self._clip = optim.clip_by_global_norm(max_norm)

    def build(self, gradients_name: str) -> str:
        accessor = model_accessor.current()

        def clipped(op: Builder, inputs: list[ir.Value]) -> ir.Value:
            return _clip_sequence(op, inputs[0], self._clip)

        return trace(accessor, clipped, [accessor.value(gradients_name)], "clip_grad_norm_output")


def _clip_sequence(op: Builder, gradients: ir.Value, clip: optim.GlobalNorm) -> ir.Value:
    """Two loops, because the length of a sequence is known at run time only."""
    kind = gradients.type
    if not isinstance(kind, ir.SequenceType):
        raise OnwardError(f"ClipGradNorm takes a sequence of tensors, not {kind}, which {gradients.name!r} is")
    with op.scope("ClipGradNorm"):
        count = op.SequenceLength(gradients)
        coefficient = op.cast(coefficient_of_sequence(op, clip, gradients, count), kind.dtype)

        def scale(inner: Builder, index: ir.Value, scaled: Sequence[ir.Value]) -> list[ir.Value]:
            g = element_of(inner, gradients, index)
            return [inner.SequenceInsert(scaled[0], g * coefficient)]

        return iterate(op, count, [empty_sequence(op, kind.dtype)], scale)[0]


class RecipeOptimizer(ForwardBlock):
    """Any optimizer of `onward.optim`; called with `TrainingBlock.parameters()`, of which it takes the trainable ones.

    Returns the name of the flag that says that the update took place; the updated parameters and moments are further
    outputs of the model.
    """

    def __init__(self, optimizer: str | optim.Optimizer, **options: Any) -> None:
        super().__init__()
        self.optimizer = optim.get(optimizer, **options)

    def build(self, parameters: Parameters) -> str:
        accessor = model_accessor.current()
        types = {p.name: (ir.DataType(p.data_type), tuple(p.dims)) for p in parameters[0]}
        model = optimizer_model(self.optimizer, types, accessor.opset)
        _merge(model, accessor.model)
        return model.graph.output[0].name

    def _outputs(self, output: Any) -> Sequence[str]:
        nodes = model_accessor.current().model.graph.node
        return [name for node in nodes for name in node.output if name.startswith("updated_")]


def _merge(source: onnx.ModelProto, target: onnx.ModelProto) -> None:
    """Put an optimizer model into an empty one."""
    if target.graph.node:
        raise OnwardError("an optimizer block makes a whole model; call it inside `with onnxblock.empty_base():`")
    del target.opset_import[:]
    target.opset_import.extend(source.opset_import)
    target.ir_version = source.ir_version
    target.graph.input.extend(source.graph.input)
    target.graph.initializer.extend(source.graph.initializer)
    target.graph.node.extend(source.graph.node)
    target.graph.value_info.extend([*source.graph.value_info, *source.graph.output])
    target.metadata_props.extend(entry for entry in source.metadata_props if entry.key == METADATA_KEY)


def _clip(clip_grad: Any) -> Any:
    """What the recipes take as `clip`: a bound of the global norm, or a transformation of `onward.optim`."""
    if isinstance(clip_grad, ClipGradNorm):
        return clip_grad.max_norm
    if isinstance(clip_grad, Block):
        raise OnwardError(
            f"clip_grad is a {type(clip_grad).__name__}; write it as a transformation of onward.optim (such as "
            "onward.optim.clip(1.0)), or use onnxblock.optim.ClipGradNorm"
        )
    return clip_grad


class AdamW(RecipeOptimizer):
    """AdamW as Hugging Face and onnxruntime-training compute it (`onward.optim.adamw_hf`); compare `TorchAdamW`."""

    def __init__(
        self,
        bias_correction: bool = True,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        clip_grad: Any = None,
        *,
        groups: Groups = (),
    ) -> None:
        options = {"bias_correction": bias_correction, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__("adamw_hf", **options, clip=_clip(clip_grad), groups=groups)


class SGD(RecipeOptimizer):
    """Stochastic gradient descent."""

    def __init__(
        self,
        clip_grad: Any = None,
        *,
        momentum: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        groups: Groups = (),
    ) -> None:
        options = {"momentum": momentum, "dampening": dampening, "nesterov": nesterov, "weight_decay": weight_decay}
        super().__init__("sgd", **options, clip=_clip(clip_grad), groups=groups)


class _WithClipping(RecipeOptimizer):
    """A recipe with all its own options, and `clip_grad`."""

    recipe: str

    def __init__(self, clip_grad: Any = None, **options: Any) -> None:
        super().__init__(self.recipe, clip=_clip(clip_grad), **options)


class TorchAdamW(_WithClipping):
    """AdamW as torch computes it (`onward.optim.adamw`)."""

    recipe = "adamw"


class Adam(_WithClipping):
    """Adam as torch computes it (`onward.optim.adam`)."""

    recipe = "adam"


class Adamax(_WithClipping):
    """Adam with the infinity norm (`onward.optim.adamax`)."""

    recipe = "adamax"


class LAMB(_WithClipping):
    """Adam with a rate for each layer (`onward.optim.lamb`)."""

    recipe = "lamb"


class Adagrad(_WithClipping):
    """Rates from the sum of squares of all gradients (`onward.optim.adagrad`)."""

    recipe = "adagrad"


class RMSprop(_WithClipping):
    """Rates from an average of squares of gradients (`onward.optim.rmsprop`)."""

    recipe = "rmsprop"


class Adadelta(_WithClipping):
    """Rates from averages of squares of gradients and updates (`onward.optim.adadelta`)."""

    recipe = "adadelta"


class Lion(_WithClipping):
    """The sign of an average (`onward.optim.lion`)."""

    recipe = "lion"
