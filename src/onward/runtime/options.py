"""Options of runs."""

from __future__ import annotations

import onnxruntime


class RunOptions(onnxruntime.RunOptions):  # type: ignore[misc]
    """Those of onnxruntime, and `training_mode`, which its training builds have."""

    training_mode = True
