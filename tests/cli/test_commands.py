"""The commands besides `train`, and what happens around them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pexpect
import pytest

from onward import __version__
from onward.cli import console
from tests.cli.conftest import Command, classifier, flowers


def process(*words: object, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "onward", *map(str, words)], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return done


def test_version_and_help(onward: Command) -> None:
    assert onward("--version").out == f"onward {__version__}\n"
    listed = onward("--help").out
    commands = "check gradient artifacts step train evaluate predict export inspect verify bench demo"
    assert all(command in listed for command in commands.split())
    assert onward().out.startswith("Usage: onward")


def test_check_of_several_files(onward: Command, tmp_path: Path) -> None:
    model = classifier(tmp_path / "m.onnx")
    assert [report["ok"] for report in onward("check", model, model, "--json").json] == [True, True]
    done = onward("check", model, "none.onnx", code=2)
    assert "m.onnx: can be trained" in done.out
    assert "there is no model file" in done.err


def test_graphs_for_others(onward: Command, tmp_path: Path) -> None:
    model = classifier(tmp_path / "m.onnx")
    done = onward("gradient", model, "-o", "g.onnx", "--wrt", "w2", "--json").json
    assert done["outputs"] == ["scores", "w2_grad"]
    onnx.checker.check_model("g.onnx")
    done = onward("artifacts", model, "-o", "artifacts", "--loss", "cross_entropy", "--train", "w*", "--json").json
    assert done["trainable"] == ["w1", "w2"]
    onward("export", "artifacts", "-o", "same.onnx")
    assert onward("inspect", model, "same.onnx", "--json").json["same"] == 3
    onward("step", model, "-o", "step.onnx", "--loss", "cross_entropy")
    assert Path("step.safetensors").is_file()
    assert "say what to train for: --loss" in onward("step", model, "-o", "step.onnx", code=2).err


def test_inspect_and_export(onward: Command, tmp_path: Path) -> None:
    model, data = classifier(tmp_path / "m.onnx"), flowers(tmp_path / "flowers.csv")
    onward("train", model, "--data", data, "--lr", "0.01", "--epochs", "1", "--freeze", "w1")
    changed = onward("inspect", model, "out/trained.onnx", "--json").json
    assert [change["name"] for change in changed["changes"]] == ["w2", "b2"]
    assert changed["same"] == 1
    found = onward("inspect", "out", "--json").json
    assert (found["kind"], found["epochs"], found["trained"]) == ("checkpoint", 1, 2)
    onward("export", "out", "-o", "again.onnx")
    assert Path("again.onnx").read_bytes() == Path("out/trained.onnx").read_bytes()
    assert "4 tensors" not in onward("inspect", model).out


def test_verify_sees_a_wrong_gradient(onward: Command, tmp_path: Path) -> None:
    import onward as library
    from onward.testing import temporary_rules

    model = classifier(tmp_path / "m.onnx", end="scores = Softmax(s)")
    assert onward("verify", model, "--json").json["ok"] is True
    with temporary_rules():

        @library.vjp("Softmax", override=True)
        def wrong(op, node, dy):  # type: ignore[no-untyped-def]
            return dy * node.outputs[0]

        done = onward("verify", model, "--each", code=1)
    assert "DIFFERS" in done.out


def test_bench(onward: Command, tmp_path: Path) -> None:
    done = onward("bench", classifier(tmp_path / "m.onnx"), "--steps", "2", "--rows", "4", "--json").json
    assert done["inputs"] == {"x": [4, 4]}
    assert done["step_seconds"] > 0


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_bench_against_torch(onward: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """By a converter that knows this one model: onnx2torch reads few files. What computes otherwise is refused."""
    import types

    import torch

    def convert(model: onnx.ModelProto) -> torch.nn.Module:
        w = {
            each.name: torch.nn.Parameter(torch.tensor(onnx.numpy_helper.to_array(each)))
            for each in model.graph.initializer
        }

        class Network(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.w = torch.nn.ParameterDict(w)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return factor * (torch.relu(x @ self.w["w1"]) @ self.w["w2"]) + self.w["b2"]

        return Network()

    monkeypatch.setitem(sys.modules, "onnx2torch", types.SimpleNamespace(convert=convert))
    done = onward("bench", classifier(tmp_path / "m.onnx"), "--steps", "2", "--rows", "4", "--json").json
    if factor == 1:
        assert done["torch_step_seconds"] > 0
    else:
        assert done["torch_step_seconds"] is None
        assert "its outputs are others than those of onnxruntime" in done["torch_absent"]


def test_a_label_is_not_needed_and_left_out(onward: Command, tmp_path: Path) -> None:
    """Numbers in the last column of a file that was not trained here, which are called as no label is."""
    model = classifier(tmp_path / "m.onnx")
    rows = np.random.default_rng(0).normal(size=(6, 5))
    np.savetxt(tmp_path / "d.csv", rows, delimiter=",", header="a,b,c,d,progress", comments="")
    said = onward("predict", model, "--data", "d.csv").out.splitlines()
    assert len(said) == 7
    assert onward("verify", model, "--data", "d.csv", "--json").json["ok"]


def test_predict_as_arrays(onward: Command, tmp_path: Path) -> None:
    model = classifier(tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.zeros((5, 4), np.float32))
    onward("predict", model, "--data", "x.npy", "-o", "p.npz")
    assert np.load("p.npz")["scores"].shape == (5, 3)


def test_installed_command(tmp_path: Path) -> None:
    """What is in pyproject.toml leads to `main`."""
    assert process("--version", cwd=tmp_path).stdout == f"onward {__version__}\n"
    done = process("train", cwd=tmp_path, code=2)
    assert done.stderr.startswith("usage: onward train")


def test_help_is_whole(onward: Command) -> None:
    """No sentence of the list is cut, and nothing is escaped for a terminal that does not unescape it."""
    assert "..." not in onward("--help").out.partition("Commands:")[2]
    assert "[x>=1]" in onward("train", "--help").out
    assert "\\[" not in onward("train", "--help").out


@pytest.mark.parametrize(("path", "expected"), [("/nowhere", ".venv/bin/onward"), (None, "onward")])
def test_commands_to_type_next(
    path: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As this one was called, where a shell would not find it: after `make demo` nothing is on the path."""
    installed = tmp_path / "onward"
    installed.write_text("")
    installed.chmod(0o755)
    monkeypatch.setenv("PATH", path or str(tmp_path))
    monkeypatch.setattr(sys, "argv", [".venv/bin/onward", "demo"])
    assert console.command("inspect", "my model.onnx") == f"{expected} inspect 'my model.onnx'"


