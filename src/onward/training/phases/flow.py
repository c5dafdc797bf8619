"""The minimum cut of a network, by Dinic's algorithm."""

from __future__ import annotations

from collections import deque

UNLIMITED = 2**62
SOURCE, SINK = 0, 1


class Network:
    """A directed graph with capacities from `SOURCE` to `SINK`."""

    def __init__(self) -> None:
        self._edges: list[list[int]] = [[], []]  # of each place, those that leave it; edge and reverse are neighbours
        self._target: list[int] = []
        self._left: list[int] = []  # capacity that is not used yet

    def place(self) -> int:
        """A new place."""
        self._edges.append([])
        return len(self._edges) - 1

    def connect(self, start: int, end: int, capacity: int) -> None:
        for place, target, left in ((start, end, capacity), (end, start, 0)):
            self._edges[place].append(len(self._target))
            self._target.append(target)
            self._left.append(left)

    def cut(self) -> set[int]:
        """The places behind a minimum cut; of several ones, behind that nearest to the sink."""
        while (distance := self._distances())[SINK] >= 0:
            # Edges that turned out to lead nowhere are not looked at again in this round.
            unseen = [deque(edges) for edges in self._edges]
            while self._push(distance, unseen):
                pass
        return self._behind()

    def _distances(self) -> list[int]:
        distance = [-1] * len(self._edges)
        distance[SOURCE] = 0
        waiting = deque([SOURCE])
        while waiting:
            place = waiting.popleft()
            for edge in self._edges[place]:
                target = self._target[edge]
                if self._left[edge] and distance[target] < 0:
                    distance[target] = distance[place] + 1
                    waiting.append(target)
        return distance

    def _push(self, distance: list[int], unseen: list[deque[int]]) -> bool:
        """Send what fits along one shortest way."""
        way: list[int] = []
        place = SOURCE
        while place != SINK:
            while unseen[place]:
                edge = unseen[place][0]
                target = self._target[edge]
                if self._left[edge] and distance[target] == distance[place] + 1:
                    way.append(edge)
                    place = target
                    break
                unseen[place].popleft()
            else:
                if not way:
                    return False
                place = self._target[way.pop() ^ 1]
                unseen[place].popleft()
        fits = min(self._left[edge] for edge in way)
        for edge in way:
            self._left[edge] -= fits
            self._left[edge ^ 1] += fits
        return True

    def _behind(self) -> set[int]:
        """From where there is still a way to the sink."""
        found, waiting = {SINK}, [SINK]
        while waiting:
            for edge in self._edges[waiting.pop()]:
                place = self._target[edge]
                if self._left[edge ^ 1] and place not in found:
                    found.add(place)
                    waiting.append(place)
        return found
