"""Every recipe against torch.optim, or against its formula where torch has no such optimizer, over fifty steps."""

import contextlib

import numpy as np
import pytest
import torch

from onward import optim
from onward.errors import OnwardError, OnwardWarning, UnknownNameError
from onward.testing import check_optimizer
from onward.testing.optimizers import run_optimizer
from tests.optim import references
from tests.optim.references import torch_optimizer

LIKE_TORCH = [
    ("sgd", torch.optim.SGD, {}),
    ("sgd", torch.optim.SGD, {"weight_decay": 0.1}),
    ("sgd", torch.optim.SGD, {"momentum": 0.9}),
    ("sgd", torch.optim.SGD, {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    ("sgd", torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    ("sgd", torch.optim.SGD, {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1}),
    ("adam", torch.optim.Adam, {}),
    ("adam", torch.optim.Adam, {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}),
    ("adam", torch.optim.Adam, {"amsgrad": True, "betas": (0.9, 0.5)}),
    ("adamw", torch.optim.AdamW, {}),
    ("adamw", torch.optim.AdamW, {"weight_decay": 0.5, "eps": 1e-3}),
    ("adamw", torch.optim.AdamW, {"amsgrad": True, "betas": (0.5, 0.6), "weight_decay": 0.0}),
    ("adamax", torch.optim.Adamax, {}),
    ("adamax", torch.optim.Adamax, {"betas": (0.8, 0.7), "eps": 1e-2, "weight_decay": 0.1}),
    ("adagrad", torch.optim.Adagrad, {}),
    (
        "adagrad",
        torch.optim.Adagrad,
        {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-3},
    ),
    ("rmsprop", torch.optim.RMSprop, {}),
    ("rmsprop", torch.optim.RMSprop, {"alpha": 0.9, "eps": 1e-2, "weight_decay": 0.1}),
    ("rmsprop", torch.optim.RMSprop, {"momentum": 0.9}),
    ("rmsprop", torch.optim.RMSprop, {"centered": True, "momentum": 0.5, "weight_decay": 0.1}),
    ("adadelta", torch.optim.Adadelta, {}),
    ("adadelta", torch.optim.Adadelta, {"rho": 0.8, "eps": 1e-3, "weight_decay": 0.1}),
]


@pytest.mark.parametrize(("name", "kind", "options"), LIKE_TORCH, ids=str)
def test_equals_torch(name, kind, options):
    check_optimizer(optim.get(name, learning_rate=0.05, **options), torch_optimizer(kind, **options))


@pytest.mark.parametrize("options", [{}, {"learning_rate": 0.5, "weight_decay": 0.1}], ids=str)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sgd", torch.optim.SGD),
        ("adam", torch.optim.Adam),
        ("adamw", torch.optim.AdamW),
        ("adamax", torch.optim.Adamax),
        ("adagrad", torch.optim.Adagrad),
        ("rmsprop", torch.optim.RMSprop),
        ("adadelta", torch.optim.Adadelta),
    ],
)
def test_defaults_are_those_of_torch(name, kind, options):
    defaults = kind([torch.nn.Parameter(torch.zeros(1))]).defaults
    optimizer = optim.get(name, **options)
    assert optimizer.learning_rate == options.get("learning_rate", defaults["lr"])
    wanted = {"weight_decay": options.get("weight_decay", defaults["weight_decay"])}
    check_optimizer(optimizer, torch_optimizer(kind, **wanted), steps=3)


HF_CASES = [
    {},
    {"weight_decay": 0.3},
    {"weight_decay": 0.3, "bias_correction": False},
    {"betas": (0.8, 0.95), "eps": 1e-2, "weight_decay": 0.1},
]


@pytest.mark.parametrize("options", HF_CASES, ids=str)
def test_adamw_hf_equals_its_formula(options):
    check_optimizer(optim.adamw_hf(0.05, **options), references.adamw_hf(**options))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.1},
        {"weight_decay": 0.1, "bias_correction": False},
        {"ratio_min": 0.5, "ratio_max": 0.8, "betas": (0.8, 0.9), "eps": 1e-3},
    ],
    ids=str,
)
def test_lamb_equals_its_formula(options):
    check_optimizer(optim.lamb(0.05, **options), references.lamb(**options))


