"""Sub-agents: calls of an agent for tasks that another reply names, at the same time, as part of
the same episode.

    plan = await turn.act("Planner")
    found = await spawn(turn, "Finder", task_lines(plan.action), most=4)
    return (await turn.act("Planner", found="\n".join(reply.action for reply in found))).action

A child is a call like any: its reply is a sample of its own agent, which knows its depth
(`Sample.depth`) and has the rewards of the episode. Its prompt has `{task}`; its reply is not part
of the team context.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from agent_system.agent import Entry
from agent_system.errors import AgentSystemError, PromptTooLongError
from agent_system.projection import Projection
from agent_system.turn import CallContext, Turn
from agent_system.waves import Branch, Waves, in_waves

MOST_CHILDREN = 64  # of one call
MAX_DEPTH = 8
LONGEST_TASK = 4096  # characters
CHILD_FIELDS = ("children", "left_out")
# in the info of an episode: children whose prompts were too long
TOO_LONG = "spawn/too_long"


def task_lines(text: Any) -> list[str]:
    """Return the lines of an action that are not blank, the first `LONGEST_TASK` characters of each."""
    return [line.strip()[:LONGEST_TASK] for line in str(text).splitlines() if line.strip()]


def joined(replies: Sequence[Projection], counts: Counter[str] | None = None) -> Projection:
    """Return the replies of children as one: their actions, joined by line breaks; valid if there
    are some and all are. Its fields are the `counts`: `children`, the number of calls at all
    depths, and `left_out`, of the tasks beyond the limit.
    """
    action = "\n".join(str(reply.action) for reply in replies)
    fields = {} if counts is None else {name: counts[name] for name in CHILD_FIELDS}
    return Projection(action, bool(replies) and all(reply.valid for reply in replies), fields, action)


class Child:
    """A branch of a turn that works on one task of a spawn, for a function that makes its calls.

    Attributes:
        turn: the turn.
        branch: the branch; `branch.depth` is the depth of its calls.
        task: the task.
    """

    def __init__(self, turn: Turn, branch: Branch, task: str) -> None:
        self.turn = turn
        self.branch = branch
        self.task = task

    @property
    def may_spawn(self) -> bool:
        """Whether `spawn` may be called for it: it is above the depth limit."""
        return self.branch.depth < self.branch.limit

    async def act(self, agent_id: str, **variables: Any) -> Projection:
        """Call an agent as `Turn.act` does; an empty, invalid reply if its prompt is too long. The
        variable `task`, or without it the task of the child, is part of the call's anchor. Raise
        AgentSystemError while another call or spawn of the child runs.
        """
        task = str(variables.get("task") or self.task)
        with self.branch.alone():
            context = CallContext(variables, branch=self.branch, task=task)
            return await child_call(self.turn, agent_id, context)


async def child_call(turn: Turn, agent_id: str, context: CallContext) -> Projection:
    """Call an agent as a child. A prompt that is too long, as a task that a model wrote may make it,
    is no call and costs no episode: its reply is empty and invalid, and `env/spawn/too_long` counts
    it, which is 0 if no prompt was.
    """
    turn.counts[TOO_LONG] += 0
    try:
        return await turn.call(agent_id, context)
    except PromptTooLongError:
        turn.counts[TOO_LONG] += 1
        return Projection("", False)


async def spawn(
    parent: Turn | Child,
    work: str | Callable[..., Awaitable[Any]],
    tasks: Sequence[str],
    *,
    most: int = 8,
    depth: int | None = None,
    **variables: Any,
) -> list[Any]:
    """Give each task to a child, all at the same time; return the results in the order of the tasks.

    `work` is an agent, or a function that makes the calls for one task by `Child.act` and may spawn
    again. An agent is called once for each task, and its reply is the result; above the depth
    limit a valid reply whose action has two lines or more is itself a list of tasks, and the
    result is that of these, see `joined`. The team context then shows all results as one reply of
    the agent.

    Args:
        parent: the turn, or the child that spawns.
        work: name of an agent, or coroutine function of a `Child`, its task and the variables.
        tasks: the tasks.
        most: largest number of children of one parent; further tasks are left out.
        depth: largest depth of children, 1 by default; a child has the limit of its own spawn.
        variables: further variables of the agent's prompt, or arguments of the function.

    Raises:
        AgentSystemError: a child spawns at the depth limit, or while another call or spawn of it
            runs; another spawn of the turn runs; `tasks` is one text; a limit is out of range.
    """
    turn = parent if isinstance(parent, Turn) else parent.turn
    around = None if isinstance(parent, Turn) else parent.branch
    limit = around.limit if around is not None else 1 if depth is None else depth
    level = 1 if around is None else around.depth + 1
    _check(tasks, most, limit, level, depth is not None and around is not None)
    with turn.one_spawn() if around is None else around.alone():
        if not isinstance(work, str):
            play = work

            async def one(task: str, branch: Branch) -> Any:
                return await play(Child(turn, branch, task), task, **variables)

            works = [partial(one, task) for task in tasks[:most]]
            return await in_waves(works, around, depth=level, limit=limit)
        place = turn.reserve() if around is None else None
        # what stands in the team context before the spawn, and nothing of the children
        context = CallContext(variables)
        replies = await call_children(turn, around, work, tasks, context, most=most, limit=limit)
        if place is not None:
            show(turn, place, work, joined(replies))
        return replies


def show(turn: Turn, place: int, agent_id: str, result: Projection) -> None:
    """Show the joined results of children in the team context, as one reply of their agent."""
    turn.record(place, Entry(agent_id, result.text, str(result.action)))


async def call_children(
    turn: Turn,
    around: Branch | None,
    agent_id: str,
    tasks: Sequence[str],
    context: CallContext,
    *,
    most: int,
    limit: int,
    counts: Counter[str] | None = None,
) -> list[Projection]:
    """Call an agent for each task, and, above the depth limit, for the lines of their replies.

    Args:
        turn: the turn.
        around: the branch of the calling agent; None outside of branches.
        agent_id: the agent.
        tasks: the tasks.
        context: what the prompts show beside their tasks.
        most: largest number of children of one parent.
        limit: largest depth.
        counts: gets the numbers of `joined`.
    """
    depth = 1 if around is None else around.depth + 1
    total = Counter[str]() if counts is None else counts
    total.update(children=min(len(tasks), most), left_out=max(len(tasks) - most, 0))

    async def one(task: str, branch: Branch) -> Projection:
        variables = {**context.variables, "task": task}
        filled = replace(context, variables=variables, branch=branch, task=task)
        reply = await child_call(turn, agent_id, filled)
        parts = task_lines(reply.action) if depth < limit and reply.valid else []
        if len(parts) < 2:
            return reply
        deeper = call_children(turn, branch, agent_id, parts, context, most=most, limit=limit, counts=total)
        return joined(await deeper)

    works = [partial(one, task) for task in tasks[:most]]
    return await in_waves(works, around, depth=depth, limit=limit)


class ToolCaller:
    """A call of an agent with tools, of which the tool `delegate` calls other agents: their calls
    are children of the call, and run in waves with each other.

    Attributes:
        turn: the turn.
        context: what the call's prompt shows; its children read the same entries.
        children: number of children so far.
    """

    def __init__(self, turn: Turn, context: CallContext) -> None:
        self.turn = turn
        self.context = context
        self.children = 0
        self._waves = Waves(around=context.branch)

    @property
    def depth(self) -> int:
        """Depth of its children."""
        return 1 if self.context.branch is None else self.context.branch.depth + 1

    def leave_unheard(self, leave: Callable[[int], None]) -> None:
        """Call a function with the number of each generation of its children, at all depths, and of
        those that are still to come.
        """
        for number in self._waves.numbers:
            leave(number)
        self._waves.hear = leave

    def limit(self, depth: int) -> int:
        """Return the largest depth of the children of a tool with the limit `depth`: not more than
        that of the spawn, or of the tool, around the call.
        """
        around = self.context.branch
        return depth if around is None or not around.depth else min(depth, around.limit)

    async def call(self, agent_id: str, task: str, limit: int) -> Projection:
        """Call an agent for a task, as a child; `limit` is the largest depth."""
        self.children += 1
        branch = Branch(self._waves, self._waves.join(), self.depth, limit)
        context = replace(self.context, variables={"task": task}, step="", branch=branch, task=task)
        try:
            # the other tool calls of the reply join before the first wave
            await asyncio.sleep(0)
            return await child_call(self.turn, agent_id, context)
        finally:
            self._waves.leave()


def check_limits(what: str, most: int, depth: int) -> None:
    """Raise AgentSystemError for a number or depth of children that is out of range.

    Args:
        what: has these limits: spawn or delegate.
        most: largest number of children.
        depth: their largest depth.
    """
    if not (1 <= most <= MOST_CHILDREN and 1 <= depth <= MAX_DEPTH):
        raise AgentSystemError(
            f"{what}: expected most from 1 to {MOST_CHILDREN} and depth from 1 to {MAX_DEPTH}, found "
            f"most={most} and depth={depth}"
        )


def _check(tasks: Sequence[str], most: int, limit: int, level: int, is_again: bool) -> None:
    if isinstance(tasks, str):
        raise AgentSystemError("spawn needs a list of tasks, found one text; see task_lines")
    if is_again:
        raise AgentSystemError("spawn: a child has the depth limit of its own spawn; leave depth out")
    check_limits("spawn", most, limit)
    if level > limit:
        raise AgentSystemError(f"a child at depth {limit}, the limit, cannot spawn; look at may_spawn")
