"""The kernels of an update plan, bound to the tensors that they update in place.

A kernel is a small graph. onnxruntime runs it over chunks that fit into the cache; where llvmlite is installed, and
there is enough to do, it is compiled into one loop instead.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime

from onward.plan import COEFFICIENT, GRAD_SCALE, GRADIENT, PARAMETER, UPDATED, Kernel, UpdatePlan
from onward.runtime import compiled, llvm, valueproto, wire
from onward.runtime.inplace import may_overwrite
from onward.runtime.session import NUMPY_TYPES, open_session
from onward.runtime.tensors import FlatTensors, value_of

# An optimizer is a dozen passes over memory; in chunks of this many elements they run in the cache.
_CHUNK = 2**18
# Compiling takes memory and some time: not for less than this many elements,
_WORTH_COMPILING = 2**16
# and a loop over fewer than this is over before a second thread has woken up.
_WORTH_A_THREAD = 2**19

Chunk = tuple[np.dtype, int, int]  # of the buffer of that dtype, from, to
Run = Callable[[], None]


@dataclass
class _SessionRun:
    """One run of a session over tensors that are bound to it."""

    session: onnxruntime.InferenceSession
    binding: Any
    # Outputs that could not be written in place, and where they go afterwards.
    copies: list[tuple[FlatTensors, onnxruntime.OrtValue]] = field(default_factory=list)
    # onnxruntime copies inputs to a device when they are bound: bind these again before each run, they have changed.
    scalars: dict[str, onnxruntime.OrtValue] = field(default_factory=dict)

    def __call__(self) -> None:
        for name, value in self.scalars.items():
            self.binding.bind_ortvalue_input(name, value)
        self.session.run_with_iobinding(self.binding)
        for source, target in self.copies:
            target.update_inplace(source[UPDATED])


@dataclass
class _LoopRun:
    """Calls of a compiled loop, one for each thread, with arrays that have to stay where they are."""

    function: Callable[..., None]
    calls: list[list[np.ndarray]]
    pool: ThreadPoolExecutor | None

    def __post_init__(self) -> None:
        self._arguments = [(call[-1].size, *(array.ctypes.data for array in call)) for call in self.calls]

    def __call__(self) -> None:
        first, *others = self._arguments
        waiting = [self.pool.submit(self.function, *arguments) for arguments in others] if self.pool else []
        self.function(*first)
        for future in waiting:
            future.result()


class Binder:
    """Binds the kernels of a plan to tensors of one layout.

    Args:
        tensors: by what kernels call them: parameter, gradient and the slots.
        scalars: inputs that are the same for all elements; their contents change from run to run.
    """

    def __init__(
        self,
        plan: UpdatePlan,
        tensors: Mapping[str, FlatTensors],
        scalars: Mapping[str, onnxruntime.OrtValue],
        options: onnxruntime.SessionOptions | None,
        providers: Sequence[Any],
    ) -> None:
        self._plan, self._tensors, self._scalars = plan, tensors, scalars
        self._options, self._providers = options, providers
        self._parameters = tensors[PARAMETER]
        self._on_host = self._parameters.device.is_host
        threads = self._threads()
        self._pool = ThreadPoolExecutor(threads - 1) if threads > 1 else None  # its threads start when there is work

    def runs(self) -> list[Run]:
        """What has to be called, in this order, for one step."""
        runs: list[Run] = []
        if self._plan.norm is not None:
            runs.append(self._norm(self._plan.norm))
        for kernel in self._plan.kernels:
            model = wire.parse(kernel.model)
            compiled_runs = self._compiled(kernel, model)
            if compiled_runs:
                runs += compiled_runs
                continue
            session = self._open(kernel.model)
            runs += [self._chunk(session, model, chunk) for chunk in self._chunks(kernel)]
        return runs

    def _open(self, model: bytes) -> onnxruntime.InferenceSession:
        return open_session(model, options=self._options, providers=self._providers)

    def _norm(self, model: bytes) -> Run:
        session, gradients = self._open(model), self._tensors[GRADIENT]
        binding = session.io_binding()
        for value in session.get_inputs():
            # One input for each type; bfloat16 is the only one that numpy does not know.
            wanted = NUMPY_TYPES.get(value.type)
            dtype = next(d for d in gradients.dtypes if d == wanted or (wanted is None and d.name == "bfloat16"))
            binding.bind_ortvalue_input(value.name, gradients.rows(dtype))
        binding.bind_ortvalue_output(COEFFICIENT, self._scalars[GRAD_SCALE])
        return _SessionRun(session, binding)

    def _chunk(self, session: onnxruntime.InferenceSession, model: wire.WireModel, chunk: Chunk) -> Run:
        wanted = {value.name for value in session.get_inputs()}
        run = _SessionRun(session, session.io_binding())
        for name, tensor in self._tensors.items():
            value = tensor.chunk(*chunk)
            if name in wanted:
                run.binding.bind_ortvalue_input(name, value)
            if f"{name}{UPDATED}" not in model.outputs:
                continue
            result = value
            if not may_overwrite(model, name, f"{name}{UPDATED}"):
                dtype, start, end = chunk
                spare = FlatTensors({UPDATED: ((end - start,), dtype)}, tensor.device)
                run.copies.append((spare, value))
                result = spare.ortvalue(UPDATED)
            run.binding.bind_ortvalue_output(f"{name}{UPDATED}", result)
        scalars = {name: value for name, value in self._scalars.items() if name in wanted}
        for name, value in scalars.items():
            run.binding.bind_ortvalue_input(name, value)
        run.scalars = {} if self._on_host else scalars
        return run

    def _chunks(self, kernel: Kernel) -> Iterator[Chunk]:
        """The parts of the buffers that a kernel updates, one run each."""
        parameters = self._parameters
        if not self._plan.elementwise:
            for name in kernel.parameters:
                shape, dtype = parameters.layout[name]
                start = parameters.offsets[name]
                yield dtype, start, start + math.prod(shape)
            return
        for dtype, start, end in parameters.runs(set(kernel.parameters)):
            for begin in range(start, end, _CHUNK):
                yield dtype, begin, min(begin + _CHUNK, end)

    def _compiled(self, kernel: Kernel, model: wire.WireModel) -> list[Run]:
        """A run that computes what is the same for all elements, then loops over them; or nothing."""
        size = sum(math.prod(self._parameters.layout[name][0]) for name in kernel.parameters)
        if not (self._plan.elementwise and self._on_host and size >= _WORTH_COMPILING and llvm.is_available()):
            return []
        parts = list(self._parameters.runs(set(kernel.parameters)))
        dtype = parts[0][0]
        loop = compiled.loop_of(model, dtype)
        if loop is None:
            return []
        scalars = {name: np.zeros(1, dtype) for name in loop.scalars}
        function = loop.compiled()
        tensors = [self._tensors[name] for name in loop.tensors]
        runs = [self._once(model, scalars)] if scalars else []
        for _, start, end in parts:
            threads = min(self._threads(), 1 + (end - start) // _WORTH_A_THREAD)
            step = -(-(end - start) // threads // 64) * 64  # no two threads write to one cache line
            spans = [(begin, min(begin + step, end)) for begin in range(start, end, step)]
            calls = [[*scalars.values(), *(t.part(dtype, *span) for t in tensors)] for span in spans]
            runs.append(_LoopRun(function, calls, self._pool))
        return runs

    def _once(self, model: wire.WireModel, results: Mapping[str, np.ndarray]) -> Run:
        """A run of the nodes of a kernel that compute these scalars."""
        described = {name: valueproto.encode(name, *(model.type_of(name) or (None, None))) for name in results}
        model.set_outputs(results, described)
        model.prune()
        session = self._open(model.serialize())
        binding = session.io_binding()
        for value in session.get_inputs():
            binding.bind_ortvalue_input(value.name, self._scalars[value.name])
        for name, array in results.items():
            binding.bind_ortvalue_output(name, value_of(array.reshape(())))
        return _SessionRun(session, binding)

    def _threads(self) -> int:
        return (self._options.intra_op_num_threads if self._options else 0) or os.cpu_count() or 1
