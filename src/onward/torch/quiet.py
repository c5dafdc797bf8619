"""What torch logs while it exports is no news: what fails is said by an error, a warning, or the other exporter."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys
from collections.abc import Iterator

_TALKATIVE = (
    "onnx_ir._convenience",
    "torch._export.non_strict_utils",
    "torch._subclasses.fake_tensor",
    "torch.export._trace",
    "torch.fx.experimental.symbolic_shapes",
    "torch.onnx._internal.exporter._registration",
)
_PROGRAM = re.compile(r"^\n*def forward\(self, arg0_1.*", re.DOTALL | re.MULTILINE)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Nothing logged by torch's exporters, unless torch was told to log (`TORCH_LOGS`).

    Nor what torch.export had until it failed, which it prints.
    """
    if os.environ.get("TORCH_LOGS"):
        yield
        return
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            yield
    finally:
        print(_PROGRAM.sub("", printed.getvalue()), end="", file=sys.stderr)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
