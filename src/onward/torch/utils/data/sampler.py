"""Samplers that give the processes samples of about the same length at the same time, so that none waits for others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import Sampler

from onward.torch.orttrainer.refusal import InvalidValueError


class _Samples(Sized, Protocol):
    def __getitem__(self, index: int, /) -> Any: ...


class LoadBalancingDistributedSampler:
    """Samples ordered by what they cost, dealt out to the processes in turn.

    The order is that of the cost within groups of `group_size` samples, or in the whole. `shuffle` then changes the
    order of groups, or else of the rounds in which each process is dealt one sample: either way they are close in cost.

    Args:
        dataset: has a length, and samples by their numbers.
        complexity_fn: what a sample costs, an integer; its length, for instance.
        world_size: number of processes; by default that of torch.distributed.
        rank: number of this one; likewise.
        shuffle: whether each epoch has an order of its own.
        group_size: how many samples that follow each other are sorted together; by default all of them.
        seed: the same in all processes.
        drop_last: leave out what cannot be dealt out evenly; by default the first ones are dealt out once more.
        random_level: between 0 and 1: which part of the range of costs is added to them at random.
    """

    def __init__(
        self,
        dataset: _Samples,
        complexity_fn: Callable[..., int],
        world_size: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        group_size: int | None = None,
        seed: int = 0,
        drop_last: bool = False,
        random_level: float = 0,
    ) -> None:
        self.world_size = torch.distributed.get_world_size() if world_size is None else world_size
        self.rank = torch.distributed.get_rank() if rank is None else rank
        if not 0 <= self.rank < self.world_size:
            raise InvalidValueError(
                f"Invalid rank {self.rank}, rank should be in the interval [0, {self.world_size - 1}]"
            )
        if not 0.0 <= random_level <= 1.0:
            raise InvalidValueError(f"Invalid random level {random_level}, should be in the range [0.0, 1.0]")
        self.dataset, self.complexity_fn = dataset, complexity_fn
        self.shuffle, self.seed, self.epoch = shuffle, seed, 0
        self.group_size, self.drop_last, self.random_level = group_size, drop_last, random_level
        rounding = math.floor if drop_last else math.ceil
        self.num_samples = rounding(len(dataset) / self.world_size)
        self.total_size = self.num_samples * self.world_size
        self._costs: np.ndarray[Any, np.dtype[np.int64]] | None = None

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices_of(self.rank))

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration have the order of another epoch."""
        self.epoch = epoch

    def indices_of(self, rank: int) -> list[int]:
        """The samples of one of the processes, in this epoch."""
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        groups = self._sorted_groups(generator)
        if self.shuffle and self.group_size is not None:
            groups = [groups[index] for index in torch.randperm(len(groups), generator=generator).tolist()]
        order = np.concatenate(groups) if groups else np.zeros(0, np.int64)
        rounds = np.resize(order, self.total_size).reshape(self.num_samples, self.world_size)
        if self.shuffle and self.group_size is None:
            rounds = rounds[torch.randperm(len(rounds), generator=generator).numpy()]
        found: list[int] = rounds[:, rank].tolist()
        return found

    def _sorted_groups(self, generator: torch.Generator) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
        if self._costs is None:
            self._costs = np.array([self.complexity_fn(self.dataset[i]) for i in range(len(self.dataset))], np.int64)
        costs = self._costs
        spread = int((costs.max() - costs.min()) * self.random_level + 1) if len(costs) else 1
        if spread > 1:
            costs = costs + torch.randint(spread, (len(costs),), generator=generator).numpy()
        size = self.group_size or max(1, len(costs))
        return [start + np.argsort(costs[start : start + size], kind="stable") for start in range(0, len(costs), size)]


class LoadBalancingDistributedBatchSampler(Sampler[list[int]]):
    """Batches of any sizes made of what a `LoadBalancingDistributedSampler` yields, as many in each process.

    Args:
        sampler: the sampler.
        batch_fn: makes batches of the list of a process's samples.
        drop_last: leave out batches that not all processes have; by default the first ones are repeated.
    """

    def __init__(
        self,
        sampler: LoadBalancingDistributedSampler,
        batch_fn: Callable[[list[int]], Sequence[list[int]]],
        drop_last: bool = False,
    ) -> None:
        if not isinstance(sampler, LoadBalancingDistributedSampler):
            raise InvalidValueError("sampler should be of LoadBalancingDistributedSampler type.")
        if sampler.drop_last:
            raise InvalidValueError("drop_last of sampler should be False")
        self.sampler, self.batch_fn, self.drop_last = sampler, batch_fn, drop_last
        self.world_size, self.rank = sampler.world_size, sampler.rank

    def __iter__(self) -> Iterator[list[int]]:
        every = [list(self.batch_fn(self.sampler.indices_of(rank))) for rank in range(self.world_size)]
        count, own = self._count(every), every[self.rank]
        return iter([own[index % len(own)] for index in range(count)])

    def __len__(self) -> int:
        every = [list(self.batch_fn(self.sampler.indices_of(rank))) for rank in range(self.world_size)]
        return self._count(every)

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration have the order of another epoch."""
        self.sampler.set_epoch(epoch)

    def _count(self, every: Sequence[Sequence[list[int]]]) -> int:
        return (min if self.drop_last else max)(map(len, every))
