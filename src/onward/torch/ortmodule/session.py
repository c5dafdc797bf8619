"""A graph over tensors of torch."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence

import onnx
import torch
from torch._C import _from_dlpack, _to_dlpack

from onward.runtime.exchange import ExchangeSession
from onward.torch.threads import rest_openmp

# Seconds. To end torch's waiting threads and to start them again costs up to a fifth of a millisecond. For runs shorter
# than this, it costs less to wake onnxruntime's threads up on the cores where those spin: mostly, they are pushed aside
# for a slice of time. (The two are equal somewhere between 0.7 and 1 ms: an
# LSTM of 1.03 ms takes as long, a LeNet of 1.02 ms takes 1.4 if they spin.)
_SHORT = 8e-4
# In runs shorter than this, it may take longer to wake a thread up than it helps.
_TINY = 2.5e-4
_TRIALS = 5  # of one thread, before it is compared with all of them


class _Timed:
    """A session, how often it ran, and how long that takes at least."""

    def __init__(self, content: bytes, threads: int) -> None:
        self.session, self.threads = ExchangeSession(content, threads=threads), threads
        self.runs, self.seconds = 0, math.inf

    def run(self, feeds: Sequence[tuple[object, bool]], *, is_empty: bool) -> tuple[list[object], list[int]]:
        in_the_way = self.threads > 1 and not (self.seconds < _SHORT and self.session.has_places)
        if in_the_way:
            rest_openmp()
        start = time.perf_counter()
        found = self.session.run(feeds, is_empty=is_empty)
        # Not what it took when something else ran; and sizes may grow.
        self.seconds = min(time.perf_counter() - start, 1.1 * self.seconds)
        self.runs += 1
        return found


class TensorSession:
    """One of the graphs of a plan; nothing is copied on the way in or out."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._content = model.SerializeToString()
        # As many threads as torch has: it has been told, by the user or by what starts several processes on a machine.
        self._all = _Timed(self._content, torch.get_num_threads())
        self._one: _Timed | None = None
        self._opening = threading.Lock()
        self.inputs, self.outputs = self._all.session.inputs, self._all.session.outputs

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs for these inputs, in order."""
        feeds, is_empty = [], False
        for tensor in tensors:
            if not tensor.is_contiguous():
                tensor = tensor.contiguous()
            is_empty = is_empty or tensor.numel() == 0
            if tensor.dtype is torch.bool:
                feeds.append((_to_dlpack(tensor.view(torch.uint8)), True))
            else:
                feeds.append((_to_dlpack(tensor), False))
        capsules, booleans = self._faster().run(feeds, is_empty=is_empty)
        results = [_from_dlpack(capsule) for capsule in capsules]
        for index in booleans:
            results[index] = results[index].view(torch.bool)
        return results

    def _faster(self) -> _Timed:
        """All threads, or the caller's alone where that was seen to be faster."""
        together, alone = self._all, self._one
        if together.seconds > _TINY or together.threads == 1:
            return together
        if alone is None:
            if together.runs < _TRIALS:
                return together
            with self._opening:
                alone = self._one = self._one or _Timed(self._content, 1)
        return alone if alone.runs < _TRIALS or alone.seconds < together.seconds else together
