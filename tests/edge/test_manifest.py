"""manifest.json is what its schema in the docs says; for WebGPU it says what stays on the processor."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onward
from onward.edge import export
from onward.edge.placement import kernels, placement
from onward.optim import schedules
from tests.edge.test_export import network

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "edge-manifest.schema.json").read_text("utf-8"))


def check(manifest: dict) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(manifest)


@pytest.mark.parametrize(
    "options",
    [
        {"target": "wasm", "frozen": "w0", "classes": ["a", "b", "c"]},
        {"target": "native", "schedule": schedules.Warmup(schedules.Cosine(0.1, total_step_count=10), 3)},
        {"target": "webgpu", "loss": "cross_entropy"},
        {"target": "wasm", "loss": "cross_entropy", "optimizer": "sgd"},
    ],
    ids=["frozen", "schedule", "webgpu", "labels"],
)
def test_manifests_are_what_the_schema_says(tmp_path: Path, options: dict):
    made = export(network(), tmp_path, **{"loss": "mse", **options})
    check(made.manifest)
    check(json.loads((tmp_path / "manifest.json").read_text("utf-8")))


def test_the_schema_tells_what_is_wrong(tmp_path: Path):
    manifest = export(network(), tmp_path, "mse").manifest
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    state = [{**entry, "role": "weight"} for entry in manifest["state"]]
    wrong = [
        {**manifest, "version": 2},
        {**manifest, "state": state},
        {**manifest, "learning_rate": None},
        {key: value for key, value in manifest.items() if key != "files"},
        {**manifest, "files": {**manifest["files"], "step": {**manifest["files"]["step"], "file": "../step.onnx"}}},
    ]
    for one in wrong:
        with pytest.raises(jsonschema.ValidationError):
            check(one)


def test_every_key_of_a_manifest_is_described():
    """A key that is new has to be added to the schema, or the first test fails: nothing else is allowed."""
    assert SCHEMA["additionalProperties"] is False
    assert set(SCHEMA["required"]) == set(SCHEMA["properties"])


def test_labels_have_their_classes(tmp_path: Path):
    for target in ("wasm", "webgpu"):
        (labels,) = export(network(), tmp_path / target, "cross_entropy", target=target).manifest["targets"]
        assert labels["labels"] == {"classes": 3, "ignored": None}
        assert labels["type"] == ("int32" if target == "webgpu" else "int64")


# What stays on the processor ------------------------------------------------------------------------------------------


def graph(text: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    return onnx.shape_inference.infer_shapes(model)


@pytest.mark.parametrize(
    ("text", "native"),
    [
        ("g (float[3] x) => (float[3] y) { y = Exp(x) }", None),
        ("g (float[3] x) => (float[3] y) { y = Sign(x) }", "WebGPU has no Sign"),
        ("g (int64[3] x) => (int64[3] y) { y = Add(x, x) }", "WebGPU has no Add of int64"),
        ("g (int32[3] x) => (int32[3] y) { y = Add(x, x) }", None),
        ("g (float[3] x, int64[2] i) => (float[2] y) { y = Gather(x, i) }", None),
        ("g (float[3] x) => (int64[3] y) { y = Cast<to = 7>(x) }", None),
        ("g (int64[3] x) => (float[3] y) { y = Cast<to = 1>(x) }", "WebGPU has no Cast of int64"),
    ],
)
def test_what_stays_on_the_processor(text: str, native: str | None):
    report = placement(graph(text))
    assert report["nodes"] == 1
    assert [row["why"] for row in report["native"]] == ([] if native is None else [native])


def test_operators_of_other_domains_stay_there():
    model = graph("g (float[3] x) => (float[3] y) { y = Exp(x) }")
    model.graph.node[0].domain = "com.example"
    assert placement(model)["native"] == [{"operator": "Exp", "why": "WebGPU has no Exp", "nodes": ["y"]}]


@pytest.mark.parametrize("opset", [9, 13, 17, 26])
def test_kernels_do_not_depend_on_the_opset_where_nothing_changed(opset: int):
    model = graph("g (float[3] x) => (float[3] y) { y = Mul(x, x) }")
    model.opset_import[0].version = opset
    assert placement(model)["native"] == []


def test_the_table_says_what_it_is():
    table = kernels()
    assert table["measured_with"]["onnxruntime-web"] == "1.30.0"
    for provider in ("native", "jsep"):
        for operator, versions in table[provider].items():
            assert {int(version) for version in versions} <= set(table["measured"][operator])


def test_export_reports_it_in_words(tmp_path: Path):
    made = export(network(), tmp_path, "mse", target="webgpu")
    report = made.manifest["webgpu"]["graphs"]["step"]
    nodes = [node.name or node.output[0] for node in onnx.load(tmp_path / "step.onnx").graph.node]
    assert report["nodes"] == len(nodes)
    assert all(set(nodes) >= set(row["nodes"]) for row in report["native"])
    text = made.on_processor()
    assert text.startswith(
        f"{sum(len(row['nodes']) for row in report['native'])} of {report['nodes']} nodes run on the"
    )
    assert "WebGPU has no Mod: 12 (random/Mod" in text  # Dropout draws with int64
    assert made.on_processor("inference", "jsep").endswith("\nWebGPU has no Dropout: 1 (d ...)")
    with pytest.raises(onward.OnwardError, match="no report of 'test' for 'native'"):
        made.on_processor("test")
    with pytest.raises(onward.OnwardError, match="target='wasm', not for WebGPU"):
        export(network(), tmp_path / "wasm", "mse").on_processor()


def test_double_precision_is_refused_for_webgpu(tmp_path: Path):
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (double[N, 2] x) => (double[N, 2] y) { y = MatMul(x, w) }
    """)
    model.graph.initializer.append(numpy_helper.from_array(np.eye(2), "w"))
    with pytest.raises(onward.OnwardError, match="WebGPU has no float64, which node"):
        export(model, tmp_path / "none", "mse", target="webgpu")
    assert not (tmp_path / "none").exists()
    export(model, tmp_path / "wasm", "mse")
