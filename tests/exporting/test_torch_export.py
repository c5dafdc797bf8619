"""`onward.torch.export`: what it writes trains as the module does in torch, and the module stays as it was."""

from __future__ import annotations

import contextlib
import functools
import io
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import onward
from onward import optim
from onward.artifacts import generate_artifacts
from onward.errors import ExporterWarning, OnwardError, UnknownNameError
from onward.graph.parameters import parameters
from onward.graph.prepare import load, prepare
from onward.graph.provenance import changes_of
from tests.exporting.modules import Bert, Cnn, export_dynamo, export_legacy, pictures, tokens
from tests.parity.test_torch_training import OneFile, Split, assert_close, torch_step

STEPS = 6
slow = pytest.mark.slow
# Both are tried by `make test-all`; the newer one takes seconds for each module.
EXPORTERS = [pytest.param("dynamo", marks=slow), "legacy"]
DYNAMO_FIRST = ["dynamo", pytest.param("legacy", marks=slow)]


def export(module: nn.Module, x: Tensor, **options) -> onnx.ModelProto:
    return onward.torch.export(module, x, output_names=["scores"], **options)


def names_of(model: onnx.ModelProto) -> set[str]:
    return {tensor.name for tensor in model.graph.initializer}


# Training as torch does ----------------------------------------------------------------------------------------------


class Lstm(nn.Module):
    """Two layers, between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(11, 5), nn.Linear(6, 11)
        self.lstm = nn.LSTM(5, 6, num_layers=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(x))[0][:, -1])


class Siamese(nn.Module):
    """One normalisation for the picture and for what was made of it: its running statistics change twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2), nn.Linear(2 * 64, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(torch.tanh(self.conv(self.norm(x)))).flatten(1))


CASES = {
    "cnn": (Cnn, pictures, 5),
    "siamese": (Siamese, pictures, 5),
    "bert": (Bert, tokens, 11),
    "tied bert": (lambda: Bert(layers=1, tied=True), tokens, 11),
    "lstm": (Lstm, tokens, 11),
}


@functools.cache
def exported(case: str, exporter: str) -> tuple[onnx.ModelProto, bytes]:
    """The model, and the module that it was made of."""
    build, inputs, _ = CASES[case]
    torch.manual_seed(0)
    module = build()
    model = export(module, inputs(), exporter=exporter)
    file = io.BytesIO()
    torch.save(module, file)
    return model, file.getvalue()


SAMPLE = {
    ("cnn", "dynamo", Split),
    ("bert", "dynamo", OneFile),
    ("tied bert", "legacy", Split),
    ("lstm", "legacy", OneFile),
    ("siamese", "dynamo", OneFile),
    ("siamese", "legacy", Split),
}


def ways():
    for case in CASES:
        for exporter in ("dynamo", "legacy"):
            for way in (Split, OneFile):
                marks = () if (case, exporter, way) in SAMPLE else slow
                yield pytest.param(case, exporter, way, marks=marks, id=f"{case}-{exporter}-{way.__name__}")


@pytest.mark.parametrize(("case", "exporter", "way"), list(ways()))
def test_training_is_that_of_torch(case, exporter, way, tmp_path):
    """Loss, every parameter and every running statistic after each step; what is trained is chosen by default."""
    model, saved = exported(case, exporter)
    assert not changes_of(load(model))
    module = torch.load(io.BytesIO(saved), weights_only=False).train()
    _, inputs, classes = CASES[case]
    torch.manual_seed(1)
    batches = [inputs(batch) for batch in (16, 12, 16, 16, 12, 16)]
    training = way(model, None, optim.adamw(0.02, eps=1e-3, weight_decay=0.1), tmp_path)
    optimizer = torch.optim.AdamW(module.parameters(), 0.02, eps=1e-3, weight_decay=0.1)
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    for step, x in enumerate(batches):
        y = torch.randint(0, classes, (len(x),))
        loss = training.step(x.numpy(), y.numpy())
        assert_close(loss, torch_step(module, optimizer, x, y), f"the loss of step {step}")
        # The bias of keys has no gradient but rounding, under softmax; nor has one before a BatchNorm.
        for name, parameter in module.named_parameters():
            assert_close(training[name], parameter.detach().numpy(), f"{name} after step {step}", floor=0.1)
        for name, buffer in module.named_buffers():
            if "running" in name:
                assert_close(training[name], buffer.numpy(), f"{name} after step {step}")
    # The comparison means something only because training moved what it could far beyond the tolerance.
    moved = [name for name, parameter in module.named_parameters() if (parameter - before[name]).abs().max() > 1e-2]
    assert len(moved) >= len(before) - 3


