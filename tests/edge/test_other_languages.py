"""The programs of examples/other_languages train as onward does; docs/other-languages.md shows them.

Node needs `npm ci` in web/; C++, Java and C# need what scripts/other_languages.py fetches (`make test-languages`).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from scripts.other_languages import compile_csharp, dotnet_environment

from onward.edge import Training, export

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "examples" / "other_languages"
PACKAGES = ROOT / ".peers" / "languages"
STEPS = 20
RANDOM = np.random.default_rng(0)


def needs(*paths: Path, tools: tuple[str, ...] = (), how: str = "make test-languages fetches it") -> None:
    """Skip, with the reason, where a compiler or a package is missing."""
    missing = [str(path.relative_to(ROOT)) for path in paths if not path.exists()]
    missing += [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: {how}")


# How each is run: a command that takes the folder and the number of steps. ------------------------------------------


def python(_: Path) -> list[object]:
    return [sys.executable, PROGRAMS / "train.py"]


def node(work: Path) -> list[object]:
    needs(ROOT / "web/node_modules/onnxruntime-node", tools=("node",), how="`npm ci --ignore-scripts` in web/")
    (work / "node_modules").symlink_to(ROOT / "web/node_modules")
    return ["node", shutil.copy(PROGRAMS / "train.mjs", work)]


def cpp(work: Path) -> list[object]:
    needs(PACKAGES / "include/onnxruntime_cxx_api.h", PACKAGES / "lib", tools=("g++",))
    program, library = work / "train", PACKAGES / "lib"
    options = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-isystem", PACKAGES / "include", "-L", library]
    done = run(["g++", PROGRAMS / "train.cpp", *options, f"-Wl,-rpath,{library}", "-lonnxruntime", "-o", program])
    assert done.returncode == 0, done.stderr
    return [program]


def java(_: Path) -> list[object]:
    needs(PACKAGES / "java.jar", tools=("java", "javac"))
    return ["java", "-cp", PACKAGES / "java.jar", PROGRAMS / "Train.java"]


def csharp(work: Path) -> list[object]:
    needs(PACKAGES / "dotnet/Microsoft.ML.OnnxRuntime.dll")
    classes = shutil.copy(PACKAGES / "dotnet/Microsoft.ML.OnnxRuntime.dll", work)
    compile_csharp(PACKAGES, work / "Train.dll", f"-r:{classes}", str(PROGRAMS / "Train.cs"))
    framework = '{"runtimeOptions": {"framework": {"name": "Microsoft.NETCore.App", "version": "3.1.0"}}}'
    (work / "Train.runtimeconfig.json").write_text(framework, "utf-8")
    return [PACKAGES / "dotnet/dotnet", work / "Train.dll"]


LANGUAGES: dict[str, Callable[[Path], list[object]]] = {
    each.__name__: each for each in (python, node, cpp, java, csharp)
}


def run(command: list[object]) -> subprocess.CompletedProcess[str]:
    environment = dotnet_environment(PACKAGES) if "dotnet" in str(command[0]) else None
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, timeout=300)


@pytest.fixture(scope="module", params=LANGUAGES)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    return LANGUAGES[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dropout, so that there is a seed; a weight that is not trained, in a file of its own; slots."""

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((RANDOM.uniform(-1, 1, shape) / np.sqrt(shape[0])).astype(np.float32), name)

    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h1"]),
        helper.make_node("Relu", ["h1"], ["r1"]),
        helper.make_node("Dropout", ["r1", "ratio", "training"], ["d1"]),
        helper.make_node("MatMul", ["d1", "w2"], ["h2"]),
        helper.make_node("Tanh", ["h2"], ["r2"]),
        helper.make_node("Gemm", ["r2", "w3", "b3"], ["logits"]),
    ]
    weights = [weight("w1", 8, 64), weight("b1", 64), weight("w2", 64, 64), weight("w3", 64, 3), weight("b3", 3)]
    weights += [numpy_helper.from_array(np.float32(0.1), "ratio"), numpy_helper.from_array(np.array(True), "training")]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 8])
    logits = helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["batch", 3])
    graph = helper.make_graph(nodes, "classifier", [x], [logits], weights)
    # As old as the onnxruntime of Java that there is here, 1.17, wants it.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    place = tmp_path_factory.mktemp("exported") / "folder"
    exported = export(model, place, "cross_entropy", "adamw", frozen="w2", learning_rate=0.01, seed=7)
    assert exported.manifest["seed"] is not None
    assert exported.manifest["files"]["frozen"] is not None
    return place


def test_trains_as_onward_does(program: list[object], folder: Path) -> None:
    x = np.sin(np.arange(48)).astype(np.float32).reshape(6, 8)
    training = Training(folder)
    (target,) = json.loads((folder / "manifest.json").read_text("utf-8"))["targets"]
    expected = [training.step({"x": x, target["name"]: np.arange(6) % 3}).loss for _ in range(STEPS)]
    done = run([*program, folder, STEPS])
    assert done.returncode == 0, done.stderr
    losses = [float(line) for line in done.stdout.split()]
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-5)
    assert losses[-1] < 0.2 * losses[0]


def test_notices_that_the_state_does_not_count(program: list[object], folder: Path, tmp_path: Path) -> None:
    """A step that computes with the initial parameters for ever, as one does whose runtime ignores what is fed."""
    broken = tmp_path / "folder"
    shutil.copytree(folder, broken)
    model = onnx.load(broken / "step.onnx", load_external_data=False)
    tensors = Training(folder).state
    for value in list(model.graph.input):
        if value.name in ("w1", "b1", "w3", "b3"):
            model.graph.initializer.append(numpy_helper.from_array(tensors[value.name], f"{value.name}.first"))
            for each in model.graph.node:
                each.input[:] = [f"{value.name}.first" if name == value.name else name for name in each.input]
    onnx.save(model, broken / "step.onnx")
    done = run([*program, broken, 2])
    assert done.returncode != 0
    assert "the state that is fed does not count" in done.stderr


@pytest.mark.parametrize("name", ["train.py", "train.mjs", "train.cpp", "Train.java", "Train.cs"])
def test_the_page_shows_the_program(name: str) -> None:
    page = (ROOT / "docs" / "other-languages.md").read_text("utf-8")
    blocks = re.findall(r"^```[a-z]+\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert (PROGRAMS / name).read_text("utf-8") in blocks
