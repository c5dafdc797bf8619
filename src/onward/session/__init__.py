"""TrainingSession and TrainingAgent: the lower interfaces of onnxruntime-training, on stock onnxruntime."""

from __future__ import annotations

from onward.runtime.options import RunOptions
from onward.session.agent import OrtValueCache, PartialGraphExecutionState, TrainingAgent
from onward.session.configuration import (
    GraphInfo,
    OrtModuleGraphBuilderConfiguration,
    PropagateCastOpsConfiguration,
    PropagateCastOpsStrategy,
    Severity,
    TrainingGraphTransformerConfiguration,
)
from onward.session.graph_builder import GradientGraphBuilder, OrtModuleGraphBuilder
from onward.session.parameters import TrainingParameters
from onward.session.training_session import TrainingSession

__all__ = [
    "GradientGraphBuilder",
    "GraphInfo",
    "OrtModuleGraphBuilder",
    "OrtModuleGraphBuilderConfiguration",
    "OrtValueCache",
    "PartialGraphExecutionState",
    "PropagateCastOpsConfiguration",
    "PropagateCastOpsStrategy",
    "RunOptions",
    "Severity",
    "TrainingAgent",
    "TrainingGraphTransformerConfiguration",
    "TrainingParameters",
    "TrainingSession",
]
