"""The steps of a team as nested coroutine functions: nothing of the file is read while an episode
is played.

Branches of `parallel`, the calls of a `vote` and the children of a `spawn` advance in waves, see
`agent_system.waves`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from agent_system.children import call_children, joined, show, task_lines
from agent_system.errors import AgentSystemError
from agent_system.projection import Projection
from agent_system.turn import CallContext, Turn
from agent_system.waves import Branch, in_waves
from agent_system.workflows.graph.checks import children
from agent_system.workflows.graph.schema import (
    AnyStep,
    CallStep,
    Condition,
    IfStep,
    LoopStep,
    NamedStep,
    ParallelStep,
    SpawnStep,
    StopStep,
    TeamSpec,
    VoteStep,
)

NOTHING: Mapping[str, Any] = {}
MISSING = object()
# Where a call of a vote leaves its result: the names of steps are not empty.
CANDIDATE = ""


class TurnState:
    """One turn that is played, or one branch of it.

    Attributes:
        turn: the turn.
        results: the last result of each step that has run.
        first, last: of the round of the loop around.
        branch: the branch of the `parallel` around, if there is one.
    """

    __slots__ = ("branch", "first", "last", "results", "turn")

    def __init__(self, turn: Turn, results: dict[str, Projection], branch: Branch | None = None) -> None:
        self.turn = turn
        self.results = results
        self.first = False
        self.last = False
        self.branch = branch

    def fork(self, branch: Branch) -> TurnState:
        """Return the state of a branch."""
        state = TurnState(self.turn, dict(self.results), branch)
        state.first = self.first
        state.last = self.last
        return state

    async def call(self, agent_id: str, context: CallContext) -> Projection:
        """Call an agent, in a branch with its wave."""
        if self.branch is not None:
            context = replace(context, branch=self.branch)
        return await self.turn.call(agent_id, context)


# A step: returns whether it ends the loop around it.
Play = Callable[[TurnState], Awaitable[bool]]
Check = Callable[[TurnState], bool]


def compile_team(spec: TeamSpec, *, apart: bool = False) -> Callable[[Turn], Awaitable[Any]]:
    """Return the function that plays a turn and returns the team's action. `apart`: the calls read
    the replies of the steps alone, not others of the turn.
    """
    compiler = _Compiler(spec.do)
    play = compiler.sequence(spec.do, compiler.labels | compiler.judges if apart else None)
    returned = spec.return_.of
    default = spec.return_.default

    async def run(turn: Turn) -> Any:
        state = TurnState(turn, {})
        await play(state)
        for step in returned:
            if step in state.results:
                return state.results[step].action
        return default

    return run


async def in_branches(state: TurnState, branches: Sequence[Play]) -> list[TurnState]:
    """Play branches at the same time and return their states."""

    async def one(play: Play, branch: Branch) -> TurnState:
        fork = state.fork(branch)
        await play(fork)
        return fork

    return await in_waves([partial(one, play) for play in branches], state.branch)


class _Compiler:
    """Turns steps into functions.

    Every step has a label, under which its replies stand in the team context: its name, or a
    number. A call reads the replies of all steps but those of the other branches of a `parallel`
    around it.
    """

    def __init__(self, steps: Sequence[AnyStep]) -> None:
        self._labels: dict[int, str] = {}
        self._name(steps)

    @property
    def labels(self) -> frozenset[str]:
        """The labels of all steps."""
        return frozenset(self._labels.values())

    @property
    def judges(self) -> frozenset[str]:
        """The labels of replies that choose among those of a vote."""
        return frozenset(map(_judge, self.labels))

    def sequence(self, steps: Sequence[AnyStep], visible: frozenset[str] | None) -> Play:
        """Return the function of steps that follow each other; `visible` are the labels that their
        calls read, None: all.
        """
        plays = [self._play(step, visible) for step in steps]
        if len(plays) == 1:
            return plays[0]

        async def sequence(state: TurnState) -> bool:
            for play in plays:
                if await play(state):
                    return True
            return False

        return sequence

    def _name(self, steps: Sequence[AnyStep]) -> None:
        for step in steps:
            if isinstance(step, NamedStep):
                self._labels[id(step)] = step.id or f"#{len(self._labels)}"
            for _, child in children(step, ()):
                self._name(child)

    def _inside(self, steps: Sequence[AnyStep]) -> frozenset[str]:
        """Return the labels of steps and of those inside them."""
        labels = {self._labels[id(step)] for step in steps if id(step) in self._labels}
        return frozenset(labels).union(*(self._inside(c) for step in steps for _, c in children(step, ())))

    def _play(self, step: AnyStep, visible: frozenset[str] | None) -> Play:
        match step:
            case CallStep():
                return self._call(step, visible)
            case VoteStep():
                return self._vote(step, visible)
            case SpawnStep():
                return self._spawn(step, visible)
            case LoopStep():
                return _loop(step.loop, self.sequence(step.do, visible))
            case IfStep():
                otherwise = self.sequence(step.else_, visible) if step.else_ else None
                return _if(compile_condition(step.if_), self.sequence(step.do, visible), otherwise)
            case ParallelStep():
                return self._parallel(step, visible)
            case StopStep():
                return _stop(None if step.stop is None else compile_condition(step.stop))

    def _context(self, step: NamedStep, visible: frozenset[str] | None) -> CallContext:
        sees = visible if step.sees is None else frozenset(step.sees)
        return CallContext(NOTHING, self._labels[id(step)], sees)

    def _call(self, step: CallStep, visible: frozenset[str] | None) -> Play:
        agent_id = step.call
        name = step.id
        context = self._context(step, visible)
        unless = None if step.unless is None else compile_condition(step.unless)

        async def call(state: TurnState) -> bool:
            if unless is None or not unless(state):
                result = await state.call(agent_id, context)
                if name is not None:
                    state.results[name] = result
            return False

        return call

    def _vote(self, step: VoteStep, visible: frozenset[str] | None) -> Play:
        name = step.id
        steps = step.vote if isinstance(step.vote, list) else []
        context = self._context(step, visible)
        judge = step.best
        reads = None if context.sees is None else context.sees | {context.step}
        judge_context = CallContext(NOTHING, _judge(context.step), reads)
        agent_id = step.vote if isinstance(step.vote, str) else ""

        async def one_call(state: TurnState) -> bool:
            state.results[CANDIDATE] = await state.call(agent_id, context)
            return False

        calls = [one_call] * (step.n or 0)

        async def vote(state: TurnState) -> bool:
            if steps:
                candidates = [state.results[s] for s in steps if s in state.results]
            else:
                candidates = [fork.results[CANDIDATE] for fork in await in_branches(state, calls)]
            if candidates:
                choice = None if judge is None else await state.call(judge, judge_context)
                if name is not None:
                    state.results[name] = elect(candidates, choice)
            return False

        return vote

    def _spawn(self, step: SpawnStep, visible: frozenset[str] | None) -> Play:
        name = step.id
        keys = step.spawn
        context = self._context(step, visible)

        async def spawn(state: TurnState) -> bool:
            if (source := state.results.get(keys.of)) is None:
                return False
            place = state.turn.reserve(context.step)
            counts = Counter[str]()
            replies = await call_children(
                state.turn, state.branch, keys.agent, task_lines(source.action), context,
                most=keys.max, limit=keys.depth, counts=counts,
            )  # fmt: skip
            result = joined(replies, counts)
            show(state.turn, place, keys.agent, result)
            if name is not None:
                state.results[name] = result
            return False

        return spawn

    def _parallel(self, step: ParallelStep, visible: frozenset[str] | None) -> Play:
        every = self.labels if visible is None else visible
        labels = [self._inside(branch) for branch in step.parallel]
        branches = []
        for number, branch in enumerate(step.parallel):
            others = frozenset[str]().union(*labels[:number], *labels[number + 1 :])
            branches.append(self.sequence(branch, every - others))

        async def parallel(state: TurnState) -> bool:
            forks = await in_branches(state, branches)
            for fork, names in zip(forks, labels, strict=True):
                state.results.update({name: r for name, r in fork.results.items() if name in names})
            return False

        return parallel


def _judge(label: str) -> str:
    return f"{label}#best"


def _loop(rounds: int, body: Play) -> Play:
    last = rounds - 1

    async def loop(state: TurnState) -> bool:
        around = (state.first, state.last)
        for number in range(rounds):
            state.first = number == 0
            state.last = number == last
            if await body(state):
                break
        state.first, state.last = around
        return False

    return loop


def _if(condition: Check, then: Play, otherwise: Play | None) -> Play:
    async def branch(state: TurnState) -> bool:
        if condition(state):
            return await then(state)
        return False if otherwise is None else await otherwise(state)

    return branch


def _stop(condition: Check | None) -> Play:
    async def stop(state: TurnState) -> bool:
        return condition is None or condition(state)

    return stop


def elect(candidates: Sequence[Projection], choice: Projection | None = None) -> Projection:
    """Return the candidate that a judge chooses by its number, from 1, or its action; else the
    first one of those whose action most valid candidates have, and without any valid one the first.

    Its fields have `votes`, the number of valid candidates with its action, and `share` of all
    candidates.
    """
    actions = [str(candidate.action).strip() for candidate in candidates]
    counts = Counter(a for a, candidate in zip(actions, candidates, strict=True) if candidate.valid)
    place = None if choice is None or not choice.valid else _place(str(choice.action).strip(), actions)
    if place is None:
        most = max(counts.values(), default=0)
        firsts = [i for i, c in enumerate(candidates) if c.valid and counts[actions[i]] == most]
        place = firsts[0] if firsts else 0
    votes = counts[actions[place]] if candidates[place].valid else 0
    fields = {**candidates[place].fields, "votes": votes, "share": votes / len(candidates)}
    return replace(candidates[place], fields=fields)


def _place(choice: str, actions: Sequence[str]) -> int | None:
    """Return the place of a judge's choice among the candidates; None if it is none of them."""
    if choice.isascii() and choice.isdigit() and len(choice) < 8 and 1 <= int(choice) <= len(actions):
        return int(choice) - 1
    return actions.index(choice) if choice in actions else None


