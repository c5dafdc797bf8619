"""Whether a graph may write an output over the input that it replaces."""

from __future__ import annotations

from onward.runtime import wire

# Operators that read each element before they write the same element, and no other afterwards.
_ELEMENTWISE = frozenset(
    "Abs Add Cast Clip Div Exp Identity Log Max Min Mul Neg Pow Reciprocal Relu Sigmoid Sign Sqrt Sub Sum Tanh "
    "Where".split()
)


def may_overwrite(model: wire.WireModel, source: str, result: str) -> bool:
    """Whether `result` can share memory with the graph input `source`.

    That is so if the node that computes it is elementwise, and all other nodes that read the input have run by then,
    in whatever order onnxruntime runs the graph: because the node needs what they compute.
    """
    producers = {name: node for node in model.nodes for name in node.outputs}
    last = producers.get(result)
    if last is None or last.operator not in _ELEMENTWISE:
        return False
    before: set[int] = set()
    waiting = list(last.inputs)
    while waiting:
        node = producers.get(waiting.pop())
        if node is not None and id(node) not in before:
            before.add(id(node))
            waiting.extend(node.inputs)
    readers = [node for node in model.nodes if source in node.inputs]
    return all(node is last or id(node) in before for node in readers)
