"""Data of every kind gives the same batches, once and in order; mistakes are named."""

from __future__ import annotations

import collections
import threading
from typing import Any, ClassVar

import numpy as np
import pytest

from onward import OnwardError
from onward.errors import OnwardWarning, UnknownNameError
from onward.signature import Role
from onward.trainer.data import Batch, Field, source
from onward.trainer.prefetch import Immediate, Prefetch

RNG = np.random.default_rng(0)
X = RNG.normal(size=(10, 3)).astype(np.float32)
Y = RNG.integers(0, 4, 10)

INPUTS = [Field("x", np.float32, ("N", 3)), Field("labels", np.int64, ("N",), Role.TARGET)]
WEIGHTED = [*INPUTS, Field("sample_weight", np.float32, ("N",), Role.TARGET)]
TWO = [Field("a", np.float32, ("N", 3)), Field("b", np.int64, ("N", "T")), INPUTS[1]]
B = RNG.integers(0, 9, (10, 5))


def batches(
    data: Any, targets: Any = None, inputs=INPUTS, epoch: int = 0, start: int = 0, **options: Any
) -> list[Batch]:
    return list(source(data, targets, inputs=inputs, batch_size=4, **options).epoch(epoch, start))


def joined(found: list[Batch]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([batch.feeds[name] for batch in found]) for name in found[0].feeds}


def assert_all_there(found: list[Batch], **expected: np.ndarray) -> None:
    whole = joined(found)
    assert whole.keys() == expected.keys()
    for name, array in expected.items():
        assert whole[name].dtype == array.dtype, name
        np.testing.assert_array_equal(whole[name], array)


def pandas():
    return pytest.importorskip("pandas")


def frame():
    table = pandas().DataFrame({f"c{index}": X[:, index] for index in range(3)})
    table["labels"] = Y
    return table


def sparse():
    from scipy.sparse import coo_matrix

    return coo_matrix(X)


def torch():
    return pytest.importorskip("torch")


def loader():
    data = torch().utils.data
    return data.DataLoader(data.TensorDataset(torch().from_numpy(X), torch().from_numpy(Y)), batch_size=4)


class TorchDataset:
    def __new__(cls):
        class Samples(torch().utils.data.Dataset):
            def __len__(self):
                return 10

            def __getitem__(self, number):
                return torch().from_numpy(X[number]), int(Y[number])

        return Samples()


def cut(rows: int = 4):
    return [(X[first : first + rows], Y[first : first + rows]) for first in range(0, 10, rows)]


def hugging_face(**options: Any):
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict({"x": X.tolist(), "label": Y.tolist(), "text": ["t"] * 10, **options})


