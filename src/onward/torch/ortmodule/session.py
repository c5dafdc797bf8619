"""A graph over tensors of torch."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Sequence

import onnx
import torch
from torch._C import _from_dlpack, _to_dlpack

from onward.runtime.exchange import ExchangeSession
from onward.torch.ortmodule.surroundings import apart
from onward.torch.threads import rest_openmp

# Seconds. To end torch's waiting threads and to start them again costs up to a fifth of a millisecond. For runs shorter
# than this, it costs less to wake onnxruntime's threads up on the cores where those spin: mostly, they are pushed aside
# for a slice of time. (The two are equal somewhere between 0.7 and 1 ms: an LSTM of 1.03 ms takes as long if they spin,
# a LeNet of 1.02 ms takes 1.4.) What counts is the longer one of both graphs of a step: threads that are ended anyway
# may as well be ended before the other one. (A forward pass of 0.5 ms takes 0.9 if they spin.)
_SHORT = 8e-4
# In runs shorter than this, the caller's thread alone may be faster: how long it takes to wake another one up, and to
# hand data over, is up to where the cores are, which on virtual machines is not always the same.
_LIMITED = 1e-2
_TRIALS = 5  # of all threads, before the caller's alone is tried
# The slower of the two has this many runs of so many, fewer if it takes far longer. The first of them is no measure:
# threads have to wake up.
_PROBES, _AGAIN, _SELDOM, _FAR = 4, 200, 4000, 1.5


class _Timed:
    """A session, how often it ran, and how long that takes at least."""

    def __init__(self, content: bytes, threads: int) -> None:
        self.session, self.threads = ExchangeSession(content, threads=threads), threads
        self.runs, self.seconds = 0, math.inf

    def run(
        self, feeds: Sequence[tuple[object, bool]], *, is_empty: bool, beside: float
    ) -> tuple[list[object], list[int]]:
        """The results; `beside`: what the other graph of a step takes, if that is all threads' as well."""
        start = time.perf_counter()
        is_short = max(self.seconds, beside) < _SHORT
        in_the_way = self.threads > 1 and not (is_short and self.session.has_places)
        if in_the_way:
            rest_openmp()
        found = self.session.run(feeds, is_empty=is_empty)
        # Not what it took when something else ran; and sizes may grow.
        self.seconds = min(time.perf_counter() - start, 1.1 * self.seconds)
        self.runs += 1
        return found


class TensorSession:
    """One of the graphs of a plan; nothing is copied on the way in or out.

    `partner`: the graph of the same step that runs before this one.
    """

    def __init__(self, model: onnx.ModelProto, partner: TensorSession | None = None) -> None:
        # Weak, because each has the other one.
        self._partner = None if partner is None else weakref.ref(partner)
        if partner is not None:
            partner._partner = weakref.ref(self)
        self._content = model.SerializeToString()
        # As many threads as torch has: it has been told, by the user or by what starts several processes on a machine.
        self._all = _Timed(self._content, torch.get_num_threads())
        self._one: _Timed | None = None  # the caller's thread alone
        self._may_be_one = self._all.threads > 1
        self._runs = 0
        self._opening = threading.Lock()
        self.inputs, self.outputs = self._all.session.inputs, self._all.session.outputs

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs for these inputs, in order."""
        if self._one is None and self._may_be_one and self._all.runs >= _TRIALS and self._all.seconds < _LIMITED:
            return self._tried(tensors)
        return self._run(self._faster(), tensors)

    def _run(self, session: _Timed, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        feeds, is_empty = [], False
        for tensor in tensors:
            if not tensor.is_contiguous():
                tensor = tensor.contiguous()
            is_empty = is_empty or tensor.numel() == 0
            if tensor.dtype is torch.bool:
                feeds.append((_to_dlpack(tensor.view(torch.uint8)), True))
            else:
                feeds.append((_to_dlpack(tensor), False))
        partner = None if self._partner is None else self._partner()
        beside = 0.0 if partner is None else partner._seconds
        capsules, booleans = session.run(feeds, is_empty=is_empty, beside=beside)
        results = [_from_dlpack(capsule) for capsule in capsules]
        for index in booleans:
            results[index] = results[index].view(torch.bool)
        return results

    def _tried(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """By both, which must agree to the last bit, or the same program would not always compute the same."""
        results = self._run(self._all, tensors)
        with self._opening:
            if self._may_be_one:
                self._may_be_one = False  # once
                alone = _Timed(self._content, 1)
                with apart():
                    if all(map(_is_same, results, self._run(alone, tensors))):
                        alone.seconds = math.inf  # the first run of a session takes longer than others
                        self._one = alone
        return results

    @property
    def _seconds(self) -> float:
        """What a run takes by all threads; 0 where it is the caller's alone, or there was none."""
        return self._all.seconds if self._all.runs and self._by_speed()[0] is self._all else 0.0

    def _by_speed(self) -> tuple[_Timed, _Timed]:
        """All threads and the caller's alone, where both are known: what was seen to be faster, and the other one."""
        together, alone = self._all, self._one
        if alone is None:
            return together, together
        return (alone, together) if alone.runs <= _TRIALS or alone.seconds < together.seconds else (together, alone)

    def _faster(self) -> _Timed:
        """The faster one, but for some runs now and then."""
        faster, other = self._by_speed()
        if self._one is None or self._one.runs <= _TRIALS:
            return faster
        self._runs += 1
        every = _AGAIN if other.seconds < _FAR * faster.seconds else _SELDOM
        return faster if self._runs % every < every - _PROBES else other


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """To the last bit, NaN too."""
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