@pytest.mark.parametrize("options", [{}, {"betas": (0.95, 0.98), "weight_decay": 0.1}], ids=str)
def test_lion_equals_its_formula(options):
    check_optimizer(optim.lion(0.05, **options), references.lion(**options))


def adam_of_onnxruntime(weight_decay, bias_correction, plain=False):
    adam = optim.scale_by_adam(bias_correction=bias_correction, plain=plain)
    return optim.Optimizer(
        optim.chain(adam, optim.add_decayed_weights(weight_decay), optim.scale_by_learning_rate()), learning_rate=0.1
    )


# Recorded from the kernels of onnxruntime 1.8 (LAMB: from its formula) after each of two steps.
RECORDED = [
    (adam_of_onnxruntime(0.01, False), [(0.682771, -1.681771, 0.18327), (0.292067, -1.566906, 0.121672)]),
    (adam_of_onnxruntime(0.01, True), [(0.899, -1.898, 0.3995), (0.806323, -1.869468, 0.384648)]),
    (adam_of_onnxruntime(0.01, False, plain=True), [(0.682771, -1.681771, 0.18327), (0.292067, -1.566906, 0.121672)]),
    (adam_of_onnxruntime(0.01, True, plain=True), [(0.899, -1.898, 0.3995), (0.806323, -1.869468, 0.384648)]),
    (
        optim.adamw_hf(0.1, weight_decay=0.01, eps=1e-8, bias_correction=False),
        [(0.683087, -1.682087, 0.183587), (0.292773, -1.567335, 0.122049)],
    ),
    (
        optim.adamw_hf(0.1, weight_decay=0.01, eps=1e-8),
        [(0.8991, -1.8981, 0.3996), (0.806515, -1.869595, 0.384763)],
    ),
    (
        optim.lamb(0.1, weight_decay=0.01, bias_correction=False),
        [(0.867798, -1.867361, 0.367979), (0.669399, -1.808968, 0.33662)],
    ),
    (optim.lamb(0.1, weight_decay=0.01), [(0.867933, -1.866625, 0.368586), (0.670346, -1.805842, 0.336978)]),
]


@pytest.mark.parametrize(("optimizer", "wanted"), RECORDED, ids=lambda value: getattr(value, "name", ""))
def test_recorded_values_of_onnxruntime(optimizer, wanted):
    start = {"w": np.array([1, -2, 0.5])}
    gradients = [{"w": np.array([0.1, -0.2, 0.3])}, {"w": np.array([0.3, 0.1, -0.2])}]
    got = [step["w"] for step in run_optimizer(optimizer, start, gradients, [0.1, 0.1])]
    # The kernels compute 1 - b2 in float32, wrong by 1.3e-5; only a correction, equally wrong, makes up for it.
    np.testing.assert_allclose(got, wanted, atol=5e-6)


def test_mode_0_of_onnxruntimes_adam():
    check_optimizer(adam_of_onnxruntime(0.1, True), references.adam_of_onnxruntime(0.1, True))


@pytest.mark.parametrize("name", ["adam", "adamw", "adamw_hf", "lamb"])
def test_first_step_in_float32_is_exact(name):
    """The bias corrections of t = 1, done in float32, would be wrong by 6e-5."""
    gradient = {"w": np.full(4, 0.25)}
    start = {"w": np.full(4, 2.0)}
    (got,) = run_optimizer(optim.get(name, eps=0.0, weight_decay=0.0), start, [gradient], [0.5])
    # m^ / sqrt(v^) is 1 at the first step; LAMB's ratio makes it the size of the parameter.
    np.testing.assert_allclose(got["w"], 1.0 if name == "lamb" else 1.5, rtol=2e-7)