def test_without_the_extra(tmp_path: Path) -> None:
    program = "import sys; sys.modules['typer'] = None; from onward.cli import main; sys.exit(main(['--version']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr == "error: the command needs the package typer: pip install 'onward[cli]'\n"


def test_ctrl_c_keeps_a_checkpoint(tmp_path: Path) -> None:
    """In a terminal: a bar, Ctrl-C, one line that says how to go on, and the weights of an undisturbed training."""
    classifier(tmp_path / "m.onnx")
    flowers(tmp_path / "flowers.csv", rows=3000)
    words = ["train", "m.onnx", "--data", "flowers.csv", "--lr", "0.01", "--batch-size", "4", "--seed", "1"]
    child = pexpect.spawn(
        sys.executable,
        ["-m", "onward", *words, "--epochs", "50"],
        cwd=str(tmp_path),
        encoding="utf-8",
        timeout=60,
        # Shells let what they start in the background ignore Ctrl-C, and the tests may be such a job.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    child.expect(r"epoch 2/50: +\d+%")
    child.sendintr()
    child.expect("go on with: onward train --resume out")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130
    assert "Traceback" not in (child.before or "")
    process("train", "--resume", "out", "--epochs", "3", cwd=tmp_path)
    process(*words, "--epochs", "3", "--out", "whole", cwd=tmp_path)
    one, two = (onnx.load(tmp_path / folder / "trained.onnx").graph.initializer for folder in ("out", "whole"))
    assert [tensor.raw_data for tensor in one] == [tensor.raw_data for tensor in two]


def test_json_is_all_that_is_printed(onward: Command, tmp_path: Path) -> None:
    model, data = classifier(tmp_path / "m.onnx"), flowers(tmp_path / "flowers.csv")
    done = onward("train", model, "--data", data, "--epochs", "1", "--json")
    assert json.loads(done.out)["steps"] == 3
    assert done.err == ""


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion(tmp_path: Path, shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Else typer asks which shell has started it, and the tests may be started by any.
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    done = process("--show-completion", shell, cwd=tmp_path)
    assert "_ONWARD_COMPLETE" in done.stdout
