"""What torch's exporters changed is found in the records they leave, said, and undone where that is possible."""

from __future__ import annotations

import copy
import functools
import warnings

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import nn

import onward
from onward.artifacts import generate_artifacts
from onward.errors import ExporterWarning, UnknownNameError
from onward.graph.prepare import load
from onward.graph.provenance import Changes, changes_of, separate_shared
from tests.exporting.modules import Bert, Cnn, export_dynamo, export_legacy, pictures, tokens

TRAINING = {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False}

EXPORTS = {
    "dynamo": lambda module, x: export_dynamo(module, x),
    "dynamo, not optimized": lambda module, x: export_dynamo(module, x, optimize=False),
    "legacy": lambda module, x: export_legacy(module, x),
    "legacy, for training": lambda module, x: export_legacy(module, x, **TRAINING),
}


@functools.cache
def exported(how: str) -> onnx.ModelProto:
    """A fresh BERT."""
    torch.manual_seed(0)
    return EXPORTS[how](Bert(layers=1).eval(), tokens())


class Tied(nn.Module):
    """An embedding and a head that are one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(x))


@functools.cache
def exported_tied(how: str) -> onnx.ModelProto:
    torch.manual_seed(0)
    return EXPORTS[how](Tied(), torch.randint(0, 7, (3, 5)))


def changes(model: onnx.ModelProto) -> Changes:
    return changes_of(load(model))


def biases_and_norms() -> set[str]:
    return {name for name, parameter in Bert(layers=1).named_parameters() if parameter.ndim == 1}


# Recognised ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["dynamo", "legacy"])
def test_merged_parameters_are_told_apart(how: str) -> None:
    """Each bias and norm of the module is named, once: merged with another, kept alone, or gone."""
    model = exported(how)
    found = changes(model)
    merged = [name for names in found.shared.values() for name in names]
    alone = {tensor.name for tensor in model.graph.initializer} - set(merged)
    assert len(merged) > 8
    assert len(set(merged)) == len(merged)
    assert {*merged, *found.lost, *alone} >= biases_and_norms()
    assert not alone & set(found.lost)
    of_size_8 = max(found.shared.values(), key=len)
    assert {"norm.bias", "layers.0.out_norm.bias", "layers.0.down_norm.bias"} <= set(of_size_8)


def test_biases_that_were_zero_are_missed() -> None:
    """The optimizer of the newer exporter drops the bias of a Gemm if it is zero."""
    names = {tensor.name for tensor in exported("dynamo").graph.initializer}
    assert "head.bias" not in names
    assert "head.bias" in changes(exported("dynamo")).lost


@pytest.mark.parametrize("how", ["dynamo, not optimized", "legacy, for training"])
def test_a_faithful_file_is_not_complained_of(how: str) -> None:
    assert not changes(exported(how))
    assert not changes(exported_tied(how))


@pytest.mark.parametrize("how", ["dynamo", "legacy"])
def test_tied_weights_are_copied_not_merged(how: str) -> None:
    """One of them is transposed, so that training moves them apart."""
    model = exported_tied(how)
    found = changes(model)
    assert not found.shared
    ((name, copies),) = found.untied.items()
    assert name in ("words.weight", "head.weight")
    assert len(copies) == 2
    assert {other for other in copies if other != name} < {tensor.name for tensor in model.graph.initializer}


def test_a_module_that_is_used_twice_is_no_merging() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.act = nn.LayerNorm(4), nn.PReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.act(self.norm(self.act(x))))

    x = torch.randn(3, 4)
    assert not changes(export_dynamo(Twice(), x))
    assert not changes(export_legacy(Twice(), x))


def test_parameters_of_other_names_and_uses() -> None:
    """One with another name, of one element, in a branch, in place of each other, and next to a buffer."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain, self.norm = nn.Parameter(torch.ones(4)), nn.LayerNorm(4)
            self.act, self.act2 = nn.PReLU(), nn.PReLU()
            self.bn, self.a, self.b = nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.zero = nn.LayerNorm(4)
            for parameter in (self.a.bias, self.b.bias, self.zero.weight):
                nn.init.zeros_(parameter)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.bn(self.act2(self.norm(self.act(x * self.gain))))
            x = torch.cond(x.sum() > 0, lambda x: self.a(x), lambda x: self.b(x), (x,))
            return self.zero(x) + x

    module = Odd().eval()
    found = changes(export_dynamo(module, torch.randn(3, 4)))
    names = {name for names in found.shared.values() for name in names} | set(found.lost)
    assert {"gain", "norm.weight", "bn.weight", "bn.running_var"} <= names
    assert {"act.weight", "act2.weight"} <= names
    assert {"norm.bias", "bn.bias", "bn.running_mean", "zero.weight", "zero.bias"} <= names
    assert names <= {*dict(module.named_parameters()), *dict(module.named_buffers())}


