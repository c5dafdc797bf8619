"""A `torch.autograd.Function` inside of a module: there is nothing to enable."""

from __future__ import annotations


def enable_custom_autograd_support(to_enable: bool = True) -> None:
    """Do nothing: both passes of a function are parts of the graphs (`own_gradient`).

    The original calls Python from its graphs, by an operator of its own, and has to be told so.
    """
