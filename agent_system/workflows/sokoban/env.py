"""One room; every turn the Executor's moves are made.

Rewards follow Stronger-MAS (arXiv 2510.11062): the team for success and progress, each role for its own reply. Nothing can be earned by
going in circles. Progress is paid as it beats the best of the episode so far: a box pushed off its goal and on again pays no second time.
Moves that lose the room gain nothing, whatever they pass on the way. The Tool is paid the difference between its plans, or to what has been
made meanwhile where that is more, so that over an episode it earns at most what its last plan was worth, however often it says it. All else
is a penalty. The team's rewards of an episode add up to at most 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from agent_system.environment import BaseEnv, Observation, Outcome, Task, paid
from agent_system.errors import AgentSystemError
from agent_system.options import check_choice
from agent_system.registry import EnvRegistry
from agent_system.workflows.moves import parse_moves
from agent_system.workflows.programs import Program, run_program
from agent_system.workflows.proposer_executor import EXECUTOR, TOOL
from agent_system.workflows.sokoban.world.rules import Room, State, Walk, boxes_on_goals, is_solved, parse_room, render, walk
from agent_system.workflows.sokoban.world.solver import is_lost, least_pushes, solve
from agent_system.workflows.sokoban.world.view import VIEWS, shown

PROGRESS = ("boxes", "distance")


@dataclass(frozen=True)
class SokobanEnvOptions:
    """Options under `env.params`.

    Attributes:
        view: what the agents see: map | spaced (a blank between cells, so that a tokenizer makes each cell a token) | compact (the ways to
            box and goal and the cells around the box, always at the same place; rooms with one box).
        max_moves: most moves of one turn; what follows is not made and counts as cut.
        progress: what the team is paid for on the way: boxes (best count on goals so far) | distance (least pushes left so far, by the
            lower bound of the solver).
        progress_weight: share of the team's reward that progress earns; the rest is for solving the room.
        plan_weight: local reward of a plan, times what the team would have earned with its moves beyond the last plan, or beyond what
            has been made since.
        format_penalty: local, for a reply without readable moves.
        illegal_penalty: local, for moves that run into a wall or a blocked box, and for moves past `max_moves`.
        deadlock_penalty: local, for moves after which the room cannot be solved any more.
        deadlock_ends: that ends the episode.
        shortfall_penalty: local, for moves that lead away from the end; half of it for moves that lead nowhere, nothing for those of the
            solver, as many as fit into a turn. Above 0 the solver looks at every state that a reply leads to, which takes long in large
            rooms with many boxes.
    """

    view: str = "map"
    max_moves: int = 10
    progress: str = "boxes"
    progress_weight: float = 0.5
    plan_weight: float = 0.5
    format_penalty: float = 0.1
    illegal_penalty: float = 0.05
    deadlock_penalty: float = 0.1
    deadlock_ends: bool = False
    shortfall_penalty: float = 0.0

    def __post_init__(self) -> None:
        if self.max_moves < 1:
            raise AgentSystemError(f"env.params.max_moves must be 1 or more, found {self.max_moves}")
        check_choice("env.params.view", self.view, VIEWS)
        check_choice("env.params.progress", self.progress, PROGRESS)
        if not 0.0 <= self.progress_weight <= 1.0:
            raise AgentSystemError(f"env.params.progress_weight must be 0 to 1, found {self.progress_weight:g}")
        for name in ("plan_weight", "format_penalty", "illegal_penalty", "deadlock_penalty", "shortfall_penalty"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise AgentSystemError(f"env.params.{name} must be 0 or a positive number, found {getattr(self, name):g}")


@dataclass(frozen=True)
class World:
    """Everything that a fork shares until one of the two moves on.

    Attributes:
        room, start, state: walls and goals, where the episode began, where it is.
        best: best progress so far.
        worth: of the Tool agent's last plan, or of what has been made since, where that is more.
        acted: the Executor has made this turn's moves.
        plan: what the Tool agent proposed in this turn; None when nothing could be read, which `why` explains.
        moves, pushes, illegal, unparsable, cut: counted over the episode's actions.
        plans, legal_plans, followed: proposals, those that could be carried out, those that were made unchanged.
        failed_runs: programs that printed no moves.
    """

    room: Room
    start: State
    state: State
    best: float
    worth: float
    acted: bool = False
    plan: str | None = None
    why: str = "nothing was proposed"
    moves: int = 0
    pushes: int = 0
    illegal: int = 0
    unparsable: int = 0
    cut: int = 0
    plans: int = 0
    legal_plans: int = 0
    followed: int = 0
    failed_runs: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one reply's moves lead to.

    Attributes:
        walk: the moves made.
        state: where they end.
        best: best progress of the episode after them, 0 to 1.
        worth: what an episode that ends here has earned the team, 0 to 1.
        team: team reward: what of it is new.
        penalty: local reward of what is wrong with the moves, 0 or less.
        solved, deadlock: of `state`.
        unparsable: there were no readable moves.
        cut: moves past the limit.
    """

    walk: Walk
    state: State
    best: float
    worth: float
    team: float
    penalty: float
    solved: bool
    deadlock: bool
    unparsable: bool
    cut: int


