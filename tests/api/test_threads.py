"""Modules in several threads: results are those of some serial order, and nobody's outputs are overwritten."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from onward.api import CheckpointState, Module, Optimizer
from tests.api import toys

STEPS = 30
THREADS = 4
WIDE = toys.MLP_SHAPES | {"fc1.weight": (512, 4), "fc1.bias": (512,), "fc2.weight": (3, 512)}


@pytest.fixture(scope="module")
def wide_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wide enough for one thread to come in while another is at work."""
    model = toys.with_weights(toys.MLP, WIDE)
    return toys.generate(tmp_path_factory.mktemp("wide"), model, additional_output_names=["output"])


@pytest.fixture(scope="module")
def dropping_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = toys.with_dropout(toys.with_weights(toys.MLP, WIDE), "active")
    return toys.generate(tmp_path_factory.mktemp("dropping"), model)


def together(*works: Callable[[], object]) -> list[object]:
    """Run functions at the same time; raises what any of them raises."""
    start = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> object:
        start.wait(30)
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result(60) for future in [pool.submit(run, work) for work in works]]


def until(done: threading.Event, work: Callable[[], object]) -> Callable[[], list[object]]:
    """Repeat something until another thread is done, once at least."""

    def run() -> list[object]:
        results = [work()]
        while not done.is_set():
            results.append(work())
        return results

    return run


def training(run: toys.Run, done: threading.Event, steps: int = STEPS) -> Callable[[], None]:
    def train() -> None:
        run.module.train()
        try:
            for number in range(steps):
                run.module(*toys.batch(number))
                run.optimizer.step()
                run.module.lazy_reset_grad()
        finally:
            done.set()

    return train


def history(folder: Path, steps: int = STEPS) -> Iterator[dict[str, np.ndarray]]:
    """The parameters after each update, without threads."""
    run = toys.Run.open(folder)
    yield run.values()
    for number in range(steps):
        run.module(*toys.batch(number))
        run.optimizer.step()
        run.module.lazy_reset_grad()
        yield run.values()


def test_evaluation_in_many_threads(wide_folder: Path) -> None:
    module = toys.Run.open(wide_folder).module.eval()
    batches = [toys.batch(number, 5 + number) for number in range(THREADS)]
    expected = [module(*batch) for batch in batches]
    results = together(*(lambda batch=batch: [module(*batch) for _ in range(50)] for batch in batches))
    for (loss, scores), repeated in zip(expected, results, strict=True):
        for own_loss, own_scores in repeated:
            np.testing.assert_array_equal(own_scores, scores)
            assert own_loss == loss


def test_values_of_onnxruntime_stay_as_they_are(wide_folder: Path) -> None:
    module = toys.Run.open(wide_folder).module.eval()
    batches = [
        [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in toys.batch(number)] for number in range(THREADS)
    ]
    expected = [module(*batch)[1].numpy() for batch in batches]
    results = together(*(lambda batch=batch: [module(*batch)[1] for _ in range(30)] for batch in batches))
    for scores, repeated in zip(expected, results, strict=True):
        for value in repeated:
            np.testing.assert_array_equal(value.numpy(), scores)


def test_gradients_of_many_threads_add_up(wide_folder: Path) -> None:
    run, alone = toys.Run.open(wide_folder), toys.Run.open(wide_folder)
    batches = [toys.batch(number, 5 + number) for number in range(THREADS)]
    losses = together(*(lambda batch=batch: [run.module(*batch)[0] for _ in range(10)] for batch in batches))
    for batch, own in zip(batches, losses, strict=True):
        assert set(map(float, own)) == {float(alone.module(*batch)[0])}
        for _ in range(9):
            alone.module(*batch)
    for name, parameter in run.state.parameters:
        # In another order.
        np.testing.assert_allclose(parameter.grad, alone.state.parameters[name].grad, rtol=1e-4, atol=1e-5)


