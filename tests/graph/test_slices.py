"""Which Slices inference may see at once: each that is hidden at first costs a whole round of it."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from onward.graph.slices import Slices

# Operators between two Slices, and how many Slices behind them are hidden.
BODIES = {
    "s = SplitToSequence<axis=0>(x, two) y = SequenceAt(s, zero)": 0,
    "y, z = Split<axis=0>(x, twos)": 0,
    "y, z = Split<axis=0, num_outputs=2>(x)": 1,
    "y = Pad(x, pads)": 0,
    "y = Pad(x, negative)": 1,
    "y = Pad(x, computed)": 1,
    "y = local.Same(x)": 0,
    "y = local.Cropped(x)": 1,
    "y = Conv<kernel_shape=[5]>(x, x)": 1,
}


@pytest.mark.parametrize("body", BODIES)
def test_slices_behind_what_makes_no_negative_size_are_shown(body: str) -> None:
    model = ir.from_onnx_text(
        f"""<ir_version: 9, opset_import: ["" : 20, "local" : 1]>
        g (float[N, 4] x, int64[4] computed) => (float[M, 4] last)
        <int64 two = {{2}}, int64[2] twos = {{2, 2}}, int64 zero = {{0}}, int64[1] start = {{0}}, int64[1] end = {{1}},
         int64[4] pads = {{1, 0, 0, 0}}, int64[4] negative = {{-1, 0, 0, 0}}>
        {{ {body} last = Slice(y, start, end) }}
        <domain: "local", opset_import: ["" : 20]> Same (x) => (y) {{ y = Identity(x) }}
        <domain: "local", opset_import: ["" : 20]> Cropped (x) => (y)
        {{ pads = Constant<value_ints=[-1, 0, 0, 0]>() y = Pad(x, pads) }}"""
    )
    assert len(Slices(model).hidden) == BODIES[body]
