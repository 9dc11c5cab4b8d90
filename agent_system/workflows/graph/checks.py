"""What the parts of a team file may refer to: agents, steps, fields, variables; and the calls that
they can make.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent_system.children import CHILD_FIELDS, MAX_DEPTH
from agent_system.workflows.graph.schema import (
    AgentSpec,
    AnyStep,
    CallStep,
    Condition,
    DelegateKeys,
    IfStep,
    LoopStep,
    NamedStep,
    ParallelStep,
    SpawnStep,
    StopStep,
    TeamSpec,
    VoteStep,
)
from agent_system.workflows.graph.source import KeyPath, TeamSource, short
from verl.utils.names import did_you_mean, listed, slug

MAX_STEPS = 256
MAX_NESTING = 32
MAX_CALLS = 1000
# Steps that a turn may execute, for each call that it may make: those without calls never wait, so
# other episodes wait for them.
STEPS_PER_CALL = 100
# Sets of steps that are followed to the end of a turn; above, only what they have in common.
MAX_WAYS = 32
SHIPPED_TOOLS = ("calculator", "python")
DELEGATE = "delegate"
PROMPT_VARIABLES = ("env_prompt", "team_context", "memory", "step", "task")
QUOTE_VARIABLES = ("agent", "role", "text", "action")
# Fields of an answer, beside `action` and `valid`, by its kind.
ANSWER_FIELDS = {"verdict": ("approved", "parsed"), "code": ("language",), "python": ("language",)}
VOTE_FIELDS = ("votes", "share")
# Workflows whose agents have no class that a file can take.
NO_CLASSES = ("graph", "gateway")

_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_CLASS = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,63})/([^/]{1,64})")
_TAG = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_LONGEST_NAME = 64


class _Problem(Exception):
    """What is wrong at a path."""

    def __init__(self, path: KeyPath, message: str) -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True)
class CheckedTeam:
    """What the checks found out.

    Attributes:
        agents: the agents by name, those with `like` completed.
        calls: largest number of calls in a turn.
    """

    agents: Mapping[str, AgentSpec]
    calls: int


def check_team_file(
    spec: TeamSpec, source: TeamSource, *, max_calls: int = MAX_CALLS, tools: Collection[str] = ()
) -> CheckedTeam:
    """Check a file whose parts have the right form.

    Args:
        spec: its parts.
        source: its text, for messages.
        max_calls: limit of `CheckedTeam.calls`.
        tools: names of tools beside the shipped ones.

    Raises:
        AgentSystemError: the first thing that is wrong, in one line with its place.
    """
    try:
        agents = _check_agents(spec.agents, tools)
        _check_size(spec.do, ("do",))
        steps = _Steps(agents, _declared(spec.do, ("do",)))
        steps.check(spec)
        calls = _check_costs(spec.do, agents, max_calls)
    except _Problem as problem:
        raise source.error(problem.path, str(problem)) from None
    return CheckedTeam(agents, calls)


def fields_of(agent: AgentSpec) -> tuple[str, ...] | None:
    """Return the fields of an agent's answer, beside `action` and `valid`; None for a class, which
    may have any.
    """
    return None if agent.class_ else ANSWER_FIELDS.get(agent.answer.kind, ())


def class_of(agent: AgentSpec) -> tuple[str, str]:
    """Return workflow and name of the registered class of an agent that has one."""
    match = _CLASS.fullmatch(agent.class_ or "")
    assert match is not None, "the file is checked"
    return match[1], match[2]


def _check_agents(agents: Mapping[str, AgentSpec], tools: Collection[str]) -> dict[str, AgentSpec]:
    slugs: dict[str, str] = {}
    for name in agents:
        path = ("agents", name)
        _check_name(name, path)
        if (other := slugs.setdefault(slug(name), name)) != name:
            raise _Problem(path, f"is {slug(name)!r} in metrics and folders, as {other!r} is; rename one")
    whole = {name: _completed(name, agents) for name in agents}
    for name, agent in whole.items():
        _check_agent(agent, ("agents", name), tools, whole)
    return whole


def _check_name(name: str, path: KeyPath) -> None:
    odd = [c for c in name if unicodedata.category(c)[0] == "C" or (c.isspace() and c != " ")]
    if odd or name != name.strip() or not slug(name) or len(name) > _LONGEST_NAME:
        raise _Problem(
            path,
            f"{short(name)} cannot be a name: at most {_LONGEST_NAME} printable characters, some "
            "of a-z and 0-9",
        )


def _completed(name: str, agents: Mapping[str, AgentSpec]) -> AgentSpec:
    """Return an agent with the fields of those that it is like."""
    agent = agents[name]
    chain = [name]
    while agent.like is not None:
        path = ("agents", chain[-1], "like")
        if agent.like not in agents:
            raise _Problem(path, f"no agent {short(agent.like)}{did_you_mean(agent.like, agents)}")
        if agent.like in chain:
            raise _Problem(path, f"the agent is like itself: {' -> '.join([*chain, agent.like])}")
        chain.append(agent.like)
        base = agents[agent.like]
        agent = agent.on(base).model_copy(update={"like": base.like})
    return agent


def _check_agent(
    agent: AgentSpec, path: KeyPath, tools: Collection[str], agents: Mapping[str, AgentSpec]
) -> None:
    if agent.as_ is not None:
        _check_name(agent.as_, (*path, "as"))
    for position, name in enumerate(agent.variables):
        if not name.isidentifier():
            raise _Problem((*path, "variables", position), f"{short(name)} is no plain name")
    if agent.class_ is not None:
        _check_class(agent, path)
    elif agent.prompt is None:
        raise _Problem(path, "it has no prompt, and no class that has one")
    elif agent.options:
        raise _Problem((*path, "options"), "are of a class; this agent has none")
    variables = None if agent.class_ else (*PROMPT_VARIABLES, *agent.variables)
    for name in ("prompt", "system"):
        if (template := getattr(agent, name)) is not None:
            _check_template(template, (*path, name), variables)
    if agent.quote is not None:
        _check_template(agent.quote.entry, (*path, "quote", "entry"), QUOTE_VARIABLES)
    tag = agent.answer.tag if agent.answer.kind == "tag" else agent.answer.verdict.tag
    if not _TAG.fullmatch(tag) and agent.answer.kind in ("tag", "verdict"):
        raise _Problem((*path, "answer"), f"{short(tag)} cannot be a tag: letters, digits, _ and -")
    _check_tools(agent, (*path, "tools"), (*SHIPPED_TOOLS, *tools), agents)


def _check_tools(
    agent: AgentSpec, path: KeyPath, known_tools: Sequence[str], agents: Mapping[str, AgentSpec]
) -> None:
    names: list[str] = []
    for position, tool in enumerate(agent.tools):
        where = (*path, position)
        name = tool if isinstance(tool, str) else DELEGATE
        if isinstance(tool, DelegateKeys):
            _check_known_agent(tool.delegate, (*where, DELEGATE), agents)
        elif tool == DELEGATE:
            raise _Problem(where, "delegate needs the agent that it calls: {delegate: Agent}")
        elif tool not in known_tools:
            raise _Problem(
                where,
                f"no tool {short(tool)}{did_you_mean(tool, known_tools)}; known: "
                f"{', '.join(known_tools)}; a function of yours is named on the command line: "
                "agent.orchestra.graph.tools.<name>=module:function",
            )
        if name in names:
            raise _Problem(where, f"the tool {name!r} is there twice")
        names.append(name)


def _check_known_agent(name: str, path: KeyPath, agents: Mapping[str, AgentSpec]) -> None:
    if name not in agents:
        raise _Problem(path, f"no agent {short(name)}{did_you_mean(name, agents)}")


def delegates(agent: AgentSpec) -> list[DelegateKeys]:
    """Return the tools of an agent that call others: one at most."""
    return [tool for tool in agent.tools if isinstance(tool, DelegateKeys)]


def _check_class(agent: AgentSpec, path: KeyPath) -> None:
    match = _CLASS.fullmatch(agent.class_ or "")
    if match is None or match[1] in NO_CLASSES:
        raise _Problem(
            (*path, "class"),
            f"{short(agent.class_)} is no registered class: write workflow/Agent, as math/Solver Agent",
        )
    for name in ("answer", "quote", "tools", "max_rounds", "variables"):
        if name in agent.model_fields_set:
            raise _Problem((*path, name), f"belongs to the class {agent.class_!r}; leave it out")


def _check_template(template: str, path: KeyPath, variables: Collection[str] | None) -> None:
    """Raise _Problem unless all fields of a template are plain names, of `variables` unless it is
    None.
    """
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise _Problem(
            path, f"the template is malformed ({error}); write literal braces twice: {{{{ }}}}"
        ) from None
    for _, name, spec, conversion in parts:
        if name is None:
            continue
        if not name.isidentifier() or spec or conversion:
            written = name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
            raise _Problem(
                path, f"{short('{' + written + '}')} is no plain name; write literal braces twice: {{{{ }}}}"
            )
        if variables is not None and name not in variables:
            raise _Problem(
                path,
                f"no variable {short('{' + name + '}')}{did_you_mean(name, variables)}; known: "
                f"{', '.join(variables)}; names of the observation's info are listed in variables",
            )


def _check_size(steps: Sequence[AnyStep], path: KeyPath, depth: int = 0, count: int = 0) -> int:
    """Return the number of steps, those inside them and `count`. Raise _Problem for too many, or too
    deep ones: all other checks take time that grows with them.
    """
    if depth >= MAX_NESTING:
        raise _Problem(path, f"steps are nested more than {MAX_NESTING} deep")
    for position, step in enumerate(steps):
        where = (*path, position)
        count += 1
        if count > MAX_STEPS:
            raise _Problem(where, f"more than {MAX_STEPS} steps")
        for child_path, child in children(step, where):
            count = _check_size(child, child_path, depth + 1, count)
    return count


# The steps that have a name, more than one only in the arms of an `if`.
Declared = dict[str, list[NamedStep]]


def _declared(steps: Sequence[AnyStep], path: KeyPath) -> Declared:
    """Return the steps with names, and those inside the others, by their names. Only both arms of
    an `if` may have a name twice.
    """
    declared: Declared = {}

    def add(name: str, named_steps: list[NamedStep], where: KeyPath) -> None:
        if name in declared:
            raise _Problem(where, f"the step {name!r} is there twice")
        declared[name] = named_steps

    for position, step in enumerate(steps):
        where = (*path, position)
        if isinstance(step, NamedStep) and step.id is not None:
            if not _ID.fullmatch(step.id):
                raise _Problem((*where, "id"), f"{short(step.id)} cannot be a name: letters, digits, _ and -")
            add(step.id, [step], (*where, "id"))
        elif isinstance(step, IfStep):
            arms = [_declared(arm, p) for p, arm in children(step, where)]
            for name in dict.fromkeys(name for arm in arms for name in arm):
                add(name, [s for arm in arms for s in arm.get(name, ())], where)
        else:
            for child_path, child in children(step, where):
                for name, named_steps in _declared(child, child_path).items():
                    add(name, named_steps, child_path)
    return declared


@dataclass(frozen=True)
class _Scope:
    """What steps can refer to.

    Attributes:
        names: the steps.
        before: those that may have run before.
        in_loop: a loop is around, which `stop` ends.
        stops: `stop` is possible.
    """

    names: tuple[str, ...]
    before: frozenset[str] = frozenset()
    in_loop: bool = False
    stops: bool = True


@dataclass
class _Steps:
    """Checks the tree of steps.

    Attributes:
        agents: the agents by name.
        declared: all steps with names.
        called: agents that steps call.
    """

    agents: Mapping[str, AgentSpec]
    declared: Declared
    called: set[str] = field(default_factory=set)

    def check(self, spec: TeamSpec) -> None:
        """Raise _Problem for the first step that is wrong, an agent that none calls, and for a
        returned step that may not have run.
        """
        names = tuple(self.declared)
        self._check_all(spec.do, ("do",), _Scope(names))
        if idle := [name for name in self.agents if name not in self.called]:
            raise _Problem(("agents", idle[0]), "no step calls it; leave it out")
        for name in spec.return_.of:
            self._check_step_name(name, ("return",), names)
        if spec.return_.default is None and not always_run(ways_to_end(spec.do), spec.return_.of):
            steps = ", ".join(spec.return_.of)
            raise _Problem(
                ("return",),
                f"the step {steps} may be left out; write {{of: [{steps}], default: ''}}, the "
                "action for that case",
            )

    def _fields(self, name: str) -> tuple[str, ...] | None:
        """Return the fields that every result of a step has, beside `action` and `valid`; None for
        any.
        """
        return _common(self._fields_of(step) for step in self.declared[name])

    def _fields_of(self, step: NamedStep) -> tuple[str, ...] | None:
        if not isinstance(step, VoteStep):
            return CHILD_FIELDS if isinstance(step, SpawnStep) else self._fields_by(step.call)
        if isinstance(step.vote, str):
            fields = self._fields_by(step.vote)
        else:
            fields = _common(self._fields_of(candidate) for candidate in self._candidates(step.vote))
        return fields if fields is None else tuple(dict.fromkeys((*fields, *VOTE_FIELDS)))

    def _fields_by(self, name: str) -> tuple[str, ...] | None:
        return fields_of(self.agents[name]) if name in self.agents else None

    def _candidates(self, names: Sequence[str]) -> Iterator[NamedStep]:
        """Yield the steps with these names, and in place of a vote of steps those that it is of."""
        all_names = list(names)
        for name in all_names:  # which grows
            for step in self.declared.get(name, ()):
                if not isinstance(step, VoteStep) or isinstance(step.vote, str):
                    yield step
                else:
                    all_names += [n for n in dict.fromkeys(step.vote) if n not in all_names]

    def _check_all(self, steps: Sequence[AnyStep], path: KeyPath, scope: _Scope) -> None:
        for position, step in enumerate(steps):
            where = (*path, position)
            self._check_one(step, where, scope)
            inner = _declared([step], where)
            for child_path, child in children(step, where):
                self._check_all(child, child_path, _inside(step, inner, child, scope))
            if isinstance(step, StopStep) and step.stop is None and position + 1 < len(steps):
                raise _Problem((*path, position + 1), "is never reached, behind stop: always")
            scope = replace(scope, before=scope.before.union(inner))

    def _check_one(self, step: AnyStep, path: KeyPath, scope: _Scope) -> None:
        match step:
            case CallStep():
                self._check_agent_name(step.call, (*path, "call"))
                self._check_sees(step.sees, path, scope)
                if step.unless is not None:
                    self._check_condition(step.unless, (*path, "unless"), scope)
            case VoteStep():
                self._check_vote(step, path, scope)
            case SpawnStep():
                self._check_earlier(step.spawn.of, (*path, "spawn", "of"), scope)
                self._check_agent_name(step.spawn.agent, (*path, "spawn", "agent"))
                self._check_sees(step.sees, path, scope)
            case StopStep():
                if not scope.stops:
                    raise _Problem(path, "a stop in a branch of parallel must be in a loop of the branch")
                if step.stop is not None:
                    self._check_condition(step.stop, (*path, "stop"), scope)
            case IfStep():
                self._check_condition(step.if_, (*path, "if"), scope)

    def _check_vote(self, step: VoteStep, path: KeyPath, scope: _Scope) -> None:
        if isinstance(step.vote, str):
            self._check_agent_name(step.vote, (*path, "vote"))
            self._check_sees(step.sees, path, scope)
        else:
            for position, name in enumerate(step.vote):
                self._check_earlier(name, (*path, "vote", position), scope)
        if step.best is not None:
            self._check_agent_name(step.best, (*path, "best"))

    def _check_agent_name(self, name: str, path: KeyPath) -> None:
        _check_known_agent(name, path, self.agents)
        while name not in self.called:
            self.called.add(name)
            for keys in delegates(self.agents[name]):
                name = keys.delegate

    def _check_step_name(self, name: str, path: KeyPath, fields: Collection[str]) -> None:
        if name not in fields:
            names = f"; steps: {listed(fields)}" if fields else "; no step has an id"
            raise _Problem(
                path, f"no step {short(name)} that is known here{did_you_mean(name, fields)}{names}"
            )

    def _check_earlier(self, name: str, path: KeyPath, scope: _Scope) -> None:
        self._check_step_name(name, path, scope.names)
        if name not in scope.before:
            raise _Problem(path, f"the step {name!r} cannot have run before")

    def _check_sees(self, sees: Sequence[str] | None, path: KeyPath, scope: _Scope) -> None:
        for position, name in enumerate(sees or ()):
            self._check_step_name(name, (*path, "sees", position), scope.names)

    def _check_condition(self, condition: Condition, path: KeyPath, scope: _Scope) -> None:
        if condition.loop is not None and not scope.in_loop:
            raise _Problem(path, "a condition on the loop is outside of every loop")
        if condition.of is None:
            return
        self._check_step_name(condition.of, (*path, "of"), scope.names)
        fields = self._fields(condition.of)
        if fields is not None and condition.field not in (all_fields := ("action", "valid", *fields)):
            raise _Problem(
                (*path, "field"),
                f"the step {condition.of!r} has no field {short(condition.field)}"
                f"{did_you_mean(condition.field, all_fields)}; fields: {', '.join(all_fields)}",
            )


def _inside(step: AnyStep, names_inside: Collection[str], child: Sequence[AnyStep], scope: _Scope) -> _Scope:
    """Return the scope of steps inside another one; a branch does not refer to the steps of others,
    and in a loop a step may have run in the round before.
    """
    names = scope.names
    before = scope.before
    is_loop = isinstance(step, LoopStep)
    if isinstance(step, ParallelStep):
        others = set(names_inside).difference(_declared(child, ()))
        names = tuple(name for name in names if name not in others)
    if is_loop:
        before = before.union(names_inside)
    stops = is_loop or (scope.stops and not isinstance(step, ParallelStep))
    return _Scope(names, before.intersection(names), scope.in_loop or is_loop, stops)


def _common(all_fields: Iterable[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    """Return the fields that are in all, None if these are any."""
    listed_fields = [fields for fields in all_fields if fields is not None]
    if not listed_fields:
        return None
    return tuple(name for name in listed_fields[0] if all(name in fields for fields in listed_fields))


def children(step: AnyStep, path: KeyPath) -> Iterator[tuple[KeyPath, list[AnyStep]]]:
    """Yield the lists of steps inside a step, with their paths."""
    match step:
        case LoopStep():
            yield (*path, "do"), step.do
        case IfStep():
            yield (*path, "do"), step.do
            if step.else_:
                yield (*path, "else"), step.else_
        case ParallelStep():
            for position, branch in enumerate(step.parallel):
                yield (*path, "parallel", position), branch


def step_ids(steps: Sequence[AnyStep]) -> list[str]:
    """Return the names of all steps of a list and inside them."""
    names = [step.id for step in steps if isinstance(step, NamedStep) and step.id is not None]
    for step in steps:
        for _, child in children(step, ()):
            names += step_ids(child)
    return list(dict.fromkeys(names))


def _check_costs(steps: Sequence[AnyStep], agents: Mapping[str, AgentSpec], max_calls: int) -> int:
    """Return the largest number of calls in a turn. Raise _Problem if it is more than `max_calls`,
    or for steps that take the controller's time without calls.
    """
    cost = _Cost(agents)
    calls = cost.of_steps(steps)
    if calls > max_calls:
        path = _costliest(steps, max_calls, cost.of_step)
        raise _Problem(path, f"a turn may make {calls:,} calls, more than max_calls={max_calls:,}")
    if (idle := _idle_loop(steps, ("do",), cost)) is not None:
        raise _Problem(idle, "no step of the loop makes a call")
    limit = STEPS_PER_CALL * max(max_calls, MAX_CALLS)
    if (count := _executed(steps)) > limit:
        path = _costliest(steps, limit, lambda step: _executed([step]))
        raise _Problem(path, f"a turn may execute {count:,} steps, more than {limit:,}")
    return calls


def _idle_loop(steps: Sequence[AnyStep], path: KeyPath, cost: _Cost) -> KeyPath | None:
    """Return the path of the first loop that can make no call."""
    for position, step in enumerate(steps):
        where = (*path, position)
        if isinstance(step, LoopStep) and cost.of_step(step) == 0:
            return where
        for child_path, child in children(step, where):
            if (idle := _idle_loop(child, child_path, cost)) is not None:
                return idle
    return None


def _executed(steps: Sequence[AnyStep]) -> int:
    """Return the largest number of steps that are executed; `vote` and `spawn` count once, as their
    calls are counted.
    """
    count = 0
    for step in steps:
        inner = [_executed(child) for _, child in children(step, ())]
        rounds = step.loop if isinstance(step, LoopStep) else 1
        count += 1 + rounds * (max(inner, default=0) if isinstance(step, IfStep) else sum(inner))
    return count


@dataclass(frozen=True)
class _Cost:
    """Counts the largest number of calls that steps can make, those of the tool `delegate` included."""

    agents: Mapping[str, AgentSpec]

    def of_steps(self, steps: Sequence[AnyStep]) -> int:
        """Return the number of a list."""
        return sum(map(self.of_step, steps))

    def of_step(self, step: AnyStep) -> int:
        """Return the number of a step."""
        match step:
            case CallStep():
                return self._of_agent(step.call)
            case VoteStep():
                voters = (step.n or 0) * self._of_agent(step.vote) if isinstance(step.vote, str) else 0
                return voters + (0 if step.best is None else self._of_agent(step.best))
            case SpawnStep():
                keys = step.spawn
                depths = range(1, keys.depth + 1)
                return sum(
                    keys.max**depth * self._of_agent(keys.agent, depth, keys.depth) for depth in depths
                )
            case LoopStep():
                return step.loop * self.of_steps(step.do)
            case IfStep():
                return max(self.of_steps(step.do), self.of_steps(step.else_))
            case ParallelStep():
                return sum(map(self.of_steps, step.parallel))
        return 0

    def _of_agent(self, name: str, depth: int = 0, limit: int = MAX_DEPTH) -> int:
        """Return the number of a call at a depth, with its children; `limit` is the largest depth of
        the spawn or tool around.
        """
        tools = [(t, min(t.depth, limit)) for t in delegates(self.agents[name])]
        inner = [t.max * self._of_agent(t.delegate, depth + 1, most) for t, most in tools if depth < most]
        return 1 + sum(inner)


def _costliest(
    steps: Sequence[AnyStep], limit: int, cost: Callable[[AnyStep], int], path: KeyPath = ("do",)
) -> KeyPath:
    """Return the path of the innermost step that alone makes more calls than `limit`, or of all
    steps.
    """
    for position, step in enumerate(steps):
        where = (*path, position)
        if cost(step) > limit:
            parts = list(children(step, where))
            inner = [_costliest(child, limit, cost, child_path) for child_path, child in parts]
            lists = [child_path for child_path, _ in parts]
            return next((place for place in inner if place not in lists), where)
    return path


# Ways to a place among the steps: the steps that have run on each.
Ways = set[frozenset[str]]


def ways_to_end(steps: Sequence[AnyStep]) -> Ways:
    """Return the ways to the places where a turn's steps end."""
    end, stopped = _flow(steps, {frozenset()})
    return end | stopped


