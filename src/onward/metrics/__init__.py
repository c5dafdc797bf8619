"""Metrics over whole sets, not means of batches: `get("accuracy")`, then `update` for each batch and `result`."""

from onward.metrics.base import Metric, Output, output_of
from onward.metrics.registry import get, get_all, names

__all__ = ["Metric", "Output", "get", "get_all", "names", "output_of"]
