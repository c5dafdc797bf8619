"""Packed sequences: whatever their lengths are, recurrent layers take as many steps as in torch."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils import _pytree as pytree

from onward.torch import ORTModule
from onward.torch.ortmodule import FallbackWarning
from tests.ortmodule.models import Function
from tests.ortmodule.test_models import CLOSE, loss_of

# The first batch has a sequence of all steps, others do not.
LENGTHS = [[3, 5, 4], [1, 2, 5], [2, 3, 4], [3, 1, 3], [2, 4], [5, 5, 5, 1]]


def _pack(x: Tensor, lengths: Tensor) -> PackedSequence:
    return pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)


def _tags(m: Any, x: Tensor, lengths: Tensor) -> Any:
    y, last = m.rnn(_pack(x, lengths))
    padded, found = pad_packed_sequence(y, batch_first=True, padding_value=-0.5)
    inside = torch.arange(padded.shape[1]).unsqueeze(0) < found.unsqueeze(1)
    return (padded.sum(2) * inside).sum() / inside.sum(), padded, last, found


def _sorted(m: Any, x: Tensor, lengths: Tensor) -> Any:
    packed = pack_padded_sequence(x.transpose(0, 1), lengths.sort(descending=True).values)
    return pad_packed_sequence(m.rnn(packed)[0])


def _states(m: Any, x: Tensor, lengths: Tensor) -> Any:
    """With states to begin with, and more steps than there are."""
    h = x.new_ones(2, x.shape[0], 4) * torch.arange(x.shape[0]).unsqueeze(1)
    y, last = m.rnn(_pack(x, lengths), (h, h / 2))
    return pad_packed_sequence(y, total_length=x.shape[1] + 1)[0], last


def _two(m: Any, x: Tensor, lengths: Tensor) -> Any:
    return m.second(m.first(_pack(x, (torch.arange(5) < lengths.unsqueeze(1)).sum(1)))[0])[1]


CASES: dict[str, Callable[[], nn.Module]] = {
    "LSTM": lambda: Function(_tags, rnn=nn.LSTM(3, 4)),
    "GRU": lambda: Function(_tags, rnn=nn.GRU(3, 4, bidirectional=True)),
    "RNN": lambda: Function(_tags, rnn=nn.RNN(3, 4, num_layers=2, nonlinearity="relu")),
    "sorted": lambda: Function(_sorted, rnn=nn.LSTM(3, 4, num_layers=2, bidirectional=True)),
    "states": lambda: Function(_states, rnn=nn.LSTM(3, 4, bidirectional=True, bias=False)),
    "one after another": lambda: Function(_two, first=nn.RNN(3, 4, bidirectional=True), second=nn.GRU(8, 4)),
    "without layers": lambda: Function(
        lambda m, x, lengths: pad_packed_sequence(_pack(m.fc(x), lengths))[0], fc=nn.Linear(3, 2)
    ),
}


def _compare(reference: nn.Module, module: ORTModule) -> None:
    """Results and gradients for all lengths; the sizes of the first four batches are the same."""
    for number, lengths in enumerate(LENGTHS):
        torch.manual_seed(number)
        x, found = torch.randn(len(lengths), 5, 3), []
        for net in (reference, module):
            net.zero_grad()
            torch.manual_seed(number)
            found.append(net(x, torch.tensor(lengths)))
            loss_of(found[-1]).backward()
        for got, wanted in zip(pytree.tree_leaves(found[1]), pytree.tree_leaves(found[0]), strict=True):
            torch.testing.assert_close(got, wanted, **CLOSE)
        for own, expected in zip(module.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(own.grad, expected.grad, **CLOSE)


@pytest.mark.parametrize("name", CASES)
def test_sequences_of_any_length(name: str) -> None:
    torch.manual_seed(0)
    reference = CASES[name]()
    module = ORTModule(copy.deepcopy(reference))
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        _compare(reference, module)


def _shorter(m: Any, x: Tensor, lengths: Tensor) -> Any:
    return pad_packed_sequence(m.rnn(_pack(x[:, :4], lengths.clamp(max=3)))[0], total_length=3)


def _of_data(m: Any, x: Tensor, lengths: Tensor) -> Any:
    packed = _pack(x, lengths)
    return m.rnn(packed._replace(data=torch.tanh(packed.data)))[1]


LEFT_TO_TORCH: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "their data": (lambda: Function(_of_data, rnn=nn.LSTM(3, 4)), "the data of packed sequences"),
    "returned": (lambda: Function(lambda m, x, n: m.rnn(_pack(x, n))[0], rnn=nn.GRU(3, 4)), "number of tensors"),
    "fewer steps": (lambda: Function(_shorter, rnn=nn.GRU(3, 4)), "to fewer steps"),
    "projections": (lambda: Function(_tags, rnn=nn.LSTM(3, 4, proj_size=2)), "has projections"),
    "dropout": (
        lambda: Function(lambda m, x, n: nn.functional.dropout(_tags(m, x, n)[1]), rnn=nn.GRU(3, 4)), "size 'u0'"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT_TO_TORCH)
def test_what_is_left_to_torch(name: str) -> None:
    make, message = LEFT_TO_TORCH[name]
    torch.manual_seed(0)
    reference = make()
    module = ORTModule(copy.deepcopy(reference))
    with pytest.warns(FallbackWarning, match=message):
        _compare(reference, module)
