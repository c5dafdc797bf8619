"""The commands together, and what becomes of their errors."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import click
import typer

from onward import __version__
from onward.cli import console, status
from onward.cli.commands import building, checking, demonstration, inspecting, prediction, training, trying
from onward.cli.help import Grouped
from onward.errors import OnwardError, OnwardWarning

_COMPLETION = "_ONWARD_COMPLETE"

app = typer.Typer(
    name="onward",
    help="Train any ONNX model on stock ONNX Runtime.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"onward {__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Train any ONNX model on stock ONNX Runtime."""


# In the order in which a newcomer wants them; a line of the list is 62 characters wide.
for _function, _summary in (
    (demonstration.demo, "Train a small network on handwritten digits, as an example."),
    (checking.check, "Say whether models can be trained, and what stands in the way."),
    (training.train, "Train a model on data; write it, a report and a recipe."),
    (prediction.evaluate, "Print the loss and the metrics of a model on data."),
    (prediction.predict, "Write what a model says about data."),
    (inspecting.inspect, "Show what is in a model or checkpoint, or what changed."),
    (inspecting.export, "Write the model of a training for inference."),
    (trying.verify, "Compare gradients on your own file with differences."),
    (trying.bench, "Time a training step, and measure its memory."),
    (building.gradient, "Write a model that returns outputs and gradients."),
    (building.step, "Write a training step as one model, for any language."),
    (building.artifacts, "Write the files of onnxruntime-training."),
):
    app.command(_function.__name__, cls=Grouped, short_help=_summary)(_function)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command; errors that users can do something about are one line."""
    command = typer.main.get_command(app)
    if _COMPLETION in os.environ:  # a shell asks what may come next
        return int(command.main(prog_name="onward", standalone_mode=False) or 0)
    try:
        # Not by `main`, which would end the process where a pipe is closed.
        words = sys.argv[1:] if arguments is None else list(arguments)
        with _warnings_as_notes(), command.make_context("onward", words) as context:
            code = command.invoke(context)
        sys.stdout.flush()
        return code if isinstance(code, int) else status.OK
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return status.OK
    except click.UsageError as error:
        print(f"usage: onward {_usage(error)}\n", end="", file=sys.stderr)
        console.complain(f"{error.format_message()}{_advice(error)}")
        raise SystemExit(status.WRONG) from None
    except (KeyboardInterrupt, click.Abort):
        return status.INTERRUPTED
    except BrokenPipeError:
        # Whoever reads has seen enough, as `head` does. The interpreter would complain again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return status.OK
    except OnwardError as error:
        console.complain(error)
    except OSError as error:
        console.complain(f"{error.filename}: {error.strerror}" if error.filename else error)
    except MemoryError:
        console.complain("there is not enough memory for this; use less data or a smaller --batch-size")
    return status.WRONG


def _usage(error: click.UsageError) -> str:
    if error.ctx is None:
        return "COMMAND"
    words = [*error.ctx.command_path.split()[1:], *error.ctx.command.collect_usage_pieces(error.ctx)]
    return " ".join(words)


def _advice(error: click.UsageError) -> str:
    path = "onward" if error.ctx is None else error.ctx.command_path
    return f"; {path} --help lists what there is"


@contextmanager
def _warnings_as_notes() -> Iterator[None]:
    """Warnings of onward are for users; those of other libraries are for their authors."""

    def show(message: Warning | str, category: type[Warning], *others: Any, **named: Any) -> None:
        if issubclass(category, OnwardWarning):
            console.note(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", OnwardWarning)
        warnings.showwarning = show
        yield
