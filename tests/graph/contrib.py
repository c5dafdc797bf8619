"""Check that what an operator of onnxruntime is rewritten to computes the same, and has the right gradient."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

import onward
from onward.graph.prepare import prepare
from onward.testing import run_on_reference, run_on_runtime

Array = np.ndarray
Feeds = dict[str, Array]
Run = Callable[[onnx.ModelProto, Feeds], Feeds]

FLOAT, INT32, INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64


def model_of(
    op_type: str,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any],
    *,
    outputs: Sequence[int] = (FLOAT,),
    constants: Collection[int] = (),
    dtype: type = np.float32,
    dims: str = "static",
    opset: int = 21,
    domain: str = "com.microsoft",
) -> tuple[onnx.ModelProto, Feeds]:
    """A model of one node: inputs x0, x1 ..., outputs y0, y1 ... of the given types (0 for one that is left out)."""
    names = ["" if x is None else f"x{index}" for index, x in enumerate(inputs)]
    ends = [f"y{index}" if kind else "" for index, kind in enumerate(outputs)]
    node = helper.make_node(op_type, names, ends, name="fused", domain=domain, **attributes)
    feeds, infos, initializers = {}, [], []
    for index, x in enumerate(inputs):
        if x is None:
            continue
        array = x.astype(dtype) if x.dtype.kind == "f" else x
        if index in constants:
            initializers.append(numpy_helper.from_array(array, f"x{index}"))
            continue
        shapes: dict[str, list[int | str | None]] = {
            "static": list(array.shape),
            "symbolic": [f"x{index}_{axis}" for axis in range(array.ndim)],
            "unknown": [None] * array.ndim,
        }
        feeds[f"x{index}"] = array
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        infos.append(helper.make_tensor_value_info(f"x{index}", kind, shapes[dims]))
    floating = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    values = [
        helper.make_tensor_value_info(end, floating if kind == FLOAT else kind, None)
        for end, kind in zip(ends, outputs, strict=True)
        if kind
    ]
    imports = [
        helper.make_opsetid("", opset),
        *(helper.make_opsetid(name, 1) for name in sorted({"com.microsoft", domain} - {""})),
    ]
    graph = helper.make_graph([node], "contrib", infos, values, initializers)
    return helper.make_model(graph, opset_imports=imports, ir_version=10), feeds


def check_rewriting(
    op_type: str,
    inputs: Sequence[Array | None],
    *,
    outputs: Sequence[int] = (FLOAT,),
    constants: Collection[int] = (),
    wrt: Collection[int] | None = None,
    of: Sequence[int] = (0,),
    oracle: Callable[[], Sequence[Array]] | None = None,
    exact: bool = True,
    tolerance: float = 2e-5,
    valid: Callable[[Array], Array] = lambda y: y,
    opset: int = 21,
    domain: str = "com.microsoft",
    **attributes: Any,
) -> None:
    """Check one node of an operator, with static dimensions and with symbolic or unknown ones.

    Its rewritten form computes what onnxruntime's kernel computes (or `oracle`, where the CPU has none), and the
    gradient of that agrees with differences in float64; so does the one in float32 on onnxruntime.

    Args:
        wrt: indices of the inputs to differentiate with respect to, all floating ones by default.
        of: indices of the outputs to differentiate.
        exact: whether there are kernels in float64; else differences are those of float32 on onnxruntime.
        valid: takes away what an operator leaves undefined.
    """

    def build(dims: str, dtype: type = np.float32) -> tuple[onnx.ModelProto, Feeds]:
        settings = {"outputs": outputs, "constants": constants, "opset": opset, "domain": domain}
        return model_of(op_type, inputs, attributes, dtype=dtype, dims=dims, **settings)  # type: ignore[arg-type]

    model, feeds = build("static")
    if oracle is None:
        wanted = run_on_runtime(model, feeds)
    else:
        wanted = {f"y{index}": y for index, y in enumerate(oracle()) if outputs[index]}
    targets = [
        f"x{index}"
        for index, x in enumerate(inputs)
        if x is not None and x.dtype.kind == "f" and (wrt is None or index in wrt)
    ]
    ends = [f"y{index}" for index in of]
    gradients = _checked_gradients(*build("static", np.float64 if exact else np.float32), targets, ends)
    for dims in ("static", "unknown") if len(attributes) % 2 else ("static", "symbolic"):
        model, feeds = build(dims)
        got = run_on_runtime(rewritten(model), feeds)
        assert set(got) == set(wanted)
        for name, expected in wanted.items():
            assert got[name].dtype == expected.dtype, name
            np.testing.assert_allclose(
                valid(got[name]), valid(expected), rtol=tolerance, atol=tolerance, err_msg=f"{name}, {dims} dimensions"
            )
        if targets and dims != "static":
            results = run_on_runtime(onward.gradient(model, wrt=targets, of=ends), {**feeds, **_seeds(wanted, ends)})
            for name, expected in gradients.items():
                np.testing.assert_allclose(results[name], expected, rtol=2e-3, atol=2e-3, err_msg=f"{name}, {dims}")


def rewritten(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model as the rest of onward sees it: all standard."""
    prepared = prepare(model)
    left = {f"{node.domain}.{node.op_type}" for node in prepared.graph.all_nodes() if node.domain}
    assert not left, f"not rewritten: {left}"
    assert set(prepared.opset_imports) == {""}
    return ir.serde.serialize_model(prepared)


def _checked_gradients(model: onnx.ModelProto, feeds: Feeds, targets: list[str], ends: list[str]) -> Feeds:
    """The gradients, after they have been compared with differences along random directions."""
    if not targets:
        return {}
    exact = all(array.dtype != np.float32 for array in feeds.values())
    run: Run = run_on_reference if exact else run_on_runtime
    step, tolerance = (1e-5, 1e-6) if exact else (1e-2, 2e-2)
    standard = rewritten(model)
    seeds = _seeds(run(standard, feeds), ends)
    results = run(onward.gradient(standard, wrt=targets, of=ends), {**feeds, **seeds})
    gradients = {f"{name}_grad": results[f"{name}_grad"] for name in targets}
    random = np.random.default_rng(1)
    for _ in range(3):
        direction = {name: random.normal(size=feeds[name].shape) for name in targets}
        sides = []
        for sign in (1, -1):
            moved = {
                name: np.asarray(feeds[name] + sign * step * direction[name], feeds[name].dtype) for name in targets
            }
            outputs = run(standard, {**feeds, **moved})
            sides.append(sum(np.sum(outputs[name] * seeds[f"{name}_grad"], dtype=np.float64) for name in ends))
        wanted = (sides[0] - sides[1]) / (2 * step)
        got = sum(np.sum(gradients[f"{name}_grad"] * direction[name], dtype=np.float64) for name in targets)
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance, err_msg="along a random direction")
    return gradients


def _seeds(results: Feeds, ends: Sequence[str]) -> Feeds:
    random = np.random.default_rng(0)
    drawn = {name: random.normal(size=results[name].shape) for name in ends}
    return {
        f"{name}_grad": (np.ones_like(array) if array.size == 1 else array).astype(results[name].dtype)
        for name, array in drawn.items()
    }
