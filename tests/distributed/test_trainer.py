"""`Trainer(strategy=...)`: two processes against one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

import onward
from onward.callbacks import Checkpoints
from onward.errors import OnwardError
from onward.runtime.state import RandomState
from onward.trainer import data as trainer_data
from onward.trainer.part import WHOLE, Part
from tests.distributed.comparison import CLOSE, assert_same, of_one
from tests.distributed.conftest import Two
from tests.distributed.launch import environment, launch
from tests.distributed.scenarios.registry import everything, fast, quiet
from tests.trainer.toys import classifier, labelled

# Equal to one process -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["equal_shards", "exact_arithmetic"])
def test_bit_by_bit_what_one_process_computes(two: Two, name: str, tmp_path: Path) -> None:
    first, second = two.both(name)
    assert_same(first, second)
    assert_same(first, of_one(name, tmp_path))


@pytest.mark.parametrize(
    "name",
    [
        "batches_dealt_out", "unequal_shards", "ignored_labels", "weighted_rows", "sum_of_rows", "early_stopping",
        "search_of_a_rate", "accumulated_and_clipped", "order_of_its_own", "measured", "data_of_their_own",
        "sampler_of_torch",
    ],
)  # fmt: skip
def test_what_one_process_computes_on_the_joined_batch(two: Two, name: str, tmp_path: Path) -> None:
    first, second = two.both(name)
    assert_same(first, second)
    assert_same(first, of_one(name, tmp_path), **CLOSE)


def test_early_stopping_stops(two: Two) -> None:
    (state, best, stopped), _ = two.both("early_stopping")
    assert stopped
    assert len(state["epochs"]) == best + 2 < 30


def test_the_best_checkpoints_are_those_of_one_process(two: Two, tmp_path: Path) -> None:
    (first, scores, best), (second, other_scores, _) = two.both("best_checkpoints")
    assert_same((first, scores), (second, other_scores))
    alone = of_one("best_checkpoints", tmp_path)
    assert best == alone[2]
    assert_same((first, scores), alone[:2], **CLOSE)
    assert len({*scores}) > 2
    saved = {path.name for path in (two.folder / "best_checkpoints" / "best of 2").iterdir()}
    assert saved == {*best, "step-000000030.checkpoint"}


def test_metrics_of_parts_that_are_uneven(two: Two, tmp_path: Path) -> None:
    """Also where one process has no rows in any batch: a process without any data of its own has failed."""
    first, second = two.both("measured_of_their_own")
    assert_same(first[:2], second[:2])
    assert_same(first[:2], of_one("measured_of_their_own", tmp_path), **CLOSE)
    assert first[0] == 31
    assert "there is no data" in first[2][1]
    assert "rank 0 failed with OnwardError: there is no data" in second[2][1]
    assert [rows for rows, _ in two.both("measured")[0][:5]] == [31, 31, 9, 1, 3]


# Continued ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["continued", "continued_in_memory"])
def test_continued_bit_for_bit(two: Two, name: str) -> None:
    first, second = two.both(name)
    for whole, again, error in (first, second):
        assert "step " in error[1]
        assert_same(whole, again)
    assert_same(first[:2], second[:2])


def test_one_process_continues_what_two_have_left(two: Two) -> None:
    (whole, steps), _ = two.both("left_for_one")
    assert steps == 7
    trainer = fast(classifier(), optimizer="adamw", metrics=["accuracy"])
    checkpoints = Checkpoints(two.folder / "left_for_one" / "left", every=1)
    trainer.fit(*labelled(48), epochs=3, batch_size=10, callbacks=[checkpoints], resume=True, **quiet)
    assert_same(everything(trainer), whole, **CLOSE)


def test_batches_that_were_dealt_out_are_continued_by_as_many(two: Two, tmp_path: Path) -> None:
    """What a batch is, is another thing in one process; nothing tells which of them come next."""
    data = [labelled(4), labelled(4)]
    trainer = fast(classifier(), optimizer="adamw")
    source, describe = trainer._supply.source, trainer._course.describe
    assert describe(source(data), 32, True, 1)["the number of processes"] is None
    part, trainer._team.size = Part(0, 2), 2
    dealt = trainer_data.source(data, inputs=trainer._model.fields, part=part)
    assert describe(dealt, 32, True, 1)["the number of processes"] == 2
    assert describe(source(*labelled(4), part=WHOLE), 32, True, 1)["the number of processes"] is None


# What processes do not have in common ---------------------------------------------------------------------------------


def test_the_first_weights_and_the_seed_are_those_of_rank_0(two: Two, tmp_path: Path) -> None:
    first, second = two.both("drawn_at_random")
    assert_same(first, second)
    assert_same(first, of_one("drawn_at_random", tmp_path))


def test_running_statistics_are_means(two: Two, tmp_path: Path) -> None:
    first, second = two.both("normalised")
    assert_same(first, second)
    alone, _ = of_one("normalised", tmp_path)
    np.testing.assert_allclose(first[0]["mean"], alone["mean"], rtol=1e-5, atol=1e-7)
    # The variance within the halves, not of all rows.
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in classifier(normalised=True).graph.initializer}
    hidden = labelled(8)[0] @ weights["w1"] + weights["b1"]
    within = np.mean([half.var(axis=0) for half in np.split(hidden, 2)], axis=0)
    momentum = 0.9  # the default of BatchNormalization
    np.testing.assert_allclose(first[0]["variance"], momentum + (1 - momentum) * within, rtol=1e-5)


def test_masks_differ(two: Two, tmp_path: Path) -> None:
    (joined, other), second = two.both("masks")
    alone, same_other = of_one("masks", tmp_path)
    assert (joined, other) == second
    assert other == same_other
    assert other != alone
    assert joined == 0.5 * alone + 0.5 * other


def test_seeds_of_processes() -> None:
    random = RandomState(7)
    seeds = [random.seed_of(rank) for rank in range(1000)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 1000
    assert all(0 <= seed < 2**62 for seed in seeds)


# What goes wrong ------------------------------------------------------------------------------------------------------


def test_one_process_stops_all(two: Two) -> None:
    first, second = two.both("stopped_by_one")
    # After 3 steps, after the last of an epoch before its end, and after its end; `on_settled` comes before that, too.
    assert first == second == [(3, 0), (4, 0), (4, 1), (4, 0)] * 2


def test_an_error_in_one_process_ends_all(two: Two) -> None:
    """The others are told at once, and by whom; training goes on in the next scenario."""
    here, there = two.both("error_in_one")
    for kind, text in ((0, "ValueError: step 2 is enough"), (1, "OSError: the disk is gone"), (2, "missing.onnx")):
        assert there[kind][0].startswith(("ValueError", "OSError", "InvalidModelError", "OnwardError"))
        assert "PeerError" not in there[kind][0]
        assert here[kind][0].startswith("PeerError OnwardError")
        assert "rank 1 failed with" in here[kind][1]
        assert text in here[kind][1]
        assert here[kind][2] < 20
    assert here[3] == there[3] == 3  # two steps before the first error, one round of batches before the second


def test_ctrl_c_in_one_process_is_one_in_all(two: Two) -> None:
    for each in two.both("interrupted"):
        for error, steps in each:
            assert error[0].startswith("KeyboardInterrupt")
            assert error[2] < 20
            assert steps == 1
    for rank in (0, 1):
        assert [path.name for path in (two.folder / "interrupted" / f"interrupted{rank}").iterdir()] == [
            "step-000000001.checkpoint"
        ]


def test_numbers_that_are_not_finite_stop_all(two: Two) -> None:
    here, there = two.both("not_a_number")
    for error, same, steps in (here, there):
        assert "NonFiniteError" in error[0]
        assert "rows 4, 5, 6, 7 of the data: the loss is nan" in error[1]
        assert same
        assert steps == 2
    assert here[0][1].startswith("rank 1: step 0")


def test_processes_that_do_different_things_are_told(two: Two) -> None:
    for calls, rows, rates, models, metrics, steps, warned, _ in two.both("at_odds"):
        assert "rank 0 is at the division of data; rank 1 is at save" in calls[1]
        assert "the number of rows is 16 in rank 0, and 15 in rank 1" in rows[1]
        assert "the learning rates differ: 0.1 in rank 0, 0.2 in rank 1" in rates[1]
        assert "rank 1 has another model" in models[1]
        for measured in metrics:
            assert "the metrics differ: ['accuracy', 'f1'] in rank 0, ['f1'] in rank 1" in measured[1]
        assert steps == 0
        assert all(error[0].startswith("PeerError") for error in (calls, rows, rates, models, *metrics))
        assert len(warned) == 2
        assert all("the parameters of rank 1 are no longer those of rank 0" in text for text in warned)
    assert_same(*(each[-1] for each in two.both("at_odds")))


def test_data_that_is_not_the_same_is_not_divided(two: Two) -> None:
    """Rows would be used twice, and others never; nothing else would tell."""
    for split, tested, validated, fewer, order, steps, rounded in two.both("other_data"):
        for error in (split, tested, validated):
            assert error[0].startswith("PeerError OnwardError")
            assert "not given the same: rank 1 has other rows of" in error[1]
        assert "the number of rows is 40 in rank 0, and 39 in rank 1" in fewer[1]
        assert "`shuffle` returned another order of epoch 1 in rank 1 than in rank 0" in order[1]
        assert steps == 2  # epoch 0, which has the same order
        assert rounded == ""


def test_the_first_process_writes(two: Two, tmp_path: Path) -> None:
    first, second = two.both("files")
    assert first[0] == ["c", "log.csv", "model.onnx", "saved"]
    assert second[0] == []
    for _, trainer, other, _ in (first, second):
        assert_same(trainer, other)
    assert_same(first[1], second[1])
    assert "PeerError" in second[3][0]
    assert "rank 0 failed with" in second[3][1]
    assert first[3][0]
    assert "PeerError" not in first[3][0]


def test_gradients_are_added_up_where_they_are(two: Two) -> None:
    for same_memory, operations in two.both("without_a_copy"):
        assert same_memory
        assert operations == ["all_gather", "all_reduce"]


def test_a_process_that_hangs_is_not_waited_for_for_ever(two: Two) -> None:
    (kinds, text, seconds), _ = two.both("hangs")
    assert kinds.startswith("PeerError OnwardError")
    assert "rank 0 waited at a training step for the other processes, but rank 1 did not answer within 3 s" in text
    assert seconds < 30


def test_a_process_that_is_gone_is_not_waited_for() -> None:
    """In processes that torch.multiprocessing has made."""
    pytest.importorskip("torch")
    (ended,) = launch(["-m", "tests.distributed.multiprocessing", "dies"], size=1, limit=100)
    assert ended.code == 0, ended.output
    why = "rank 0 waited at a training step for the other processes, but the connection to rank 1 is lost"
    assert f"rank 0 knew within a minute: True; {why}" in ended.output
    assert "exit codes: [0, 7]" in ended.output


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("nccl", r"nccl carries tensors between GPUs, and torch finds none|torch was built without nccl"),
        ("goo", r"`backend` is one of 'gloo', .*, not 'goo'"),
        (None, r"`backend` is one of 'gloo', .*, not None"),
    ],
)
def test_what_cannot_carry_anything_here(backend: Any, message: str) -> None:
    """Said before other processes are waited for."""
    torch = pytest.importorskip("torch")
    if backend == "nccl" and torch.cuda.is_available():
        pytest.skip("there are GPUs here")
    with pytest.raises(OnwardError, match=message):
        onward.torch.Distributed(backend)


def test_without_other_processes() -> None:
    pytest.importorskip("torch")
    with pytest.raises(OnwardError, match=r"there are no other processes to train with: RANK, WORLD_SIZE.*torchrun"):
        onward.Trainer(classifier(), "cross_entropy", strategy="distributed")


def test_auto_is_one_process_where_there_is_one() -> None:
    trainer = onward.Trainer(classifier(), "cross_entropy", strategy="auto")
    assert (trainer.strategy.rank, trainer.strategy.size) == (0, 1)


@pytest.mark.parametrize("wrong", ["dp", 2, onward.Trainer])
def test_other_strategies(wrong: Any) -> None:
    with pytest.raises(OnwardError, match="`strategy` is 'distributed', 'auto'"):
        onward.Trainer(classifier(), "cross_entropy", strategy=wrong)


def test_without_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import onward.torch\n"
        "try:\n    onward.torch.Distributed()\n"
        "except onward.errors.OnwardError as error:\n    print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True, timeout=60)
    assert "training in several processes needs the package torch" in run.stdout, run.stderr
