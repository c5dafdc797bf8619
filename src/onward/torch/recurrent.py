"""Recurrent layers with dropout between them, one after the other: exporters leave that dropout out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onward.errors import OnwardError

if TYPE_CHECKING:
    from torch import Tensor, nn


def drops_between_layers(module: nn.Module) -> bool:
    """Whether a module is several recurrent layers in one, with dropout between them."""
    from torch import nn

    return isinstance(module, nn.RNNBase) and module.training and module.dropout > 0 and module.num_layers > 1


def require_layers(module: nn.RNNBase, name: str) -> None:
    """Refuse what cannot be taken apart."""
    if module.proj_size > 0:
        raise OnwardError(_refusal(module, name))


def _refusal(module: nn.RNNBase, name: str) -> str:
    return (
        f"{type(module).__name__} {name!r} has dropout={module.dropout} between its layers, which exporters "
        "leave out. Set dropout=0, or make each layer a module of its own with nn.Dropout between them."
    )


def layer_by_layer(module: nn.RNNBase) -> Callable[..., Any]:
    """`forward` by one layer after the other, with a plain dropout between them, as torch draws it."""
    import torch
    from torch.nn.functional import dropout

    runs: dict[str, Callable[..., Any]] = {
        "LSTM": torch.lstm,
        "GRU": torch.gru,
        "RNN_TANH": torch.rnn_tanh,
        "RNN_RELU": torch.rnn_relu,
    }
    run = runs[module.mode]
    directions = 2 if module.bidirectional else 1
    is_lstm = module.mode == "LSTM"

    def forward(x: Any, hx: Any = None) -> Any:
        if not isinstance(x, torch.Tensor):  # packed sequences
            raise OnwardError(_refusal(module, ""))
        states: list[Tensor] = list(hx) if is_lstm and hx is not None else [] if hx is None else [hx]
        batched = x.ndim == 3
        y = x if batched else x.unsqueeze(1)
        y = y.transpose(0, 1) if batched and module.batch_first else y
        states = states if batched else [state.unsqueeze(1) for state in states]
        if not states:
            zeros = y.new_zeros(module.num_layers * directions, y.shape[1], module.hidden_size)
            states = [zeros] * (2 if is_lstm else 1)
        last: list[list[Tensor]] = []
        for layer in range(module.num_layers):
            if layer > 0:
                y = dropout(y, module.dropout, training=True)
            rows = slice(layer * directions, (layer + 1) * directions)
            weights = [weight for row in module.all_weights[rows] for weight in row]
            own = [state[rows] for state in states]
            y, *ends = run(
                y, own if is_lstm else own[0], weights, module.bias, 1, 0.0, True, module.bidirectional, False
            )
            last.append(ends)
        ends = [torch.cat(parts, 0) for parts in zip(*last, strict=True)]
        if not batched:
            y, ends = y.squeeze(1), [end.squeeze(1) for end in ends]
        elif module.batch_first:
            y = y.transpose(0, 1)
        return y, tuple(ends) if is_lstm else ends[0]

    return forward