def test_everything_beside_training(wide_folder: Path, tmp_path: Path) -> None:
    """Evaluation, checkpoints, exports and copies are of the parameters after some update, whole."""
    run, done = toys.Run.open(wide_folder), threading.Event()
    x, labels = toys.batch(99)

    def evaluated() -> np.ndarray:
        return run.module.eval()(x, labels)[1]

    def saved() -> CheckpointState:
        CheckpointState.save_checkpoint(run.state, tmp_path / "saved", include_optimizer_state=True)
        return CheckpointState.load_checkpoint(tmp_path / "saved")

    def exported() -> dict[str, np.ndarray]:
        run.module.export_model_for_inferencing(tmp_path / "exported.onnx", ["output"])
        weights = onnx.load(tmp_path / "exported.onnx").graph.initializer
        return {tensor.name: numpy_helper.to_array(tensor) for tensor in weights}

    def copied() -> np.ndarray:
        return run.module.get_contiguous_parameters(trainable_only=True).numpy()

    kinds = (evaluated, saved, exported, copied)
    _, *results = together(training(run, done), *(until(done, work) for work in kinds))
    assert run.optimizer._optimizer.state.step == STEPS

    reference = list(history(wide_folder))
    for name, array in run.values().items():
        np.testing.assert_array_equal(array, reference[-1][name])
    alone, scores, buffers = toys.Run.open(wide_folder), [], []
    for values in reference:
        for name, array in values.items():
            alone.state.parameters[name].data[...] = array
        scores.append(alone.module.eval()(x, labels)[1])
        buffers.append(alone.module.get_contiguous_parameters(trainable_only=True).numpy())
    for kind, expected in ((0, scores), (3, buffers)):
        for result in results[kind]:
            assert any(np.array_equal(result, one) for one in expected), kinds[kind].__name__
    for weights in results[2]:
        assert weights.keys() == WIDE.keys()
        assert any(all(np.array_equal(weights[name], values[name]) for name in WIDE) for values in reference)
    for state in results[1]:
        for name, parameter in state.parameters:
            np.testing.assert_array_equal(parameter.data, reference[state._state.optimizer.step][name])


def test_one_thread_trains_while_another_evaluates_though_both_say_so(wide_folder: Path) -> None:
    """`train` and `eval` hold for the thread that calls them, and for those that call neither."""
    run, done = toys.Run.open(wide_folder), threading.Event()
    together(training(run, done), until(done, lambda: run.module.eval()(*toys.batch(1))))
    assert run.optimizer._optimizer.state.step == STEPS
    for name, array in run.values().items():
        np.testing.assert_array_equal(array, list(history(wide_folder))[-1][name])
    together(run.module.eval)  # which of the two spoke last is chance
    assert run.module.training is False  # this thread never said
    run.module.train()
    assert together(lambda: run.module.training) == [True]
    together(run.module.eval)
    assert run.module.training


def test_two_modules_in_two_threads(wide_folder: Path) -> None:
    state = CheckpointState.load_checkpoint(wide_folder / "checkpoint")
    modules = [Module(wide_folder / "training_model.onnx", state, wide_folder / "eval_model.onnx") for _ in range(2)]
    optimizers = [Optimizer(wide_folder / "optimizer_model.onnx", module) for module in modules]
    x, labels = toys.batch(0)

    def train(module: Module, optimizer: Optimizer) -> list[float]:
        losses = []
        for _ in range(STEPS):
            losses.append(float(module(x, labels)[0]))
            optimizer.step()
            module.lazy_reset_grad()
        return losses

    works = [lambda pair=pair: train(*pair) for pair in zip(modules, optimizers, strict=True)]
    losses = together(*works)
    assert optimizers[0]._optimizer.state.step == 2 * STEPS
    assert all(own[-1] < own[0] for own in losses)
    assert float(modules[0].eval()(x, labels)[0]) == float(modules[1].eval()(x, labels)[0])


def test_each_pass_draws_its_own_numbers(dropping_folder: Path) -> None:
    module, alone = (toys.Run.open(dropping_folder, seed=3).module for _ in range(2))
    losses = together(*([lambda: [float(module(*toys.batch())) for _ in range(10)]] * THREADS))
    expected = [float(alone(*toys.batch())) for _ in range(10 * THREADS)]
    assert len(set(expected)) == len(expected)
    assert sorted(loss for own in losses for loss in own) == sorted(expected)


def test_evaluations_run_side_by_side(wide_folder: Path) -> None:
    """Nobody waits for another evaluation: both are inside at the same time."""
    run = toys.Run.open(wide_folder)
    module, inside = run.module.eval(), threading.Barrier(2)
    original = module._model.evaluation.run

    def meet(inputs: object) -> object:
        inside.wait(20)  # raises BrokenBarrierError where the other cannot come
        return original(inputs)

    module._model.evaluation.run = meet
    together(*([lambda: module(*toys.batch())] * 2))


def test_nobody_starves(wide_folder: Path) -> None:
    """A thread that only trains lets others in, and so do threads that only evaluate."""
    run, done = toys.Run.open(wide_folder), threading.Event()
    deadline = time.monotonic() + 20
    waited = []

    def evaluate() -> None:
        try:
            for _ in range(20):
                run.module.eval()(*toys.batch())
            waited.append(time.monotonic() < deadline)
        finally:
            done.set()

    def train() -> list[object]:
        run.module.train()
        return until(done, lambda: run.module(*toys.batch()))()

    together(evaluate, train, train)
    assert waited == [True]
