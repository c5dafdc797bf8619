"""A graph over tensors of torch."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import torch
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]

from onward.runtime.exchange import ExchangeSession
from onward.torch.threads import rest_openmp


class TensorSession:
    """One of the graphs of a plan; nothing is copied on the way in or out."""

    def __init__(self, model: onnx.ModelProto) -> None:
        # As many threads as torch has: it has been told, by the user or by what starts several processes on a machine.
        self._session = ExchangeSession(model.SerializeToString(), threads=torch.get_num_threads())
        self.inputs, self.outputs = self._session.inputs, self._session.outputs

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs for these inputs, in order."""
        feeds, is_empty = [], False
        for tensor in tensors:
            if tensor.requires_grad:
                tensor = tensor.detach()
            if not tensor.is_contiguous():
                tensor = tensor.contiguous()
            is_empty = is_empty or tensor.numel() == 0
            if tensor.dtype is torch.bool:
                feeds.append((to_dlpack(tensor.view(torch.uint8)), True))
            else:
                feeds.append((to_dlpack(tensor), False))
        rest_openmp()
        capsules, booleans = self._session.run(feeds, is_empty=is_empty)
        results = [from_dlpack(capsule) for capsule in capsules]
        for index in booleans:
            results[index] = results[index].view(torch.bool)
        return results
