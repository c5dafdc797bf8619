"""What both estimators have in common: parameters in the manner of scikit-learn, text and pickles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx

from onward.onnxcustom.training._base import BaseOnnxClass
from onward.onnxcustom.training._base_onnx_function import BaseLearningOnnx
from onward.onnxcustom.training.excs import WrongValueError
from onward.onnxcustom.training.sgd_learning_rate import BaseLearningRate
from onward.onnxcustom.utils.onnx_helper import replace_initializers_into_onnx
from onward.onnxcustom.utils.onnxruntime_helper import get_ort_device, ort_device_to_string
from onward.runtime.values import OrtDevice

_LONGEST, _SHOWN = 50, 10  # characters of a parameter in the text of an estimator
_KEPT = ("train_losses_", "validation_losses_", "statistics_", "trained_coef_")


class BaseEstimator(BaseOnnxClass):
    """Base of estimators.

    Args:
        model_onnx: the graph to train.
        learning_rate: a number, a name or a learning rate.
        device: 'cpu', 'cuda', 'cuda:1' or an OrtDevice.
    """

    def __init__(self, model_onnx: onnx.ModelProto, learning_rate: Any, device: Any) -> None:
        self.model_onnx = model_onnx
        self.learning_rate = BaseLearningRate.select(learning_rate)
        self.device = get_ort_device(device)

    def build_onnx_function(self) -> None:
        """Make the graphs that are needed besides that of the model."""

    # Parameters ---------------------------------------------------------------------------------------------------

    def get_params(self, deep: bool = False) -> dict[str, Any]:
        """The parameters of the constructor, the device as text; `deep` is not used."""
        params = {name: getattr(self, name) for name, _ in self._get_param_names()}
        return params | {"device": ort_device_to_string(self.device)}

    def set_params(self, **params: Any) -> BaseEstimator:
        """Change parameters, given in any form that the constructor takes."""
        known = [name for name, _ in self._get_param_names()]
        unknown = [name for name in params if name not in known]
        if unknown:
            raise WrongValueError(f"{type(self).__name__} has no parameter {unknown[0]!r}; it has {', '.join(known)}")
        # By the constructor: it knows every form, and makes the graphs that follow from parameters.
        vars(self).update(vars(type(self)(**self.get_params() | params)))
        return self

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn asks of estimators."""
        from sklearn.utils import Tags, TargetTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=True))

    def __repr__(self) -> str:
        shown = [f"{name}={_shown(getattr(self, name))}" for name, _ in self._get_param_names()]
        return f"{type(self).__name__}({', '.join(shown)})"

    # Pickles ------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """No sessions: attributes that end with an underscore are made again, but for losses."""
        attributes = vars(self).items()
        state = {name: value for name, value in attributes if not name.endswith("_") or name in _KEPT}
        return state | {"device": ort_device_to_string(self.device)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self.device = get_ort_device(state["device"])
        self.build_onnx_function()

    # What was trained ---------------------------------------------------------------------------------------------

    def _get_trained_onnx(self, state: Mapping[str, Any], model: onnx.ModelProto | None = None) -> onnx.ModelProto:
        return replace_initializers_into_onnx(self.model_onnx if model is None else model, state)


def _shown(value: Any) -> str:
    if isinstance(value, OrtDevice):
        return repr(ort_device_to_string(value))
    text = repr(value)
    if isinstance(value, BaseLearningOnnx) or (len(text) <= _LONGEST and "\n" not in text):
        return text
    return repr(text[:_SHOWN].replace("\n", " ") + "...")


def passes_between_validations(validation_every: float, max_iter: int) -> int:
    """After how many passes the validation set is looked at: a part of all passes below 1, and one at least."""
    if not validation_every > 0:
        raise WrongValueError(f"validation_every must be above 0, not {validation_every!r}")
    if validation_every < 1:
        return max(1, int(max_iter * validation_every))
    # As it is, where that will do: scikit-learn's clone compares parameters by identity.
    return validation_every if isinstance(validation_every, int) else int(validation_every)
