"""The control flow of a graph of nodes: which nodes are always passed, loops, and where branches
meet.

Nodes are numbers; sets of nodes are integers with a bit for each. Dominators and post-dominators as
in Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm" (2001), with sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

# Where an edge leads to inside a loop, or in a whole graph, beside its nodes.
NEXT = -1  # its end: the next round of a loop, the regular end of a graph
BREAK = -2  # out of it


class Irreducible(Exception):
    """A loop that can be entered at two places; `edge` leads to the second one."""

    def __init__(self, edge: tuple[int, int]) -> None:
        super().__init__("the loop can be entered at two places")
        self.edge = edge


@dataclass(frozen=True)
class Loop:
    """A loop.

    Attributes:
        head: the node where every round begins.
        body: the set of its nodes.
        back: the edges to its head from inside.
        exits: the edges that leave it.
    """

    head: int
    body: int
    back: tuple[tuple[int, int], ...]
    exits: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ControlGraph:
    """A graph with one entry.

    Attributes:
        successors: of every node.
        entry: the first node.
    """

    successors: Sequence[Sequence[int]]
    entry: int

    def order(self) -> list[int]:
        """Return the nodes that can be reached, in reverse postorder."""
        visited = {self.entry}
        finished: list[int] = []
        stack = [(self.entry, iter(self.successors[self.entry]))]
        while stack:
            node, rest = stack[-1]
            for target in rest:
                if target not in visited:
                    visited.add(target)
                    stack.append((target, iter(self.successors[target])))
                    break
            else:
                finished.append(node)
                stack.pop()
        return finished[::-1]

    def loops(self) -> dict[int, Loop]:
        """Return the loops by their heads. Raises Irreducible."""
        order = self.order()
        place = {node: position for position, node in enumerate(order)}
        sources: dict[int, list[int]] = {node: [] for node in order}
        for node in order:
            for target in self.successors[node]:
                sources[target].append(node)
        dominators = _solve(order, sources, self.entry)
        back: dict[int, list[tuple[int, int]]] = {}
        for node in order:
            for target in self.successors[node]:
                if not dominators[node] >> target & 1:
                    if place[target] <= place[node]:
                        raise Irreducible((node, target))
                elif (node, target) not in back.setdefault(target, []):
                    back[target].append((node, target))
        return {head: self._loop(head, edges, sources) for head, edges in back.items()}

    def _loop(self, head: int, back: Sequence[tuple[int, int]], sources: Mapping[int, Sequence[int]]) -> Loop:
        body = 1 << head
        stack = [node for node, _ in back]
        while stack:
            node = stack.pop()
            if not body >> node & 1:
                body |= 1 << node
                stack.extend(sources[node])
        exits = [(n, t) for n in members(body) for t in self.successors[n] if not body >> t & 1]
        return Loop(head, body, tuple(back), tuple(exits))

    def reach(self) -> list[int]:
        """Return the set of nodes behind every node, which has itself only in a loop."""
        behind = [0] * len(self.successors)
        changed = True
        order = self.order()[::-1]
        while changed:
            changed = False
            for node in order:
                new = 0
                for target in self.successors[node]:
                    new |= behind[target] | 1 << target
                changed |= new != behind[node]
                behind[node] = new
        return behind


class Meetings:
    """Where the branches of a region meet, a loop's body or a whole graph."""

    def __init__(self, targets: Mapping[int, Sequence[int]], order: Sequence[int]) -> None:
        """Compute it.

        Args:
            targets: of every node of the region, nodes of it, `NEXT` and `BREAK`.
            order: the nodes in reverse postorder.
        """
        self._nodes = frozenset(targets)
        self._next = max(targets) + 1
        inside = {
            n: [self._next if t == NEXT else t for t in after if t != BREAK] for n, after in targets.items()
        }
        inside[self._next] = []
        self._behind = _solve([self._next, *reversed(order)], inside, self._next)

    def of(self, node: int, preferred: int | None = None) -> int | None:
        """Return the first node, or `NEXT`, that every way from a node passes unless it breaks off;
        None if every way does. It is `preferred` if that is one of the nodes which all pass.
        """
        if self._behind[node] == -1:
            return None
        if preferred in self._nodes and preferred != node and self._behind[node] >> preferred & 1:
            return preferred
        behind = members(self._behind[node] & ~(1 << node))
        first = max(behind, key=lambda other: self._behind[other].bit_count())
        return NEXT if first == self._next else first


def members(nodes: int) -> Iterator[int]:
    """Yield the nodes of a set in their order."""
    while nodes:
        lowest = nodes & -nodes
        yield lowest.bit_length() - 1
        nodes ^= lowest


def _solve(order: Sequence[int], sources: Mapping[int, Sequence[int]], entry: int) -> dict[int, int]:
    """Return for every node the set of nodes that each way from `entry` to it passes, itself
    included; -1, all, for a node without a way.
    """
    passed = dict.fromkeys(order, -1)
    passed[entry] = 1 << entry
    changed = True
    while changed:
        changed = False
        for node in order:
            if node == entry:
                continue
            new = -1
            for source in sources[node]:
                new &= passed[source]
            new = new if new == -1 else new | 1 << node
            changed |= new != passed[node]
            passed[node] = new
    return passed
