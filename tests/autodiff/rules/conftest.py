"""`make test` takes some of the cases of rules through training graphs, `make test-all` all of them."""

from __future__ import annotations

import zlib

import pytest

from onward.testing import rules

ONE_IN = 10


@pytest.fixture(autouse=True)
def sample_of_training(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the name of the test, so that it is the same sample every time."""
    if "not slow" in request.config.option.markexpr and zlib.crc32(request.node.nodeid.encode()) % ONE_IN:
        monkeypatch.setattr(rules, "check_training", lambda *_, **__: None)