@EnvRegistry.register("sokoban")
class SokobanEnv(BaseEnv):
    """A room that the Tool agent plans for and the Executor moves in.

    The task's text is the room. A proposal is tried on a copy; the Executor's moves are made as it acts, so that they are paid to
    that call, and `step` makes only what no Executor has made. Replies that cannot be read and moves that cannot be made are
    penalised, counted and survived. A Tool's action that is a `Program` is run in the sandbox, and what it prints is judged. What the
    Tool proposed is the prompt variable `{proposal}`: at most `max_moves` moves, or `none: ` and the reason.

    `info`: `success`; `progress` (best so far); `boxes_on_goals`; `deadlock` (the room cannot be solved any more); `moves`, `pushes`,
    `illegal`, `unparsable`, `cut`; `plan/legal`, `plan/followed` (shares of the proposals), `plan/failed_runs` (programs that printed no
    moves); `push_efficiency` of solved rooms (fewest pushes by pushes made, where the fewest are known).
    """

    config_class = SokobanEnvOptions
    needs_ground_truth = False

    def reset(self, task: Task) -> Observation:
        """Start in the room that is the task's text.

        Raises:
            AgentSystemError: the text is no room, or the room is solved already, or it cannot be solved, or the view cannot show it.
        """
        room, state = parse_room(task.prompt)
        if is_solved(room, state):
            raise AgentSystemError(f"task {task.task_id!r}: the room is solved before the first move:\n{render(room, state)}")
        if solve(room, state).exhausted:
            raise AgentSystemError(f"task {task.task_id!r}: the room cannot be solved:\n{render(room, state)}")
        if self.config.view == "compact" and len(state.boxes) > 1:
            raise AgentSystemError(
                f"task {task.task_id!r}: env.params.view=compact shows rooms with one box, found {len(state.boxes)}; use view=spaced or map"
            )
        begun = progress(room, state, state, self.config.progress)
        self._world = World(room, state, state, begun, self.config.progress_weight * begun)
        self._seen = self._look()
        return self._seen

    async def observe(self, agent_id: str = "") -> Observation:
        """Return what the turn started from, with the Tool's proposal; every agent sees the same."""
        world = self._world
        proposal = f"none: {world.why}" if world.plan is None else " ".join(world.plan)
        return replace(self._seen, info={**self._seen.info, "proposal": proposal})

    def act(self, agent_id: str, action: str) -> Any:
        """Judge a proposal, or make the Executor's moves. A `Program` has to be awaited: it is run before it is judged."""
        if agent_id == TOOL:
            return self._run(action) if isinstance(action, Program) else self._propose(action)
        if agent_id == EXECUTOR:
            return self._make(action)
        return Outcome()

    def step(self, action: str) -> Outcome:
        """End the turn; the moves are made here when no Executor has."""
        team, done = 0.0, False
        if not self._world.acted:
            outcome = self._make(action)
            team, done = outcome.team, outcome.done
        self._world = replace(self._world, acted=False, plan=None, why=World.why)
        self._seen = self._look()
        return Outcome(team=team, done=done, info=self._info(), observation=self._seen)

    def fork(self) -> SokobanEnv:
        """Return an independent copy: the world is immutable, so both share it until one moves on."""
        copy = type(self)(self.config, seed=self.seed)
        copy._world, copy._seen = self._world, self._seen
        return copy

    async def _run(self, program: Program) -> Outcome:
        world = self._world
        printed = await run_program(
            program, f"{render(world.room, world.state)}\n", lambda text: parse_moves(text) is not None, "list of moves"
        )
        self._world = replace(world, failed_runs=world.failed_runs + (not printed.text))
        return await asyncio.to_thread(self._propose, printed.text, printed.why)

    def _propose(self, action: str, why: str = "the reply holds no plan") -> Outcome:
        verdict = self._judge(action)
        legal = not (verdict.unparsable or verdict.walk.illegal or verdict.cut)
        world = self._world
        plans, legal_plans = world.plans + 1, world.legal_plans + legal
        self._world = replace(world, plan=self._first(action), why=why, worth=verdict.worth, plans=plans, legal_plans=legal_plans)
        local = self.config.plan_weight * (verdict.worth - world.worth) + verdict.penalty
        return Outcome(local=paid(local, self.config.plan_weight, *penalties(self.config)))

    def _make(self, action: str) -> Outcome:
        verdict, world = self._judge(action), self._world
        self._world = replace(
            world,
            state=verdict.state,
            best=verdict.best,
            worth=max(world.worth, verdict.worth),
            acted=True,
            moves=world.moves + len(verdict.walk.states),
            pushes=world.pushes + verdict.walk.pushes,
            illegal=world.illegal + verdict.walk.illegal,
            unparsable=world.unparsable + verdict.unparsable,
            cut=world.cut + verdict.cut,
            followed=world.followed + (world.plan is not None and self._first(action) == world.plan),
        )
        done = verdict.solved or (verdict.deadlock and self.config.deadlock_ends)
        return Outcome(verdict.team, paid(verdict.penalty, *penalties(self.config)), done, self._info())

    def _first(self, action: str) -> str | None:
        """The moves of an action that count, or None when it has none."""
        moves = parse_moves(action)
        return None if moves is None else moves[: self.config.max_moves]

    def _judge(self, action: str) -> Verdict:
        world = self._world
        return judge(world.room, world.start, world.state, world.best, parse_moves(action), self.config)

    def _look(self) -> Observation:
        room, state = self._world.room, self._world.state
        info = {"anchor": render(room, state), "max_moves": self.config.max_moves}
        return Observation(shown(room, state, self.config.view), info)

    def _info(self) -> dict[str, Any]:
        world = self._world
        solved = is_solved(world.room, world.state)
        info: dict[str, Any] = {"success": float(solved), "progress": world.best}
        info["boxes_on_goals"] = boxes_on_goals(world.room, world.state)
        info["deadlock"] = float(is_lost(world.room, world.state))
        info |= {name: getattr(world, name) for name in ("moves", "pushes", "illegal", "unparsable", "cut")}
        if world.plans:
            info["plan/legal"] = world.legal_plans / world.plans
            info["plan/followed"] = world.followed / world.plans
            info["plan/failed_runs"] = world.failed_runs
        shortest = solve(world.room, world.start).solution if solved else None
        if shortest is not None:
            info["push_efficiency"] = shortest.pushes / world.pushes
        return info


