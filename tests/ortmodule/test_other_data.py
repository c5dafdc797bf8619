"""Graphs are compared with torch for the data of the first call; what they compute for other data is torch's, too."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from onward.torch import ORTModule
from onward.torch.ortmodule import FallbackWarning
from tests.ortmodule.models import Function
from tests.ortmodule.test_models import CLOSE, compare


def _without_gradients(m: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return m.norm(x)


def _frozen() -> nn.Module:
    body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=0.3)).requires_grad_(requires_grad=False)
    return nn.Sequential(body, nn.Linear(4, 2))


# Nothing is trained in front of these, or in them.
NORMS: dict[str, Callable[[], nn.Module]] = {
    "without weights": lambda: nn.BatchNorm1d(4, affine=False),
    "frozen": _frozen,
    "without gradients": lambda: Function(_without_gradients, norm=nn.BatchNorm1d(4)),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_running_statistics_change_once_a_call(name: str, requires_grad: bool) -> None:
    """onnxruntime writes statistics where those of the module are, also while a graph is compared with torch."""
    torch.manual_seed(0)
    module = NORMS[name]()
    reference = copy.deepcopy(module)
    net = ORTModule(module)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for rows in (3, 3, 5):
            x = torch.randn(rows, 4).requires_grad_(requires_grad)
            compare(net(x), reference(x))
            torch.testing.assert_close(dict(module.named_buffers()), dict(reference.named_buffers()), **CLOSE)


def step(net: nn.Module, args: tuple[Any, ...]) -> list[Tensor | None]:
    """Results, and the gradients of arguments and parameters."""
    given = [arg.detach().clone().requires_grad_(arg.requires_grad) for arg in args]
    returned = net(*given)
    results = list(returned) if isinstance(returned, (list, tuple)) else [returned]
    ends = [y for y in results if y.requires_grad]
    targets = [x for x in (*given, *net.parameters()) if x.requires_grad]
    seeds = [torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape) for y in ends]
    return [*results, *(torch.autograd.grad(ends, targets, seeds, allow_unused=True) if ends else ())]


def check(module: nn.Module, *data: tuple[Tensor, ...], falls_back: bool = False) -> None:
    """What a graph for the first data computes for the others."""
    net = ORTModule(module)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", FallbackWarning)
        for args in data:
            torch.testing.assert_close(step(net, args), step(module, args), equal_nan=True, **CLOSE)
    assert falls_back == any(warning.category is FallbackWarning for warning in caught)


INF, NAN = math.inf, math.nan
USUAL = torch.tensor([[0.3, -0.7, 1.1, 0.9], [-0.2, 0.4, -1.3, 0.8]])
DATA = {
    "large": [[100.0, -100, 200, -30], [-20, 30, -1000, 50]],
    "small": [[1e-8, -1e-8, 1e-5, -1e-5], [1e-3, 0.05, -0.05, 0.2]],
    "zeros": [[0.0, 0, 0, 0], [1, 0, -1, 0]],
    "negative infinity": [[-INF, -100, -200, -150], [-INF, -20, -95, -INF]],
    "infinity": [[INF, 1, 2, 3], [INF, INF, -1, 0]],
}
# Functions, and the data for which torch itself has noise or no number.
FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], set[str]]] = {
    "logsigmoid": (F.logsigmoid, set()),
    "logarithm of a sigmoid": (lambda x: x.clamp(-80, 80).sigmoid().log(), set()),
    "logarithm of a probability": (lambda x: (0.5 * x.clamp(-80, 80).sigmoid().squeeze()).log(), set()),
    "logarithm of a softplus": (lambda x: F.softplus(x.clamp(-80, 80)).log(), set()),
    "logaddexp": (lambda x: torch.logaddexp(x, x[:1].flip(1)), set()),
    "logaddexp2": (lambda x: torch.logaddexp2(x, x[:1].flip(1)), set()),
    "logsumexp": (lambda x: x.logsumexp(1), set()),
    "logsumexp of all": (lambda x: (x - 100).logsumexp((0, 1), keepdim=True), set()),
    "log1p": (lambda x: 1e6 * torch.log1p(x.abs()), set()),
    "expm1": (lambda x: 1e6 * torch.expm1(-x.abs()), set()),
    "log(1 - exp(-x))": (lambda x: (-torch.expm1(-x.abs() - 1e-9)).log(), set()),
    "bce_with_logits": (
        lambda x: F.binary_cross_entropy_with_logits(x, (x > 0).float(), reduction="none"),
        {"infinity", "negative infinity"},
    ),
    "bce, wrong": (lambda x: F.binary_cross_entropy(x.sigmoid(), (x < 0).float(), reduction="none"), set()),
    "bce, right": (lambda x: F.binary_cross_entropy(x.sigmoid(), (x > 0).float(), weight=x.detach().sigmoid()), set()),
    "multilabel_soft_margin_loss": (
        lambda x: F.multilabel_soft_margin_loss(x, (x < 0).float()),
        {"infinity", "negative infinity"},
    ),
    "atan2": (lambda x: torch.atan2(x, x.flip(1)), {"small"}),
    "atan2 of negative zeros": (lambda x: torch.atan2(-x.relu(), -x.relu().flip(1) - (x < -1).float()), {"infinity"}),
    "xlogy": (lambda x: torch.xlogy(x, 1 + x.flip(1).abs()), set()),
    "xlogy of what is no logarithm": (lambda x: x.xlogy(x.detach().floor().abs() - 1), set()),
    "xlog1py": (lambda x: torch.special.xlog1py(x, x.flip(1).abs()), set()),
    "sinc": (lambda x: torch.sinc(x.clamp(-100, 100)), {"small"}),
    "sinc of next to nothing": (
        lambda x: torch.sinc(x.clamp(-1, 1) ** 9 * 1e-18),
        set(),
    ),
    "cosine of short rows": (lambda x: F.cosine_similarity(x.clamp(-9, 9), x.flip(1), dim=1, eps=0.3), {"infinity"}),
    "norm of order 3": (lambda x: x.norm(3, dim=1), {"infinity", "negative infinity"}),
    "norm of order 1/2": (lambda x: x.norm(0.5, dim=1), {"infinity", "negative infinity"}),
    "clamp from below": (lambda x: x.clamp(min=-5.0), set()),
    "clamp from above": (lambda x: x.clamp(max=5.0), set()),
    "remainder": (lambda x: torch.remainder(x, 0.1), set()),
    "remainder by tensors": (lambda x: x % (x.detach().flip(1) + 1), set()),
    "angle": (lambda x: (100 * x) % (2 * math.pi), set()),
    "floor_divide": (lambda x: (x * 7).detach() // 0.1, {"infinity", "negative infinity"}),
    "floor": (
        lambda x: torch.div(x.detach().round() / 10, 0.1, rounding_mode="floor"),
        {"infinity", "negative infinity"},
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    function, unlike = FUNCTIONS[name]
    data = [torch.tensor(numbers) for which, numbers in DATA.items() if which not in unlike]
    check(Function(lambda _, x: function(x)), *((x.requires_grad_(),) for x in (USUAL.clone(), *data)))


IDS = torch.tensor([[0, 1, 2], [1, 2, 3]])
ROWS = torch.arange(12.0).reshape(4, 3).requires_grad_()
IMAGE = torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
EDGES = torch.stack(torch.meshgrid(*[torch.tensor([-1.0, 1, 0, 2.5, -3, 0.3, -0.75, -1.25])] * 2, indexing="ij"), -1)[
    None
]


def grid_sample(padding: str, *, aligned: bool) -> nn.Module:
    return Function(lambda _, x, grid: F.grid_sample(x, grid, "bilinear", padding, align_corners=aligned))


def routed(m: nn.Module, x: Tensor, experts: Tensor) -> Tensor:
    """Each row through the matrix of its expert, as mixtures of experts do it on GPUs."""
    order = experts.argsort(stable=True)
    ends = torch.histc(experts.float(), bins=3, min=0, max=2).cumsum(0, dtype=torch.int32)
    y = F.grouped_mm(m.fc(x)[order], m.experts.weight.view(3, 4, 8), offs=ends)
    return torch.zeros_like(y).index_copy(0, order, y)


def attended(m: nn.Module, x: Tensor) -> Tensor:
    """What sees the result of attention as it is in memory."""
    heads = m.fc(x).view(*x.shape[:-1], 2, 2).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).reshape(*x.shape[:-1], 4)


PLACES = torch.tensor([[-1.0, 0.0, 0.5, 1.0], [2.0, 1.5, -0.1, 2.1]])

MODULES: dict[str, tuple[Callable[[], nn.Module], list[tuple[Tensor, ...]]]] = {
    "padding by the last row": (
        lambda: Function(lambda _, ids, rows: F.embedding(ids, rows, padding_idx=-1)),
        [(torch.tensor([0, 1]), ROWS), (torch.tensor([3, 1]), ROWS)],
    ),
    "mean of nothing": (
        lambda: Function(lambda _, x: [x[x > 0].mean(), x[x > 0].var()]),
        [(USUAL.clone().requires_grad_(),), (torch.full((2, 4), -1.0).requires_grad_(),)],
    ),
    "cross entropy of probabilities": (
        lambda: Function(
            lambda _, x, y: [
                F.cross_entropy(x, y.softmax(1)),
                F.cross_entropy(x, y.softmax(1), torch.arange(4.0), reduction="sum", label_smoothing=0.1),
                F.cross_entropy(x.view(1, 2, -1), y.view(1, 2, -1).softmax(1), reduction="none"),
                F.cross_entropy(x[0], y[0]),
            ]
        ),
        [(USUAL.clone().requires_grad_(), USUAL.flip(1)), ((100 * USUAL).requires_grad_(), 10 * USUAL)],
    ),
    "cumulative products": (
        lambda: Function(lambda _, x: [x.cumprod(1), torch.cumprod(x, dim=0)]),
        [(USUAL.clone().requires_grad_(),), (torch.tensor(DATA["zeros"]).requires_grad_(),)],
    ),
    "identities of booleans and whole numbers": (
        lambda: Function(
            lambda _, x: (
                x @ x.t().masked_fill(torch.eye(4, x.shape[0], dtype=torch.bool), -1.0) * torch.eye(len(x)).int()
                + torch.eye(x.shape[0], dtype=torch.int64)
            )
        ),
        [(USUAL,), (torch.arange(12.0).reshape(3, 4),)],
    ),
    "sums of nothing": (
        lambda: Function(
            lambda _, x, ids: [
                r for y in (x[ids], x[ids].t()) for r in (y.sum(-1), y.sum(-2, keepdim=True), y.prod(-1))
            ]
        ),
        [(ROWS, IDS[0]), (ROWS, IDS[0, :1]), (ROWS, IDS[0, :0])],
    ),
    "pool of equal elements": (
        lambda: Function(lambda _, x: [F.adaptive_max_pool2d(x, 1), getattr(F, "adaptive_max_pool" + "1d")(x[0], 1)]),
        [(IMAGE,), (torch.zeros(1, 2, 4, 4).requires_grad_(),), (torch.ones(1, 2, 4, 4).requires_grad_(),)],
    ),
    "numbers in double precision": (
        lambda: Function(lambda _, x: [x % 0.1, x * 0.1, F.logsigmoid(x), torch.logaddexp(x, 2 * x)]),
        [(USUAL.double().requires_grad_(),), ((1e6 * USUAL.double()).requires_grad_(),)],
    ),
    "experts, some without a row": (
        lambda: Function(routed, fc=nn.Linear(4, 4), experts=nn.Embedding(3, 32)),
        [
            (torch.linspace(-1, 1, 4 * len(chosen)).reshape(-1, 4).requires_grad_(), torch.tensor(chosen))
            for chosen in ([0, 2, 1, 0], [1, 1, 1, 1], [2, 2, 0, 0, 2], [0, 1, 0, 1, 1, 0], [2] * 9)
        ],
    ),
    "order of equal elements": (
        lambda: Function(lambda _, x: [x.argsort(stable=True, dim=1), *x.sort(stable=True, dim=0, descending=True)]),
        [(USUAL,), (torch.tensor(DATA["zeros"]),), (torch.zeros(3, 40).round(),)],
    ),
    "histogram": (
        lambda: Function(lambda _, x: [torch.histc(x, 3, 0, 2), x.histc(7, min=-1.0, max=1.5), 2 * x]),
        [(PLACES,), (PLACES.flip(1) / 3,), (torch.full((5, 4), 0.2),)],
    ),
    "numbers before tensors of other types": (
        lambda: Function(lambda _, x: x * (1.5 - (x > 0).long()) + torch.add(0.5, x < 1, alpha=0.25) - (2.5 - x.int())),
        [(USUAL.clone().requires_grad_(),), (torch.tensor(DATA["zeros"]).requires_grad_(),)],
    ),
    "attention, as it is in memory": (
        lambda: Function(attended, fc=nn.Linear(4, 4)),
        [(torch.linspace(-2, 2, 4 * rows * 3).reshape(rows, 3, 4).requires_grad_(),) for rows in (2, 5)],
    ),
    **{
        f"grid_sample, {padding}, {aligned}": (
            lambda padding=padding, aligned=aligned: grid_sample(padding, aligned=aligned),  # type: ignore[misc]
            [(IMAGE, (0.3 * EDGES).requires_grad_()), (IMAGE, EDGES.clone().requires_grad_())],
        )
        for padding in ("border", "reflection")
        for aligned in (False, True)
    },
}


@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    module, data = MODULES[name]
    check(module(), *data)


# What no exporter writes as torch computes it.
REFUSED: dict[str, tuple[Callable[[], nn.Module], list[tuple[Tensor, ...]]]] = {
    "embedding, by frequency": (
        lambda: nn.Embedding(4, 3, scale_grad_by_freq=True),
        [(torch.tensor([0, 1]),), (torch.tensor([1, 1]),)],
    ),
    "mean of scattered rows": (
        lambda: Function(lambda _, x, ids: x.scatter_reduce(0, ids, 2 * x[:2], "mean", include_self=False)),
        [(ROWS, IDS), (ROWS, torch.ones_like(IDS))],
    ),
    "maximum of scattered rows": (
        lambda: Function(lambda _, x, ids: x.scatter_reduce(0, ids, 0 * x[:2], "amax", include_self=False)),
        [(ROWS, IDS), (torch.zeros(4, 3).requires_grad_(), torch.ones_like(IDS))],
    ),
    "logcumsumexp": (
        lambda: Function(lambda _, x: x.logcumsumexp(1)),
        [(USUAL.clone().requires_grad_(),), (torch.tensor(DATA["large"]).requires_grad_(),)],
    ),
    "erfc": (
        lambda: Function(lambda _, x: x.erfc().log()),
        [(USUAL.clone().requires_grad_(),), ((7 + USUAL).requires_grad_(),)],
    ),
    "log_ndtr": (
        lambda: Function(lambda _, x: torch.special.log_ndtr(x)),
        [(USUAL.clone().requires_grad_(),), (torch.tensor(DATA["large"]).requires_grad_(),)],
    ),
    "erfcx": (
        lambda: Function(lambda _, x: torch.special.erfcx(x)),
        [(USUAL.clone().requires_grad_(),), ((7 + USUAL).requires_grad_(),)],
    ),
    "norm of a negative order": (
        lambda: Function(lambda _, x: x.norm(-1, dim=1)),
        [(USUAL.clone().requires_grad_(),), (torch.tensor(DATA["zeros"]).requires_grad_(),)],
    ),
    "multilabel_margin_loss": (
        lambda: Function(lambda _, x, ids: F.multilabel_margin_loss(x, ids)),
        [
            (USUAL.clone().requires_grad_(), torch.tensor(labels))
            for labels in ([[1, 3, 0, 2], [0, 1, 2, 3]], [[1, 3, -1, 0], [0, -1, 1, 1]])
        ],
    ),
    "multi_margin_loss": (
        lambda: Function(lambda _, x, ids: F.multi_margin_loss(x, ids)),
        [((2 * USUAL).requires_grad_(), IDS[:, 0]), (torch.tensor(DATA["zeros"]).requires_grad_(), IDS[:, 0])],
    ),
    "cdist": (
        lambda: Function(lambda _, x, y: torch.cdist(x, y, p=1.0)),
        [(5 + USUAL, USUAL), (USUAL, USUAL)],
    ),
    "cdist by products": (
        lambda: Function(lambda _, x, y: torch.cdist(x, y, compute_mode="use_mm_for_euclid_dist")),
        [(USUAL.clone().requires_grad_(), 2 * USUAL), (USUAL.clone().requires_grad_(), USUAL)],
    ),
    "number by tensor": (
        lambda: Function(lambda _, x: 7 // x),
        [(torch.tensor([2, 3]),), (torch.tensor([-2, -3]),)],
    ),
    "nearest by a fraction, for some sizes": (
        lambda: Function(lambda _, x: F.interpolate(x, scale_factor=1.2)),
        [(torch.arange(2.0 * size * size).reshape(1, 2, size, size).requires_grad_(),) for size in (8, 9, 10, 20)],
    ),
    "bilinear by a fraction, for an axis that keeps its size": (
        lambda: Function(lambda _, x: F.interpolate(x, scale_factor=1.2, mode="bilinear")),
        [(torch.arange(2.0 * n * (n + 1)).reshape(1, 2, n, n + 1).requires_grad_(),) for n in (8, 9, 10, 4)],
    ),
    "nearest-exact by a fraction": (
        lambda: Function(lambda _, x: F.interpolate(x, scale_factor=1.7, mode="nearest-exact")),
        [
            (torch.arange(3.0 * h * w).reshape(1, 3, h, w).requires_grad_(),)
            for h, w in ((5, 5), (4, 4), (3, 4), (8, 4))
        ],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    module, data = REFUSED[name]
    check(module(), *data, falls_back=True)


# What ONNX takes, and torch does not.
WRONG: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...], tuple[Tensor, ...]]] = {
    "embedding": (lambda: nn.Embedding(4, 3), (IDS,), (IDS - 1,)),
    "gather": (lambda: Function(lambda _, x, ids: x.gather(0, ids)), (ROWS, IDS), (ROWS, IDS - 1)),
    "index_select": (
        lambda: Function(lambda _, x, ids: x.index_select(0, ids)),
        (ROWS, IDS[0]),
        (ROWS, IDS[0] - 1),
    ),
    "scatter_add": (
        lambda: Function(lambda _, x, ids: x.scatter_add(0, ids, 2 * x[:2])),
        (ROWS, IDS),
        (ROWS, IDS - 1),
    ),
    "probabilities": (
        lambda: Function(lambda _, x: F.binary_cross_entropy(x, torch.ones_like(x))),
        (USUAL.abs() / 2,),
        (USUAL,),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_torch_refuses(name: str) -> None:
    make, right, wrong = WRONG[name]
    module = make()
    net = ORTModule(module)
    torch.testing.assert_close(step(net, right), step(module, right), **CLOSE)
    with pytest.warns(FallbackWarning), pytest.raises((IndexError, RuntimeError)):
        net(*wrong)
    torch.testing.assert_close(step(net, right), step(module, right), **CLOSE)
    assert net.runs_on_onnxruntime(*right)


def test_probabilities_are_exact_where_they_are_small() -> None:
    """The loss is computed outside; onnxruntime's Sigmoid is 0 below -18."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Flatten(0))
    net = ORTModule(module)
    net(USUAL)
    for x in (20 * USUAL, 40 * USUAL):
        found, expected = (F.binary_cross_entropy(m(x), torch.ones(8), reduction="none") for m in (net, module))
        torch.testing.assert_close(found, expected)
    assert net.runs_on_onnxruntime(USUAL)


def test_tracing_keeps_arguments_that_nothing_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_ONNX_OPSET_VERSION", "17")  # which only tracing writes
    check(Function(lambda _, x, y: 2 * y), (USUAL, USUAL.clone().requires_grad_()))


@pytest.mark.parametrize("function", [F.logsigmoid, lambda x: F.binary_cross_entropy_with_logits(x, (x > 0).float())])
def test_tracing_writes_no_logarithms_of_zero(
    function: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTMODULE_ONNX_OPSET_VERSION", "17")
    data = [USUAL.clone(), torch.tensor(DATA["large"])]
    check(Function(lambda _, x: function(x)), *((x.requires_grad_(),) for x in data), falls_back=True)


def test_numbers_that_vary_are_not_divided_by_tracing() -> None:
    module = Function(lambda _, x, k: x * (7 // k))
    net = ORTModule(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        for k in (2, 3, -3):
            torch.testing.assert_close(net(USUAL, k), module(USUAL, k))
