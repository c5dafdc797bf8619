"""A graph over tensors of torch."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import onnx
import torch
from torch._C import _from_dlpack, _to_dlpack

from onward.runtime.exchange import ExchangeSession
from onward.torch.threads import rest_openmp

# Seconds. To end torch's waiting threads and to start them again costs a tenth of a millisecond. For runs shorter than
# this, it costs less to wake onnxruntime's threads up on the cores where those spin: mostly, they are pushed aside for
# a slice of time. (Measured with layers of several widths: the two are equal at 0.7 ms.)
_SHORT = 1.2e-3


class TensorSession:
    """One of the graphs of a plan; nothing is copied on the way in or out."""

    def __init__(self, model: onnx.ModelProto) -> None:
        # As many threads as torch has: it has been told, by the user or by what starts several processes on a machine.
        self._session = ExchangeSession(model.SerializeToString(), threads=torch.get_num_threads())
        self.inputs, self.outputs = self._session.inputs, self._session.outputs
        self._seconds = math.inf  # that a run takes at least

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
        if not (self._seconds < _SHORT and self._session.has_places):
            rest_openmp()
        start = time.perf_counter()
        capsules, booleans = self._session.run(feeds, is_empty=is_empty)
        # Not what it took when something else ran; and sizes may grow.
        self._seconds = min(time.perf_counter() - start, 1.1 * self._seconds)
        results = [_from_dlpack(capsule) for capsule in capsules]
        for index in booleans:
            results[index] = results[index].view(torch.bool)
        return results
