"""The rest of what `onward.check` says: versions, operators, modes, text, HTML, JSON and the command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onward
from onward.autodiff.coverage import coverage
from onward.cli import main
from onward.graph.opsets import accepted_by_runtime
from tests.inspection.models import VECTOR, WEIGHT, layer, model

NEWEST, NEWEST_IR = accepted_by_runtime()


# Versions -----------------------------------------------------------------------------------------------------------


def test_versions() -> None:
    versions = onward.check(layer()).versions
    assert (versions.opset, versions.ir_version, versions.domains) == (17, 8, {"": 17})
    assert (versions.newest_opset, versions.newest_ir_version) == (NEWEST, NEWEST_IR)
    assert versions.accepted
    assert versions.training_opset == 17


def test_an_opset_that_rises() -> None:
    """The gradient of broadcasting between unknown dimensions needs a newer opset than 11."""
    forward = model(
        "rise (float[N, M] x, float[K, L] s) => (float[N, M] y) { a = Mul(x, s) y = Mul(a, w) }", 11, w=VECTOR
    )
    report = onward.check(forward, wrt=["s", "w"])
    result = onward.gradient(forward, wrt=["s", "w"])
    assert report.versions.training_opset == result.opset_import[0].version > 11
    assert f"training graphs are moved to opset {result.opset_import[0].version}" in str(report)


def test_an_ir_version_that_is_too_new_is_lowered() -> None:
    forward = layer()
    forward.ir_version = NEWEST_IR + 1
    report = onward.check(forward)
    assert report.ok
    assert not report.versions.accepted
    assert f"training graphs get {NEWEST_IR}" in str(report)


# Operators ----------------------------------------------------------------------------------------------------------


def test_how_operators_are_differentiated() -> None:
    forward = model(
        """ways (float[2, 2] x) => (float[2, 2] y) {
            a = MatMul(x, w)
            q = QuantizeLinear(a, s, z)
            d = DequantizeLinear(q, s, z)
            f = Floor(d)
            g = Add(d, f)
            y = CenterCropPad(g, shape)
        }""",
        opset=18,
        w=WEIGHT,
        s=np.float32(0.5),
        z=np.uint8(10),
        shape=np.array([2, 2]),
    )
    report = onward.check(forward)
    assert report.ok
    assert {operator.name: operator.how for operator in report.operators} == {
        "Add": "rule",
        "CenterCropPad": "function",
        "DequantizeLinear": "rule",
        "Floor": "constant",
        "MatMul": "rule",
        "QuantizeLinear": "straight-through",
    }


def test_ways_are_those_of_the_coverage_table() -> None:
    ways = coverage()
    for operator in onward.check(layer()).operators:
        assert operator.how == ways[operator.name]


# Modes --------------------------------------------------------------------------------------------------------------


def test_modes() -> None:
    forward = model(
        """modes (float[2, 2] x, bool fed) => (float[2, 2] y) {
            a = MatMul(x, w)
            b = Dropout(a, ratio, on)
            c = Dropout(b, ratio, fed)
            d = Dropout(c, ratio)
            e, m, v = BatchNormalization<training_mode = 1>(d, scale, bias, mean, var)
            y = BatchNormalization(e, scale, bias, mean, var)
        }""",
        w=WEIGHT,
        ratio=np.float32(0.25),
        on=np.array(True),
        **dict.fromkeys(("scale", "bias", "mean", "var"), VECTOR),
    )
    modes = {mode.node: (mode.operator, mode.mode) for mode in onward.check(forward).modes}
    assert modes == {
        "b": ("Dropout", "training"),
        "c": ("Dropout", "decided at run time"),
        "d": ("Dropout", "evaluation"),
        "e": ("BatchNormalization", "training"),
        "y": ("BatchNormalization", "evaluation"),
    }
    effects = {mode.node: mode.effect for mode in onward.check(forward).modes}
    assert effects["b"] == "drops 0.25 of its input; off in evaluation graphs"
    assert effects["c"] == "follows 'fed'; off in evaluation graphs"
    assert effects["d"] == "does nothing, in training too"
    assert effects["e"].startswith("normalises by the batch and updates its running statistics")
    assert effects["y"] == "normalises by its running statistics, which stay as they are"

    # Advice on torch is for files of torch.
    forward.producer_name = "pytorch"
    advice = "; export by onward.torch.export(module, args, path) to change that"
    effects = {mode.node: mode.effect for mode in onward.check(forward).modes}
    assert effects["d"] == f"does nothing, in training too{advice}"
    assert effects["y"] == f"normalises by its running statistics, which stay as they are{advice}"


# Forms --------------------------------------------------------------------------------------------------------------

PRINTED = f"""\
printed: cannot be trained as it is, 1 blocker

Blockers
  acme.Warp: no gradient rule
    where:  warp
    before: w, scale
    remedy: REMEDY

Model
  opset               17 (the installed onnxruntime accepts up to {NEWEST})
  IR version          8 (up to {NEWEST_IR})
  other domains       acme 1
  input               x  float32 [batch, 2]
  output              y  float32 [batch, 2]  (differentiated)
  output              label  int64 [batch]
  dynamic dimensions  batch in x[0]

Operators: 6 nodes of 6 kinds
  ArgMax         1  no derivative
  Constant       1  no derivative
  Dropout        1  rule
  MatMul         1  rule
  Mul            1  rule
  acme.Warp      1  no rule: a blocker

Trainable parameters: 2 tensors, 6 elements, 24 B
  w      float32  [2, 2]
  scale  float32  [2]     Constant node

Other constants: 3 tensors, 6 elements, 21 B
  ratio   float32  []   ratio of Dropout
  unused  float32  [4]  nothing uses it
  and 1 that is not floating point

