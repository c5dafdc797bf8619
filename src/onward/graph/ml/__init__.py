"""The operators of classic models (`ai.onnx.ml`), rewritten to standard ones before anything is differentiated.

skl2onnx and its like write them. What they learned is in attributes, which become initializers called
``<node>.<attribute>``. Labels, and what only moves integers, strings and maps, stay as they are.
"""

from onward.graph.ml import feature, linear, support_vector
from onward.graph.ml.domain import ML

__all__ = ["ML", "feature", "linear", "support_vector"]
