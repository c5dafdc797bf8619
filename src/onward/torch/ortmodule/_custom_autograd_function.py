"""A `torch.autograd.Function` inside of a module: there is nothing to enable."""

from __future__ import annotations


def enable_custom_autograd_support(to_enable: bool = True) -> None:
    """Do nothing: a function is followed by its operations, and left to torch if its backward pass is another one.

    The original runs such functions inside of its graphs, by an operator of its own, and has to be told so.
    """