def test_evaluation_is_that_of_torch(tmp_path):
    """After training: BatchNorm by the same running statistics, and no Dropout."""
    torch.manual_seed(0)
    module = Cnn(dropout=0.5)
    model = export(module, pictures(), exporter="legacy")
    training = Split(model, None, optim.sgd(0.1), tmp_path)
    x, y = pictures(), torch.randint(0, 5, (16,))
    for _ in range(3):
        training.step(x.numpy(), y.numpy())
    state = {name: torch.from_numpy(np.array(training[name])) for name in names_of(model)}
    module.load_state_dict(state, strict=False)
    training.module.eval()
    loss = training.module(x.numpy(), y.numpy())
    assert_close(loss, functional.cross_entropy(module.eval()(x), y).item(), "the loss of evaluation")


@pytest.mark.parametrize("exporter", DYNAMO_FIRST)
def test_dropout_drops_in_training_and_not_in_evaluation(exporter, tmp_path):
    """The share that is kept, its scale, and a new mask each step: of elements, of channels, inside of attention."""

    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64))
            self.elements, self.channels = nn.Dropout(0.25), nn.Dropout2d(0.25)

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            y = x * self.weight
            a = self.elements(y)
            b = self.channels(y[:, :, None, None].expand(-1, -1, 2, 2))
            return a.mean(), a, b

    torch.manual_seed(0)
    model = onward.torch.export(Dropping(), torch.ones(32, 64), output_names=["loss", "a", "b"], exporter=exporter)
    made = generate_artifacts(
        model, loss_input_names=["loss"], artifact_directory=tmp_path, additional_output_names=["a", "b"]
    )
    module = onward.api.Module(
        made.paths["training_model"],
        onward.api.CheckpointState.load_checkpoint(made.paths["checkpoint"]),
        made.paths["eval_model"],
    )
    x = np.ones((32, 64), np.float32)
    first, second = (module(x)[1:] for _ in range(2))
    for a, b in (first, second):
        np.testing.assert_allclose(np.unique(a), [0, 4 / 3], rtol=1e-6)
        np.testing.assert_allclose(np.unique(b), [0, 4 / 3], rtol=1e-6)
        assert 0.7 < (a > 0).mean() < 0.8
        assert 0.7 < (b > 0).mean() < 0.8
        assert (b == b[:, :, :1, :1]).all()  # whole channels
    assert not all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))
    module.eval()
    _, a, b = module(x)
    assert (a == 1).all()
    assert (b == 1).all()


