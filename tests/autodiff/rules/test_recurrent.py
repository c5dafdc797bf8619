"""RNN, GRU and LSTM, against differences in float64, then float32 on onnxruntime; against torch in test_torch_*.

The evaluator runs `onward.testing.recurrent`; that it computes what onnxruntime does is tested with every case.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import onward
from onward.errors import OnwardError
from onward.graph import recurrence
from onward.testing import check_vjp, run_on_reference, run_on_runtime

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
FEATURES, N, H = 2, 3, 2
SHORT, LONG = 2, 5  # written out, and a Scan
LENS = np.array([LONG, 2, 0], np.int32)  # a sequence without a single step is among them

assert SHORT <= recurrence.UNROLLED < LONG


def arrays(
    op_type: str,
    steps: int = LONG,
    *,
    directions: int = 1,
    bias: bool = True,
    lens: np.ndarray | None = None,
    h0: bool = True,
    c0: bool = True,
    peepholes: bool = False,
    layout: int = 0,
    seed: int = 0,
) -> list[np.ndarray | None]:
    """Random inputs of a node; None for those that it does not have."""
    random = np.random.default_rng(seed)
    rows = GATES[op_type] * H

    def normal(*shape: int) -> np.ndarray:
        return random.normal(0, 0.6, shape)

    state = (N, directions, H) if layout else (directions, N, H)
    found = [
        normal(N, steps, FEATURES) if layout else normal(steps, N, FEATURES),
        normal(directions, rows, FEATURES),
        normal(directions, rows, H),
        normal(directions, 2 * rows) if bias else None,
        lens,
        normal(*state) if h0 else None,
    ]
    if op_type == "LSTM":
        found += [normal(*state) if c0 else None, normal(directions, 3 * H) if peepholes else None]
    while found[-1] is None:
        found.pop()
    return found


def check(op_type: str, inputs: list[np.ndarray | None], *, second_order: bool = False, **options: Any) -> None:
    options = {"hidden_size": H, "outputs": 3 if op_type == "LSTM" else 2, **options}
    if options.get("on_runtime", True):
        same_as_runtime(op_type, inputs, **options)
    check_vjp(op_type, inputs, second_order=second_order, **options)


def same_as_runtime(op_type: str, inputs: list[np.ndarray | None], *, outputs: Any, opset: int = 18, **options: Any):
    """The numpy implementation agrees with onnxruntime, so that the differences are those of what will run."""
    attributes = {key: value for key, value in options.items() if key not in ("of", "wrt", "constants")}
    present = [True] * outputs if isinstance(outputs, int) else outputs
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    given = {
        name: x.astype(np.float32) if x.dtype == np.float64 else x
        for name, x in zip(names, inputs, strict=True)
        if x is not None
    }
    wanted = [f"y{i}" if there else "" for i, there in enumerate(present)]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, wanted, **attributes)],
        "same",
        [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for k, x in given.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in wanted if name],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    ours, theirs = run_on_reference(model, given), run_on_runtime(model, given)
    for name, array in theirs.items():
        np.testing.assert_allclose(ours[name], array, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [1, SHORT, LONG])
@pytest.mark.parametrize("op_type", GATES)
def test_forward(op_type: str, steps: int) -> None:
    check(op_type, arrays(op_type, steps), second_order=steps != SHORT)


@pytest.mark.parametrize("lens", [None, LENS], ids=["full", "lens"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op_type", GATES)
def test_directions(op_type: str, direction: str, lens: np.ndarray | None) -> None:
    directions = 2 if direction == "bidirectional" else 1
    check(op_type, arrays(op_type, directions=directions, lens=lens), direction=direction)


@pytest.mark.parametrize("op_type", GATES)
def test_second_order_with_lengths(op_type: str) -> None:
    options = {"LSTM": {"peepholes": True}}.get(op_type, {})
    inputs = arrays(op_type, 3, directions=2, lens=np.array([3, 1, 2], np.int32), **options)
    check(op_type, inputs, direction="bidirectional", second_order=True, wrt=[0, 2])


# Which outputs the node has; each alone gets a cotangent.
@pytest.mark.parametrize(
    ("op_type", "outputs"),
    [
        *((op_type, present) for op_type in ("RNN", "GRU") for present in ([True], [False, True])),
        *(("LSTM", list(p)) for p in itertools.product([True, False], repeat=3) if any(p)),
    ],
)
def test_outputs(op_type: str, outputs: list[bool]) -> None:
    check(op_type, arrays(op_type, SHORT), outputs=outputs)


@pytest.mark.parametrize("of", [0, 1, 2])
def test_one_output_of_several_is_used(of: int) -> None:
    check("LSTM", arrays("LSTM", SHORT), of=[of])


@pytest.mark.parametrize("absent", ["bias", "h0", "c0"])
@pytest.mark.parametrize("op_type", GATES)
def test_absent_inputs(op_type: str, absent: str) -> None:
    check(op_type, arrays(op_type, **{absent: False}))


@pytest.mark.parametrize("op_type", GATES)
def test_only_what_is_required(op_type: str) -> None:
    check(op_type, arrays(op_type, bias=False, h0=False, c0=False))
    check(op_type, arrays(op_type, bias=False, h0=False, c0=False, lens=LENS))
    # As exporters write it: weights stored.
    check(op_type, arrays(op_type, h0=False, c0=False), constants=[1, 2, 3], wrt=[0])


@pytest.mark.parametrize("options", [{}, {"lens": LENS}, {"lens": LENS, "directions": 2}])
def test_peepholes(options: dict[str, Any]) -> None:
    direction = "bidirectional" if "directions" in options else "forward"
    check("LSTM", arrays("LSTM", peepholes=True, **options), direction=direction)


@pytest.mark.parametrize("peepholes", [False, True])
def test_input_forget(peepholes: bool) -> None:
    check("LSTM", arrays("LSTM", peepholes=peepholes), input_forget=1, second_order=not peepholes)


@pytest.mark.parametrize("steps", [1, LONG])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_linear_before_reset(direction: str, steps: int) -> None:
    directions = 2 if direction == "bidirectional" else 1
    lens = LENS if steps == LONG else None
    inputs = arrays("GRU", steps, directions=directions, lens=lens)
    check("GRU", inputs, direction=direction, linear_before_reset=1, second_order=directions == 1)


@pytest.mark.parametrize("op_type", GATES)
def test_clip(op_type: str) -> None:
    check(op_type, arrays(op_type), clip=0.5)


def test_clip_with_peepholes() -> None:
    check("LSTM", arrays("LSTM", peepholes=True), clip=0.4)


PARAMETERS = {
    "Relu": 0,
    "Tanh": 0,
    "Sigmoid": 0,
    "Affine": 2,
    "LeakyRelu": 1,
    "ThresholdedRelu": 1,
    "ScaledTanh": 2,
    "HardSigmoid": 2,
    "Elu": 1,
    "Softsign": 0,
    "Softplus": 0,
}


@pytest.mark.parametrize(
    ("op_type", "start"), [(op, i) for op, n in (("RNN", 1), ("GRU", 2), ("LSTM", 3)) for i in range(0, 11, n)]
)
def test_activations(op_type: str, start: int) -> None:
    """Each function in some place of each operator."""
    names = list(PARAMETERS)
    activations = [names[(start + place) % len(names)] for place in range(len(DEFAULTS[op_type]))]
    counts = [PARAMETERS[name] for name in activations]
    alphas, betas = [0.3, 0.4, 0.5][: sum(n > 0 for n in counts)], [0.7, 0.8, 0.9][: sum(n > 1 for n in counts)]
    given = {"activation_alpha": alphas, "activation_beta": betas}
    second_order = op_type == "RNN" and names[start] != "ThresholdedRelu"  # which jumps
    inputs = arrays(op_type, 3, seed=1)
    parameters = {key: values for key, values in given.items() if values}
    check(op_type, inputs, activations=activations, second_order=second_order, **parameters)


@pytest.mark.parametrize("name", [name for name, count in PARAMETERS.items() if count])
def test_default_parameters_of_activations(name: str) -> None:
    """Those of onnxruntime, where Affine and ScaledTanh are zero."""
    check("RNN", arrays("RNN", SHORT), activations=[name])


def test_parameters_of_activations_go_to_those_that_have_them() -> None:
    # onnxruntime takes names in any case here, though not in RNN.
    check(
        "LSTM",
        arrays("LSTM", directions=2),
        direction="bidirectional",
        activations=["HardSigmoid", "elu", "ScaledTanh", "SIGMOID", "LeakyRelu", "Affine"],
        activation_alpha=[0.3, 0.4, 0.5, 0.6, 0.7],
        activation_beta=[0.5, 0.8, 0.1],
    )


@pytest.mark.parametrize("lens", [None, LENS], ids=["full", "lens"])
@pytest.mark.parametrize("op_type", GATES)
def test_layout(op_type: str, lens: np.ndarray | None) -> None:
    inputs = arrays(op_type, directions=2, layout=1, lens=lens)
    # onnxruntime refuses layout 1.
    check(op_type, inputs, layout=1, direction="bidirectional", on_runtime=False)


@pytest.mark.parametrize("opset", [7, 14, 22])
@pytest.mark.parametrize("op_type", GATES)
def test_opsets(op_type: str, opset: int) -> None:
    check(op_type, arrays(op_type, lens=LENS), opset=opset)


def test_hidden_size_from_the_weights() -> None:
    # onnxruntime wants the attribute.
    check("LSTM", arrays("LSTM"), hidden_size=None, on_runtime=False)


def test_unknown_activation() -> None:
    with pytest.raises(OnwardError, match=r"Swish.*does not define"):
        check("RNN", arrays("RNN"), activations=["Swish"], on_runtime=False, run=lambda *_: {})


# Against torch --------------------------------------------------------------------------------------------------

# ONNX has the gates in the order iofc and zrh, torch in ifgo and rzn.
ORDER = {"RNN": [0], "GRU": [1, 0, 2], "LSTM": [0, 3, 1, 2]}


def from_torch(op_type: str, array: np.ndarray) -> np.ndarray:
    return np.concatenate([np.split(array, GATES[op_type])[gate] for gate in ORDER[op_type]])


@pytest.mark.parametrize("op_type", GATES)
def test_packed_sequences_as_in_torch(op_type: str) -> None:
    torch.manual_seed(0)
    module = getattr(torch.nn, op_type)(FEATURES, H, bidirectional=True)
    lens = [LONG, 2, 1]
    x = torch.randn(LONG, N, FEATURES, requires_grad=True)
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lens))
    y, _ = torch.nn.utils.rnn.pad_packed_sequence(module(packed)[0])
    dy = torch.randn_like(y)
    y.backward(dy)

    def stacked(name: str, grad: bool) -> np.ndarray:
        found = []
        for suffix in ("", "_reverse"):
            parts = [getattr(module, f"{part}_l0{suffix}") for part in name.split("+")]
            values = [from_torch(op_type, (p.grad if grad else p.detach()).numpy()) for p in parts]
            found.append(np.concatenate(values))
        return np.stack(found)

    names = ["weight_ih", "weight_hh", "bias_ih+bias_hh"]
    feeds = {"x0": x.detach().numpy(), **{f"x{i}": stacked(name, False) for i, name in enumerate(names, 1)}}
    feeds["x4"] = np.array(lens, np.int32)
    shapes = {name: array.shape for name, array in feeds.items()} | {"x0": ["time", "batch", FEATURES], "x4": ["batch"]}
    options = {"linear_before_reset": 1} if op_type == "GRU" else {}
    graph = helper.make_graph(
        [helper.make_node(op_type, list(feeds), ["y"], hidden_size=H, direction="bidirectional", **options)],
        "torch",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shapes[name])
            for name, array in feeds.items()
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["time", 2, "batch", H])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    differentiated = onward.gradient(model, wrt=["x0", "x1", "x2", "x3"])
    cotangent = dy.numpy().reshape(LONG, N, 2, H).transpose(0, 2, 1, 3)
    results = run_on_runtime(differentiated, {**feeds, "y_grad": np.ascontiguousarray(cotangent)})
    np.testing.assert_allclose(results["x0_grad"], x.grad.numpy(), rtol=1e-4, atol=1e-5)
    for i, name in enumerate(names, 1):
        np.testing.assert_allclose(results[f"x{i}_grad"], stacked(name, True), rtol=1e-4, atol=1e-5)
