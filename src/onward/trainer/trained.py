"""A model that is trained: its graphs, its parameters and its optimizer, one step at a time."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx

from onward.errors import NonFiniteError, OnwardError
from onward.report.content import Movement, Structure
from onward.runtime.export import export_for_inference, for_prediction
from onward.runtime.finite import nonfinite_parameters
from onward.runtime.graph import Graph
from onward.runtime.module import TrainingModule
from onward.runtime.optimizer import TrainingOptimizer
from onward.runtime.session import InMemory
from onward.runtime.state import RandomState, State
from onward.runtime.tensors import array_of
from onward.signature import Role
from onward.trainer.field import Field
from onward.trainer.movement import Start
from onward.trainer.structure import structure_of
from onward.training.assembly import Assembly

Feeds = Mapping[str, np.ndarray]


class TrainedModel:
    """Runs what `onward.training.assembly.assemble` made.

    The graphs stay in memory. Those for evaluation and for prediction are opened when they are first used.
    """

    def __init__(
        self,
        assembly: Assembly,
        *,
        seed: int = 0,
        device: str = "cpu",
        providers: Sequence[Any] | None = None,
        session_options: Any = None,
    ) -> None:
        models = assembly.models
        self.inputs, self.outputs = assembly.inputs, assembly.outputs
        self.predictions, self.targets = assembly.predictions, assembly.targets
        self.activation = assembly.activation
        self.fields = _fields(models.training, assembly)
        self._held = assembly.held
        self._borders = {name: value.SerializeToString() for name, value in assembly.borders.items()}
        trainable = {name: models.trainable[name].numpy() for name in assembly.trainable}
        frozen = {name: tensor.numpy() for name, tensor in models.frozen.items()}
        self.state = State(trainable, frozen, random=RandomState(seed))
        self._start = Start({"trained": trainable, "statistic": frozen})
        self._evaluation = _in_memory(models.evaluation, assembly, "evaluation graph")
        self.module = TrainingModule(
            _in_memory(models.training, assembly, "training graph"),
            self.state,
            device=device,
            providers=providers,
            options=session_options,
            alarm=_stop,
        )
        self.optimizer = TrainingOptimizer(
            assembly.plan, self.module, options=session_options, providers=self.module.providers
        )
        self._prediction: Graph | None = None
        self._order = self.module.training.user_inputs
        self._has_statistics = bool(self.module.training.signature.output_names(Role.BUFFER))
        names = self.module.training.user_outputs
        self._position = {name: index for index, name in enumerate(names)}

    @functools.cached_property
    def identity(self) -> str:
        """Tells this model, with this loss, from others."""
        return _digest(self._evaluation.content)

    @functools.cached_property
    def optimizer_identity(self) -> str:
        """Tells this optimizer from others."""
        return _digest(self.optimizer.plan.to_json().encode())

    def update(self, feeds: Sequence[Feeds], weights: Sequence[float], rate: float) -> list[list[Any]]:
        """One update from several batches, whose gradients have these weights; returns the outputs of each.

        Where it raises, nothing has changed.
        """
        with self.attempt():
            results = self.run(feeds, weights)
        self.step(rate)
        return results

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Forward and backward passes that change nothing if something raises meanwhile."""
        statistics = self.module.statistics() if self._has_statistics else {}
        passes = self.state.random.passes
        try:
            yield
        except BaseException:
            self.state.random.passes = passes
            self.module.set_statistics(statistics)
            raise
        finally:
            self.module.reset()

    def run(self, feeds: Sequence[Feeds], weights: Sequence[float]) -> list[list[Any]]:
        """The outputs of several batches; their gradients, with these weights, add up in the module."""
        return [
            self.module.train_step([fed[name] for name in self._order], weight)
            for fed, weight in zip(feeds, weights, strict=True)
        ]

    def step(self, rate: float) -> None:
        """Change the parameters, by the gradients that the module has."""
        self.optimizer.state.learning_rate = rate
        self.optimizer.step()

    def gradient_norm(self) -> float | None:
        """That of the last update; None on a device, from which it would have to be copied."""
        gradients = self.module.gradients
        return gradients.norm() if gradients.device.is_host else None

    def loss_of(self, outputs: Sequence[Any]) -> float:
        return float(array_of(outputs[0]))

    def output_of(self, outputs: Sequence[Any], name: str) -> np.ndarray:
        """One of the outputs of the training or the evaluation graph, by name."""
        return array_of(outputs[self._position[name]])

    def comparable(self) -> list[str]:
        """The outputs that metrics can look at: what the loss takes, and the outputs of the model that are tensors."""
        return [name for name in dict.fromkeys([*self.predictions, *self._returned]) if name in self._position]

    def evaluate(self, feeds: Feeds, *, counts: bool = True) -> list[Any]:
        """The loss and the outputs of one batch, as in inference; one that does not count may have any loss."""
        if self.module.evaluation is None:
            self.module.open_evaluation(self._evaluation)
        inputs = [feeds[name] for name in self._order]
        return self.module.eval_step(inputs) if counts else self.module.eval_step(inputs, _ignore)

    @property
    def _returned(self) -> Sequence[str]:
        """What the model predicts: its outputs, without the loss where the first of them is that."""
        return self.outputs if self.predictions else self.outputs[1:]

    def prediction_inputs(self) -> list[str]:
        """What `predict` has to be fed."""
        return list(self._prediction_graph().user_inputs)

    def predict(self, feeds: Feeds) -> dict[str, Any]:
        """The outputs of the model for one batch: arrays, and lists where they are no tensors."""
        graph = self._prediction_graph()
        with self.state.access.shared():
            values = graph.run([feeds[name] for name in graph.user_inputs])
        arrays = (value if isinstance(value, list) else array_of(value) for value in values)
        return dict(zip(graph.user_outputs, arrays, strict=True))

    def _prediction_graph(self) -> Graph:
        if self._prediction is None:
            outputs = self._returned
            if not outputs:
                raise OnwardError(
                    f"the only output of the model is its loss, {self.outputs[0]!r}: there is nothing to predict"
                )
            with self.state.access.exclusive():
                self._prediction = self.module.graph(for_prediction(self._evaluation, outputs, self.module.options))
        return self._prediction

    def export(self, path: str | os.PathLike[str], outputs: Sequence[str] | None = None) -> None:
        """Write the model with its parameters as they are now."""
        with self.state.access.shared():
            export_for_inference(
                self._evaluation,
                self.state,
                path,
                self.outputs if outputs is None else outputs,
                self.module.options,
                borders=self._borders if outputs is None else None,
            )

    def snapshot(self) -> dict[str, np.ndarray]:
        """Copies of all parameters and running statistics."""
        with self.state.access.shared():
            return {name: np.array(self.state.tensor(name)) for name in (*self.state.trainable, *self.state.frozen)}

    def restore(self, snapshot: Mapping[str, np.ndarray]) -> None:
        """Set parameters and running statistics."""
        with self.state.access.exclusive():
            for name, array in snapshot.items():
                self.state.assign(name, array)

    def parameters(self) -> list[tuple[str, str, str, tuple[int, ...]]]:
        """Of each parameter its name, what becomes of it, its type and its shape."""
        trained, statistics = self.state.trainable.layout, self.state.frozen.layout
        return [
            *((name, "trained", str(dtype), shape) for name, (shape, dtype) in trained.items()),
            *((name, "statistic", str(dtype), shape) for name, (shape, dtype) in statistics.items()),
            *((name, "frozen", str(dtype.numpy()), shape) for name, (dtype, shape) in self._held.items()),
        ]

    def variances(self) -> dict[str, str]:
        """The running variances of BatchNormalization, and of each the running mean that belongs to it."""
        model = onnx.load_model_from_string(self._evaluation.content)
        statistics = self.state.frozen
        return {
            node.input[4]: node.input[3]
            for node in _all_nodes(model.graph)
            if node.op_type == "BatchNormalization" and node.input[3] in statistics and node.input[4] in statistics
        }

    def movements(self) -> list[Movement]:
        """How far parameters and running statistics are from those of the model as it was given."""
        with self.state.access.shared():
            return self._start.movements(self.state.tensor)

    def structure(self) -> Structure:
        """The layers of the model, without the loss."""
        kinds = {name: kind for name, kind, _, _ in self.parameters()}
        model = onnx.load_model_from_string(self._evaluation.content)
        return structure_of(model, self.inputs, self.outputs, kinds)

    def take(self, state: State) -> None:
        """Become what a checkpoint says: parameters, optimizer and random numbers."""
        with self.state.access.exclusive():
            self.state.adopt(state)
        self.optimizer.adopt()
        self.module.reset()

    def require_finite(self) -> None:
        """Refuse numbers that nothing can be done with."""
        wrong = nonfinite_parameters(self.state)
        if wrong:
            raise NonFiniteError(
                f"{', '.join(map(repr, wrong[:5]))} has elements that are NaN or infinite: an update made it so. The "
                "learning rate may be too high, or a gradient infinite. Go back to a checkpoint from before: of a "
                "model like this none is written."
            )


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and of the graphs in it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _all_nodes(inner)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _stop(message: str) -> None:
    raise NonFiniteError(message)


def _ignore(message: str) -> None:
    pass


def _in_memory(model: onnx.ModelProto, assembly: Assembly, title: str) -> InMemory:
    return InMemory(model.SerializeToString(), assembly.folder / title)


def _fields(training: onnx.ModelProto, assembly: Assembly) -> list[Field]:
    """What a step is fed, in the order of the model: its inputs, then the targets of the loss."""
    described = {value.name: value.type.tensor_type for value in training.graph.input}
    roles = {**dict.fromkeys(assembly.inputs, Role.INPUT), **dict.fromkeys(assembly.targets.values(), Role.TARGET)}
    fields = []
    for name, role in roles.items():
        kind = described[name]
        shape = tuple(_size(dim) for dim in kind.shape.dim) if kind.HasField("shape") else None
        fields.append(Field(name, _numpy_type(kind.elem_type), shape, role))
    return fields


def _numpy_type(element: int) -> np.dtype[Any]:
    if element == onnx.TensorProto.STRING:
        return np.dtype(object)
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element))


def _size(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    return dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
