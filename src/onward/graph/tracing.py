"""Call what users wrote in the builder notation: losses, rules, optimizers."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

from onward.errors import OnwardError
from onward.graph.opsets import NeedsOpsetError

_OURS = str(Path(__file__).parents[1])


@contextlib.contextmanager
def traced(what: str) -> Iterator[None]:
    """Turn what goes wrong inside into an error that says where, and that values of a graph are no numbers."""
    try:
        yield
    except (OnwardError, NeedsOpsetError):
        raise
    except Exception as error:
        place = _place(error)
        raise OnwardError(
            f"{what} could not be traced{place}: {type(error).__name__}: {error}. It is called once, with values that "
            "stand for tensors and hold no numbers: use operators of `op`, such as op.ReduceMean(x), and arithmetic, "
            "not functions of numpy, `if` or float() on them."
        ) from error


def _place(error: Exception) -> str:
    """The line of the user's that led to an error: neither ours nor that of an installed package."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OURS)]
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames[:1]
    return f" (line {own[-1].lineno} of {own[-1].filename}: `{own[-1].line}`)" if own else ""
