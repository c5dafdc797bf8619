"""What a call writes to the tensors of the module: running statistics, counts of calls and other buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from onward.torch.ortmodule._fallback import ORTModuleONNXModelException
from onward.torch.ortmodule.precision import Rehearsed


@dataclass(frozen=True)
class _Counter:
    """A buffer that counts calls, and by how much it grows with each."""

    state: int
    step: int


class Effects:
    """What the graphs of one kind of call compute for buffers, by the places of tensors in the module's state.

    Attributes:
        rewritten: the names of buffers whose new values are the last of the results.
    """

    def __init__(
        self,
        names: Sequence[str],
        statistics: Mapping[str, str],
        results: Mapping[str, int],
        order: Sequence[int],
        rewritten: Sequence[str],
    ) -> None:
        """Take the names of all tensors of the module, which results of the graph are running statistics of which of
        them and where they are, and which outputs, in the order of what the module returns, end in new values."""
        first = first_places(names)
        self.rewritten = rewritten
        self._updated = [(results[new], first[old]) for new, old in statistics.items()]
        self._layers = [names[index].rpartition(".")[0] for _, index in self._updated]  # that the statistics are of
        self._counters: list[_Counter] = []
        self._places = [first[name] for name in rewritten]
        self._outputs = order[len(order) - len(rewritten) :]
        self._copied = self._places  # and the counters that the graph reads

    def untouched(self, states: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The tensors of the module, and copies of those that will be written to: the backward pass needs them."""
        if not self._copied:
            return states
        written = {id(states[index]) for index in self._copied}
        return [tensor.clone() if id(tensor) in written else tensor for tensor in states]

    def write(
        self, results: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], states: Sequence[torch.Tensor]
    ) -> None:
        """Write what a call computed."""
        if not (self._updated or self._counters or self._places):
            return
        with torch.no_grad():
            for result, index in self._updated:
                states[index].copy_(results[result])
            for counter in self._counters:
                states[counter.state].add_(counter.step)
            for index, output in zip(self._places, self._outputs, strict=True):
                states[index].copy_(outputs[output])

    def verify(
        self,
        results: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        rehearsed: Rehearsed,
        states: Sequence[torch.Tensor],
        read: Sequence[int],
        *,
        again: bool,
    ) -> None:
        """Compare with what torch wrote, and note what counts calls.

        Args:
            results: of the graph.
            outputs: those that the module returns, and new values.
            rehearsed: what torch did.
            states: the tensors of the module, untouched.
            read: the places of those that the graph reads.
            again: for other sizes than before, which have to count alike.
        """
        updated = {index: results[result] for result, index in self._updated}
        for layer in dict.fromkeys(self._layers):
            # Together: the mean of what was normalised before is noise, which only the variance gives a measure of.
            own = [index for index, of in zip(updated, self._layers, strict=True) if of == layer]
            rehearsed.require_equal(
                f"running statistic of {layer!r}",
                [updated[index] for index in own],
                lambda run, own=own: [run.after[index] for index in own],  # type: ignore[misc]
            )
        for name, index, output in zip(self.rewritten, self._places, self._outputs, strict=True):
            rehearsed.require_equal(
                f"new value of {name!r}",
                [outputs[output]],
                lambda run, index=index: [run.after[index]],  # type: ignore[misc]
            )
        counters = self._counters_of(states, rehearsed.exact.after, updated)
        if again and counters != self._counters:
            raise ORTModuleONNXModelException("it counts its calls in different ways")
        self._counters = counters
        is_read = {id(states[index]) for index in read}
        self._copied = [*self._places, *(c.state for c in counters if id(states[c.state]) in is_read)]

    def _counters_of(
        self, states: Sequence[torch.Tensor], after: Sequence[torch.Tensor], updated: Mapping[int, torch.Tensor]
    ) -> list[_Counter]:
        """The buffers that torch changed and the graph has no new value for."""
        written = {id(states[index]) for index in self._places}
        found: dict[int, _Counter] = {}  # by buffer, which may have several names
        for index, (before, now) in enumerate(zip(states, after, strict=True)):
            if index in updated or id(before) in written or torch.equal(before, now):
                continue
            if now.dtype != torch.int64 or now.ndim > 0:
                raise ORTModuleONNXModelException("it changes a buffer in another way than BatchNorm does")
            found.setdefault(id(before), _Counter(index, int(now - before)))
        return list(found.values())


def first_places(names: Sequence[str]) -> dict[str, int]:
    """Where each name stands first."""
    return {name: index for index, name in reversed(list(enumerate(names)))}
