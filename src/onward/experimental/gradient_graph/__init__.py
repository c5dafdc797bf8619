"""Gradient graphs of torch modules."""

from __future__ import annotations

from onward.experimental.gradient_graph._gradient_graph_tools import export_gradient_graph

__all__ = ["export_gradient_graph"]
