"""The steps of a team as nested coroutine functions: nothing of the file is read while an episode
is played.

Branches of `parallel`, the calls of a `vote` and the children of a `spawn` advance in waves, see
`agent_system.waves`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any

from agent_system.agent import Entry
from agent_system.children import call_children, joined, show, task_lines
from agent_system.errors import AgentSystemError
from agent_system.projection import Projection
from agent_system.turn import CallContext, Turn
from agent_system.waves import Branch, in_waves
from agent_system.workflows.graph.checks import children, step_ids
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
# A number as replies write it: that of `answer: number`, with an exponent.
LONGEST_NUMBER = 1000  # characters
DECIMAL = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,6})?")


class TurnState:
    """One turn that is played, or one branch of it.

    Attributes:
        turn: the turn.
        results: the last result of each step that has run.
        choices: the reply that a vote has chosen, as prompts show it, by the vote's name.
        first, last: of the round of the loop around.
        branch: the branch of the `parallel` around, if there is one.
    """

    __slots__ = ("branch", "choices", "first", "last", "results", "turn")

    def __init__(
        self,
        turn: Turn,
        results: dict[str, Projection],
        choices: dict[str, Entry],
        branch: Branch | None = None,
    ) -> None:
        self.turn = turn
        self.results = results
        self.choices = choices
        self.first = False
        self.last = False
        self.branch = branch

    def fork(self, branch: Branch) -> TurnState:
        """Return the state of a branch."""
        state = TurnState(self.turn, dict(self.results), dict(self.choices), branch)
        state.first = self.first
        state.last = self.last
        return state

    def finish(self, name: str, result: Projection) -> None:
        """Set the result of a step; a vote also sets its choice."""
        self.results[name] = result
        self.choices.pop(name, None)  # of a vote in the other arm of an `if`

    def entry(self, step: str) -> Entry:
        """Return the reply that is a step's result, as prompts show it."""
        return self.choices.get(step) or self.turn.visible_entries(frozenset([step]))[-1]

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
    play = compiler.sequence(spec.do, compiler.every if apart else None)
    returned = spec.return_.of
    default = spec.return_.default

    async def run(turn: Turn) -> Any:
        state = TurnState(turn, {}, {})
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
    number; those of a vote have labels of their own, and so has its judge's. A call reads the
    replies of all steps but those of the other branches of a `parallel` around it.

    Attributes:
        every: the labels of all replies of the steps.
    """

    def __init__(self, steps: Sequence[AnyStep]) -> None:
        self._labels: dict[int, str] = {}
        self._by_name: dict[str, list[NamedStep]] = {}
        self._name(steps)
        self.every = self._inside(steps)

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
                if step.id is not None:
                    self._by_name.setdefault(step.id, []).append(step)
            for _, child in children(step, ()):
                self._name(child)

    def _replies(self, step: AnyStep) -> Iterator[str]:
        """Yield the labels of the replies that a step, without those inside it, adds."""
        if not isinstance(step, NamedStep):
            return
        label = self._labels[id(step)]
        if not isinstance(step, VoteStep):
            yield label
            return
        yield from (_numbered(label, number) for number in range(step.n or 0))
        if step.best is not None:
            yield _judged(label)

    def _inside(self, steps: Sequence[AnyStep]) -> frozenset[str]:
        """Return the labels of the replies of steps and of those inside them."""
        labels = frozenset(label for step in steps for label in self._replies(step))
        return labels.union(*(self._inside(c) for step in steps for _, c in children(step, ())))

    def _labels_of(self, names: Sequence[str]) -> frozenset[str]:
        """Return the labels of the replies of named steps; of a vote of steps, those of its steps, as
        well.
        """
        labels: set[str] = set()
        all_names = list(names)
        for name in all_names:  # which grows
            for step in self._by_name[name]:
                labels.update(self._replies(step))
                if isinstance(step, VoteStep) and isinstance(step.vote, list):
                    all_names += [voter for voter in step.vote if voter not in all_names]
        return frozenset(labels)

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
        sees = visible if step.sees is None else self._labels_of(step.sees)
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
                    state.finish(name, result)
            return False

        return call

    def _vote(self, step: VoteStep, visible: frozenset[str] | None) -> Play:
        name = step.id
        steps = step.vote if isinstance(step.vote, list) else []
        context = self._context(step, visible)
        judge = step.best
        agent_id = step.vote if isinstance(step.vote, str) else ""
        labels = [_numbered(context.step, number) for number in range(step.n or 0)]

        async def one_call(call_context: CallContext, state: TurnState) -> bool:
            state.results[CANDIDATE] = await state.call(agent_id, call_context)
            return False

        calls = [partial(one_call, replace(context, step=label)) for label in labels]

        async def vote(state: TurnState) -> bool:
            if steps:
                voters = [s for s in steps if s in state.results]
                candidates = [state.results[s] for s in voters]
            else:
                voters = labels
                candidates = [fork.results[CANDIDATE] for fork in await in_branches(state, calls)]
            if not candidates:
                return False
            choice = None
            if judge is not None:
                entries = tuple(map(state.entry, voters))
                reads = CallContext(NOTHING, _judged(context.step), frozenset(), entries=entries)
                choice = await state.call(judge, reads)
            if name is not None:
                place = chosen_place(candidates, choice)
                entry = state.entry(voters[place])
                state.finish(name, with_votes(candidates, place))
                state.choices[name] = entry
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
                state.finish(name, result)
            return False

        return spawn

    def _parallel(self, step: ParallelStep, visible: frozenset[str] | None) -> Play:
        every = self.every if visible is None else visible
        labels = [self._inside(branch) for branch in step.parallel]
        names = [frozenset(step_ids(branch)) for branch in step.parallel]
        branches = []
        for number, branch in enumerate(step.parallel):
            others = frozenset[str]().union(*labels[:number], *labels[number + 1 :])
            branches.append(self.sequence(branch, every - others))

        async def parallel(state: TurnState) -> bool:
            forks = await in_branches(state, branches)
            for fork, branch_names in zip(forks, names, strict=True):
                _merge(state.results, fork.results, branch_names)
                _merge(state.choices, fork.choices, branch_names)
            return False

        return parallel


def _numbered(label: str, number: int) -> str:
    """Return the label of a call of a vote."""
    return f"{label}#{number + 1}"


def _judged(label: str) -> str:
    """Return the label of the judge's call of a vote."""
    return f"{label}#best"


