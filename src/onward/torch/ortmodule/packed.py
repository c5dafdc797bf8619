"""Packed sequences, of which each recurrent layer takes as many steps as they are long.

How many rows their data have follows from lengths, which are data. While a module is exported they are kept padded, and
recurrent layers are ONNX's, which take lengths.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from onward.torch.ortmodule._fallback import ORTModuleTorchModelException

_LONGEST = -1  # in place of how long the longest sequence is
# Torch's kinds of layers: the operator, the order of its gates, its attributes.
_OPERATORS: dict[str, tuple[str, Sequence[int], dict[str, Any]]] = {
    "LSTM": ("LSTM", (0, 3, 1, 2), {}),
    "GRU": ("GRU", (1, 0, 2), {"linear_before_reset": 1}),
    "RNN_TANH": ("RNN", (0,), {"activations": ["Tanh"]}),
    "RNN_RELU": ("RNN", (0,), {"activations": ["Relu"]}),
}
_OPSET = 14  # since when these operators are as they are


class Padded:
    """In place of the data and the batch sizes of a packed sequence: rows [T, B, ...] and how many of them count.

    Whatever else is done with it is an error.
    """

    device = torch.device("cpu")

    def __init__(self, rows: Tensor, lengths: Tensor) -> None:
        self.rows, self.lengths = rows, lengths

    def size(self, axis: int) -> int:
        return _LONGEST

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise ORTModuleTorchModelException("it uses the data of packed sequences otherwise than by recurrent layers")


def pack(x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Padded, Padded]:
    """`torch._pack_padded_sequence`."""
    padded = Padded(x.transpose(0, 1) if batch_first else x, lengths)
    return padded, padded


def pad(
    data: Padded, batch_sizes: Padded, batch_first: bool, padding_value: float, total_length: int
) -> tuple[Tensor, Tensor]:
    """`torch._pad_packed_sequence`: as many steps as the longest sequence has, or as are asked for."""
    rows, lengths = data.rows, data.lengths
    count = rows.shape[0]
    counted = torch.arange(count).unsqueeze(1) < lengths
    rows = torch.where(counted.reshape(*rows.shape[:2], *[1] * (rows.ndim - 2)), rows, padding_value)
    if total_length == _LONGEST:
        longest = lengths.max().item()
        check: Any = torch._check  # it has no types
        check(longest >= 1)
        check(longest <= count)
        rows = rows[:longest]
    elif total_length > count:
        filling = rows.new_full((total_length - count, *rows.shape[1:]), padding_value)
        rows = torch.cat([rows, filling])
    elif total_length < count:  # only the lengths say whether that is enough
        raise ORTModuleTorchModelException("it pads packed sequences to fewer steps than there were")
    return rows.transpose(0, 1) if batch_first else rows, lengths


@contextlib.contextmanager
def packed_layers(module: nn.Module) -> Iterator[None]:
    """Let the recurrent layers of a module take padded rows in place of packed ones."""
    layers = [child for child in module.modules() if isinstance(child, nn.RNNBase) and "forward" not in child.__dict__]
    for layer in layers:
        layer.__dict__["forward"] = _forward(layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]


def _forward(module: nn.RNNBase) -> Any:
    plain = module.forward

    def forward(x: Any, hx: Any = None) -> Any:
        if not isinstance(x, PackedSequence) or not isinstance(x.data, Padded):
            return plain(x, hx)
        if module.proj_size:
            raise ORTModuleTorchModelException("a recurrent layer takes packed sequences and has projections")
        given = None if hx is None else module.permute_hidden(hx, x.sorted_indices)
        states: list[Tensor] = [] if given is None else list(given) if module.mode == "LSTM" else [given]
        y, ends = _run(module, x.data.rows, x.data.lengths, states)
        padded: Any = Padded(y, x.data.lengths)
        last: Any = tuple(ends) if module.mode == "LSTM" else ends[0]
        found = PackedSequence(padded, padded, x.sorted_indices, x.unsorted_indices)
        return found, module.permute_hidden(last, x.unsorted_indices)

    return forward


def _run(module: nn.RNNBase, y: Tensor, lengths: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """All layers, one after the other: what the last one returns, [T, B, D H], and the last states [L D, B, H]."""
    operator, order, attributes = _OPERATORS[module.mode]
    directions = 2 if module.bidirectional else 1
    steps, rows = y.shape[:2]
    size, count = module.hidden_size, 2 if module.mode == "LSTM" else 1
    if not states:
        states = [y.new_zeros(module.num_layers * directions, rows, size)] * count
    attributes = {"hidden_size": size, **attributes}
    if module.bidirectional:
        attributes["direction"] = "bidirectional"
    if "activations" in attributes:
        attributes["activations"] = attributes["activations"] * directions
    last = []
    for layer in range(module.num_layers):
        own = slice(layer * directions, (layer + 1) * directions)
        weights = [[_ordered(tensor, order) for tensor in each] for each in module.all_weights[own]]
        w, r, *biases = (torch.stack(tensors) for tensors in zip(*weights, strict=True))
        b = torch.cat(biases, 1) if biases else y.new_zeros(directions, 2 * w.shape[1])
        end = (directions, rows, size)
        found = torch.onnx.ops.symbolic_multi_out(
            operator,
            (y, w, r, b, lengths.to(torch.int32), *(state[own] for state in states)),
            attributes,
            dtypes=(y.dtype,) * (1 + count),
            shapes=((steps, directions, rows, size), *[end] * count),
            version=_OPSET,
        )
        y = found[0].transpose(1, 2).reshape(steps, rows, directions * size)
        last.append(found[1:])
    return y, [torch.cat(parts) for parts in zip(*last, strict=True)]


def _ordered(weight: Tensor, order: Sequence[int]) -> Tensor:
    """The gates of a weight, one below the other, in another order."""
    gates = weight.chunk(len(order))
    return torch.cat([gates[gate] for gate in order])
