"""What a module does, in words that exporters write rightly, while it is exported."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from onward.torch.ortmodule import counting, packed
from onward.torch.ortmodule.attention import written_out
from onward.torch.ortmodule.grouped import grouped_products


class Spelled(TorchFunctionMode):
    """Replaces functions that exporters write otherwise, or not at all, and stops gradients where torch does.

    Exporters forget `torch.no_grad`. So inside of it arguments are detached, which graphs keep.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_stopped = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # Not by `torch.is_grad_enabled`: that is off inside of a torch.autograd.Function, too.
        if func is torch._C._set_grad_enabled:
            self._is_stopped = not args[0]
        elif self._is_stopped:
            args, kwargs = _detached(func, args, kwargs)
        if kwargs.get("generator", self) is None:  # said in so many words, which exporters do not know
            kwargs = {name: value for name, value in kwargs.items() if name != "generator"}
        spelled = _SPELLINGS.get(str(func) if isinstance(func, _OPERATORS) else func)
        if spelled is not None:
            with self:  # what the other words mean is spelled, too
                found = spelled(*args, **kwargs)
            if found is not None:
                return found
        return func(*args, **kwargs)


def _detached(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments without gradients, but for one that is changed in place, or asked for an attribute."""
    name: str = getattr(func, "__name__", "")
    kept = args[0] if args and (name == "__get__" or (name.endswith("_") and not name.startswith("__"))) else None

    def stopped(value: Any) -> Any:
        return value.detach() if isinstance(value, Tensor) and value.requires_grad and value is not kept else value

    changed: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map(stopped, (tuple(args), dict(kwargs)))
    return changed


def _cross_entropy(
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor | None:
    """Smoothed labels, which exporters leave out, and probabilities, which the operator they write does not take.

    A part of the loss for smoothed labels is the mean over all classes.
    """
    if size_average is not None or reduce is not None or (label_smoothing == 0 and not target.is_floating_point()):
        return None
    axis = min(scores.ndim - 1, 1)
    logarithms = F.log_softmax(scores, axis)
    if target.is_floating_point():
        wanted = target * (1 - label_smoothing) + label_smoothing / scores.shape[axis]
        if weight is not None:
            wanted = wanted * weight.view(-1, *[1] * (scores.ndim - axis - 1))
        losses = -(logarithms * wanted).sum(axis)
        return losses if reduction == "none" else losses.sum() if reduction == "sum" else losses.mean()
    plain = F.nll_loss(logarithms, target, weight, ignore_index=ignore_index, reduction=reduction)
    counted = target != ignore_index
    if weight is not None:
        logarithms = logarithms * weight.view(-1, *[1] * (scores.ndim - axis - 1))
    smooth = torch.where(counted, -logarithms.sum(axis), 0.0)  # no gradients where nothing counts, as in torch
    if reduction != "none":
        smooth = smooth.sum()
    if reduction == "mean":
        ones = counted.to(scores.dtype)
        smooth = smooth / (ones if weight is None else ones * weight[torch.where(counted, target, 0)]).sum()
    return (1 - label_smoothing) * plain + label_smoothing / scores.shape[axis] * smooth


def _embedding_bag(
    ids: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor | None:
    """Sums and means of embeddings, where exporters write loops over slices."""
    if max_norm is not None or scale_grad_by_freq or sparse or mode == "max":
        return None
    rows = F.embedding(ids, weight)
    shares = torch.ones_like(ids, dtype=weight.dtype) if per_sample_weights is None else per_sample_weights
    if padding_idx is not None:
        shares = torch.where(ids == padding_idx % weight.shape[0], 0.0, shares)
    rows = rows * shares.unsqueeze(-1)
    if offsets is None:
        sums, counts = rows.sum(1), shares.sum(1)
    else:
        bags, count = _bags(ids, offsets, include_last_offset)
        sums = rows.new_zeros(count, weight.shape[1]).index_add(0, bags, rows)
        counts = shares.new_zeros(count).index_add(0, bags, shares)
    return sums if mode == "sum" else sums / counts.clamp(min=1).unsqueeze(-1)


def _bags(ids: Tensor, offsets: Tensor, include_last_offset: bool) -> tuple[Tensor, int]:
    """Which bag each element is in: how many of them have begun before it. And how many there are."""
    starts = offsets[:-1] if include_last_offset else offsets
    begun = starts.new_zeros(ids.shape[0] + 1, dtype=torch.int64).index_add(
        0, starts, torch.ones_like(starts, dtype=torch.int64)
    )
    return begun.cumsum(0)[:-1] - 1, starts.shape[0]


def _of_one_type(function: Any) -> Callable[..., Tensor | None]:
    """A number and a tensor of another kind, 0.5 - mask: exporters lose their way where the number comes first."""

    def spelled(x: Any, y: Any, **options: Any) -> Tensor | None:
        numbers = [isinstance(value, (int, float)) for value in (x, y)]
        if sum(numbers) != 1:
            return None
        tensor = y if numbers[0] else x
        dtype = torch.result_type(x, y)
        if tensor.dtype == dtype:
            return None
        found: Tensor = function(*(value.to(dtype) if value is tensor else value for value in (x, y)), **options)
        return found

    return spelled


def _einsum(equation: Any, *operands: Any) -> Tensor | None:
    """Operands of several types, places and frequencies for instance, of which ONNX takes one only."""
    tensors = operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    if not all(isinstance(tensor, Tensor) for tensor in tensors) or len({tensor.dtype for tensor in tensors}) == 1:
        return None
    dtype = functools.reduce(torch.promote_types, [tensor.dtype for tensor in tensors])
    return torch.einsum(equation, *(tensor.to(dtype) for tensor in tensors))


def _sorted(function: Any) -> Callable[..., Any]:
    """Equal elements keep their order, which exporters have no word for: TopK, which they write, keeps it anyway."""

    def spelled(*args: Any, stable: bool = False, **options: Any) -> Any:
        return function(*args, **options) if stable else None

    return spelled


def _attention(query: Tensor, *args: Any, **options: Any) -> Tensor:
    """Rows in the order of their axes: what follows is written as views, and decompositions have other strides.

    Exporters know attention of four axes only.
    """
    if query.ndim != _ATTENTION_RANK:
        return written_out(query, *args, **options)
    with torch._C.DisableTorchFunction():
        return F.scaled_dot_product_attention(query, *args, **options).clone(memory_format=torch.contiguous_format)


def _instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    """Running statistics move towards the mean over all rows, which exporters leave out."""
    if running_mean is None or running_var is None or not use_input_stats:
        return None
    axes = list(range(2, x.ndim))
    rows = x.detach()
    for running, found in ((running_mean, rows.mean(axes)), (running_var, rows.var(axes))):
        running.copy_((1 - momentum) * running + momentum * found.mean(0))
    return F.instance_norm(x, None, None, weight, bias, True, momentum, eps)


def _alpha_dropout(per_channel: bool) -> Callable[..., Tensor | None]:
    """Dropout that keeps mean and variance of what SELU makes: a (m x + (m - 1) s) + a s p, with s below.

    What is dropped, or channels of it, becomes the limit -s of SELU; a takes it back to a variance of 1.
    """

    def spelled(x: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor | None:
        if not training or p in (0, 1):
            return None
        shape = [*x.shape[:2], *[1] * (x.ndim - 2)] if per_channel else x.shape
        mask = x.new_empty(shape).bernoulli_(1 - p)
        limit = _SELU_LIMIT
        scale = ((limit**2 * p + 1) * (1 - p)) ** -0.5
        y = x * (mask * scale) + ((mask - 1) * (limit * scale) + limit * scale * p)
        return x.copy_(y) if inplace else y

    return spelled


def _log_add_exp_2(x: Tensor, y: Tensor) -> Tensor:
    """log2(2^x + 2^y), which exporters write so: it is infinite for numbers that are not large."""
    return torch.logaddexp(x * math.log(2), y * math.log(2)) / math.log(2)


def _products(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor | None:
    """The products of the first elements, one by one: ONNX has no operator for them."""
    count = x.shape[dim] if x.ndim else 0
    if not isinstance(count, int) or not 0 < count <= _MOST_PRODUCTS:
        return None
    factors = (x if dtype is None else x.to(dtype)).unbind(dim)
    return torch.stack(list(itertools.accumulate(factors, torch.mul)), dim)


def _cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Norms are no less than eps, but have the gradients of norms there, too; exporters write zeros."""

    def norm(x: Tensor) -> Tensor:
        found = torch.linalg.vector_norm(x, dim=dim, keepdim=True)
        return torch.where(found < eps, found + (eps - found).detach(), found)

    dtype = torch.result_type(x1, x2)
    first, second = torch.broadcast_tensors(x1.to(dtype), x2.to(dtype))  # type: ignore[no-untyped-call]
    return ((first / norm(first)) * (second / norm(second))).sum(dim)


def _sinc(x: Tensor) -> Tensor | None:
    """sin(pi x) / (pi x), whose gradient is zero where pi x^2 is: exporters divide by that."""
    if not x.is_floating_point():
        return None
    angle = math.pi * x
    is_zero = angle * x == 0
    angle = torch.where(is_zero, 1.0, angle)
    return torch.where(is_zero, 1.0, angle.sin() / angle)


def _times_logarithm(logarithm: Callable[[Tensor], Tensor], zero: float) -> Callable[[Any, Any], Tensor]:
    """x log y, or x log(1 + y), which is nothing where x is; but has a slope of log y there, which exporters leave out.

    `zero`: where the logarithm is minus infinity.
    """

    def spelled(x: Any, y: Any) -> Tensor:
        dtype = torch.result_type(x, y)
        dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
        x, y = (torch.as_tensor(value, dtype=dtype) for value in (x, y))
        is_nothing = (x == 0) & ((y <= zero) | (y == math.inf))
        return x * logarithm(torch.where(is_nothing, zero + 1, y))

    return spelled


def _pool_of_all(axes: int, *, with_indices: bool = False) -> Callable[..., Any]:
    """A pool over the whole image: one element has the gradient, where exporters divide it among equal ones."""

    def spelled(x: Tensor, output_size: Any, return_indices: bool = False) -> Any:
        sizes = [output_size] * axes if isinstance(output_size, int) else list(output_size)
        if sizes != [1] * axes:
            return None
        flat, shape = x.flatten(-axes), (*x.shape[:-axes], *sizes)
        index = flat.argmax(-1, keepdim=True)
        largest = flat.gather(-1, index).reshape(shape)
        return (largest, index.reshape(shape)) if with_indices else largest

    return spelled


_SELU_LIMIT = 1.7580993408473766  # scale times alpha
_MOST_PRODUCTS = 256
_ATTENTION_RANK = 4

# None where the function itself will do.
_SPELLINGS: dict[Any, Callable[..., Any]] = {
    F.cross_entropy: _cross_entropy,
    F.embedding_bag: _embedding_bag,
    F.instance_norm: _instance_norm,
    F.alpha_dropout: _alpha_dropout(per_channel=False),
    F.feature_alpha_dropout: _alpha_dropout(per_channel=True),
    F.scaled_dot_product_attention: _attention,
    torch._pack_padded_sequence: packed.pack,
    torch._pad_packed_sequence: packed.pad,
    torch.eye: counting.eye,
    torch.einsum: _einsum,
    F.cosine_similarity: _cosine_similarity,
    **dict.fromkeys((torch.sinc, Tensor.sinc, torch.special.sinc), _sinc),
    **dict.fromkeys((torch.xlogy, Tensor.xlogy, torch.special.xlogy), _times_logarithm(torch.log, 0.0)),
    torch.special.xlog1py: _times_logarithm(torch.log1p, -1.0),
    F.adaptive_max_pool1d: _pool_of_all(1),
    F.adaptive_max_pool2d: _pool_of_all(2),
    F.adaptive_max_pool3d: _pool_of_all(3),
    F.adaptive_max_pool1d_with_indices: _pool_of_all(1, with_indices=True),
    F.adaptive_max_pool2d_with_indices: _pool_of_all(2, with_indices=True),
    F.adaptive_max_pool3d_with_indices: _pool_of_all(3, with_indices=True),
    torch.logaddexp2: _log_add_exp_2,
    Tensor.logaddexp2: _log_add_exp_2,
    torch.cumprod: _products,
    Tensor.cumprod: _products,
    torch.histc: counting.histogram,
    Tensor.histc: counting.histogram,
    getattr(torch, "_grouped_mm", None): grouped_products,
    "transformers.grouped_mm_fallback": grouped_products,
    **{function: _sorted(function) for function in (torch.sort, torch.argsort, Tensor.sort, Tensor.argsort)},
    **{function: _of_one_type(function) for function in (torch.add, torch.sub, torch.rsub, Tensor.__rsub__)},
}
_OPERATORS = (torch._ops.OpOverloadPacket,)  # of libraries, which may be loaded later: known by their names