@slow
def test_the_dropout_of_attention():
    """`scaled_dot_product_attention` takes a rate; torch's exporter writes it for inference."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
    model = export(layer, torch.randn(2, 5, 8))
    modes = [mode.mode for mode in onward.check(model).modes]
    assert modes == ["training"] * 4


# Names ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "exporter"), [("cnn", "dynamo"), ("bert", "dynamo"), ("tied bert", "legacy"), ("lstm", "legacy")]
)
def test_parameters_have_their_own_names_and_values(case, exporter):
    model, saved = exported(case, exporter)
    module = torch.load(io.BytesIO(saved), weights_only=False)
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for name, parameter in module.named_parameters():
        np.testing.assert_array_equal(stored[name], parameter.detach().numpy())
    trainable = {parameter.name for parameter in onward.check(model).trainable}
    assert trainable == {name for name, _ in module.named_parameters()}


@pytest.mark.parametrize("exporter", DYNAMO_FIRST)
def test_frozen_and_unused_parameters(exporter, tmp_path):
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head, self.unused = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(2, 2)
            self.register_buffer("mean", torch.randn(4))
            self.body.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.body(x - self.mean)))

    model = export(Partly(), torch.randn(3, 4), path=tmp_path / "partly.onnx", exporter=exporter)
    assert {"body.weight", "body.bias", "mean"} <= names_of(model)
    assert not {"unused.weight", "unused.bias"} & names_of(model)
    reasons = {parameter.name: parameter.reason for parameter in onward.check(model).parameters}
    assert reasons["body.weight"] == "it does not require a gradient in torch"
    assert reasons["mean"] == "torch exported it as buffer"
    for source in (model, tmp_path / "partly.onnx"):
        made = generate_artifacts(source, loss="CrossEntropyLoss", artifact_directory=tmp_path)
        assert sorted(made.trainable) == ["head.bias", "head.weight"]
        made = generate_artifacts(
            source, requires_grad=["body.weight"], loss="CrossEntropyLoss", artifact_directory=tmp_path
        )
        assert made.trainable == ["body.weight"]


def test_parameters_in_branches():
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda x: self.a(x), lambda x: self.b(x), (x,))

    torch.manual_seed(0)
    module = Branches()
    x = torch.randn(3, 4)
    model = onward.gradient(export(module, x), of="scores")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for sign in (1, -1):
        fed = sign * x * x.sum().sign()
        module.zero_grad()
        module(fed).sum().backward()
        outputs = session.run(None, {"x": fed.numpy(), "scores_grad": np.ones((3, 3), np.float32)})
        results = dict(zip([value.name for value in session.get_outputs()], outputs, strict=True))
        for name, parameter in module.named_parameters():
            wanted = np.zeros(parameter.shape) if parameter.grad is None else parameter.grad.numpy()
            np.testing.assert_allclose(results[f"{name}_grad"], wanted, rtol=1e-5, atol=1e-6)


# Arguments -----------------------------------------------------------------------------------------------------------


class Nested(nn.Module):
    """Takes everything: positions, names, lists, dictionaries, what is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor, pair: tuple[Tensor, Tensor], flag: bool = False, *, more: dict | None = None) -> dict:
        y = self.layer(x + pair[0]) * pair[1]
        if more is not None:
            y = y + more["shift"] * more["scales"][0]
        return {"y": y, "twice": (y + y if flag else y,)}


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_nested_arguments(exporter):
    batch, mask = torch.randn(5, 4), torch.tensor(2.0)
    kwargs = {"flag": True, "more": {"shift": torch.randn(5, 3), "scales": [torch.randn(3)]}}
    args = (batch, (torch.randn(5, 4), mask))
    model = onward.torch.export(Nested(), args, kwargs=kwargs, exporter=exporter, output_names=["y", "twice"])
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in model.graph.input
    }
    assert shapes == {
        "x": ["batch", 4],
        "pair_0": ["batch", 4],
        "pair_1": [],
        "more_shift": ["batch", 3],
        "more_scales_0": [3],
    }


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_axes_and_names(exporter):
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(11, 4), nn.Linear(4, 3)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.words(tokens).mean(1))

    axes = {"ids": {0: "batch", 1: "length"}}
    model = export(Mean(), tokens(3), input_names=["ids"], dynamic_axes=axes, exporter=exporter)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    assert session.get_inputs()[0].shape == ["batch", "length"]
    assert session.run(None, {"ids": np.ones((7, 2), np.int64)})[0].shape == (7, 3)
    fixed = export(Mean(), tokens(3), dynamic_batch=False, exporter=exporter)
    assert onnxruntime.InferenceSession(fixed.SerializeToString()).get_inputs()[0].shape == [3, 6]


