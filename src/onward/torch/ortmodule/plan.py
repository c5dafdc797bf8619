"""The graphs for one kind of call, and how tensors of torch go through them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from onward.torch.ortmodule._fallback import (
    ORTModuleONNXModelException,
    ORTModuleTorchModelException,
)
from onward.torch.ortmodule.call import Call, Results, Sizes
from onward.torch.ortmodule.capture import Captured
from onward.torch.ortmodule.dropout import Mask, sizes_by_name
from onward.torch.ortmodule.effects import Effects, first_places
from onward.torch.ortmodule.fingerprint import Fingerprint
from onward.torch.ortmodule.graphs import Graphs, without_weights
from onward.torch.ortmodule.precision import Rehearsed, widened
from onward.torch.ortmodule.repetition import Repetition, without_gradients
from onward.torch.ortmodule.session import TensorSession
from onward.torch.ortmodule.surroundings import is_many


class Plan:
    """A pair of graphs, or one where nothing has a gradient."""

    def __init__(
        self,
        module: nn.Module,
        signature: inspect.Signature,
        captured: Captured,
        graphs: Graphs,
        names: Sequence[str],
        rehearsed: Rehearsed,
    ) -> None:
        self._module, self._signature = module, signature
        self.guards, self._masks, self.exporter = captured.guards, captured.masks, captured.exporter
        self._passed, self._order = captured.passed, captured.order
        self.results: Results = rehearsed.exact.results.emptied()
        self._types, self._narrow = rehearsed.types, rehearsed.narrow
        self._changed, self._returned = rehearsed.exact.changed, rehearsed.exact.returned
        self.verified: set[Sizes] = set()
        self._draws: list[Mask | None] = []  # in torch's order; None is a number that only the generator sees
        self.seconds: dict[str, float] = {}  # what it took to make it
        self.is_training = torch.is_grad_enabled() and rehearsed.module.training
        self.graphs, self.exported = graphs, without_weights(captured.exported or captured.model, names)
        call = rehearsed.call
        requiring = [name for name, tensor in zip(captured.inputs, call.tensors, strict=True) if tensor.requires_grad]
        self.arguments = (captured.inputs, requiring, call.key)
        self._shapes = graphs.shapes  # as declared, of the arguments
        self._forward = TensorSession(graphs.forward)
        self._backward = None if graphs.backward is None else TensorSession(graphs.backward, self._forward)
        # The tensors that graphs may take: arguments, tensors of the module, masks; then what the first one returns.
        first = first_places(names)
        self._states = sorted({first[name] for name in graphs.states})
        slots = {name: index for index, name in enumerate(captured.inputs)}
        slots |= {names[state]: len(slots) + index for index, state in enumerate(self._states)}
        self._mask_slots = range(len(slots), len(slots) + len(self._masks))
        slots |= {mask.name: slot for mask, slot in zip(self._masks, self._mask_slots, strict=True)}
        self._feeds = [slots[name] for name in self._forward.inputs]
        given = dict(slots)  # an input may be an output, too
        slots |= {name: len(slots) + index for index, name in enumerate(self._forward.outputs)}
        self._given = len(captured.inputs) + len(self._states)
        count = len(captured.inputs) + len(self._states) + len(self._masks)
        self._outputs = [slots[name] - count for name in graphs.outputs]
        results = {new: slots[new] - count for new in graphs.statistics}
        self._effects = Effects(names, graphs.statistics, results, captured.order, rehearsed.exact.rewritten)
        self.constant = [i for i, name in enumerate(graphs.outputs) if name not in graphs.output_gradients]
        if self._backward is not None:
            seeds = {seed: graphs.outputs.index(name) for name, seed in graphs.output_gradients.items()}
            self._seeds = [seeds[name] for name in self._backward.inputs if name in seeds]
            self._saved = [slots[name] for name in self._backward.inputs if name not in seeds]
            self._backward_feeds = [
                (True, seeds[name]) if name in seeds else (False, self._saved.index(slots[name]))
                for name in self._backward.inputs
            ]
            gradients = {gradient: given[name] for name, gradient in graphs.gradients.items()}
            self._gradients = [gradients[name] for name in self._backward.outputs]

    def __call__(self, call: Call, state: Fingerprint) -> Any:
        """What the module returns."""
        run = _Run(self, call.sizes)
        tensors, states = self._unchanged(call, state), self._effects.untouched(state.tensors)
        if self._backward is not None and not self._narrow and not self._changed:
            generator = torch.get_rng_state() if self._draws else None
            run.repetition = Repetition(self._module, self._signature, call, state, states, generator)
        try:
            found = self.apply(run, tensors, states)
        finally:  # a checkpoint leaves its repetition by an exception, as soon as it has what it needs
            if run.outputs:
                self._effects.write(run.results, run.outputs, state.tensors)
        returned = self._with_passed(found, call.tensors)
        if self._narrow:
            returned = [tensor.to(dtype) for tensor, dtype in zip(returned, self._types, strict=True)]
        return self._written(call, returned) if self._changed else self.results.filled(returned)

    def _unchanged(self, call: Call, state: Fingerprint) -> list[torch.Tensor]:
        """The arguments, and copies of those that will be written to: the backward pass may need them as they are."""
        if not self._changed:
            return call.tensors
        memory = [tensor.untyped_storage().data_ptr() for tensor in (*call.tensors, *state.tensors)]
        if any(memory.count(memory[place]) > 1 for place in self._changed):
            raise ORTModuleTorchModelException("it changes an argument in place that shares its memory with another")
        return [tensor.clone() if place in self._changed else tensor for place, tensor in enumerate(call.tensors)]

    def _written(self, call: Call, returned: list[torch.Tensor]) -> Any:
        """What the module returns, after its arguments have been changed: the last of the results."""
        for place, value in zip(self._changed, returned[-len(self._changed) :], strict=True):
            call.tensors[place].copy_(value)
        for index, place in self._returned.items():
            returned[index] = call.tensors[place]
        return self.results.filled(returned)[0]

    def apply(
        self, run: _Run, tensors: Sequence[torch.Tensor], states: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """The tensors that the graph returns, with gradients."""
        given = [*tensors, *(states[index] for index in self._states)]
        if self._narrow:
            given = [widened(tensor, self._narrow) for tensor in given]
        if self._backward is None:
            run.forward(given)
            return tuple(run.outputs)
        return _apply(run, *given)

    def _with_passed(self, found: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        computed = (found[index] for index in self._order)
        count = len(self.results.places)
        return [given[self._passed[i]] if i in self._passed else next(computed) for i in range(count)]

    def verify(self, rehearsed: Rehearsed, state: Fingerprint) -> None:
        """Compare with what torch computed, for the same arguments and random numbers."""
        rehearsal, call = rehearsed.exact, rehearsed.call
        if (rehearsed.types, rehearsal.changed, rehearsal.rewritten) != (
            self._types,
            self._changed,
            self._effects.rewritten,
        ):
            raise ORTModuleONNXModelException(
                "it returns other types, or changes other arguments or buffers, for other sizes"
            )
        drawn = rehearsal.drawn
        known, kept = self._known(call.sizes), [draw for draw in drawn if not draw.is_decision]
        if len(self._masks) != len(kept) or not all(
            m.is_like(d, known) for m, d in zip(self._masks, kept, strict=True)
        ):
            raise ORTModuleONNXModelException("the graph draws other random numbers than torch")
        masks = iter([mask.like(draw) for mask, draw in zip(self._masks, kept, strict=True)])
        self._draws = [None if draw.is_decision else next(masks) for draw in drawn]
        tensors = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in call.tensors]
        states = [widened(t.detach(), self._narrow).requires_grad_(t.requires_grad) for t in state.tensors]
        with torch.random.fork_rng(devices=[]):
            run = _Run(self, call.sizes)
            found = self.apply(run, tensors, states)
            if not torch.equal(torch.get_rng_state(), rehearsal.generator):
                raise ORTModuleONNXModelException("the graph draws other random numbers than torch")
        returned = self._with_passed(found, tensors)
        rehearsed.require_equal("result", [t.detach() for t in returned], lambda run: run.results.tensors, noise=0.0)
        ends = [tensor for tensor, has in zip(returned, rehearsal.differentiable, strict=True) if has]
        if [tensor.requires_grad for tensor in returned] != rehearsal.differentiable:
            raise ORTModuleONNXModelException("other results have gradients than in torch")
        self._effects.verify(run.results, found, rehearsed, state.tensors, self._states, again=bool(self.verified))
        if ends:
            targets = [tensor for tensor in (*tensors, *states) if tensor.requires_grad]
            gradients = iter(torch.autograd.grad(ends, targets, rehearsal.cotangents, allow_unused=True))
            every = [next(gradients) if tensor.requires_grad else None for tensor in (*tensors, *states)]
            first: dict[int, int] = {}  # tensors of the module that are the same have one gradient between them
            for index, tensor in enumerate(state.tensors):
                first.setdefault(id(tensor), index)
            own = [every[len(tensors) + first[id(tensor)]] for tensor in state.tensors]
            rehearsed.require_equal("gradient", [*every[: len(tensors)], *own], lambda run: [*run.inputs, *run.states])
        self.verified.add(call.sizes)

    def _known(self, sizes: Sizes) -> dict[str, int]:
        return sizes_by_name(self._shapes, sizes)

    # How tensors go through the two graphs.

    def run_forward(
        self, tensors: Sequence[torch.Tensor], sizes: Sizes
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """All that the first graph returns, and what it took."""
        taken = list(tensors)
        if self._draws:
            known = self._known(sizes)
            for mask in self._draws:
                if mask is None:
                    torch.rand([])  # what was decided by it is the same for all numbers
                else:
                    taken.append(mask.draw(known))
        return self._forward.run([taken[slot] for slot in self._feeds]), taken

    def saved(self, taken: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What the second graph takes again."""
        every = [*taken, *results]
        return [every[slot] for slot in self._saved]

    def outputs(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [results[index] for index in self._outputs]

    def run_backward(
        self, saved: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None], likes: Sequence[Any]
    ) -> list[torch.Tensor | None]:
        """The gradient of each argument and tensor of the module."""
        assert self._backward is not None
        feeds = []
        for is_seed, index in self._backward_feeds:
            if not is_seed:
                feeds.append(saved[index])
                continue
            gradient, (shape, dtype) = gradients[index], likes[index]
            feeds.append(torch.zeros(shape, dtype=dtype) if gradient is None else gradient)
        found: list[torch.Tensor | None] = [None] * self._given
        for slot, tensor in zip(self._gradients, self._backward.run(feeds), strict=True):
            found[slot] = tensor
        return found

    def repeat(
        self, repetition: Repetition, gradients: Sequence[torch.Tensor | None], needed: Sequence[bool]
    ) -> list[torch.Tensor | None]:
        """The same by torch, with gradients of their own."""
        given = [*repetition.call.tensors, *(repetition.before[index] for index in self._states)]
        wanted = [tensor for tensor, needs in zip(given, needed, strict=True) if needs]
        computed = [index for index in range(len(self.results.places)) if index not in self._passed]
        places = [(self._order.index(output), gradient) for output, gradient in enumerate(gradients)]
        of, seeds = zip(*((computed[place], g) for place, g in places if place < len(computed)), strict=True)
        found = iter(repetition.gradients(wanted, of, seeds))
        return [next(found) if needs else None for needs in needed]


