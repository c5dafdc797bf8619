"""The command line: `python -m onward check model.onnx`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from onward.errors import OnwardError
from onward.inspection.check import check


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 if all is well, 1 if the model has blockers, 2 if it is none."""
    options = _parser().parse_args(arguments)
    try:
        report = check(options.model, options.wrt, options.of, dims=dict(options.dim), optimizer=options.optimizer)
    except OnwardError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    text = json.dumps(report.to_dict(), indent=2) if options.json else report.text(None if options.all else 12)
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Whoever reads has seen enough, as `head` does. The interpreter would complain again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0 if report.ok else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="onward", description="Train any ONNX model on stock ONNX Runtime.")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser(
        "check",
        help="whether a model can be trained, and what that takes",
        description="Say whether a model can be trained, how each operator is differentiated, and what training takes.",
    )
    command.add_argument("model", help="an .onnx file")
    command.add_argument("--wrt", action="append", metavar="NAME", help="train this parameter; may be repeated")
    command.add_argument("--of", action="append", metavar="NAME", help="differentiate this output; may be repeated")
    command.add_argument(
        "--dim",
        action="append",
        default=[],
        type=_size,
        metavar="NAME=SIZE",
        help="the size of a dynamic dimension in the estimates, such as batch=8 or x[0]=8",
    )
    command.add_argument("--optimizer", default="adamw", help="whose state and operations count (adamw)")
    command.add_argument("--all", action="store_true", help="leave nothing out of long lists")
    command.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _size(text: str) -> tuple[str, int]:
    name, _, size = text.rpartition("=")
    if not name or not size.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=SIZE")
    return name, int(size)