class Stopped(nn.Module):
    """A gradient that ends in the middle."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.first, self.second, self.how = nn.Linear(3, 4), nn.Linear(4, 2), how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "no_grad":
            with torch.no_grad():
                h = self.first(x)
        else:
            h = self.first(x)
        return self.second(h.detach() if self.how == "detach" else h)


@pytest.mark.parametrize("exporter", DYNAMO_FIRST)
@pytest.mark.parametrize("how", ["detach", pytest.param("no_grad", marks=slow)])
def test_gradients_that_torch_stops_are_named(how, exporter):
    """An exported graph does not say so."""
    with pytest.warns(ExporterWarning, match=r"'first\.weight', 'first\.bias' of Stopped another gradient"):
        onward.torch.export(Stopped(how), torch.randn(4, 3), exporter=exporter)
    onward.torch.export(Stopped(""), torch.randn(4, 3), exporter=exporter)


def test_buffers_that_a_module_changes_are_named():
    module = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2)), nn.BatchNorm1d(2))
    with pytest.warns(ExporterWarning, match=r"Sequential changes '0.*_u', '0.*_v' whenever"):
        onward.torch.export(module, torch.randn(4, 3), exporter="dynamo")


def test_rows_that_an_embedding_shortens_are_named():
    module = nn.Sequential(nn.Embedding(5, 3, max_norm=1.0), nn.Linear(3, 2))
    with pytest.warns(ExporterWarning, match=r"Sequential changes '0.weight' whenever"):
        onward.torch.export(module, torch.tensor([0, 2]), exporter="dynamo")


class Smoothed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(3, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.scores(x), y, label_smoothing=0.2)


@pytest.mark.parametrize(
    ("module", "args"),
    [
        (Smoothed(), (torch.randn(4, 3), torch.tensor([0, 1, 2, 3]))),
        (nn.Sequential(nn.EmbeddingBag(9, 4), nn.Linear(4, 2)), (torch.tensor([[0, 1], [2, 8], [5, 5]]),)),
    ],
    ids=["smoothed labels", "bags of embeddings"],
)
def test_what_exporters_write_wrongly_is_said_in_other_words(module, args):
    """They leave smoothing out, and write loops over sequences: with one, onnxruntime ended the process."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", ExporterWarning)
        model = onward.torch.export(module, args, exporter="dynamo")  # compares
    assert "Loop" not in {node.op_type for node in model.graph.node}
    assert "forward" not in vars(module)
    onward.gradient(model)


class Printing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        print("hello")
        return torch.linalg.qr(x)[0]


def test_a_tracer_that_fails_prints_no_graphs(capsys):
    with pytest.raises(OnwardError, match="torch cannot export Printing"):
        onward.torch.export(Printing(), torch.randn(4, 3), exporter="legacy")
    assert capsys.readouterr().out == "hello\n"


NORMS = {
    "batch norm without a scale": lambda: nn.BatchNorm1d(4, affine=False),
    "instance norm": lambda: nn.InstanceNorm1d(4),
    "group norm without a scale": lambda: nn.GroupNorm(2, 4, affine=False),
    "group norm": lambda: nn.GroupNorm(2, 4),
}


