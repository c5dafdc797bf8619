"""Functions in LLVM's language, compiled for this processor where llvmlite is installed."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

_LOOP = """
define void @{name}(i64 %n, {arguments}) {{
entry:
    {before}
    %some = icmp sgt i64 %n, 0
    br i1 %some, label %loop, label %done
loop:
    %i = phi i64 [0, %entry], [%next, %loop]
    {body}
    %next = add nuw nsw i64 %i, 1
    %more = icmp slt i64 %next, %n
    br i1 %more, label %loop, label %done
done:
    ret void
}}
"""


def is_available() -> bool:
    """Whether there is something to compile with."""
    try:
        import llvmlite.binding
    except ImportError:
        return False
    return hasattr(llvmlite.binding, "create_pass_builder")  # not in old releases


def loop(name: str, arguments: str, body: str, before: str = "") -> str:
    """The text of a function that runs `body` for each ``%i`` from 0 to ``%n``, its first argument."""
    return _LOOP.format(name=name, arguments=arguments, body=body.strip(), before=before.strip())


@functools.lru_cache(maxsize=64)
def compiled(source: str, name: str, pointers: int) -> Callable[..., None]:
    """One of the functions in `source`, of a number and that many addresses; it runs without the GIL."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=3)
    module = llvm.parse_assembly(source)
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int64, *[ctypes.c_void_p] * pointers)
    function: Any = kind(engine.get_function_address(name))
    function.owner = engine  # of its code
    return function
