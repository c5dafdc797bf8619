"""The training part of onnxcustom, on onward: the same modules, names, arguments and exceptions.

`import onward.as_onnxcustom` makes it importable as `onnxcustom`. What differs from the original on purpose is listed
in docs/onnxcustom.md.
"""

from __future__ import annotations

import onnx

__version__ = "0.4.344"  # the release whose names these are
__max_supported_opset__ = 15


def get_max_opset() -> int:
    """The newest opset that graphs made here are written in."""
    return min(onnx.defs.onnx_opset_version(), __max_supported_opset__)