class Scaled(nn.Module):
    """A number for each channel in the code, and a norm."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(2, 4, 1), norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)) * torch.tensor([[0.5], [2.0], [0.25], [3.0]])


@pytest.mark.parametrize("exporter", DYNAMO_FIRST)
@pytest.mark.parametrize("norm", NORMS)
def test_what_the_exporter_writes_beside_parameters_is_not_trained(norm, exporter):
    module = Scaled(NORMS[norm]())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch's older exporter says")  # of the numbers, which are constants indeed
        model = export(module, torch.randn(4, 2, 5), exporter=exporter)
    trained = {parameter.name for parameter in parameters(prepare(model)) if parameter.trainable}
    assert trained == {name for name, _ in module.named_parameters()}


@pytest.mark.parametrize("how", [export_dynamo, export_legacy], ids=["dynamo", "legacy"])
def test_new_group_norms_of_other_files_are_trained(how):
    """Ones and zeros of shape [C, 1], which look like masks, and not those that stand for no scale at all."""
    model = how(nn.Sequential(nn.Conv1d(2, 4, 1), nn.GroupNorm(2, 4)), torch.randn(4, 2, 5))
    trained = [parameter for parameter in parameters(prepare(model)) if parameter.trainable]
    shapes = sorted(tuple(parameter.value.shape.numpy()) for parameter in trained)
    assert shapes == [(4,), (4, 1), (4, 1), (4, 2, 1)]


def test_what_cannot_be_exported_is_said_in_one_sentence(capfd):
    with pytest.raises(OnwardError, match=r"torch cannot export Linear.*cannot be multiplied \(2x5 and 4x3\)$"):
        onward.torch.export(nn.Linear(4, 3), torch.randn(2, 5))
    assert capfd.readouterr() == ("", "")


def test_rows_of_a_largest_norm_stay_as_they_are():
    """To look them up is to shorten them, in torch."""
    module = nn.Sequential(nn.Embedding(5, 3, max_norm=0.1), nn.Flatten())
    before = module[0].weight.detach().clone()
    with pytest.warns(ExporterWarning, match=r"changes '0\.weight' whenever it is called"):
        export(module, torch.tensor([[4, 1], [2, 3]]), exporter="dynamo")
    assert torch.equal(module[0].weight, before)


def embedding_with_padding() -> nn.Sequential:
    return nn.Sequential(nn.Embedding(5, 3, padding_idx=0), nn.Flatten(), nn.Linear(6, 2))


@pytest.mark.parametrize("exporter", DYNAMO_FIRST)
def test_the_padding_of_an_embedding_is_not_trained(exporter):
    """Whether or not the example has some, which a comparison of gradients would depend on."""
    torch.manual_seed(0)
    module = embedding_with_padding()
    model = export(module, torch.tensor([[4, 1], [2, 3]]), exporter=exporter)
    assert type(module[0]).forward is nn.Embedding.forward
    assert "forward" not in module[0].__dict__
    assert not changes_of(load(model))
    ids = torch.tensor([[0, 1], [2, 0], [3, 3]])
    module(ids).square().sum().backward()
    gradient = onward.gradient(model, wrt=["0.weight"])
    inputs, outputs = gradient.graph.input, [value.name for value in model.graph.output]
    seed = 2 * module(ids).detach().numpy()
    feeds = dict(zip([value.name for value in inputs], [ids.numpy(), seed], strict=True))
    session = onnxruntime.InferenceSession(gradient.SerializeToString())
    y, dw = session.run([outputs[0], "0.weight_grad"], feeds)
    np.testing.assert_allclose(y, module(ids).detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dw, module[0].weight.grad.numpy(), rtol=1e-5, atol=1e-6)
    assert not dw[0].any()


def test_a_row_for_padding_that_is_not_zero_is_named():
    """It is what it is, so it is looked up; its gradient cannot be left out."""
    module = embedding_with_padding()
    with torch.no_grad():
        module[0].weight[0] = 1.0
    model = export(module, torch.tensor([[4, 1], [2, 3]]), exporter="dynamo")
    with pytest.warns(ExporterWarning, match=r"stands for padding is trained.*0\.weight"):
        onward.training_step(model, "mse", "sgd")


@pytest.mark.parametrize("exporter", DYNAMO_FIRST)
def test_one_tensor_given_twice_is_two_inputs(exporter):
    """torch's exporters read the first of them for both."""

    class Difference(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, first: Tensor, second: Tensor) -> Tensor:
            return self.layer(first - 2 * second)

    module, x = Difference(), torch.randn(4, 3)
    model = onward.torch.export(module, (x, x), exporter=exporter)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    first, second = torch.randn(4, 3), torch.randn(4, 3)
    (found,) = session.run(None, {"first": first.numpy(), "second": second.numpy()})
    assert_close(found, module(first, second).detach().numpy(), "the result")


@pytest.mark.parametrize("layer", [nn.LSTM, pytest.param(nn.GRU, marks=slow)])
def test_recurrent_layers_take_any_number_of_steps_in_each_export(layer):
    """torch remembers how they ran in the first export, which fixed their steps in the second."""
    axes = {"input": {0: "n", 1: "steps"}}
    for _ in range(2):
        model = export(layer(5, 6, batch_first=True), torch.randn(2, 4, 5), dynamic_axes=axes)
        sizes = model.graph.input[0].type.tensor_type.shape.dim
        assert [size.dim_param for size in sizes] == ["n", "steps", ""]