class _Run:
    """One pass through a plan."""

    def __init__(self, plan: Plan, sizes: Sizes) -> None:
        self.plan, self._sizes = plan, sizes
        self.results: list[torch.Tensor] = []
        self.outputs: list[torch.Tensor] = []
        self.taken: list[torch.Tensor] = []
        self.repetition: Repetition | None = None

    def forward(self, tensors: Sequence[torch.Tensor]) -> None:
        self.results, self.taken = self.plan.run_forward(tensors, self._sizes)
        self.outputs = self.plan.outputs(self.results)


class _ORTModuleFunction(torch.autograd.Function):
    """Both graphs as one operation of torch."""

    @staticmethod
    def forward(ctx: Any, run: _Run, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        plan = run.plan
        run.forward(tensors)
        ctx.plan, ctx.repetition = plan, run.repetition
        ctx.likes = [(output.shape, output.dtype) for output in run.outputs]
        # By torch: it notices what is changed in place before the backward pass, and frees what is not needed again.
        ctx.save_for_backward(*plan.saved(run.taken, run.results))
        ctx.mark_non_differentiable(*(run.outputs[index] for index in plan.constant))
        ctx.set_materialize_grads(False)
        return tuple(run.outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if not torch.is_grad_enabled() and not any(map(is_many, gradients)):
            return None, *_gradients(ctx, gradients)
        if ctx.repetition is not None:
            _ = ctx.saved_tensors  # torch says if they are gone, or have been changed
            return None, *ctx.plan.repeat(ctx.repetition, gradients, ctx.needs_input_grad[1:])
        with torch.no_grad():
            found = _gradients(ctx, gradients)
        return None, *without_gradients(found)


def _gradients(ctx: Any, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    found = ctx.plan.run_backward(ctx.saved_tensors, gradients, ctx.likes)
    return [g if needed else None for g, needed in zip(found, ctx.needs_input_grad[1:], strict=True)]


# Function's own method looks for wrappers of functorch among all tensors; what functorch follows does not come here.
_apply: Callable[..., tuple[torch.Tensor, ...]] = super(torch.autograd.Function, _ORTModuleFunction).apply
