"""Operations that exporters write otherwise than torch computes them, which not every first call shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from onward.torch.ortmodule._fallback import ORTModuleTorchModelException
from onward.torch.ortmodule.attention import written_out

_aten = torch.ops.aten
_FLOORING = frozenset(
    {
        torch.floor_divide, torch.Tensor.floor_divide, torch.Tensor.floor_divide_, torch.Tensor.__floordiv__,
        torch.Tensor.__rfloordiv__, torch.Tensor.__ifloordiv__,
    }
)  # fmt: skip

_SIZES = frozenset({torch.Tensor.shape.__get__, torch.Tensor.size, torch.Tensor.numel, torch.numel})  # type: ignore[attr-defined]
_BY_LOGARITHMS = frozenset({F.logsigmoid, F.binary_cross_entropy, F.binary_cross_entropy_with_logits})


class Traceable(TorchFunctionMode):
    """Refuses, as long as a module is traced, what is written otherwise there, and leaves no record behind.

    Attention with a mask is written out: rows that it hides from end to end would be no numbers.

    Logarithms of sigmoids are infinite for numbers that are not large. Divisions that round down are written to round
    towards zero; that is the same for sizes, which are tensors then, too, and which are not negative. Packed sequences
    are padded to as many steps as there were, and not to the longest of them. `has_numbers`: whether there are numbers
    among the arguments, which cannot be told from sizes. Where Python counts by a tensor, `range(n)`, the tracer warns
    of nothing, and writes what one number leads to: that is right for sizes only.
    """

    def __init__(self, *, has_numbers: bool) -> None:
        super().__init__()
        self._has_numbers = has_numbers
        self._sizes: dict[int, torch.Tensor] = {}  # kept, so that no other tensor gets the id of one of them

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        if func in _FLOORING and (self._has_numbers or any(tensor.ndim for tensor in tensors)):
            raise ORTModuleTorchModelException("it divides and rounds down, where torch's older exporter does not")
        if func is torch._pad_packed_sequence:
            raise ORTModuleTorchModelException(
                "torch's older exporter pads packed sequences to as many steps as before"
            )
        if func is F.scaled_dot_product_attention and _has_mask(*args, **(kwargs or {})):
            return written_out(*args, **(kwargs or {}))
        if func in _BY_LOGARITHMS:
            raise ORTModuleTorchModelException(f"torch's older exporter writes {func.__name__} by logarithms of zero")
        given = _tensors((args, kwargs))
        of_sizes = bool(given) and all(id(tensor) in self._sizes for tensor in given)
        if func is torch.Tensor.__index__ and not of_sizes:
            raise ORTModuleTorchModelException("torch's older exporter takes a number that Python counts by for fixed")
        found = func(*args, **(kwargs or {}))
        if of_sizes or func in _SIZES:
            self._sizes |= {id(tensor): tensor for tensor in _tensors(found)}
        return found


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in pytree.tree_leaves(values) if isinstance(value, torch.Tensor)]


def _has_mask(query: Any, key: Any, value: Any, attn_mask: Any = None, *args: Any, **kwargs: Any) -> bool:
    return attn_mask is not None


def refusal(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why no graph can be trusted with what torch runs just now; None where one can."""
    reason = _REASONS.get(operation.overloadpacket)
    return None if reason is None else reason(args, kwargs)


def _embedding(args: Sequence[Any], _: Mapping[str, Any]) -> str | None:
    if len(args) > 4 and args[4]:
        return "an embedding has sparse gradients"
    by_frequency = len(args) > 3 and args[3]
    return "an embedding divides gradients by how often a row is looked up" if by_frequency else None


def _embedding_bag(args: Sequence[Any], _: Mapping[str, Any]) -> str | None:
    return "an embedding has sparse gradients" if len(args) > 5 and args[5] else None


def _scatter_reduce(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    if args[4] == "mean":
        return "scatter_reduce takes means, which ONNX does not have"
    # Where the element that is left out is as large as the result, torch gives it a part of the gradient nevertheless.
    is_chosen = args[4] in ("amax", "amin") and not kwargs.get("include_self", True)
    return f"scatter_reduce takes {args[4]} without the elements that were there" if is_chosen else None


def _vector_norm(args: Sequence[Any], _: Mapping[str, Any]) -> str | None:
    is_negative = len(args) > 1 and args[1] < 0
    return "norms of negative orders have no number for a gradient where elements are zero" if is_negative else None


def _nearest(args: Sequence[Any], _: Mapping[str, Any]) -> str | None:
    """Halves of pixels fall on borders between others, which rounding decides."""
    factors = [factor for factor in args[2:] if isinstance(factor, float)]
    if all(factor.is_integer() or (1 / factor).is_integer() for factor in factors):
        return None
    return f"it interpolates by 'nearest-exact' with a factor of {factors[0]}"


def _always(reason: str) -> Callable[[Sequence[Any], Mapping[str, Any]], str]:
    return lambda args, kwargs: reason


_REASONS: dict[Any, Callable[[Sequence[Any], Mapping[str, Any]], str | None]] = {
    _aten.embedding: _embedding,
    _aten._embedding_bag: _embedding_bag,
    _aten.scatter_reduce: _scatter_reduce,
    _aten._upsample_nearest_exact1d: _nearest,
    _aten._upsample_nearest_exact2d: _nearest,
    _aten._upsample_nearest_exact3d: _nearest,
    _aten.logcumsumexp: _always("logcumsumexp loses what is far below the largest element"),
    _aten.special_log_ndtr: _always("log_ndtr is the logarithm of 0 far below 0"),
    _aten.special_erfcx: _always("exp(x^2) (1 - erf(x)) loses what erfcx(x) is there for"),
    _aten.erfc: _always("1 - erf(x) loses what erfc(x) is there for"),
    _aten.linalg_vector_norm: _vector_norm,
    _aten.multilabel_margin_loss_forward: _always("exporters write multilabel_margin_loss for rows without an end"),
    _aten.multi_margin_loss: _always("multi_margin_loss has other gradients at its kinks"),
    _aten._cdist_forward: _always("exporters write the distances of cdist without absolute values"),
    _aten._euclidean_dist: _always("cdist has other gradients where points are the same"),
}