FORMS = {
    "two arguments": lambda: (X, Y),
    "one tuple": lambda: ((X, Y), None),
    "lists": lambda: (X.tolist(), Y.tolist()),
    "a dict": lambda: ({"x": X, "labels": Y}, None),
    "a dict and targets": lambda: ({"x": X}, Y),
    "two dicts": lambda: ({"x": X}, {"labels": Y}),
    "a dict in a tuple": lambda: (({"x": X}, Y), None),
    "another name of the target": lambda: ({"x": X, "y": Y}, None),
    "the name of the target": lambda: ({"x": X, "kind": Y}, "kind"),
    "tensors": lambda: (torch().from_numpy(X), torch().from_numpy(Y)),
    "double precision": lambda: (X.astype(np.float64), Y.astype(np.int32)),
    "small integers": lambda: (X, Y.astype(np.uint8)),
    "labels as a column": lambda: (X, Y[:, None]),
    "labels as floats": lambda: (X, Y.astype(np.float32)),
    "masked, but nowhere": lambda: (np.ma.masked_array(X), Y),
    "another order in memory": lambda: (np.asfortranarray(X), Y),
    "another order of bytes": lambda: (X.astype(">f4"), Y.astype(">i8")),
    "sparse": lambda: (sparse(), Y),
    "a frame": lambda: (frame(), None),
    "a frame and a series": lambda: (frame()[["c0", "c1", "c2"]], frame()["labels"]),
    "a frame and the name of a column": lambda: (frame().rename(columns={"labels": "kind"}), "kind"),
    "a table of pyarrow": lambda: (
        hugging_face()
        .select_columns(["label"])
        .data.table.append_column("c0", [X[:, 0]])
        .append_column("c1", [X[:, 1]])
        .append_column("c2", [X[:, 2]]),
        None,
    ),
    "a frame in a tuple": lambda: ((frame()[["c0", "c1", "c2"]], Y), None),
    "a torch data set": lambda: (TorchDataset(), None),
    "a loader": lambda: (loader(), None),
    "batches": lambda: (cut(), None),
    "batches as lists": lambda: ([list(pair) for pair in cut()], None),
    "batches as dicts": lambda: ([{"x": x, "labels": y} for x, y in cut()], None),
    "other sizes of batches": lambda: (cut(3), None),
    "a generator": lambda: ((pair for pair in cut()), None),
    "a function": lambda: (lambda: iter(cut()), None),
    "a function of the epoch": lambda: (lambda epoch: cut() if epoch == 0 else [], None),
    "hugging face": lambda: (hugging_face(), None),
    "hugging face, the name of the target": lambda: (hugging_face().rename_column("label", "kind"), "kind"),
    "hugging face, iterable": lambda: (hugging_face().to_iterable_dataset(), None),
    "hugging face, as torch": lambda: (hugging_face().with_format("torch"), None),
    "hugging face, computed": lambda: (
        hugging_face(spans=[[0] * n for n in range(10)]).with_transform(
            lambda rows: {**rows, "x": [np.array(x) for x in rows["x"]], "labels": rows["label"]}
        ),
        None,
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_data(form: str) -> None:
    data, targets = FORMS[form]()
    found = batches(data, targets, shuffle=False)
    assert_all_there(found, x=X, labels=Y)
    assert [batch.rows for batch in found] == ([3, 3, 3, 1] if form == "other sizes of batches" else [4, 4, 2])


@pytest.mark.parametrize("form", FORMS)
def test_data_without_targets(form: str) -> None:
    """As `predict` takes it: targets are left out where there are some."""
    data, targets = FORMS[form]()
    found = batches(data, targets, shuffle=False, needs_targets=False)
    assert_all_there(found, x=X)


@pytest.mark.parametrize("data", [X, (X,), {"x": X}, [X[:4], X[4:]], lambda: iter([X[:4], {"x": X[4:]}])], ids=range(5))
def test_only_inputs(data: Any) -> None:
    assert_all_there(batches(data, shuffle=False, needs_targets=False), x=X)
    assert_all_there(batches(data, shuffle=False, inputs=INPUTS[:1]), x=X)


MANY = {
    "a flat tuple": lambda: ((X, B, Y), None),
    "a tuple and targets": lambda: ((X, B), Y),
    "a list and targets": lambda: ([X, B], Y),
    "nested": lambda: (((X, B), Y), None),
    "by name": lambda: ({"b": B, "labels": Y, "a": X}, None),
    "inputs by name": lambda: ({"b": B, "a": X}, Y),
    "batches": lambda: ([(X[:4], B[:4], Y[:4]), ((X[4:], B[4:]), Y[4:])], None),
    "batches by name": lambda: ([({"a": X, "b": B}, Y)], None),
    "named tuples": lambda: ([collections.namedtuple("Row", "a b y")(X, B, Y)], None),
}


@pytest.mark.parametrize("form", MANY)
def test_several_inputs(form: str) -> None:
    data, targets = MANY[form]()
    assert_all_there(batches(data, targets, inputs=TWO, shuffle=False), a=X, b=B, labels=Y)


def test_several_targets() -> None:
    inputs = [INPUTS[0], Field("u", np.float32, ("N",), Role.TARGET), Field("v", np.int64, ("N",), Role.TARGET)]
    u = RNG.normal(size=10).astype(np.float32)
    for data, targets in [(X, (u, Y)), (X, [u, Y]), ((X, u, Y), None), ((X, (u, Y)), None), (X, {"v": Y, "u": u})]:
        assert_all_there(batches(data, targets, inputs=inputs, shuffle=False), x=X, u=u, v=Y)


# Order ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["two arguments", "sparse", "a frame", "a torch data set", "hugging face"])
def test_order_follows_from_seed_and_epoch(form: str) -> None:
    data, targets = FORMS[form]()
    made = source(data, targets, inputs=INPUTS, batch_size=4, seed=3)
    epochs = [joined(list(made.epoch(number)))["labels"] for number in (0, 1, 0)]
    np.testing.assert_array_equal(epochs[0], epochs[2])
    assert not np.array_equal(epochs[0], epochs[1])
    wanted = np.random.default_rng([3, 1]).permutation(10)
    np.testing.assert_array_equal(epochs[1], Y[wanted])
    other = joined(batches(data, targets, seed=4))["labels"]
    assert not np.array_equal(epochs[0], other)
    rows = joined(list(made.epoch(5)))
    np.testing.assert_array_equal(rows["x"][np.argsort(rows["x"][:, 0])], X[np.argsort(X[:, 0])])


@pytest.mark.parametrize("form", FORMS)
def test_start_skips_batches(form: str) -> None:
    whole = batches(*FORMS[form](), epoch=0, shuffle=True)
    part = batches(*FORMS[form](), epoch=0, shuffle=True, start=1)
    assert len(part) == len(whole) - 1
    for one, other in zip(part, whole[1:], strict=True):
        np.testing.assert_array_equal(one.feeds["x"], other.feeds["x"])
        np.testing.assert_array_equal(one.feeds["labels"], other.feeds["labels"])
    assert batches(*FORMS[form](), epoch=0, start=len(whole)) == []


def test_an_order_of_the_callers_own() -> None:
    found = batches(X, Y, shuffle=lambda epoch: np.arange(10)[::-1])
    assert_all_there(found, x=X[::-1], labels=Y[::-1])
    with pytest.raises(OnwardError, match="is no order of rows"):
        batches(X, Y, shuffle=lambda epoch: np.ones(10))


def test_negative_seeds_are_seeds() -> None:
    assert len(batches(X, Y, seed=-5)) == 3


def test_rows_and_steps() -> None:
    def known(data: Any, targets: Any = None) -> tuple[Any, ...]:
        made = source(data, targets, inputs=INPUTS, batch_size=4)
        return made.rows, made.steps, made.once

    assert known(X, Y) == (10, 3, False)
    assert known(cut()) == (None, 3, False)
    assert known(loader()) == (None, 3, False)
    assert known(iter(cut())) == (None, None, True)
    assert known(lambda: cut()) == (None, None, False)
    assert known(hugging_face()) == (10, 3, False)
    assert known(hugging_face().to_iterable_dataset()) == (None, None, False)


def test_functions_are_called_for_each_epoch() -> None:
    made = source(lambda: (pair for pair in cut()), inputs=INPUTS)
    for epoch in range(3):
        assert_all_there(list(made.epoch(epoch)), x=X, labels=Y)


def test_generators_have_one_epoch() -> None:
    made = source((pair for pair in cut()), inputs=INPUTS)
    assert len(list(made.epoch(0))) == 3
    with pytest.raises(OnwardError, match="a generator yields its batches once, and epoch 0 has had them"):
        list(made.epoch(1))


def test_generators_are_closed() -> None:
    closed = []

    def generate():
        try:
            yield from cut()
        finally:
            closed.append(True)

    iterator = source(generate(), inputs=INPUTS).epoch(0)
    next(iterator)
    iterator.close()
    assert closed == [True]


def test_errors_of_a_generator_are_its_own() -> None:
    error = KeyError("mine")

    def failing():
        yield cut()[0]
        raise error

    iterator = source(failing(), inputs=INPUTS).epoch(0)
    next(iterator)
    with pytest.raises(KeyError) as caught:
        next(iterator)
    assert caught.value is error


def test_what_shuffles_itself_is_told_the_epoch() -> None:
    class Own(list):
        epochs: ClassVar[list[int]] = []

        def set_epoch(self, number: int) -> None:
            self.epochs.append(number)

    made = source(Own(cut()), inputs=INPUTS)
    for epoch in (0, 1):
        list(made.epoch(epoch))
    assert Own.epochs == [0, 1]
    data = hugging_face().to_iterable_dataset().shuffle(seed=0, buffer_size=10)
    streamed = source(data, inputs=INPUTS, batch_size=4)
    first, second = (joined(list(streamed.epoch(number)))["labels"] for number in (0, 1))
    np.testing.assert_array_equal(np.sort(first), np.sort(second))
    assert not np.array_equal(first, second)


@pytest.mark.slow
def test_workers_of_a_loader_end() -> None:
    """Also if only some batches are taken, in the thread that prepares them."""
    import multiprocessing

    data = torch().utils.data
    others = set(multiprocessing.active_children())  # those that earlier tests left to scikit-learn
    made = source(data.DataLoader(data.TensorDataset(torch().from_numpy(X)), num_workers=2), inputs=INPUTS[:1])
    assert len(list(Prefetch(made.epoch(0)))) == 10
    with Prefetch(made.epoch(1)) as items:
        next(items)
    for process in set(multiprocessing.active_children()) - others:
        process.join(10)
    assert not set(multiprocessing.active_children()) - others


# Copies ---------------------------------------------------------------------------------------------------------------


def test_nothing_is_copied_in_order() -> None:
    for x, y in ((X, Y), (torch().from_numpy(X), torch().from_numpy(Y))):
        for batch in batches(x, y, shuffle=False):
            assert np.shares_memory(batch.feeds["x"], X)
            assert np.shares_memory(batch.feeds["labels"], Y)


def test_threads_are_for_what_takes_time() -> None:
    """Small batches from memory are made where they are used."""
    assert isinstance(source(X, Y, inputs=INPUTS).epoch(0), Immediate)
    large = np.zeros((64, 100_000), np.float32)
    fields = [Field("x", np.float32, ("N", None)), INPUTS[1]]
    assert not isinstance(source(large, np.zeros(64), inputs=fields).epoch(0), Immediate)
    for form in ("sparse", "a torch data set", "a loader", "batches", "a generator", "hugging face"):
        assert not isinstance(source(*FORMS[form](), inputs=INPUTS).epoch(0), Immediate), form
    with Prefetch(source(X, Y, inputs=INPUTS, batch_size=4).epoch(0)) as items:
        assert [batch.rows for batch in items] == [4, 4, 2]
        assert not any(thread.name == "onward prefetch" for thread in threading.enumerate())


def test_batches_are_not_copied() -> None:
    given = [(torch().from_numpy(X), Y)]
    assert np.shares_memory(batches(given)[0].feeds["x"], X)


def test_files_are_read_in_parts(tmp_path) -> None:
    """A file of 4 GB (with nothing in it) is trained on; a copy of it would take a while, and the memory."""
    path = tmp_path / "large.bin"
    rows = 2**28
    mapped = np.memmap(path, np.float64, "w+", shape=(rows // 2, 4))
    mapped[:3] = 1
    labels = np.memmap(tmp_path / "labels.bin", np.int8, "w+", shape=(rows // 2,))
    made = source(mapped, labels, inputs=[Field("x", np.float32, ("N", 4)), INPUTS[1]], batch_size=2, shuffle=False)
    batch = next(iter(made.epoch(0)))
    np.testing.assert_array_equal(batch.feeds["x"], np.ones((2, 4), np.float32))
    assert (type(batch.feeds["x"]), batch.feeds["labels"].dtype, made.rows) == (np.ndarray, np.int64, rows // 2)


def test_arrays_that_are_stored() -> None:
    """As those of h5py: rows are asked for in ascending order, without repetition."""

    class Stored:
        __module__ = "h5py._hl.dataset"
        shape, dtype = X.shape, X.dtype

        def __getitem__(self, rows):
            assert isinstance(rows, slice) or (np.diff(rows) > 0).all()
            return X[rows]

        def __len__(self):
            return 10

    order = np.random.default_rng([0, 0]).permutation(10)
    assert_all_there(batches(Stored(), Y), x=X[order], labels=Y[order])
    assert_all_there(batches(Stored(), Y, shuffle=False), x=X, labels=Y)


# Types ----------------------------------------------------------------------------------------------------------------


def one(value: Any, dtype: Any, shape: Any = ("N",)) -> np.ndarray:
    found = batches({"v": value}, inputs=[Field("v", dtype, shape)], shuffle=False)
    return joined(found)["v"]


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        ([1, 2], np.float32, [1.0, 2.0]),
        ([True, False], np.float32, [1.0, 0.0]),
        ([True, False], np.int64, [1, 0]),
        ([1, 0], np.bool_, [True, False]),
        (np.array([1.0, 0.0]), np.bool_, [True, False]),
        (np.array([200], np.int64), np.uint8, [200]),
        (np.array([2**40], np.uint64), np.int64, [2**40]),
        (np.array([3.0]), np.int32, [3]),
        (["a", "bc"], object, ["a", "bc"]),
        (np.array(["a", "bc"], object), object, ["a", "bc"]),
        (np.array([b"a", b"bc"]), object, ["a", "bc"]),
        (np.array([1, 2.5], object), np.float32, [1.0, 2.5]),
        (np.array([np.nan, np.inf]), np.float32, [np.nan, np.inf]),
    ],
)
def test_types_are_fitted(value: Any, dtype: Any, expected: list[Any]) -> None:
    found = one(value, dtype)
    np.testing.assert_array_equal(found, np.array(expected, found.dtype))
    assert found.dtype == dtype or (dtype is object and found.dtype.kind == "U")


def test_columns_of_pandas_with_missing_values() -> None:
    series = pandas().Series([1, None, 3], dtype="Int64")
    np.testing.assert_array_equal(one(series, np.float32), np.array([1, np.nan, 3], np.float32))
    texts = pandas().Series(["a", "b"], dtype="string")
    assert one(texts, object).tolist() == ["a", "b"]
    with pytest.raises(OnwardError, match="whole numbers"):
        one(series, np.int64)


def test_bfloat16() -> None:
    import ml_dtypes

    assert one(torch().tensor([1.5, 2]).bfloat16(), np.float32).tolist() == [1.5, 2]
    assert one([1.5, 2], ml_dtypes.bfloat16).dtype == ml_dtypes.bfloat16
    assert one(np.array([1.5], ml_dtypes.bfloat16), np.float32).tolist() == [1.5]


def test_double_precision_of_hugging_face_is_kept() -> None:
    inputs = [Field("x", np.float64, ("N", 3)), INPUTS[1]]
    exact = RNG.normal(size=(10, 3))
    data = pytest.importorskip("datasets").Dataset.from_dict({"x": exact.tolist(), "labels": Y.tolist()})
    assert_all_there(batches(data, inputs=inputs, shuffle=False), x=exact, labels=Y)


def test_frames_give_columns_to_the_inputs_of_their_names() -> None:
    inputs = [Field("age", np.float32, ("N", 1)), Field("town", object, ("N", 1)), INPUTS[1]]
    table = pandas().DataFrame({"town": ["a", "b"], "labels": [0, 1], "age": [3, 4], "other": [1.0, 2.0]})
    feeds = joined(batches(table, inputs=inputs, shuffle=False))
    assert (feeds["age"].tolist(), feeds["town"].tolist(), feeds["labels"].tolist()) == (
        [[3], [4]],
        [["a"], ["b"]],
        [0, 1],
    )


def test_columns_with_the_usual_names_of_targets_are_features_where_they_have_to_be() -> None:
    table = pandas().DataFrame(X, columns=list("xyz"))
    inputs = [Field("features", np.float32, ("N", 3)), INPUTS[1]]
    for frame_, wanted in ((table, False), (table.assign(label=Y), False), (table.assign(labels=Y), True)):
        found = batches(frame_, inputs=inputs, shuffle=False, needs_targets=wanted)
        np.testing.assert_array_equal(joined(found)["features"], X)
    with pytest.raises(OnwardError, match="takes 3 numbers in each row, but the table has 2 columns"):
        batches(table, inputs=inputs)


def test_frames_of_mixed_numbers() -> None:
    table = pandas().DataFrame({"c0": [1, 2], "c1": [True, False], "c2": [0.5, 1.5], "target": [0, 1]})
    feeds = joined(batches(table, shuffle=False))
    assert feeds["x"].tolist() == [[1, 1, 0.5], [2, 0, 1.5]]


def test_columns_that_are_left_out_are_named() -> None:
    table = frame()
    table["name"] = "a"
    with pytest.warns(OnwardWarning, match="'name' are none and are left out"):
        batches(table)


def test_scalars_are_the_same_for_all_rows() -> None:
    inputs = [INPUTS[0], Field("temperature", np.float32, ())]
    for batch in batches({"x": X, "temperature": 2.0}, inputs=inputs):
        assert batch.feeds["temperature"] == np.float32(2)


def test_columns_get_the_axis_that_they_lack() -> None:
    inputs = [INPUTS[0], Field("target", np.float32, ("N", 1), Role.TARGET)]
    assert joined(batches(X, Y, inputs=inputs))["target"].shape == (10, 1)


# Weights --------------------------------------------------------------------------------------------------------------


W = RNG.random(10)


@pytest.mark.parametrize(
    "make",
    [
        lambda: source(X, Y, inputs=WEIGHTED, sample_weight=W, shuffle=False),
        lambda: source((X, Y), inputs=WEIGHTED, sample_weight=W, shuffle=False),
        lambda: source((X, Y, W), inputs=WEIGHTED, shuffle=False),
        lambda: source({"x": X, "labels": Y, "sample_weight": W}, inputs=WEIGHTED, shuffle=False),
        lambda: source({"x": X, "labels": Y, "w": W}, inputs=WEIGHTED, sample_weight="w", shuffle=False),
        lambda: source([(X, Y, W)], inputs=WEIGHTED),
        lambda: source(hugging_face(sample_weight=W.tolist()), inputs=WEIGHTED, shuffle=False),
        lambda: source(frame().assign(w=W), inputs=WEIGHTED, sample_weight="w", shuffle=False),
    ],
    ids=range(8),
)
def test_weights(make) -> None:
    batch = next(iter(make().epoch(0)))
    np.testing.assert_array_equal(batch.feeds["sample_weight"], W.astype(np.float32))
    assert batch.weight is batch.feeds["sample_weight"]


def test_no_weights_are_ones() -> None:
    assert batches(X, Y, inputs=WEIGHTED)[0].weight.tolist() == [1] * 4


# Mistakes -------------------------------------------------------------------------------------------------------------

IMAGES = [Field("x", np.float32, ("N", 3, 8, 8)), INPUTS[1]]
GRAY = [Field("x", np.float32, ("N", 1, 8, 8)), INPUTS[1]]
FIXED = [Field("x", np.float32, (4, 3)), Field("labels", np.int64, (4,), Role.TARGET)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: batches(np.ma.masked_less(X, 0), Y), "is masked in places; fill them"),
        (lambda: batches(X, Y[:9]), "same number of rows, but 'x' has 10, 'labels' has 9"),
        (
            lambda: batches(X),
            "no targets were given, but the model takes the inputs 'x' and the loss the targets 'labels'",
        ),
        (lambda: batches({"y": Y}), "input 'x' is missing: the data has 'y'"),
        (lambda: batches({"X": X, "labels": Y}), "input 'x' is missing: the data has 'X', 'labels'"),
        (lambda: batches({"x": X, "labels": Y, "z": X}), "nothing takes 'z'.*leave it out"),
        (lambda: batches({"x": X}, "label"), "the data has no 'label'; it has 'x'"),
        (lambda: batches({"x": X, "lables": Y}), "target 'labels' is missing.*is 'lables' meant"),
        (lambda: batches((X, Y, Y, Y)), "4 values were given"),
        (lambda: batches((X, Y, W)), "weights of rows are given, but the loss takes none"),
        (lambda: batches(X, {"label": Y}), "targets are given as 'label', but"),
        (lambda: batches(X, (Y, Y)), "2 targets were given"),
        (lambda: batches(X[:0], Y[:0]), "there is no data"),
        (lambda: batches([], []), "there is no data"),
        (lambda: batches(iter([])), "there is no data: it yields no batches"),
        (lambda: batches(hugging_face().select([])), "there is no data: the data set has no rows"),
        (lambda: batches([[1, 2, 3], [1, 2]], [0, 1]), "rows of input 'x' have different lengths.*pad them"),
        (lambda: batches(np.array([[1, 2, 3], [1, 2]], object), [0, 1]), "have different lengths"),
        (lambda: batches(np.array([{}, {}], object), [0, 1]), "an array of objects \\(dict\\)"),
        (lambda: batches(X[:, :2], Y), "input 'x' has shape \\[N, 3\\], but the data has \\[10, 2\\]"),
        (lambda: batches(X[0], Y[:3]), "is the axis of rows missing"),
        (lambda: batches(np.ones((10, 8, 8, 3)), Y, IMAGES), "x.transpose\\(0, 3, 1, 2\\) would fit"),
        (lambda: batches(np.ones((10, 8, 8)), Y, GRAY), "channels missing\\? x\\[:, None\\]"),
        (lambda: batches([(np.ones((3, 8, 8)), 1)], None, IMAGES), "batch 1: .*axis of rows missing"),
        (
            lambda: batches(X, B, [INPUTS[0], Field("labels", np.int64, ("N", 20), Role.TARGET)]),
            "scores \\[N, ..., C\\]",
        ),
        (lambda: batches(np.ones((10, 192)), Y, IMAGES), "x.reshape\\(len\\(x\\), 3, 8, 8\\) would fit"),
        (lambda: batches(X, Y, FIXED), "batches of exactly 4 rows, but 10 rows come in batches of 4, .* of 2"),
        (lambda: batches(cut(), None, FIXED), "batch 3: input 'x' takes batches of exactly 4 rows, not 2"),
        (lambda: batches(X, Y + 0.5), "whole numbers \\(int64\\), but the data \\(float64\\) has"),
        (lambda: one(np.array([300]), np.uint8), "from 0 to 255, but the data has numbers from 300 to 300"),
        (lambda: one(np.array([2]), np.bool_), "takes truth values"),
        (lambda: one(np.array([1e300]), np.float32), "cannot hold numbers as large"),
        (lambda: one(np.array([1e10]), np.float16), "cannot hold numbers as large"),
        (lambda: one(np.array([np.nan]), np.int64), "whole numbers"),
        (lambda: one(np.array(["a"]), np.float32), "is float32, but the data is <U1; encode it"),
        (lambda: one(np.array([1.0]), object), "is text, but the data is float64"),
        (lambda: one(np.array(["2020-01-01"], "datetime64[D]"), np.float32), "the data is datetime64"),
        (lambda: one(3, np.float32), "is a single value"),
        (lambda: batches(iter(cut()), Y), "`targets` belongs to arrays"),
        (lambda: batches("data.csv"), "the data is the text 'data.csv'; read the file"),
        (lambda: batches({"train": hugging_face()}), "has the parts 'train'; give one of them: data\\['train'\\]"),
        (lambda: batches(lambda a, b: 5), "or the number of the epoch, not a, b"),
        (lambda: batches(X, np.eye(4)[Y]), "is there a number for each class\\? y.argmax\\(1\\) makes labels"),
        (
            lambda: batches(frame()[["labels"]].assign(name="a")),
            "takes columns of numbers, but the table has 'name' ",
        ),
        (lambda: batches(5), "the data is int, which is neither arrays"),
        (lambda: batches(lambda: 5), "returned int, not batches"),
        (lambda: batches([(X, Y[:9])]), "batch 1: input 'x' has 10 rows, but target 'labels' has 9"),
        (lambda: batches([(X[:0], Y[:0])]), "batch 1: it has no rows"),
        (lambda: source(X, Y, inputs=INPUTS, batch_size=0), "`batch_size` is a number of rows"),
        (lambda: batches(X, Y, WEIGHTED, sample_weight=W[:9]), "same number of rows"),
        (lambda: batches([(X, Y, W[:9])], None, WEIGHTED), "a number for each of 10 rows"),
        (lambda: batches(frame()[["c0", "c1", "labels"]]), "takes 3 numbers in each row, but the table has 2 columns"),
        (lambda: batches(torch().from_numpy(X).to_sparse(), Y), "sparse tensor; convert it with .to_dense"),
    ],
)
def test_mistakes(make, message: str) -> None:
    with pytest.raises(OnwardError, match=message):
        make()


def test_names_that_are_missing_are_a_kind_of_their_own() -> None:
    with pytest.raises(UnknownNameError):
        batches({"y": Y})
