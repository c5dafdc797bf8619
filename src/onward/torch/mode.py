"""Modules in training mode while they are exported, and afterwards as they were."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onward.errors import OnwardError
from onward.torch.recurrent import drops_between_layers, layer_by_layer, require_layers

if TYPE_CHECKING:
    from torch import Tensor, nn

_RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)


@contextlib.contextmanager
def preserved(module: nn.Module) -> Iterator[dict[int, Tensor]]:
    """Modes, random numbers and tensors that calls change stay what they are; yields what those tensors held, by id."""
    import torch
    from torch import nn

    modes = [(child, child.training) for child in module.modules()]
    # Those of scripted modules are no dictionaries, and cannot be replaced by others.
    buffers = [(child._buffers, dict(child._buffers)) for child in module.modules() if isinstance(child._buffers, dict)]
    limited = (nn.Embedding, nn.EmbeddingBag)  # to look a row up is to shorten it
    tensors = [
        *module.buffers(),
        *(one.weight for one in module.modules() if isinstance(one, limited) and one.max_norm is not None),
    ]
    values = {id(tensor): tensor.detach().clone() for tensor in tensors}
    devices = sorted({tensor.device.index or 0 for tensor in module.parameters() if tensor.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices=devices):
            yield values
    finally:
        for child, mode in modes:
            child.training = mode
        for current, named in buffers:
            current.clear()
            current.update(named)
        with torch.no_grad():
            for tensor in tensors:
                tensor.copy_(values[id(tensor)])


@contextlib.contextmanager
def training_mode(module: nn.Module) -> Iterator[None]:
    """Training mode of all modules, if the whole is in evaluation mode, with Dropout that exporters can write."""
    if not module.training:
        module.train()
    with exportable_dropout(module):
        yield


@contextlib.contextmanager
def exportable_words(module: nn.Module) -> Iterator[None]:
    """Functions that exporters write otherwise, or not at all, by other ones: see `Spelled`."""
    import torch

    from onward.torch.ortmodule.packed import packed_layers
    from onward.torch.ortmodule.spelling import Spelled

    if isinstance(module, torch.jit.ScriptModule):  # which are not followed, but have a graph already
        yield
        return
    forward, given = module.forward, module.__dict__.get("forward")

    @functools.wraps(forward)
    def spelled(*args: Any, **kwargs: Any) -> Any:
        with packed_layers(module), Spelled():
            return forward(*args, **kwargs)

    module.__dict__["forward"] = spelled
    try:
        yield
    finally:
        if given is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = given


@contextlib.contextmanager
def causal_masks_are_told() -> Iterator[None]:
    """Spare torch's transformers to look whether a mask is causal: it is applied anyway, and a graph cannot look."""
    from torch.nn.modules import transformer

    looked = transformer._detect_is_causal_mask
    transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: is_causal is True
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = looked


@contextlib.contextmanager
def exportable_dropout(module: nn.Module) -> Iterator[None]:
    """Dropout that exporters can write: of whole channels and between recurrent layers by plain ones, none in place."""
    from torch import nn

    in_place = [child for child in module.modules() if isinstance(child, nn.Dropout) and child.inplace]
    replaced = [
        child
        for child in module.modules()
        if isinstance(child, (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)) and child.training
    ]
    recurrent = [child for child in module.modules() if isinstance(child, nn.RNNBase) and drops_between_layers(child)]
    for child in replaced:
        child.__dict__["forward"] = _drop_channels(child)
    for layers in recurrent:
        layers.__dict__["forward"] = layer_by_layer(layers)
    for dropout in in_place:
        dropout.inplace = False
    try:
        yield
    finally:
        for dropout in in_place:
            dropout.inplace = True
        for changed in (*replaced, *recurrent):
            del changed.__dict__["forward"]


@contextlib.contextmanager
def exportable_padding(module: nn.Module) -> Iterator[None]:
    """Embeddings whose row for padding is not trained, as in torch: exporters write that it is looked up, no more.

    As long as it is a row of zeros, which it is unless somebody has set it, the lookup need not be told from zeros.
    """
    from torch import nn

    padded = [
        child
        for child in module.modules()
        if isinstance(child, nn.Embedding)
        and type(child).forward is nn.Embedding.forward
        and "forward" not in child.__dict__
        and child.padding_idx is not None
        and not child.weight[child.padding_idx].any()
        and child.max_norm is None
    ]
    for child in padded:
        child.__dict__["forward"] = _without_padding(child)
    try:
        yield
    finally:
        for child in padded:
            del child.__dict__["forward"]


def _without_padding(embedding: nn.Embedding) -> Callable[[Tensor], Tensor]:
    from torch import nn

    padding = embedding.padding_idx
    assert padding is not None

    def forward(ids: Tensor) -> Tensor:
        rows = nn.functional.embedding(ids, embedding.weight)
        return rows.masked_fill(ids.eq(padding).unsqueeze(-1), 0.0)

    return forward


def _drop_channels(dropout: nn.Dropout1d | nn.Dropout2d | nn.Dropout3d) -> Callable[[Tensor], Tensor]:
    """Dropout of whole channels by the plain one: exporters would write a random operator, which evaluation keeps."""
    from torch import nn

    # Without a batch, as torch understands it: two axes in one dimension, four in three.
    unbatched = 2 if isinstance(dropout, nn.Dropout1d) else 4 if isinstance(dropout, nn.Dropout3d) else None

    def forward(x: Tensor) -> Tensor:
        kept = 1 if x.ndim == unbatched else 2
        ones = x.new_ones([*x.shape[:kept], *[1] * (x.ndim - kept)])
        return x * nn.functional.dropout(ones, dropout.p, training=True)

    return forward


def require_exportable(module: nn.Module) -> None:
    """Refuse what exporters write as something else without a word."""
    from torch import nn
    from torch.nn.modules.batchnorm import _BatchNorm

    for name, child in module.named_modules():
        if isinstance(child, _BatchNorm) and child.training and child.track_running_stats and child.momentum is None:
            raise OnwardError(
                f"BatchNorm {name!r} has momentum=None, a plain average over all batches, which ONNX does not have. "
                "Give it a momentum, 0.1 for instance."
            )
        if isinstance(child, nn.RNNBase) and drops_between_layers(child):
            require_layers(child, name)


def random_operators(model: ir.Model) -> list[str]:
    """What draws in a model other than Dropout: in evaluation too."""
    return sorted({node.op_type for node in model.graph.all_nodes() if node.op_type in _RANDOM})