def test_lamb_with_a_norm_of_zero():
    """The ratio is 1 where the parameter or the update is zero."""
    start = {"fresh": np.zeros(3), "idle": np.ones(3)}
    gradients = [{"fresh": np.ones(3), "idle": np.zeros(3)}]
    (got,) = run_optimizer(optim.lamb(eps=0.5), start, gradients, [0.1])
    np.testing.assert_allclose(got["fresh"], -0.1 / 1.5, rtol=1e-6)
    np.testing.assert_array_equal(got["idle"], 1)


def test_centered_rmsprop_survives_equal_gradients():
    """The variance of equal gradients is zero, and its rounding may be negative; torch's becomes NaN then."""
    gradients = [{"w": np.linspace(0.1, 3, 50)}] * 300
    *_, last = run_optimizer(optim.rmsprop(centered=True, alpha=0.5), {"w": np.zeros(50)}, gradients, [1e-3] * 300)
    assert np.isfinite(last["w"]).all()


@pytest.mark.parametrize("opset", [9, 11, 13, 17, 22])
@pytest.mark.parametrize("name", optim.names())
def test_runs_in_every_opset(name, opset):
    optimizer = optim.get(name, weight_decay=0.1, clip=1.0)
    start, gradients = {"w": np.ones((2, 3)), "b": np.ones(3)}, [{"w": np.ones((2, 3)), "b": np.ones(3)}]
    (got,) = run_optimizer(optimizer, start, gradients, [0.1], opset=opset)
    (wanted,) = run_optimizer(optimizer, start, gradients, [0.1], opset=18)
    np.testing.assert_allclose(got["w"], wanted["w"], rtol=1e-6)


@pytest.mark.parametrize("name", optim.names())
def test_half_precision(name):
    """The coefficients are computed in double precision and rounded last."""
    optimizer = optim.get(name, learning_rate=0.1, clip=1.0)
    random = np.random.default_rng(0)
    start, gradients = {"w": random.normal(size=6)}, [{"w": random.normal(size=6)} for _ in range(3)]
    squares = any(slot.squares for slot in optimizer.slots.values())
    with pytest.warns(OnwardWarning, match="squared gradients") if squares else contextlib.nullcontext():
        *_, got = run_optimizer(optimizer, start, gradients, [0.1] * 3, dtype=np.float16)
    *_, wanted = run_optimizer(optimizer, start, gradients, [0.1] * 3)
    assert got["w"].dtype == np.float16
    np.testing.assert_allclose(got["w"], wanted["w"], atol=5e-3)


def test_get_by_name():
    assert optim.get("adamw", weight_decay=0.5, learning_rate=0.25).learning_rate == 0.25
    optimizer = optim.sgd()
    assert optim.get(optimizer) is optimizer
    with pytest.raises(UnknownNameError, match=r"no optimizer 'adamW'; there are adadelta, adagrad, adam, "):
        optim.get("adamW")
    with pytest.raises(OnwardError, match=r"options \['momentum'\] go with the name"):
        optim.get(optimizer, momentum=0.9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optim.adam(betas=(0.9, 1.0)), r"b2 must be in \[0, 1\), not 1.0"),
        (lambda: optim.sgd(learning_rate=-1.0), "learning_rate must be a finite number that is not negative, not -1.0"),
        (lambda: optim.sgd(weight_decay=-1.0), "weight_decay must be at least 0, not -1.0"),
        (lambda: optim.sgd(nesterov=True), "Nesterov momentum needs a momentum and no dampening"),
        (lambda: optim.lamb(ratio_min=2.0, ratio_max=1.0), "ratio_max must be at least ratio_min, 2.0, not 1.0"),
        (lambda: optim.sgd(clip=0.0), "clip_by_global_norm needs a positive bound, not 0.0"),
        (lambda: optim.clip(-1.0), "clip needs a positive bound, not -1.0"),
    ],
)
def test_wrong_options_are_refused(make, message):
    with pytest.raises(OnwardError, match=message):
        make()