class Grouped(nn.Module):
    """GroupNorms, which exporters write with tensors of ones and zeros of their own, and layers that are copies."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norms = nn.Conv1d(2, 4, 1), nn.ModuleList(nn.GroupNorm(2, 4) for _ in range(2))
        self.attention = nn.ModuleList([nn.MultiheadAttention(4, 1, batch_first=True)])
        self.attention.append(copy.deepcopy(self.attention[0]))
        self.lstm = nn.LSTM(4, 3, batch_first=True)
        self.scaled = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norms[1](torch.tanh(self.norms[0](self.conv(x)))).transpose(1, 2)
        for layer in self.attention:
            x = layer(x, x, x, need_weights=False)[0]
        return self.scaled(self.lstm(x)[0])


def test_only_parameters_are_reported() -> None:
    """Under their own names: no constants of the exporter, and no weights that are merely joined."""
    torch.manual_seed(0)
    module = Grouped()
    found = changes(export_dynamo(module, torch.randn(3, 2, 5)))
    merged = {name for names in found.shared.values() for name in names}
    assert merged | set(found.lost) <= set(module.state_dict())
    assert {"norms.0.weight", "norms.1.weight", "attention.1.in_proj_weight", "attention.1.out_proj.weight"} <= merged
    assert {name for name in found.lost if "attention" not in name} == {
        "scaled.parametrizations.weight.original0",
        "scaled.parametrizations.weight.original1",
    }


@pytest.mark.parametrize(
    ("how", "training"), [("dynamo", False), pytest.param("dynamo", True, marks=pytest.mark.slow), ("legacy", False)]
)
def test_a_batch_norm_that_was_folded(how: str, training: bool) -> None:
    found = changes(EXPORTS[how](Cnn().train(training), pictures()))
    assert found.folded_norms == (["bn1", "bn2"] if how == "dynamo" else ["conv1", "conv2"])
    assert ("optimize=False" in found.remedy) == (how == "dynamo" and not training)


def test_a_batch_norm_that_was_written_in_inference_mode() -> None:
    found = changes(export_dynamo(Cnn().train(), pictures(), optimize=False))
    assert found.frozen_norms == ["bn1", "bn2"]
    assert not changes(export_legacy(Cnn().train(), pictures(), **TRAINING))


@pytest.mark.slow
def test_a_batch_norm_in_evaluation_mode_may_be_written_so() -> None:
    assert not changes(export_dynamo(Cnn().eval(), pictures(), optimize=False))


@pytest.mark.parametrize("how", ["dynamo", "dynamo, not optimized"])
def test_an_embedding_with_padding(how: str) -> None:
    module = nn.Sequential(nn.Embedding(5, 3, padding_idx=2), nn.Linear(3, 2))
    found = changes(EXPORTS[how](module, torch.tensor([[4, 1], [2, 3]])))
    assert found.padded == ["0.weight"]
    assert found.sentences()[-1].endswith("is trained, which torch does not do: 0.weight.")
    assert found.advice().startswith("Export it for training, by onward.torch.export")
    assert found.among(["0.weight"])
    assert not found.among(["1.weight"]).padded


def test_files_of_other_programs_are_not_judged() -> None:
    for how in EXPORTS:
        model = onnx.ModelProto.FromString(exported(how).SerializeToString())
        model.producer_name = "tf2onnx"
        assert not changes(model)


# Said ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", EXPORTS)
def test_what_check_says(how: str) -> None:
    report = onward.check(exported(how))
    assert report.ok
    faithful = "," in how
    assert bool(report.changes) == (not faithful)
    assert ("another model than torch had" in report.text()) == (not faithful)
    if not faithful:
        assert "separate_shared=True" in report.text()
        assert "onward.torch.export" in report.text()
        assert ("optimize=False" in report.text()) == (how == "dynamo")
        assert report.to_dict()["changes"] == report.changes


def test_check_looks_at_what_is_trained() -> None:
    assert not onward.check(exported("dynamo"), wrt=["words.weight", "head.weight"]).changes
    assert onward.check(exported("dynamo"), wrt=["norm.bias"]).changes


@pytest.mark.parametrize("how", EXPORTS)
def test_artifacts_and_training_step_warn(how: str, tmp_path) -> None:
    model = exported(how)
    calls = [
        lambda: generate_artifacts(model, loss="CrossEntropyLoss", optimizer="SGD", artifact_directory=tmp_path),
        lambda: onward.training_step(model, "cross_entropy", "sgd"),
    ]
    for call in calls:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        assert [warning.category for warning in caught] == ([] if "," in how else [ExporterWarning])


def test_no_warning_where_only_others_are_trained(tmp_path) -> None:
    generate_artifacts(
        exported("dynamo"),
        requires_grad=["head.weight", "words.weight"],
        loss="CrossEntropyLoss",
        artifact_directory=tmp_path,
    )
    onward.training_step(exported("dynamo"), "cross_entropy", "sgd", trainable=["head.weight"])


def test_a_name_that_the_exporter_removed(tmp_path) -> None:
    with pytest.raises(UnknownNameError, match=r"'head\.bias' should be trained.*torch's exporter changed the model"):
        generate_artifacts(
            exported("dynamo"), requires_grad=["head.bias"], loss="CrossEntropyLoss", artifact_directory=tmp_path
        )


# Undone --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["dynamo", "legacy"])
def test_separated_parameters_are_those_of_the_module(how: str) -> None:
    model = load(exported(how))
    before = run(ir.to_proto(load(exported(how))))
    lost = changes_of(model).lost
    separate_shared(model)
    assert not changes_of(model).shared
    assert set(model.graph.initializers) >= biases_and_norms() - set(lost)
    np.testing.assert_array_equal(run(ir.to_proto(model)), before)
    module = Bert(layers=1)
    state = module.state_dict()
    for name in biases_and_norms() - set(lost):
        tensor = model.graph.initializers[name].const_value
        assert tensor is not None
        np.testing.assert_array_equal(tensor.numpy(), state[name].numpy())


def run(model: onnx.ModelProto) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    x = np.arange(24).reshape(4, 6) % 11
    return session.run(None, {session.get_inputs()[0].name: x})[0]


@pytest.mark.parametrize("how", ["dynamo", "legacy"])
def test_training_separated_parameters(how: str, tmp_path) -> None:
    """Every bias gets the gradient that torch gives it, in both ways to train."""
    model = exported(how)
    before = model.SerializeToString(deterministic=True)
    torch.manual_seed(0)
    module = Bert(layers=1)
    x, y = tokens(), torch.randint(0, 11, (4,))
    nn.functional.cross_entropy(module(x), y).backward()
    expected = {name: parameter.grad.numpy() for name, parameter in module.named_parameters()}
    with warnings.catch_warnings():
        # Of biases that are gone, which separating does not bring back.
        warnings.simplefilter("ignore", ExporterWarning)
        made = generate_artifacts(
            model,
            loss="CrossEntropyLoss",
            optimizer="SGD",
            artifact_directory=tmp_path,
            separate_shared=True,
        )
        step = onward.training_step(model, "cross_entropy", onward.optim.sgd(1.0), separate_shared=True)
    assert model.SerializeToString(deterministic=True) == before
    lost = set(changes(model).lost)
    names = biases_and_norms() - lost
    assert names <= set(made.trainable)
    session = onnxruntime.InferenceSession(step.SerializeToString())
    inputs = [value.name for value in step.graph.input]
    feeds = {inputs[0]: x.numpy(), inputs[1]: y.numpy(), "learning_rate": np.float32(1), "step": np.int64(1)}
    state = onward.initial_state(step, model)
    feeds = {name: np.asarray(value) for name, value in (feeds | state).items()}
    outputs = dict(zip([value.name for value in step.graph.output], session.run(None, feeds), strict=True))
    for name in names:
        gradient = state[name] - outputs[f"{name}.updated"]
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_tensor_of_another_form_gets_another_name() -> None:
    """PReLU's weight is reshaped by the exporter: the copies are not called as if they were torch's."""
    module = nn.Sequential(nn.Linear(4, 4), nn.PReLU(), nn.Linear(4, 4), nn.PReLU())
    model = load(export_dynamo(module, torch.randn(3, 4)))
    separate_shared(model)
    assert "3.weight.folded" in model.graph.initializers
    assert not changes_of(model)


def test_separating_changes_nothing_else() -> None:
    for faithful in (exported("dynamo, not optimized"), exported_tied("dynamo, not optimized")):
        model = load(faithful)
        before = ir.to_proto(model).SerializeToString(deterministic=True)
        separate_shared(model)
        assert ir.to_proto(model).SerializeToString(deterministic=True) == before
