"""Which operator exists in which opset, and which opset an installed onnxruntime accepts."""

from __future__ import annotations

import difflib
import functools
from importlib import metadata

import onnx

from onward.errors import OpsetError, UnknownNameError

# The newest default-domain opset and IR version that onnxruntime loads, by its minor release: measured by loading an
# Identity model in each of the releases 1.17 to 1.31. One that is not listed accepts what the nearest older one does.
_ACCEPTED = {
    17: (20, 9),
    18: (21, 10),
    21: (22, 10),
    23: (23, 11),
    24: (25, 13),
    25: (26, 13),
}


class NeedsOpsetError(Exception):
    """Raised while a graph is being built: the operator is newer than the graph's opset.

    Not an error for users: whoever builds the graph upgrades the model to `version` and starts again.
    """

    def __init__(self, op_type: str, version: int) -> None:
        super().__init__(f"{op_type} in this form exists since opset {version}")
        self.version = version


@functools.cache
def runtime_release() -> int | None:
    """The n of the installed onnxruntime 1.n; None where there is none, or another.

    Read from the package's version number, so that building graphs does not import onnxruntime.
    """
    for distribution in ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino"):
        try:
            major, minor = (int(part) for part in metadata.version(distribution).split(".")[:2])
        except (metadata.PackageNotFoundError, ValueError):
            continue
        return minor if major == 1 else None
    return None


def runtime_is_before(release: int) -> bool:
    """Whether the installed onnxruntime is older than 1.`release`."""
    found = runtime_release()
    return found is not None and found < release


@functools.cache
def accepted_by_runtime() -> tuple[int, int]:
    """The newest (opset, IR version) that the installed onnxruntime accepts."""
    release = runtime_release()
    listed = [known for known in _ACCEPTED if release is not None and known <= release]
    return _ACCEPTED[max(listed or _ACCEPTED)]


def require_accepted(opset: int) -> None:
    """Refuse a model whose default-domain opset the installed onnxruntime would not load."""
    newest, _ = accepted_by_runtime()
    if opset > newest:
        raise OpsetError(
            f"the model uses opset {opset} of the default domain, but the installed onnxruntime accepts opset "
            f"{newest} at most, so no graph made from it could run. Export the model again with "
            f"opset_version={newest} or lower, convert it with onnx.version_converter.convert_version(model, "
            f"{newest}), or install a newer onnxruntime."
        )


@functools.cache
def schema(op_type: str, opset: int, domain: str = "") -> onnx.defs.OpSchema:
    """The schema of an operator as of `opset`; raises NeedsOpsetError where it is introduced later."""
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        versions = [s.since_version for s in all_schemas(op_type, domain)]
        if not versions:
            known = {s.name for s in _schemas_with_history() if s.domain == domain}
            close = difflib.get_close_matches(op_type, known, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            where = f"the domain {domain!r}" if domain else "the ONNX standard"
            raise UnknownNameError(f"there is no operator {op_type} in {where}{hint}") from None
        raise NeedsOpsetError(op_type, min(versions)) from None


@functools.cache
def all_schemas(op_type: str, domain: str = "") -> tuple[onnx.defs.OpSchema, ...]:
    """Every version of an operator's schema; empty when onnx does not know the operator."""
    return tuple(s for s in _schemas_with_history() if s.name == op_type and s.domain == domain)


@functools.cache
def _schemas_with_history() -> tuple[onnx.defs.OpSchema, ...]:
    return tuple(onnx.defs.get_all_schemas_with_history())