def always_run(ways: Ways, names: Collection[str]) -> bool:
    """Return whether one of the named steps has run on all ways."""
    return all(way.intersection(names) for way in ways)


def _flow(steps: Sequence[AnyStep], ways: Ways) -> tuple[Ways, Ways]:
    """Return the ways to the end of steps (none if it is never reached), and to each of their `stop`
    that ends more than them.
    """
    stopped: Ways = set()
    for step in steps:
        match step:
            case CallStep(id=str(), unless=None):
                ways = {way | {str(step.id)} for way in ways}
            case VoteStep(id=str()):
                voters = None if isinstance(step.vote, str) else step.vote
                ways = {
                    way | {str(step.id)} if voters is None or way.intersection(voters) else way
                    for way in ways
                }
            case SpawnStep(id=str()):
                ways = {way | {str(step.id)} if step.spawn.of in way else way for way in ways}
            case StopStep():
                stopped |= ways
                ways = ways if step.stop is not None else set()
            case LoopStep():
                end, ends = _flow(step.do, ways)
                ways = end | ends
            case ParallelStep():
                # which read nothing of each other
                for branch in step.parallel:
                    ways, _ = _flow(branch, ways)
            case IfStep():
                end, ends = _flow(step.do, ways)
                other, others = _flow(step.else_, ways)
                ways = end | other
                stopped |= ends | others
        ways = _shortest(ways)
        stopped = _shortest(stopped)
    return ways, stopped


def _shortest(ways: Ways) -> Ways:
    """Return the ways on which no more has run than on others; of too many, what all have in
    common.
    """
    if len(ways) < 2:
        return ways
    if len(ways) > MAX_WAYS:
        return {frozenset.intersection(*ways)}
    return {way for way in ways if not any(other < way for other in ways)}
