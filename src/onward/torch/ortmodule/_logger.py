"""Levels of logging: those of ORTModule, of Python and of onnxruntime."""

from __future__ import annotations

import logging

from onward.torch.ortmodule.options import LogLevel

_PYTHON = {
    LogLevel.VERBOSE: logging.DEBUG,
    LogLevel.DEVINFO: logging.INFO,
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
    LogLevel.FATAL: logging.FATAL,
}
_ONNXRUNTIME = {
    LogLevel.VERBOSE: 0,
    LogLevel.DEVINFO: 1,
    LogLevel.INFO: 1,
    LogLevel.WARNING: 2,
    LogLevel.ERROR: 3,
    LogLevel.FATAL: 4,
}
LOGGER = logging.getLogger("onward.torch.ortmodule")


def ortmodule_loglevel_to_python_loglevel(loglevel: LogLevel) -> int:
    """The level of Python's loggers."""
    return _PYTHON[loglevel]


def ortmodule_loglevel_to_onnxruntime_c_loglevel(loglevel: LogLevel) -> int:
    """The severity of onnxruntime."""
    return _ONNXRUNTIME[loglevel]


def logger_of(name: str, level: LogLevel) -> logging.Logger:
    """The logger for modules of a class: what has been asked for is shown, also where nobody has set logging up."""
    logger = LOGGER.getChild(name)
    if level is LogLevel.WARNING:  # the default: what the program says about loggers holds
        return logger
    logger.setLevel(_PYTHON[level])
    if not logger.hasHandlers():
        LOGGER.addHandler(logging.StreamHandler())
    return logger