def test_sizes_that_the_exporter_fixes_are_named():
    """It writes a plain recurrent layer step by step."""
    axes = {"input": {0: "n", 1: "steps"}}
    with pytest.warns(ExporterWarning, match=r"axis 1 of 'input' \('steps'\) at 4"):
        export(nn.RNN(5, 6, batch_first=True), torch.randn(2, 4, 5), dynamic_axes=axes)


def test_an_example_of_one():
    """torch takes sizes of 1 for fixed, and BatchNorm wants two."""
    model = export(Cnn(), pictures(1))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    assert session.get_inputs()[0].shape[0] == "batch"
    assert session.run(["scores"], {"x": pictures(5).numpy()})[0].shape == (5, 5)


# The module ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_the_module_stays_as_it_is(exporter):
    module = Cnn(dropout=0.5).eval()
    module.conv1.train()
    with torch.no_grad():
        module.bn1.running_mean.uniform_()
    modes = [child.training for child in module.modules()]
    buffers = list(module.buffers())
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    keys = [set(vars(child)) for child in module.modules()]
    x = pictures()
    random = torch.get_rng_state()
    export(module, x, exporter=exporter)
    assert [child.training for child in module.modules()] == modes
    assert all(now is then for now, then in zip(module.buffers(), buffers, strict=True))
    assert all(torch.equal(tensor, state[name]) for name, tensor in module.state_dict().items())
    assert [set(vars(child)) for child in module.modules()] == keys
    assert all(parameter.grad is None and parameter.requires_grad for parameter in module.parameters())
    assert torch.equal(torch.get_rng_state(), random)


def test_it_stays_as_it_is_where_the_export_fails():
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout2d(0.5)

        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("nothing works")

    module = Failing().eval()
    said = "torch cannot export Failing. " + "; ".join(
        f"with exporter={name!r}: ValueError: nothing works" for name in ("dynamo", "legacy")
    )
    with pytest.raises(OnwardError, match=said):
        export(module, torch.randn(2, 3, 4, 4))
    assert not module.training
    assert "forward" not in vars(module.drop)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_modes(exporter):
    """Of a module in evaluation mode, everything is exported for training; otherwise its parts as they are."""
    module = Cnn(dropout=0.5).eval()
    modes = {mode.operator: mode.mode for mode in onward.check(export(module, pictures(), exporter=exporter)).modes}
    assert modes == {"BatchNormalization": "training", "Dropout": "training"}
    module.train()
    module.bn1.eval()
    found = [mode.mode for mode in onward.check(export(module, pictures(), exporter=exporter)).modes]
    assert sorted(found) == ["evaluation", "training", "training"]


def test_running_variances_are_those_of_onnx_where_torch_did_not_say(tmp_path):
    """Without the record of `onward.torch.export`, the standard's: of the batch, without n / (n - 1)."""
    torch.manual_seed(0)
    module = Cnn()
    model = export(module, pictures(), exporter="legacy")
    for node in model.graph.node:
        del node.metadata_props[:]
    x, y = pictures(4), torch.randint(0, 5, (4,))
    training = Split(model, None, optim.sgd(0.1), tmp_path)
    training.step(x.numpy(), y.numpy())
    variance = module.conv1(x).var((0, 2, 3), correction=0).detach().numpy()
    assert_close(training["bn1.running_var"], 0.9 + 0.1 * variance, "the running variance")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_other_types(exporter, dtype):
    module = Cnn().to(dtype)
    # onnxruntime has no convolution of float64.
    warned = pytest.warns(ExporterWarning, match="was not compared with the module: .*Conv")
    with warned if dtype == torch.float64 else contextlib.nullcontext():
        model = export(module, pictures().to(dtype), exporter=exporter)
    wanted = {torch.float16: 10, torch.bfloat16: 16, torch.float64: 11}[dtype]
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        if name in stored and value.is_floating_point():
            assert stored[name].data_type == wanted
    assert {"bn1.running_mean", "bn1.running_var", "bn1.weight"} <= set(stored)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_arguments_with_names_of_parameters(exporter):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.randn(4))

        def forward(self, x, scale):
            return x * self.scale + scale

    args = torch.randn(3, 4), torch.randn(3, 4)
    model = onward.torch.export(Scaled(), args, exporter=exporter)
    assert [value.name for value in model.graph.input] == ["x", "scale_input"]
    assert [tensor.name for tensor in model.graph.initializer] == ["scale"]
    with pytest.raises(OnwardError, match=r"input_names has \['scale'\]"):
        onward.torch.export(Scaled(), args, exporter=exporter, input_names=["x", "scale"])


