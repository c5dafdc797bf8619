"""What is said about inputs that a graph refuses."""

import numpy as np
import pytest

from onward.errors import OnwardError
from onward.runtime.refusal import check_targets, explain
from onward.signature import CHECK

RANGE = "GatherElements op: Out of range value in index tensor"


@pytest.mark.parametrize(
    ("rule", "labels", "broken"),
    [
        ("labels 'y' must be from 0 to 2", [0, 3], True),
        ("labels 'y' must be from 0 to 2", [0, -1], True),
        ("labels 'y' must be from 0 to 2", [0, 2], False),
        ("labels 'y' must be from 0 to 2_1", [0, 2], False),
        ("labels 'y' must be from 0 to 2, or -100 to be ignored", [0, -100], False),
        ("labels 'y' must be from 0 to 2, or -100 to be ignored", [0, -100, 3], True),
        ("labels 'y' must be from 0 to 2, or -100 to be ignored", [-100, -100], False),
        ("labels 'y' must be from 0 to z.shape[1] - 1", [0, 2], True),  # it may be: nobody knows how many there are
        ("labels 'z' must be from 0 to 2", [0, 3], False),
    ],
)
def test_labels(rule, labels, broken):
    said = explain(RANGE, "graph", {"x": np.zeros(2), "y": np.array(labels)}, {"y"}, [f"{CHECK}{rule}"])
    assert said.startswith("labels 'y' must be from 0 to ") == broken
    assert "_1. " not in said
    assert said.endswith(f"onnxruntime says: {RANGE}")
    assert f"'y' of shape [{len(labels)}] with values from {min(labels)} to {max(labels)}" in said


def test_what_the_graph_refused_comes_first():
    said = f"running Reshape node. Name:'{CHECK}target 't' must have the shape of 'y'_12' Status Message: got -2"
    assert explain(said, "graph", {"t": np.zeros(1)}, {"t"}, []).startswith(
        "target 't' must have the shape of 'y'. 'graph' could not run. Given were 't' of shape [1]. onnxruntime says: "
    )


def test_names_that_two_sizes_have_say_nothing():
    declared = {"x": ["n", "s", "s"], "t": ["n", "s"]}
    check_targets({"x": [2, 3, 4], "t": [2, 4]}, declared, {"t"})
    with pytest.raises(OnwardError, match=r"input 't' has shape \[1, 4\], but 'x' has 2 as 'n'; these must be equal"):
        check_targets({"x": [2, 3, 4], "t": [1, 4]}, declared, {"t"})
