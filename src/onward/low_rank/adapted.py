"""A model with low-rank pairs: the graph that is trained, the one that adapters are for, and the merged one."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common as passes

from onward.errors import OnwardError
from onward.graph.finish import LARGEST_PROTO
from onward.graph.naming import quoted
from onward.graph.nodes import all_values
from onward.graph.parameters import train_alone
from onward.graph.proto import to_proto
from onward.low_rank.branch import Branches
from onward.low_rank.layer import Layer, layers_of
from onward.low_rank.merging import merge_pair, moved_weights, with_weights
from onward.low_rank.trained import read_others, read_pairs
from onward.runtime.adapter import write_adapter
from onward.runtime.files import replacing_together, write_bytes

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Pair:
    """The low-rank pair of one weight.

    Attributes:
        weight: the name of the weight that it is added to.
        a: the name of A, which sees the input of the layer.
        b: the name of B, which starts at zero.
        places: the layers that use it, in the order of all layers of the model.
    """

    weight: str
    a: str
    b: str
    places: tuple[int, ...]


@dataclass(frozen=True)
class Settings:
    """What all pairs have in common."""

    rank: int
    alpha: float
    scaling: float
    dropout: float
    seed: int


class Lora:
    """What `onward.lora` returns.

    Attributes:
        parameters: the names of all A and B: what is trained.
        pairs: the same, pair by pair, with the weight that each belongs to.
        settings: rank, alpha, what the pairs are multiplied with (`scaling`), dropout and seed.
    """

    def __init__(self, original: ir.Model, pairs: Sequence[Pair], settings: Settings, folder: Path | None) -> None:
        self._original, self._folder = original, folder
        self.pairs, self.settings = list(pairs), settings
        self.parameters = [name for pair in pairs for name in (pair.a, pair.b)]
        layers = layers_of(original.graph)
        self._layers = {pair: layers[pair.places[0]] for pair in pairs}

    # The graph that is trained ----------------------------------------------------------------------------------------

    @functools.cached_property
    def model(self) -> onnx.ModelProto:
        """The model with its pairs as initializers, which are all that training changes by default."""
        return self._proto(self._adapted())

    def save(self, path: PathLike) -> None:
        """Write `model`; beside a file with external data, weights stay where they are and are not copied."""
        self._write(self._adapted(), path)

    def _adapted(self) -> ir.Model:
        def add(model: ir.Model, pair: Pair) -> tuple[ir.Value, ir.Value]:
            a, b = (_initializer(model, name, initial[name]) for name in (pair.a, pair.b))
            return a, b

        initial = self._initial()
        model = self._with_branches(add, self.settings.scaling, self.settings.dropout)
        train_alone(model, self.parameters)
        return model

    def _initial(self) -> dict[str, np.ndarray]:
        """A as torch draws a layer's weight, uniformly between ±1 / sqrt(the numbers of a sum), and B zero."""
        random = np.random.default_rng(self.settings.seed)
        arrays = {}
        for pair, layer in self._layers.items():
            a, b = layer.pair_shapes(self.settings.rank)
            bound = 1 / math.sqrt(layer.fan_in)
            dtype = layer.weight.dtype.numpy()
            arrays[pair.a] = random.uniform(-bound, bound, a).astype(dtype)
            arrays[pair.b] = np.zeros(b, dtype)
        return arrays

    # What training has made of it -------------------------------------------------------------------------------------

    def weights(self, trained: Any = None) -> dict[str, np.ndarray]:
        """The pairs by name: their first values, or what they have become.

        Args:
            trained: a Trainer, a dict of arrays by name (``trainer.snapshot()``), the path of a checkpoint or of an
                ``.onnx_adapter``, or a model with the pairs in it, which ``Trainer.export`` writes.
        """
        if trained is None:
            return self._initial()
        shapes = {}
        for pair, layer in self._layers.items():
            shapes[pair.a], shapes[pair.b] = layer.pair_shapes(self.settings.rank)
        arrays, scaled = read_pairs(trained, shapes)
        for pair, layer in self._layers.items():
            dtype = layer.weight.dtype.numpy()
            arrays[pair.a] = arrays[pair.a].astype(dtype)
            arrays[pair.b] = (arrays[pair.b] / self.settings.scaling if scaled else arrays[pair.b]).astype(dtype)
        return arrays

    def merge(self, trained: Any) -> onnx.ModelProto:
        """The graph as it was given, with weights that hold what the pairs have learned, and all else that was trained.

        Args:
            trained: where the pairs come from; see `weights`.
        """
        return self._proto(self._merged(trained))

    def save_merged(self, trained: Any, path: PathLike) -> None:
        """Write what `merge` returns; models of more than 2 GB have a second file, ``<path>.data``."""
        self._write(self._merged(trained), path)

    def _merged(self, trained: Any) -> ir.Model:
        arrays = self.weights(trained)
        original = with_weights(self._original, self._others(trained))
        before, model = layers_of(original.graph), original.clone()
        layers = layers_of(model.graph)
        for pair in self.pairs:
            members = [layers[place] for place in pair.places]
            first = before[pair.places[0]]
            merge_pair(model, members, first, arrays[pair.a], arrays[pair.b], self.settings.scaling)
        return model

    def _others(self, trained: Any) -> dict[str, np.ndarray]:
        """What has been trained besides the pairs, such as biases or a new last layer, and running statistics."""
        return {} if trained is None else read_others(trained, set(self.parameters))

    # For onnxruntime's adapters ---------------------------------------------------------------------------------------

    def base(self) -> onnx.ModelProto:
        """The model that adapters are for: its pairs are inputs that nobody has to give, and then do nothing.

        It is the same whatever rank and alpha are: adapters of any rank, with the scaling in their B, fit.
        """
        return self._proto(self._optional())

    def save_base(self, path: PathLike) -> None:
        """Write what `base` returns; beside a file with external data, weights are not copied."""
        self._write(self._optional(), path)

    def save_adapter(self, trained: Any, path: PathLike) -> None:
        """Write the pairs as an ``.onnx_adapter``, which onnxruntime loads beside the file of `save_base`.

        Args:
            trained: where the pairs come from; see `weights`.
            path: the file. It holds the pairs only: what else was trained is an error.
        """
        arrays = self.weights(trained)
        moved = moved_weights(self._original, self._others(trained))
        if moved:
            raise OnwardError(
                f"an adapter holds low-rank pairs only, but {quoted(moved)} has changed too; write the whole model "
                "with `save_merged`, or train the pairs alone"
            )
        for pair in self.pairs:
            arrays[pair.b] = (arrays[pair.b] * self.settings.scaling).astype(arrays[pair.b].dtype)
        write_adapter(path, arrays)

    def _optional(self) -> ir.Model:
        def add(model: ir.Model, pair: Pair) -> tuple[ir.Value, ir.Value]:
            layer = self._layers[pair]
            values = []
            for name, shape, other in zip((pair.a, pair.b), layer.pair_shapes(1), layer.pair_shapes(2), strict=True):
                # Zeros of rank 1 rather than nothing of rank 0: kernels differ in what they make of nothing.
                value = _initializer(model, name, np.zeros(shape, layer.weight.dtype.numpy()))
                sizes = [size if size == second else f"{name}.rank" for size, second in zip(shape, other, strict=True)]
                value.shape = ir.Shape(sizes)
                model.graph.inputs.append(value)
                values.append(value)
            return values[0], values[1]

        return self._with_branches(add, 1.0, 0.0)

    # Graphs -----------------------------------------------------------------------------------------------------------

    def _with_branches(self, add: Any, scaling: float, dropout: float) -> ir.Model:
        """A copy with a branch for each pair, whose two values `add` puts into the model."""
        model = self._original.clone()
        if model.ir_version < 4:
            # Such files must list every initializer as an input too; they are not meant to be fed.
            passes.RemoveInitializersFromInputsPass()(model)
            model.ir_version = 4
        layers: list[Layer] = layers_of(model.graph)
        branches = Branches({value.name for value in all_values(model.graph)} | _node_names(model))
        for pair in self.pairs:
            a, b = add(model, pair)
            for place in pair.places:
                branches.add(layers[place], a, b, scaling=scaling, dropout=dropout)
        return model

    def _proto(self, model: ir.Model) -> onnx.ModelProto:
        if _size(model) < LARGEST_PROTO:
            ir.external_data.load_to_model(model)
        return to_proto(model)

    def _write(self, model: ir.Model, path: PathLike) -> None:
        target = Path(path)
        tensors = list(_tensors(model))
        inside = [tensor for tensor in tensors if not isinstance(tensor, ir.ExternalTensor)]
        is_beside = self._folder is not None and self._folder == target.resolve().parent
        if len(inside) < len(tensors) and is_beside and sum(tensor.nbytes for tensor in inside) < LARGEST_PROTO:
            write_bytes(target, to_proto(model).SerializeToString())
        elif _size(model) < LARGEST_PROTO:
            write_bytes(target, self._proto(model).SerializeToString())
        else:
            with replacing_together(target.parent) as drafts:
                ir.save(model, drafts / target.name, external_data=f"{target.name}.data")

    def __repr__(self) -> str:
        shapes = [shape for layer in self._layers.values() for shape in layer.pair_shapes(self.settings.rank)]
        count = sum(map(math.prod, shapes))
        total = sum(math.prod(tensor.shape.numpy()) for tensor in _tensors(self._original))
        return (
            f"Lora({len(self.pairs)} pairs of rank {self.settings.rank}, alpha={self.settings.alpha:g}: {count:,} "
            f"numbers beside {total:,})"
        )


def _initializer(model: ir.Model, name: str, array: np.ndarray) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
    model.graph.register_initializer(value)
    return value


def _tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value


def _size(model: ir.Model) -> int:
    return sum(tensor.nbytes for tensor in _tensors(model))


def _node_names(model: ir.Model) -> set[str | None]:
    return {node.name for node in model.graph.all_nodes()}
