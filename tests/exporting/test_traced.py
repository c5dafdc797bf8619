"""Words that are replaced while a module is traced are torch's again afterwards."""

from __future__ import annotations

import threading

import torch.nn.functional as F  # noqa: N812

from onward.torch.traced import traceable_words


def test_two_threads() -> None:
    """The second one begins while the first one traces, and ends after it."""
    plain, inside, leave = F.softplus, threading.Event(), threading.Event()

    def first() -> None:
        with traceable_words():
            inside.set()
            leave.wait(1)

    def second() -> None:
        inside.wait()
        threading.Timer(0.05, leave.set).start()
        with traceable_words():
            thread.join()

    thread, other = threading.Thread(target=first), threading.Thread(target=second)
    thread.start(), other.start()
    other.join()
    assert F.softplus is plain
