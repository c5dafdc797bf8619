"""Makes the graphs for a kind of call: torch is watched, the module exported, the graphs compared with torch."""

from __future__ import annotations

import inspect
import itertools
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from onward.errors import OnwardError
from onward.graph.proto import to_proto
from onward.runtime.files import write_bytes
from onward.torch.ortmodule._fallback import ORTModuleFallbackException, ORTModuleONNXModelException
from onward.torch.ortmodule.call import Call
from onward.torch.ortmodule.capture import Captured, Wishes, capture
from onward.torch.ortmodule.fingerprint import Fingerprint
from onward.torch.ortmodule.graphs import without_weights, write
from onward.torch.ortmodule.options import DebugOptions, RuntimeOptions
from onward.torch.ortmodule.plan import Plan
from onward.torch.ortmodule.precision import full_precision, rehearse_call


def build(
    module: nn.Module,
    signature: inspect.Signature,
    call: Call,
    options: DebugOptions,
    runtime: RuntimeOptions,
    *,
    any_image: bool = False,
) -> Plan:
    """The graphs for calls like this one, compared with torch; `any_image`: sizes of images vary."""
    wishes = Wishes.of(runtime.opset, runtime.export_extra_kwargs)
    times = [time.perf_counter()]
    rehearsed = rehearse_call(module, signature, call)
    times.append(time.perf_counter())
    try:
        with torch.random.fork_rng(devices=[]), full_precision():  # the older exporter runs the module
            call = replace(rehearsed.call, changed=rehearsed.exact.changed, rewritten=rehearsed.exact.rewritten)
            captured = capture(rehearsed.module, signature, call, wishes, any_image=any_image)
        times.append(time.perf_counter())
        state = Fingerprint(module, named=True)
        mode = "training" if torch.is_grad_enabled() and module.training else "inference"
        graphs = write(captured, state, rehearsed.exact)
        plan = Plan(module, signature, captured, graphs, state.names, rehearsed)
        _save(options, mode, captured, plan, state.names)
        times.append(time.perf_counter())
        plan.verify(rehearsed, state)
        times.append(time.perf_counter())
    except ORTModuleFallbackException:
        raise
    except OnwardError as error:
        raise ORTModuleONNXModelException(f"{type(error).__name__}: {error}") from error
    except Exception as error:
        raise ORTModuleONNXModelException(
            "onward could not make graphs of what torch exported, a mistake of onward's that deserves a report: "
            f"{type(error).__name__}: {error}"
        ) from error
    rehearsing, exporting, building, verifying = (end - start for start, end in itertools.pairwise(times))
    plan.seconds = {"export": exporting, "build": building, "comparison": rehearsing + verifying}
    return plan


def _save(options: DebugOptions, mode: str, captured: Captured, plan: Plan, names: Sequence[str]) -> None:
    if not options.save_onnx:
        return
    graphs = plan.graphs
    written = {"torch_exported": to_proto(plan.exported), "optimized": graphs.forward}
    if graphs.backward is not None:
        written["optimized_pre_grad"] = to_proto(without_weights(captured.model, names))
    written["execution_model"] = graphs.forward if graphs.backward is None else graphs.backward
    for what, model in written.items():
        write_bytes(options.file(what, mode), model.SerializeToString())
