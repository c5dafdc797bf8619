"""`import onward.as_onnxruntime_training`: the modules under their old names, lazily, and never over the original."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from onward.errors import OnwardError

MODULES = [
    "artifacts",
    "onnxblock",
    "onnxblock.blocks",
    "onnxblock.loss",
    "onnxblock.loss.loss",
    "onnxblock.optim",
    "onnxblock.optim.optim",
    "onnxblock.model_accessor",
    "onnxblock.checkpoint_utils",
    "onnxblock.onnxblock",
    "onnxblock._graph_utils",
    "api",
    "api.checkpoint_state",
    "api.module",
    "api.optimizer",
    "api.lr_scheduler",
    "experimental",
    "experimental.gradient_graph",
    "experimental.gradient_graph._gradient_graph_tools",
]


def run(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, env=environment or None
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_is_the_one_of_onward() -> None:
    """One object under two names: an enum or a class of one is that of the other."""
    run(f"""
import importlib
import onward.as_onnxruntime_training
for name in {MODULES}:
    old = importlib.import_module(f"onnxruntime.training.{{name}}")
    new = importlib.import_module(f"onward.{{name}}")
    assert old is new, name
    assert new.__name__ == new.__spec__.name == f"onward.{{name}}"
from onnxruntime.training import api, artifacts, experimental, onnxblock
import onnxruntime, onward
assert artifacts.LossType is onward.artifacts.LossType
assert onnxruntime.training.artifacts is artifacts
""")


@pytest.mark.parametrize("first", ["onnxblock.blocks", "api.module", "experimental.gradient_graph"])
def test_inner_modules_first(first: str) -> None:
    run(f"import onward.as_onnxruntime_training; import onnxruntime.training.{first}")


def test_nothing_is_loaded_before_it_is_used() -> None:
    loaded = run(
        "import onward.as_onnxruntime_training, sys; print(*sys.modules)",
    ).split()
    assert "onward.as_onnxruntime_training" in loaded
    assert not {"onnxruntime", "onnx", "numpy", "onward.artifacts", "torch"} & set(loaded)


@pytest.mark.parametrize("first", ["import onnxruntime", ""])
def test_sessions_and_agents_are_where_training_builds_have_them(first: str) -> None:
    """Whether onnxruntime is there already or not, and without loading onward.session before it is used."""
    run(f"""
{first}
import onward.as_onnxruntime_training
import onnxruntime, sys
assert "onward.session" not in sys.modules
options = onnxruntime.RunOptions()
assert options.training_mode
options.training_mode = False
options.only_execute_path_to_fetches = True
from onnxruntime import TrainingParameters, TrainingSession
from onnxruntime.capi import _pybind_state, onnxruntime_pybind11_state
from onnxruntime.capi._pybind_state import TrainingAgent, OrtValueVector
from onnxruntime.capi.onnxruntime_pybind11_state import OrtModuleGraphBuilder, SessionIOBinding
from onnxruntime.capi.training import TrainingSession as inner
from onnxruntime.capi.training.training_session import TrainingSession as innermost
import onnxruntime.training, onnxruntime.capi.training.training_session as module
import onward.session
assert TrainingSession is inner is innermost is module.TrainingSession is onward.session.TrainingSession
assert TrainingParameters is onnxruntime.training.TrainingParameters is _pybind_state.TrainingParameters
for name in onward.session.__all__:
    if name not in ("RunOptions", "TrainingSession"):
        own = getattr(onward.session, name)
        assert getattr(_pybind_state, name) is own is getattr(onnxruntime_pybind11_state, name)
for module in (onnxruntime, _pybind_state):
    try:
        module.nothing
    except AttributeError as error:
        assert "has no attribute 'nothing'" in str(error)
    else:
        raise AssertionError
""")


def test_importing_twice() -> None:
    run("""
import importlib, sys
import onward.as_onnxruntime_training as shim
before = list(sys.meta_path)
importlib.reload(shim)
shim.install()
assert len(sys.meta_path) == len(before)
from onnxruntime.training import artifacts
""")


def test_what_does_not_exist() -> None:
    run("""
import onward.as_onnxruntime_training
import onnxruntime.training
names = {"ORTTrainer", "PropagateCastOpsStrategy", "TrainingParameters", "amp", "api", "artifacts", "onnxblock"}
assert names <= set(dir(onnxruntime.training))
try:
    onnxruntime.training.nothing
except AttributeError as error:
    assert "it has ORTModule, ORTTrainer, ORTTrainerOptions, PropagateCastOpsStrategy, TrainStepInfo" in str(error)
else:
    raise AssertionError("found nothing")
import importlib.util
assert importlib.util.find_spec("onnxruntime.training.onnxblock.nothing") is None
""")


# A package like onnxruntime up to 1.20, which looks for ORTModule while it is half imported: any other error than an
# ImportError would break it.
OLD_RUNTIME = """
try:
    from onnxruntime.training.ortmodule import ORTModule
    has_ortmodule = True
except ImportError:
    has_ortmodule = False
class InferenceSession: ...
"""


def fake_runtime(folder: Path, **contents: str) -> Path:
    package = folder / "onnxruntime"
    for name, text in contents.items():
        path = package / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_old_releases_that_look_for_the_original_while_being_imported(tmp_path: Path) -> None:
    path = fake_runtime(tmp_path, __init__=OLD_RUNTIME)
    run(
        """
import onward.as_onnxruntime_training
import onnxruntime
assert not onnxruntime.has_ortmodule
assert onnxruntime.InferenceSession
""",
        PYTHONPATH=str(path),
    )


def test_the_original_is_not_replaced(tmp_path: Path) -> None:
    path = fake_runtime(tmp_path, __init__="", **{"training/__init__": "", "training/artifacts": ""})
    message = run(
        """
try:
    import onward.as_onnxruntime_training
except RuntimeError as error:
    print(error)
from onnxruntime.training import artifacts
assert "onnxruntime/training" in artifacts.__file__.replace("\\\\", "/")
""",
        PYTHONPATH=str(path),
    )
    assert "onnxruntime.training is installed already" in message
    assert "import onward.artifacts" in message


def test_the_original_is_known_by_its_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    shim = importlib.import_module("onward.as_onnxruntime_training")
    monkeypatch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if not isinstance(finder, shim._Finder)])

    def version(name: str) -> str:
        if name == "onnxruntime-training":
            return "1.19.2"
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(OnwardError, match=r"onnxruntime-training 1\.19\.2"):
        shim.install()
