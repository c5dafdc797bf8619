"""What can be done while training: `Trainer.fit(callbacks=[...])`."""

from onward.callbacks.base import Callback, Lambda, Run
from onward.callbacks.checkpoints import Checkpoints
from onward.callbacks.csv_log import CSVLog
from onward.callbacks.early_stopping import EarlyStopping
from onward.callbacks.tensorboard import TensorBoard

__all__ = ["CSVLog", "Callback", "Checkpoints", "EarlyStopping", "Lambda", "Run", "TensorBoard"]
