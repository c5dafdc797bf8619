"""Sessions over tensors of another framework: DLPack carries them in and out, nothing is copied."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

import onnxruntime
from onnxruntime.capi import _pybind_state as native

from onward.errors import OnwardError
from onward.runtime.session import default_options, open_session

_AFFINITIES = "session.intra_op_thread_affinities"  # of each thread but the caller's; the first core is 1


class ExchangeSession:
    """One model; any number of threads may run it."""

    def __init__(self, content: bytes, *, threads: int) -> None:
        if not hasattr(native.OrtValueVector, "to_dlpacks"):
            raise OnwardError(
                f"tensors of other frameworks need an onnxruntime with DLPack, which {onnxruntime.__version__} lacks"
            )
        self._content, self._options = content, default_options()
        self._options.intra_op_num_threads = threads
        self.has_places = _give_places(self._options)  # its threads have cores of their own
        self._sessions: dict[bool, onnxruntime.InferenceSession] = {}  # whether as written
        self._opening = threading.Lock()
        first = self._session(as_written=False)
        self.inputs = [value.name for value in first.get_inputs()]
        self.outputs = [value.name for value in first.get_outputs()]
        others = [value.name for value in (*first.get_inputs(), *first.get_outputs()) if value.type[:7] != "tensor("]
        if others:
            raise OnwardError(f"other frameworks have tensors only, and {', '.join(others)} of the graph are none")
        device = native.OrtDevice(native.OrtDevice.cpu(), native.OrtDevice.default_memory(), 0)
        self._devices = [device] * len(self.outputs)
        self._run = onnxruntime.RunOptions()

    def _session(self, *, as_written: bool) -> onnxruntime.InferenceSession:
        found = self._sessions.get(as_written)
        if found is None:
            with self._opening:
                if as_written not in self._sessions:
                    self._sessions[as_written] = open_session(
                        self._content, options=self._options, as_written=as_written
                    )
                found = self._sessions[as_written]
        return found

    def run(self, tensors: Sequence[tuple[Any, bool]], *, is_empty: bool = False) -> tuple[Any, list[int]]:
        """The outputs, as DLPack capsules in order, and which of them are bool, though they look like uint8.

        Args:
            tensors: the inputs in order: a capsule, and whether its bytes are bool.
            is_empty: one of them has no elements.
        """
        feeds = native.OrtValueVector()
        feeds.reserve(len(tensors))
        for capsule, is_bool in tensors:
            feeds.push_back(capsule, is_bool)
        results = native.OrtValueVector()
        # Products that onnxruntime has fused with a transposition end the process if there is nothing in them.
        session = self._session(as_written=is_empty)
        try:
            session.run_with_ortvaluevector(self._run, self.inputs, feeds, self.outputs, results, self._devices)
        except Exception as error:  # onnxruntime's exceptions have no common base but this
            raise OnwardError(f"onnxruntime could not run the graph: {str(error).strip()}") from error
        return results.to_dlpacks(None), results.bool_tensor_indices()


def _give_places(options: onnxruntime.SessionOptions) -> bool:
    """Give each thread of a session but the caller's a core of its own, as onnxruntime does if it counts them itself.

    A thread that wakes another one up has it run on its own core rather than where something else runs. If threads of
    others spin on the rest of the cores, a run would begin with the caller and its help taking turns on one. Programs
    that use fewer threads than there are cores have others beside them, who must not be given the same ones.
    """
    count = options.intra_op_num_threads
    if not sys.platform.startswith("linux") or count < 2:
        return False
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) != count:
        return False
    options.add_session_config_entry(_AFFINITIES, ";".join(str(1 + core) for core in cores[1:]))
    return True
