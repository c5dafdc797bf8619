"""The command `onward`: trains, checks and looks into ONNX files from a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from onward.cli.status import MISSING

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; see docs/command-line.md for what they mean."""
    try:
        import rich  # noqa: F401  the library itself needs neither
        import typer  # noqa: F401
    except ImportError as error:
        print(f"error: the command needs the package {error.name}: pip install 'onward[cli]'", file=sys.stderr)
        return MISSING
    from onward.cli.app import run

    return run(arguments)
