"""What all examples here share: their options on the command line, and pictures of losses."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def start(main: Callable[..., Any], *, rows: int, passes: int) -> None:
    """Run an example with the options of the command line."""
    parser = argparse.ArgumentParser(description=main.__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--rows", type=int, default=rows, help="rows of data")
    parser.add_argument("--passes", type=int, default=passes, help="passes over the data")
    parser.add_argument("--plot", type=Path, help="a file for the picture of losses, such as losses.png")
    main(**vars(parser.parse_args()))


def plot(path: Path | None, title: str, curves: Mapping[str, Sequence[float]], *, logarithmic: bool = True) -> None:
    """Draw losses, one curve for each name, and say where they end."""
    for name, losses in curves.items():
        print(f"{name:>32}: {losses[0]:10.4g} -> {losses[-1]:10.4g} after {len(losses)} passes")
    if path is None:
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for name, losses in curves.items():
        axes.plot(losses, label=name)
    if logarithmic:
        axes.set_yscale("log")
    axes.set(title=title, xlabel="passes", ylabel="loss")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