def _merge(into: dict[str, Any], branch: Mapping[str, Any], names: Collection[str]) -> None:
    """Add what the steps of a branch have left: it has that of the steps before, as well."""
    into.update({name: value for name, value in branch.items() if name in names})


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


def chosen_place(candidates: Sequence[Projection], choice: Projection | None = None) -> int:
    """Return the place of the candidate that a judge chooses, by its action or its number, from 1;
    else of the first one of those whose action most valid candidates have, and without any valid
    one of the first.
    """
    actions = _actions(candidates)
    counts = _valid_counts(candidates)
    place = None if choice is None or not choice.valid else _named_place(candidates, choice)
    if place is not None:
        return place
    most = max(counts.values(), default=0)
    firsts = [i for i, c in enumerate(candidates) if c.valid and counts[actions[i]] == most]
    return firsts[0] if firsts else 0


def with_votes(candidates: Sequence[Projection], place: int) -> Projection:
    """Return a candidate with the fields `votes`, the number of valid candidates with its action,
    and `share` of all candidates.
    """
    candidate = candidates[place]
    votes = _valid_counts(candidates)[_actions(candidates)[place]] if candidate.valid else 0
    fields = {**candidate.fields, "votes": votes, "share": votes / len(candidates)}
    return replace(candidate, fields=fields)


def _actions(candidates: Sequence[Projection]) -> list[str]:
    return [str(candidate.action).strip() for candidate in candidates]


def _valid_counts(candidates: Sequence[Projection]) -> Counter[str]:
    return Counter(a for a, c in zip(_actions(candidates), candidates, strict=True) if c.valid)


def _named_place(candidates: Sequence[Projection], choice: Projection) -> int | None:
    """Return the place of a judge's choice among the candidates; None if it is none of them. Its
    text is an action of a candidate rather than a number, and of a valid one rather than not.
    """
    text = str(choice.action).strip()
    places = [place for place, action in enumerate(_actions(candidates)) if action == text and text]
    if places:
        return next((place for place in places if candidates[place].valid), places[0])
    is_number = text.isascii() and text.isdigit() and len(text) < 8
    return int(text) - 1 if is_number and 1 <= int(text) <= len(candidates) else None


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
            return _one_of([condition.is_])
        case "in_":
            return _one_of(condition.in_)
        case "below":
            highest = Decimal(repr(condition.below))
            return lambda value: (number := _decimal(value)) is not None and number < highest
        case "above":
            lowest = Decimal(repr(condition.above))
            return lambda value: (number := _decimal(value)) is not None and number > lowest
    return _is_true


def _one_of(values: Sequence[Any]) -> Callable[[Any], bool]:
    """Return whether a value is one of the file's: `true` is not 1, and the text `3` is the number
    3.
    """
    texts = {value.strip() for value in values if isinstance(value, str)}
    literals = [value for value in values if isinstance(value, bool) or value is None]
    numbers = {_decimal(value) for value in values if not isinstance(value, str)} - {None}

    def check(value: Any) -> bool:
        if isinstance(value, str) and value.strip() in texts:
            return True
        if any(_scalar(value) is literal for literal in literals):
            return True
        return bool(numbers) and _decimal(value) in numbers

    return check


def _decimal(value: Any) -> Decimal | None:
    """Return the exact value of a number, or of a text that is one; None for anything else."""
    value = _scalar(value)
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return Decimal(value)
    if isinstance(value, float):  # 0.1 is what is written, as in the file
        return None if math.isnan(value) else Decimal(repr(value))
    if not isinstance(value, str) or len(text := value.strip()) > LONGEST_NUMBER:
        return None
    return Decimal(text) if DECIMAL.fullmatch(text) else None


def _is_true(value: Any) -> bool:
    """Return whether a value is true, as Python has it; an array is if it has elements."""
    value = _scalar(value)
    return len(value) > 0 if hasattr(value, "__len__") else bool(value)


def _scalar(value: Any) -> Any:
    """Return a scalar of NumPy or PyTorch as Python's, and other values as they are."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value
