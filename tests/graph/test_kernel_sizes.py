"""What the releases of onnxruntime make of pooling, as measured on 1.20 to 1.31 with random nodes."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest

from onward.graph import opsets
from onward.graph.kernel_sizes import counts_whole_kernel, kernel_shape


def _pool(size: int, **attributes: Any) -> ir.Node:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, 1, size]))
    return ir.node("AveragePool", [x], attributes)


# A window beyond the image by less than a stride, one that begins behind it by rounding up, and an ordinary one.
SIZES = {
    20: (0, 2, 3),
    21: (1, 1, 3),
    31: (1, 1, 3),
}


@pytest.mark.parametrize("release", SIZES)
def test_number_of_windows(release: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opsets, "runtime_release", lambda: release)
    larger = _pool(2, kernel_shape=[3], strides=[2])
    behind = _pool(2, kernel_shape=[1], strides=[2], ceil_mode=1)
    ordinary = _pool(6, kernel_shape=[2], strides=[2], ceil_mode=1)
    found = tuple((kernel_shape(node) or [None])[-1] for node in (larger, behind, ordinary))
    assert found == SIZES[release]


@pytest.mark.parametrize(
    ("release", "opset", "ceil_mode", "whole"),
    [
        (20, 19, 0, True),
        (21, 18, 1, True),
        (28, 18, 1, True),
        (28, 19, 1, False),
        (29, 18, 1, False),
        (29, 18, 0, True),
    ],
)
def test_divisors(release: int, opset: int, ceil_mode: int, whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opsets, "runtime_release", lambda: release)
    node = _pool(6, kernel_shape=[4], strides=[3], ceil_mode=ceil_mode, count_include_pad=1)
    assert counts_whole_kernel(node, opset) is whole
    assert not counts_whole_kernel(_pool(6, kernel_shape=[4], ceil_mode=ceil_mode), opset)
