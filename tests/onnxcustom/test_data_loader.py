"""Batches of consecutive rows."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from onnxruntime.capi import _pybind_state

from onward.onnxcustom.training.data_loader import OrtDataLoader
from onward.runtime.session import open_session
from tests.onnxcustom.models import linear

X = np.arange(200, dtype=np.float64).reshape(100, 2)
Y = np.arange(100, dtype=np.float64)


def starts(loader: OrtDataLoader) -> list[int]:
    return [int(batch[1][0, 0]) for batch in loader.iter_numpy()]


def test_batches() -> None:
    for loader in (OrtDataLoader(X, Y, batch_size=5), pickle.loads(pickle.dumps(OrtDataLoader(X, Y, batch_size=5)))):
        batches = list(loader.iter_ortvalue())
        assert len(batches) == 20
        for x, y in batches:
            assert isinstance(x, _pybind_state.OrtValue)
            assert x.shape() == [5, 2]
            assert y.shape() == [5, 1]
            assert (x.numpy()[:, 0] == 2 * y.numpy()[:, 0]).all(), "rows stay together"
        assert repr(loader).startswith("OrtDataLoader(...")
        assert loader.desc == [((100, 2), np.float64), ((100, 1), np.float64)]
        assert len(loader) == 100
        assert [array.shape for array in loader.data_np] == [value.numpy().shape for value in loader.data_ort]


def test_random_batches_reach_the_last_row() -> None:
    np.random.seed(0)
    loader = OrtDataLoader(X[:10], Y[:10], batch_size=9)
    drawn = {start for _ in range(20) for start in starts(loader)}
    assert drawn == {0, 1}


def test_batches_in_order_are_full() -> None:
    assert starts(OrtDataLoader(X, Y, batch_size=30, random_iter=False)) == [0, 30, 60, 70]
    assert starts(OrtDataLoader(X, Y, batch_size=25, random_iter=False)) == [0, 25, 50, 75]


@pytest.mark.parametrize("batch_size", [0, -1, 100, 1000])
def test_one_batch_of_all(batch_size: int) -> None:
    loader = OrtDataLoader(X, Y, batch_size=batch_size)
    assert [x.shape for x, _ in loader.iter_numpy()] == [(100, 2)]
    assert [x.shape() for x, _ in loader.iter_ortvalue()] == [[100, 2]]
    assert loader.batch_rows == 100


def test_weights_and_columns() -> None:
    targets = np.stack([Y, -Y], axis=1)
    loader = OrtDataLoader(X, targets, Y[:, None] + 1, batch_size=10, random_iter=False)
    for x, y, w in loader.iter_numpy():
        assert y.shape == (10, 2), "targets with several columns keep them"
        assert w.shape == (10,)
        assert (w == x[:, 0] / 2 + 1).all()
    with pytest.raises(ValueError, match=r"X has 100 rows \(shape \(100, 2\)\), y 99"):
        OrtDataLoader(X, Y[:-1])
    with pytest.raises(ValueError, match="sample_weight 3"):
        OrtDataLoader(X, Y, np.ones(3))


def test_binding() -> None:
    draw = np.random.default_rng(0)
    features = draw.normal(size=(50, 3)).astype(np.float32)
    session = open_session(linear().SerializeToString())
    loader = OrtDataLoader(features, features[:, 0], batch_size=20, random_iter=False)
    binding = session.io_binding()
    binding.bind_output("variable")
    got = []
    for rows in loader.iter_bind(_OnlyX(binding), ["X", "label", "rate"]):
        assert rows == 20
        session.run_with_iobinding(binding)
        got.append(binding.copy_outputs_to_cpu()[0])
    expected = session.run(None, {"X": features})[0]
    assert all((batch == expected[start : start + 20]).all() for batch, start in zip(got, (0, 20, 30), strict=True))
    with pytest.raises(NotImplementedError, match="names are those of features"):
        next(loader.iter_bind(binding, ["X", "label"]))


class _OnlyX:
    """Binds the inputs that the session has."""

    def __init__(self, binding: object) -> None:
        self._binding = binding._iobinding  # type: ignore[attr-defined]

    def bind_input(self, name: str, *rest: object) -> None:
        if name == "X":
            self._binding.bind_input(name, *rest)
