"""One room; every turn the Executor's moves are made."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from agent_system.environment import BaseEnv, Observation, Outcome, Task, paid
from agent_system.errors import AgentSystemError
from agent_system.registry import EnvRegistry
from agent_system.workflows.programs import Program, run_program
from agent_system.workflows.sokoban.agents import EXECUTOR, TOOL
from agent_system.workflows.sokoban.options import SokobanEnvOptions
from agent_system.workflows.sokoban.reward import Verdict, judge, penalties, progress
from agent_system.workflows.sokoban.rules import Room, State, boxes_on_goals, is_solved, parse_moves, parse_room, render
from agent_system.workflows.sokoban.solver import is_lost, solve
from agent_system.workflows.sokoban.view import shown


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
        printed = await run_program(program, f"{render(world.room, world.state)}\n", lambda text: _read(text) is not None, "list of moves")
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
        moves = _read(action)
        return None if moves is None else moves[: self.config.max_moves]

    def _judge(self, action: str) -> Verdict:
        world = self._world
        return judge(world.room, world.start, world.state, world.best, _read(action), self.config)

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


def _read(action: Any) -> str | None:
    return parse_moves(action) if isinstance(action, str) else None
