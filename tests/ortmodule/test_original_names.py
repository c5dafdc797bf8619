"""Every line by which the test files of the original, from 2021 to 2024, import something of ORTModule's side."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEADS = {
    "orttraining_test_ortmodule_api": """
import onnxruntime.training.ortmodule as ortmodule_module
from onnxruntime.training import ORTModule, _utils
from onnxruntime.training.ortmodule import DebugOptions, LogLevel, ORTModule, _fallback, _graph_execution_manager
from onnxruntime.training.ortmodule import _io, _utils
from onnxruntime.training.ortmodule._custom_gradient_registry import register_gradient
from onnxruntime.training.ortmodule._onnx_models import _get_onnx_file_name
from onnxruntime.training.ortmodule.options import _SkipCheck
from onnxruntime.training.optim import AdamWMode, FusedAdam
from onnxruntime.training.optim.fused_adam import FusedAdam
""",
    "_test_helpers": """
from onnxruntime.training import orttrainer
from onnxruntime.training.ortmodule import ORTMODULE_FALLBACK_POLICY, ORTModule
from onnxruntime.training.ortmodule._fallback import _FallbackPolicy
from onnxruntime.training.ortmodule._graph_execution_manager_factory import GraphExecutionManagerFactory
""",
    "orttraining_test_ortmodule_fallback": """
from onnxruntime.training.ortmodule import MINIMUM_RUNTIME_PYTORCH_VERSION_STR, ORTMODULE_TORCH_CPP_DIR, _fallback
from onnxruntime.training.ortmodule.torch_cpp_extensions import is_installed
assert is_installed(ORTMODULE_TORCH_CPP_DIR)
from onnxruntime.training.ortmodule import TORCH_CPP_DIR
""",
    "orttraining_test_ortmodule_experimental_json_config": """
from onnxruntime.capi import _pybind_state as C
from onnxruntime.training import ortmodule
from onnxruntime.training.ortmodule.experimental.json_config import load_from_json
assert C.PropagateCastOpsStrategy.FLOOD_FILL
""",
    "orttraining_test_hierarchical_ortmodule": """
from onnxruntime.training.ortmodule.experimental.hierarchical_ortmodule import HierarchicalORTModule
""",
    "orttraining_test_ortmodule_autograd": """
import onnxruntime
from onnxruntime.training.ortmodule import DebugOptions, ORTModule
from onnxruntime.training.ortmodule._custom_autograd_function import enable_custom_autograd_support
onnxruntime.set_seed(1)
enable_custom_autograd_support()
""",
    "orttraining_test_hooks": """
from onnxruntime.training.utils.hooks import GlobalSubscriberManager, StatisticsSubscriber, _InspectActivation
from onnxruntime.training.utils.hooks import inspect_activation, no_increase_global_step
from onnxruntime.training.utils.hooks._subscriber_base import SubscriberBase
""",
    "orttraining_test_utilities": """
from onnxruntime.training.utils import PrimitiveType, extract_data_and_schema, unflatten_data_using_schema
from onnxruntime.training.utils import PTable, onnx_dtype_to_pytorch_dtype, pytorch_type_to_onnx_dtype
from onnxruntime.training.utils.torch_io_helper import _TensorStub
""",
    "orttraining_test_sampler": """
from onnxruntime.training.utils.data import sampler
sampler.LoadBalancingDistributedSampler, sampler.LoadBalancingDistributedBatchSampler
""",
    "programs": """
from onnxruntime.training.ortmodule import _custom_op_symbolic_registry, _logger
from onnxruntime.training.ortmodule.debug_options import DebugOptions
from onnxruntime.training.ortmodule.torch_cpp_extensions import install
from torch_ort import DebugOptions, LogLevel, ORTModule
from torch_ort.optim import FP16_Optimizer, FusedAdam
from torch_ort.utils.data import LoadBalancingDistributedSampler
from onnxruntime.training.ortmodule._inference_manager import InferenceManager
from onnxruntime.training.ortmodule._training_manager import TrainingAgent, TrainingManager
from onnxruntime.training.postprocess import layer_norm_transform, run_postprocess
from torch_ort import configure
from torch_ort.experimental.json_config import load_from_json
import torch_ort
assert torch_ort.optim.FusedAdam is FusedAdam
""",
    "torch_ort_graph_config_tests": """
from torch_ort import ORTModule
from torch_ort.experimental.graph_config import set_propagate_cast_ops_optimization, PropagateCastOpsStrategy
from torch_ort.experimental.graph_config import PropagateCastLevel
import torch
model = ORTModule(torch.nn.Linear(2, 3))
set_propagate_cast_ops_optimization(model, PropagateCastOpsStrategy.NONE, PropagateCastLevel.FASTER_KEEP_PRECISION)
for training in (True, False):
    manager = model._torch_module._execution_manager(is_training=training)
    assert manager._propagate_cast_ops_strategy == PropagateCastOpsStrategy.NONE
    assert manager._propagate_cast_ops_level == PropagateCastLevel.FASTER_KEEP_PRECISION
try:
    set_propagate_cast_ops_optimization(model, level=3)
except TypeError as error:
    assert "`level` must be a `PropagateCastLevel` object" in str(error)
""",
}


@pytest.fixture(scope="module")
def said() -> str:
    """What a process says that runs them all, one after the other."""
    program = "import onward.as_onnxruntime_training\n"
    for file, head in HEADS.items():
        program += f"try:\n    exec({head!r})\nexcept BaseException as error:\n    print({file!r}, repr(error))\n"
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("file", HEADS)
def test_heads_of_files(file: str, said: str) -> None:
    assert not [line for line in said.splitlines() if line.startswith(file)]
