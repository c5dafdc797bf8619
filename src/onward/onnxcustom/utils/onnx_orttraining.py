"""Where `add_loss_output` and `get_train_initializer` were before they moved to `orttraining_helper`."""

from onward.onnxcustom.utils.orttraining_helper import add_loss_output, get_train_initializer

__all__ = ["add_loss_output", "get_train_initializer"]
