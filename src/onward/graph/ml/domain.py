"""The domain of classic models, and which of its operators no rewriter is for."""

from __future__ import annotations

from onward.graph.rewriting.registry import Domain

ML = Domain(
    "ai.onnx.ml",
    advice="Convert the estimator with other options, or differentiate a value that comes before this node.",
)
rewrites = ML.rewrites

ML.refuses(
    "TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor",
    "A tree is constant between its thresholds, so that no gradient passes it or tells how to change it. Train it "
    "where it was made, and by gradients only what comes after it.",
)