def judge(room: Room, start: State, state: State, best: float, moves: str | None, options: SokobanEnvOptions) -> Verdict:
    """Say what `moves` lead to from `state`, without changing anything.

    Args:
        room: walls and goals.
        start: where the episode began.
        state: where the moves begin.
        best: best progress of the episode so far.
        moves: letters U D L R; None when there was nothing to read.
        options: weights and limits.
    """
    asked = moves or ""
    made = walk(room, state, asked[: options.max_moves])
    end = made.states[-1] if made.states else state
    solved, deadlock = is_solved(room, end), is_lost(room, end)
    cut = 0 if solved or made.illegal else max(0, len(asked) - options.max_moves)
    after = best if deadlock else best_progress(room, start, made.states, options.progress, best)
    worth = options.progress_weight * after + (1.0 - options.progress_weight) * solved
    penalty = (
        options.format_penalty * (moves is None)
        + options.illegal_penalty * (made.illegal or cut > 0)
        + options.deadlock_penalty * (deadlock and not is_lost(room, state))
        + (
            options.shortfall_penalty * shortfall(room, state, None if moves is None else made, options)
            if options.shortfall_penalty
            else 0.0
        )
    )
    team = worth - options.progress_weight * best
    return Verdict(made, end, after, worth, team, -penalty, solved, deadlock, moves is None, cut)


def progress(room: Room, start: State, state: State, kind: str) -> float:
    """Return how far `state` is from nothing (0) to solved (1): share of boxes on goals, or of the pushes from `start` saved."""
    if kind == "boxes":
        return boxes_on_goals(room, state) / len(room.goals)
    return max(0.0, 1.0 - least_pushes(room, state.boxes) / max(1, least_pushes(room, start.boxes)))


def best_progress(room: Room, start: State, states: Iterable[State], kind: str, best: float) -> float:
    """Return the best progress among `states`, at least `best`."""
    return max([best, *(progress(room, start, state, kind) for state in states)])


def penalties(options: SokobanEnvOptions) -> tuple[float, ...]:
    """Return the coefficients of what is wrong with moves."""
    return options.format_penalty, options.illegal_penalty, options.deadlock_penalty, options.shortfall_penalty


def shortfall(room: Room, state: State, made: Walk | None, options: SokobanEnvOptions) -> float:
    """Return how far moves from `state` fall behind as many of the solver's as fit into a turn, as a share from 0 to 1.

    0 for moves that bring the end as near, 1/2 for none or for a way that leads nowhere, 1 for as many that lead back, for a room that
    cannot be solved any more, and for a reply without readable moves (`made` is None). 0 where no solution is known to begin with.
    """
    before = solve(room, state).solution
    if before is None:
        return 0.0
    if made is None:
        return 1.0
    search = solve(room, made.states[-1] if made.states else state)
    if search.solution is None:
        return 1.0 if search.exhausted else 0.5
    most = min(options.max_moves, len(before.moves))
    gained = len(before.moves) - len(search.solution.moves)
    return min(1.0, max(0.0, (most - gained) / (2 * most)))
