"""Flat buffers and their views, in main memory and elsewhere."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

from onward.runtime import dlpack
from onward.runtime.device import HOST, Device
from onward.runtime.tensors import ROW, FlatTensors

ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "scalar": np.float32(7.0) * np.ones((), np.float32),
    "half": np.ones((3, 5), np.float16),
    "empty": np.zeros((0, 4), np.float32),
    "numbers": np.array([1, -(2**40)]),
    "flags": np.array([True, False, True]),
    "b": np.full((4,), 2, np.float32),
}


@dataclass(frozen=True)
class Elsewhere(Device):
    """Main memory that is treated like that of a device: no GPU is needed to test what is done with one."""

    @property
    def is_host(self) -> bool:
        return False


@pytest.mark.parametrize("device", [HOST, Elsewhere()], ids=["host", "device"])
def test_tensors_hold_arrays(device: Device) -> None:
    tensors = FlatTensors.holding(ARRAYS, device)
    assert list(tensors) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(tensors[name], array)
        assert tensors[name].dtype == array.dtype
        value = tensors.ortvalue(name)
        assert tuple(value.shape()) == array.shape
        np.testing.assert_array_equal(value.numpy(), array)
    tensors.assign("b", np.arange(4, dtype=np.float32))
    np.testing.assert_array_equal(tensors.ortvalue("b").numpy(), [0, 1, 2, 3])
    assert not any(tensors.zeros_like()["a"].reshape(-1))


@pytest.mark.parametrize("device", [HOST, Elsewhere()], ids=["host", "device"])
def test_runs_chunks_and_rows(device: Device) -> None:
    tensors = FlatTensors.holding(ARRAYS, device)
    float32 = np.dtype(np.float32)
    # Neighbours in the buffer of their type are one run, whatever lies between them in the mapping.
    runs = list(tensors.runs(["a", "scalar", "empty", "b"]))
    assert len(runs) == 1
    dtype, start, end = runs[0]
    assert dtype == float32
    chunk = tensors.chunk(dtype, start, end).numpy()
    np.testing.assert_array_equal(chunk[:6], range(6))
    assert chunk.sum() == 15 + 7 + 8  # what lies between is zero
    assert len(list(tensors.runs(["a", "b"]))) == 2
    assert tensors.rows(float32).shape() == [1, ROW]
    for name in ARRAYS:
        assert tensors.ortvalue(name).data_ptr() % 64 == 0 or not device.is_host


def test_views_in_main_memory_are_live() -> None:
    tensors = FlatTensors.holding(ARRAYS)
    value = tensors.ortvalue("a")
    tensors["a"][0, 0] = 99
    assert value.numpy()[0, 0] == 99


def test_bfloat16() -> None:
    array = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    tensors = FlatTensors.holding({"x": array})
    assert tensors.ortvalue("x").data_type() == "tensor(bfloat16)"
    np.testing.assert_array_equal(tensors["x"], array)


def test_views_keep_their_memory_alive_and_let_it_go() -> None:
    gc.collect()
    before = len(dlpack._alive)
    tensors = FlatTensors.holding({"a": np.arange(2000, dtype=np.float32)}, Elsewhere())
    value = tensors.ortvalue("a")
    assert len(dlpack._alive) > before
    del tensors
    gc.collect()
    np.testing.assert_array_equal(value.numpy(), np.arange(2000))
    del value
    gc.collect()
    assert len(dlpack._alive) == before


def test_norm() -> None:
    random = np.random.default_rng(0)
    arrays = {
        "large": random.normal(size=(300, 700)).astype(np.float32),
        "double": random.normal(size=5),
        "half": random.normal(size=(7, 2)).astype(np.float16),
        "empty": np.zeros((0, 3), np.float32),
    }
    expected = np.sqrt(sum(np.square(array.astype(np.float64)).sum() for array in arrays.values()))
    assert FlatTensors.holding(arrays).norm() == pytest.approx(expected, rel=1e-6)
    assert FlatTensors.holding({"x": np.full(3, 1e30, np.float32)}).norm() == pytest.approx(3**0.5 * 1e30, rel=1e-6)
    assert np.isnan(FlatTensors.holding({"x": np.array([np.nan, 1], np.float32)}).norm())
    assert FlatTensors({}).norm() == 0