# Refused -------------------------------------------------------------------------------------------------------------


def test_what_is_refused():
    x = torch.randn(3, 4)
    cumulative = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None))
    with pytest.raises(OnwardError, match=r"BatchNorm '1' has momentum=None"):
        export(cumulative, x)
    with pytest.raises(OnwardError, match=r"LSTM '' has dropout=0\.5 between its layers"):
        export(nn.LSTM(4, 4, num_layers=2, dropout=0.5, proj_size=2), x)
    with pytest.raises(OnwardError, match=r"a module is a torch\.nn\.Module, not function"):
        onward.torch.export(lambda x: x, x)
    with pytest.raises(OnwardError, match=r"Linear cannot be called with these arguments"):
        export(nn.Linear(4, 4), (x, x))
    with pytest.raises(OnwardError, match="there is no tensor among the arguments"):
        export(nn.Linear(4, 4), (3,))
    with pytest.raises(OnwardError, match="there are 2 input_names for 1 tensors"):
        export(nn.Linear(4, 4), x, input_names=["a", "b"])
    with pytest.raises(UnknownNameError, match=r"dynamic_axes has \['y'\], but the inputs are \['input'\]"):
        export(nn.Linear(4, 4), x, dynamic_axes={"y": {0: "batch"}})
    with pytest.raises(OnwardError, match=r"there is no exporter 'onnx'; there are 'dynamo' and 'legacy'"):
        export(nn.Linear(4, 4), x, exporter="onnx")


class Fixed(nn.Module):
    """Has the number of examples in its code."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * torch.arange(int(x.shape[0]))[:, None]


def test_a_batch_that_tracing_fixes_is_found():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExporterWarning)
        with pytest.raises(OnwardError, match=r"the model that torch exported of Fixed .*try dynamic_batch=False"):
            export(Fixed(), torch.randn(3, 4), exporter="legacy")
        assert export(Fixed(), torch.randn(3, 4), exporter="legacy", dynamic_batch=False)
    with pytest.warns(ExporterWarning, match=r"torch's older exporter says of test_torch_export\.py:\d+: Converting"):
        export(Fixed(), torch.randn(3, 4), exporter="legacy", dynamic_batch=False)


@pytest.mark.parametrize("exporter", ["dynamo", "legacy"])
def test_what_has_no_batch(exporter):
    """An axis of channels is taken for a batch, until the module is called with two of it."""
    for module, x in ((nn.Conv1d(4, 5, 3), torch.randn(4, 7)), (nn.Linear(4, 3), torch.randn(4))):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExporterWarning)
            with pytest.raises(OnwardError, match=r"takes the example, but not one of twice as .* dynamic_batch=False"):
                export(module, x, exporter=exporter)
        assert export(module, x, exporter=exporter, dynamic_batch=False)


def test_random_layers_that_are_no_dropout():
    with pytest.warns(ExporterWarning, match="draws random numbers in another way than by Dropout"):
        export(nn.Sequential(nn.Linear(4, 4), nn.RReLU()), torch.randn(3, 4), exporter="legacy")


def test_a_scripted_module_takes_the_older_way():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module = torch.jit.script(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    model = export(module, torch.randn(3, 4))
    assert {"0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"} <= names_of(model)