def compile_condition(condition: Condition) -> Check:
    """Return the function of a condition."""
    if condition.loop is not None:
        return (lambda state: state.first) if condition.loop == "first" else (lambda state: state.last)
    value_of = _value_of(condition)
    holds = _comparison(condition)

    def check(state: TurnState) -> bool:
        value = value_of(state)
        return value is not MISSING and holds(value)

    return check


def _value_of(condition: Condition) -> Callable[[TurnState], Any]:
    """Return the function of what a condition compares; `MISSING` for a step that has not run, or a
    key that is not there.
    """
    step = condition.of
    field = condition.field
    if step is None:
        key = condition.observation or ""
        return lambda state: state.turn.observation.info.get(key, MISSING)

    def field_of(state: TurnState) -> Any:
        result = state.results.get(step)
        if result is None:
            return MISSING
        if field == "action":
            return str(result.action).strip()
        if field == "valid":
            return result.valid
        if field not in result.fields:
            names = ", ".join(map(str, ("action", "valid", *result.fields)))
            raise AgentSystemError(f"a condition reads {field!r} of the step {step!r}, which has: {names}")
        return result.fields[field]

    return field_of


def _comparison(condition: Condition) -> Callable[[Any], bool]:
    match condition.comparison:
        case "is_":
            return lambda value: _equal(value, condition.is_)
        case "in_":
            return lambda value: any(_equal(value, item) for item in condition.in_)
        case "below":
            return lambda value: (number := _number(value)) is not None and number < condition.below
        case "above":
            return lambda value: (number := _number(value)) is not None and number > condition.above
    return bool


def _equal(value: Any, other: Any) -> bool:
    """Return whether a value is that of the file: `true` is not 1, and the text `3` is the number
    3.
    """
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(other, int | float):
        return _number(value) == other
    return bool(value == (other.strip() if isinstance(other, str) else other))


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
