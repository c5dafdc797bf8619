"""Graphs that training needs, and what is around them."""

from onward.onnxcustom.utils.benchmark import measure_time
from onward.onnxcustom.utils.print_helper import str_ortvalue

__all__ = ["measure_time", "str_ortvalue"]
