"""Whose fault an error is: of a model that is not valid in a way that onnx's checker does not see.

Rules, rewriters and passes are written for valid nodes. What they do with others, with an axis that is none or an input
that is missing, is to fail somewhere; where they are called, that is turned into an error that names the node. It keeps
the original one as its cause and says its type, because the mistake may be ours.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import onnx_ir as ir

from onward.errors import InvalidModelError, OnwardError
from onward.graph.nodes import describe
from onward.graph.opsets import NeedsOpsetError


@contextlib.contextmanager
def blaming_node(what: str, node: ir.Node, *passed: type[Exception]) -> Iterator[None]:
    """Report what is raised about one node, by a function for valid ones, but for exceptions of the types `passed`."""
    with blaming_model(f"{what} {describe(node)}", *passed):
        yield


@contextlib.contextmanager
def blaming_model(what: str, *passed: type[Exception]) -> Iterator[None]:
    """Report what is raised about a model."""
    not_about_it: tuple[type[Exception], ...] = (OnwardError, NeedsOpsetError, *passed)
    try:
        yield
    except not_about_it:
        raise
    except Exception as error:  # see above
        said = " ".join(str(error).split())[:400]
        raise InvalidModelError(
            f"{what} failed ({type(error).__name__}: {said}). The model is probably not valid there, though onnx's "
            "checker accepts it; if onnxruntime runs it, please report this, with the model."
        ) from error
