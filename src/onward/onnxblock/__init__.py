"""Layer 4: build models by stacking blocks, with the names and signatures of `onnxruntime.training.onnxblock`."""

from onward.onnxblock import blocks, loss, optim
from onward.onnxblock.block import Block
from onward.onnxblock.checkpoint_utils import load_checkpoint_to_model, save_checkpoint
from onward.onnxblock.model_accessor import base, custom_op_library, empty_base
from onward.onnxblock.onnxblock import ForwardBlock, TrainingBlock

__all__ = [
    "Block",
    "ForwardBlock",
    "TrainingBlock",
    "base",
    "blocks",
    "custom_op_library",
    "empty_base",
    "load_checkpoint_to_model",
    "loss",
    "optim",
    "save_checkpoint",
]