Dropout and BatchNormalization
  Dropout      1  training  drops 0.5 of its input; off in evaluation graphs

Estimate of a step: for batch = 8
  forward           128 FLOP
  backward          no gradient
  optimizer         66 FLOP (adamw)
  parameters        24 B
  gradients         24 B
  optimizer state   48 B (adamw)
  frozen constants  21 B"""


def printed() -> onnx.ModelProto:
    forward = model(
        """printed (float[batch, 2] x) => (float[batch, 2] y, int64[batch] label) {
            a = MatMul(x, w)
            b = Dropout(a, ratio, on)
            scale = Constant<value = float[2] {0.5, 2.0}>()
            c = Mul(b, scale)
            y = acme.Warp(c)
            label = ArgMax<axis = 1, keepdims = 0>(c)
        }""",
        domains=', "acme" : 1',
        w=WEIGHT,
        ratio=np.float32(0.5),
        on=np.array(True),
        unused=np.ones(4, np.float32),
    )
    forward.graph.node[4].name = "warp"
    return forward


def test_text() -> None:
    report = onward.check(printed(), dims={"batch": 8})
    lines = str(report).split("\n")
    first = next(index for index, line in enumerate(lines) if "remedy:" in line)
    last = lines.index("", first)
    remedy = " ".join(line.strip() for line in lines[first:last])
    assert remedy == f"remedy: {report.blockers[0].remedy}", "wrapped"
    assert max(map(len, lines)) <= 110
    assert "\n".join([*lines[:first], "    remedy: REMEDY", *lines[last:]]) == PRINTED


def test_what_the_document_shows() -> None:
    """docs/check.md prints the report of its first snippet."""
    document = (Path(__file__).parents[2] / "docs" / "check.md").read_text("utf-8")
    code, shown = re.findall(r"```(?:python|text)\n(.*?)\n```", document, re.DOTALL)[:2]
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    newest = f"accepts up to {NEWEST})", f"(up to {NEWEST_IR})"
    printed = str(namespace["report"]).replace(newest[0], "accepts up to 26)").replace(newest[1], "(up to 13)")
    assert printed == shown


def test_long_lists_are_cut() -> None:
    names = [f"w{index}" for index in range(20)]
    body = " ".join(f"a{i + 1} = Mul(a{i}, {name})" for i, name in enumerate(names))
    forward = model(
        f"long (float[2] x) => (float[2] y) {{ a0 = Neg(x) {body} y = Neg(a20) }}", **dict.fromkeys(names, VECTOR)
    )
    report = onward.check(forward)
    assert "  and 8 more" in str(report).split("\n")
    assert "w19" not in str(report)
    assert "w19" in report.text(limit=None)


def test_html() -> None:
    forward = printed()
    forward.graph.node[4].name = "<warp>"
    text = onward.check(forward)._repr_html_()
    assert text.count("<table>") == text.count("</table>") >= 6
    assert "&lt;warp&gt;" in text
    assert "<warp>" not in text


def test_json() -> None:
    found = onward.check(printed()).to_dict()
    assert json.loads(json.dumps(found)) == found
    assert found["ok"] is False
    assert found["versions"]["opset"] == 17
    assert found["blockers"][0]["nodes"] == ["warp"]
    assert found["dynamic_dims"] == {"batch": ["x[0]"]}


@pytest.mark.parametrize("kind", ["proto", "ir", "path", "str"])
def test_models_in_any_form(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "layer.onnx"
    onnx.save(layer(), path)
    given = {"proto": layer(), "ir": ir.load(path), "path": path, "str": str(path)}[kind]
    report = onward.check(given)
    assert report.ok
    assert report.name == ("layer.onnx" if kind in ("path", "str") else "layer")


# Command line -------------------------------------------------------------------------------------------------------


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.onnx", tmp_path / "bad.onnx"
    onnx.save(layer(), good)
    onnx.save(printed(), bad)
    assert main(["check", str(good), "--dim", "N=8", "--wrt", "b", "--of", "y", "--optimizer", "sgd"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("good.onnx: can be trained\n")
    assert "for N = 8\n" in out
    assert main(["check", str(bad)]) == 1
    assert "acme.Warp: no gradient rule" in capsys.readouterr().out
    assert main(["check", str(bad), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False
    assert main(["check", str(tmp_path / "none.onnx")]) == 2
    assert capsys.readouterr().err == f"error: there is no model file at {str(tmp_path / 'none.onnx')!r}\n"


def test_whoever_reads_may_stop(tmp_path: Path) -> None:
    """As `head` does."""
    onnx.save(layer(), tmp_path / "good.onnx")
    command = [sys.executable, "-m", "onward", "check", str(tmp_path / "good.onnx")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


@pytest.mark.parametrize("wrong", [["check"], ["check", "m.onnx", "--dim", "N"], ["train"]])
def test_wrong_arguments(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(wrong)
    assert raised.value.code == 2
    assert "usage: onward" in capsys.readouterr().err


def test_products_that_onnxruntime_computes_wrongly_are_named():
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[3,4] a, float[3{0}] v) => (float[4{0}] y) {{ {1} }}'
    turned = "t = Transpose<perm=[1,0]>(a) y = MatMul(t, v)"
    for rest, body, count in (("", turned, 1), (",2", turned, 0), ("", "y = MatMul(v, a)", 0)):
        notes = onward.check(onnx.parser.parse_model(text.format(rest, body)), wrt=["a"]).notes
        assert [note.split(":")[0] for note in notes] == ["onnxruntime computes MatMul node 'y' wrongly"] * count
