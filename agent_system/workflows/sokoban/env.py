"""The world: one room; the Executor's moves are made in every turn.

Rewards follow Stronger-MAS (arXiv 2510.11062): the team for success and progress, each role for its own
reply. Going in circles earns nothing: progress is paid only where it exceeds the best progress of the episode
so far, so a box pushed off its goal and on again is not paid twice. Moves that make the room unsolvable gain
nothing, even if they pass better states. The Tool is paid the increase of its plan's value over its last
plan, or over the value that the moves made since have reached if that is higher, so that over an episode it
earns at most the value of its last plan. All other terms are penalties. The team's rewards of an episode sum
to at most 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from agent_system.environment import Grid, Observation, Outcome, Task, paid
from agent_system.errors import AgentSystemError
from agent_system.options import check_choice, check_floats
from agent_system.registry import EnvRegistry
from agent_system.workflows.moves import parse_moves
from agent_system.workflows.proposer_executor import NO_PLAN, ProposerExecutorEnv
from agent_system.workflows.sokoban.team import RULES
from agent_system.workflows.sokoban.world.pushes import ACTIONS
from agent_system.workflows.sokoban.world.rules import (
    BOX,
    BOX_ON_GOAL,
    FLOOR,
    GOAL,
    PLAYER,
    PLAYER_ON_GOAL,
    WALL,
    Room,
    SokobanState,
    SokobanWalk,
    boxes_on_goals,
    is_solved,
    parse_room,
    render,
)
from agent_system.workflows.sokoban.world.solver import Solution, is_lost, least_pushes, solve
from agent_system.workflows.sokoban.world.view import VIEWS, last_line, view_text

PROGRESS = ("boxes", "distance")
LEGEND = {
    PLAYER: "the player", PLAYER_ON_GOAL: "the player on a goal",
    BOX: "a box", BOX_ON_GOAL: "a box on a goal",
    GOAL: "a goal", WALL: "a wall", FLOOR: "a free cell",
}  # fmt: skip


@dataclass(frozen=True)
class SokobanEnvOptions:
    """Options under `env.params`.

    Attributes:
        view: the agents' observation: map | spaced (a space between cells, so that a tokenizer
            makes each cell a token) | compact (the offsets of box and goal and the cells around the
            box in a fixed layout; rooms with one box).
        actions: what a letter of an action is: moves (a step of the player) | pushes (a push of the
            only box: the player walks to the cell behind it first; rooms with one box). With
            pushes, the options and metrics about moves are about pushes.
        show_last: a last line of the observation shows the moves made in the last turn and the
            illegal one that stopped them.
        max_moves: maximum number of moves per turn; later ones are not made and count as cut.
        progress: measure of progress for the team's reward: boxes (highest number on goals so far)
            | distance (fewest pushes left so far, by the solver's lower bound).
        progress_weight: share of the team's reward for progress; the rest is for solving the room.
        plan_weight: coefficient of a plan's local reward: the increase of the team's return that
            its moves would bring, compared with the last plan or the moves made since.
        format_penalty: local, for a reply without readable moves.
        illegal_penalty: local, for moves that run into a wall or a blocked box, and for moves
            beyond `max_moves`.
        repeat_penalty: local, for moves that begin with the illegal move that stopped the last
            turn's.
        deadlock_penalty: local, for moves after which the room is unsolvable.
        deadlock_ends: an unsolvable room ends the episode.
        shortfall_penalty: local, for moves away from the solution; half of it for moves without
            progress, nothing for the solver's own moves. A value above 0 runs the solver on every
            state that a reply leads to, which is slow in large rooms with many boxes.
    """

    view: str = "map"
    actions: str = "moves"
    show_last: bool = False
    max_moves: int = 10
    progress: str = "boxes"
    progress_weight: float = 0.5
    plan_weight: float = 0.5
    format_penalty: float = 0.1
    illegal_penalty: float = 0.05
    repeat_penalty: float = 0.0
    deadlock_penalty: float = 0.1
    deadlock_ends: bool = False
    shortfall_penalty: float = 0.0

    def __post_init__(self) -> None:
        if self.max_moves < 1:
            raise AgentSystemError(f"env.params.max_moves must be 1 or more, found {self.max_moves}")
        check_choice("env.params.view", self.view, VIEWS)
        check_choice("env.params.actions", self.actions, tuple(ACTIONS))
        check_choice("env.params.progress", self.progress, PROGRESS)
        if not 0.0 <= self.progress_weight <= 1.0:
            raise AgentSystemError(
                f"env.params.progress_weight must be 0 to 1, found {self.progress_weight:g}"
            )
        check_floats(self)


@dataclass(frozen=True)
class SokobanEpisode:
    """Immutable state of an episode, which forks share.

    Attributes:
        room, start, state: walls and goals, initial state, current state.
        best: best progress so far.
        value: value of the Tool's last plan, or of the moves made since, whichever is higher.
        last, stopped: the moves made last, and the illegal move after them; empty without.
        acted: the Executor has made this turn's moves.
        plan: the Tool's proposal in this turn; None when it is missing or unreadable, for the given
            `reason`.
        moves, pushes, illegal, unparsable, cut: counts over the episode's actions.
        plans, legal_plans, followed: number of proposals, of legal ones, of those that the Executor
            made unchanged.
        failed_runs: programs that printed no moves.
    """

    room: Room
    start: SokobanState
    state: SokobanState
    best: float
    value: float
    last: str = ""
    stopped: str = ""
    acted: bool = False
    plan: str | None = None
    reason: str = "nothing was proposed"
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
class MovesResult:
    """Result of one reply's moves.

    Attributes:
        walk: the moves made.
        state: the state after them.
        best: best progress of the episode after them, 0 to 1.
        value: team return of an episode that ends in `state`, 0 to 1.
        team: team reward: the increase of the team return.
        penalty: local reward for errors in the moves, 0 or less.
        solved, deadlock: `state` is solved, is unsolvable.
        unparsable: there were no readable moves.
        cut: moves beyond the limit.
    """

    walk: SokobanWalk
    state: SokobanState
    best: float
    value: float
    team: float
    penalty: float
    solved: bool
    deadlock: bool
    unparsable: bool
    cut: int


@EnvRegistry.register("sokoban")
class SokobanEnv(ProposerExecutorEnv):
    """A room that the Tool plans for and the Executor moves in.

    The task's text is the room. A proposal is evaluated without being made; the Executor's moves
    are made in `act`, so that their reward belongs to that call, and `step` makes moves only in a
    turn without an Executor. Unreadable replies and illegal moves are penalised and counted; the
    episode continues. The Tool's proposal is the prompt variable `{proposal}`: at most `max_moves`
    moves, or `none: ` and the reason.

    `info`: `success`; `progress` (best so far); `boxes_on_goals`; `deadlock` (the room is
    unsolvable); `moves`, `pushes`, `illegal`, `unparsable`, `cut`; `plan/legal`, `plan/followed`
    (shares of the proposals), `plan/failed_runs` (programs that printed no moves);
    `push_efficiency` of solved rooms (fewest possible pushes / pushes made, where the former is
    known).
    """

    config_class = SokobanEnvOptions
    needs_ground_truth = False

    def reset(self, task: Task) -> Observation:
        """Start in the room given by the task's text.

        Raises:
            AgentSystemError: the text is not a room, the room is solved already or unsolvable, or
                the view cannot show it.
        """
        room, state = parse_room(task.prompt)
        if is_solved(room, state):
            raise AgentSystemError(
                f"task {task.task_id!r}: the room is solved before the first move:\n{render(room, state)}"
            )
        if solve(room, state).exhausted:
            raise AgentSystemError(
                f"task {task.task_id!r}: the room cannot be solved:\n{render(room, state)}"
            )
        if len(state.boxes) > 1 and (self.config.view == "compact" or self.config.actions == "pushes"):
            limit = "actions=pushes is for" if self.config.actions == "pushes" else "view=compact shows"
            others = (
                "actions=moves and view=spaced or map"
                if self.config.actions == "pushes"
                else "view=spaced or map"
            )
            raise AgentSystemError(
                f"task {task.task_id!r}: env.params.{limit} rooms with one box, found "
                f"{len(state.boxes)}; use {others}"
            )
        begun = progress(room, state, state, self.config.progress)
        self._world = SokobanEpisode(room, state, state, begun, self.config.progress_weight * begun)
        self._observation = self._make_observation()
        return self._observation

    async def observe(self, agent_id: str = "") -> Observation:
        """Return the observation at the start of the turn, with the Tool's proposal; the same for
        every agent.
        """
        world = self._world
        proposal = f"none: {world.reason}" if world.plan is None else " ".join(world.plan)
        return replace(self._observation, info={**self._observation.info, "proposal": proposal})

    def step(self, action: str) -> Outcome:
        """End the turn; make the moves unless an Executor has."""
        team = 0.0
        is_done = False
        if not self._world.acted:
            outcome = self._execute(action)
            team = outcome.team
            is_done = outcome.done
        self._world = replace(self._world, acted=False, plan=None, reason=SokobanEpisode.reason)
        self._observation = self._make_observation()
        return Outcome(team=team, done=is_done, info=self._info(), observation=self._observation)

    def fork(self) -> SokobanEnv:
        """Return an independent copy; the world is immutable and shared."""
        copy = type(self)(self.config, seed=self.seed)
        copy._world = self._world
        copy._observation = self._observation
        return copy

    def render(self) -> Grid:
        """Return the room with its boxes and the player."""
        return Grid(render(self._world.room, self._world.state).splitlines(), LEGEND)

    def _program_input(self) -> str:
        return f"{render(self._world.room, self._world.state)}\n"

    def _propose(self, action: str, reason: str = NO_PLAN, failed_run: bool = False) -> Outcome:
        verdict = self._judge(action)
        world = self._world
        legal = not (verdict.unparsable or verdict.walk.illegal or verdict.cut)
        self._world = replace(
            world,
            plan=self._first(action),
            reason=reason,
            value=verdict.value,
            plans=world.plans + 1,
            legal_plans=world.legal_plans + legal,
            failed_runs=world.failed_runs + failed_run,
        )
        local = self.config.plan_weight * (verdict.value - world.value) + verdict.penalty
        return Outcome(local=paid(local, self.config.plan_weight, *penalties(self.config)))

    def _execute(self, action: str) -> Outcome:
        verdict = self._judge(action)
        world = self._world
        requested = parse_moves(action) or ""
        num_made = len(verdict.walk.states)
        self._world = replace(
            world,
            state=verdict.state,
            last=requested[:num_made],
            stopped=requested[num_made] if verdict.walk.illegal else "",
            best=verdict.best,
            value=max(world.value, verdict.value),
            acted=True,
            moves=world.moves + num_made,
            pushes=world.pushes + verdict.walk.pushes,
            illegal=world.illegal + verdict.walk.illegal,
            unparsable=world.unparsable + verdict.unparsable,
            cut=world.cut + verdict.cut,
            followed=world.followed + (world.plan is not None and self._first(action) == world.plan),
        )
        is_done = verdict.solved or (verdict.deadlock and self.config.deadlock_ends)
        return Outcome(verdict.team, paid(verdict.penalty, *penalties(self.config)), is_done, self._info())

    def _first(self, action: str) -> str | None:
        """Return the first `max_moves` moves of an action, or None when it has no readable moves."""
        moves = parse_moves(action)
        return None if moves is None else moves[: self.config.max_moves]

    def _judge(self, action: str) -> MovesResult:
        world = self._world
        return judge(
            world.room, world.start, world.state, world.best, parse_moves(action), self.config, world.stopped
        )

    def _make_observation(self) -> Observation:
        room = self._world.room
        state = self._world.state
        text = view_text(room, state, self.config.view, self.config.actions)
        limit = self.config.max_moves
        if self.config.show_last:
            text = f"{text}\n{last_line(self._world.last, self._world.stopped, limit)}"
        return Observation(
            text, {"anchor": render(room, state), "max_moves": limit, "rules": RULES[self.config.actions]}
        )

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


def judge(
    room: Room,
    start: SokobanState,
    state: SokobanState,
    best: float,
    moves: str | None,
    options: SokobanEnvOptions,
    stopped: str = "",
) -> MovesResult:
    """Return the result of `moves` from `state`; pure.

    Args:
        room: walls and goals.
        start: initial state of the episode.
        state: state before the moves.
        best: best progress of the episode so far.
        moves: letters U D L R; None for an unreadable reply.
        options: weights and limits.
        stopped: the illegal move that ended the last turn; empty without.
    """
    requested = moves or ""
    agent_walk = ACTIONS[options.actions](room, state, requested[: options.max_moves])
    end = agent_walk.states[-1] if agent_walk.states else state
    solved = is_solved(room, end)
    deadlock = is_lost(room, end)
    cut = 0 if solved or agent_walk.illegal else max(0, len(requested) - options.max_moves)
    after = best if deadlock else best_progress(room, start, agent_walk.states, options.progress, best)
    value = options.progress_weight * after + (1.0 - options.progress_weight) * solved
    penalty = (
        options.format_penalty * (moves is None)
        + options.illegal_penalty * (agent_walk.illegal or cut > 0)
        + options.repeat_penalty * bool(stopped and requested.startswith(stopped))
        + options.deadlock_penalty * (deadlock and not is_lost(room, state))
        + (
            options.shortfall_penalty * shortfall(room, state, None if moves is None else agent_walk, options)
            if options.shortfall_penalty
            else 0.0
        )
    )
    team = value - options.progress_weight * best
    return MovesResult(agent_walk, end, after, value, team, -penalty, solved, deadlock, moves is None, cut)


def progress(room: Room, start: SokobanState, state: SokobanState, kind: str) -> float:
    """Return the progress of `state`, 0 to 1 (solved): share of boxes on goals, or 1 - pushes left
    / pushes needed from `start`.
    """
    if kind == "boxes":
        return boxes_on_goals(room, state) / len(room.goals)
    return max(0.0, 1.0 - least_pushes(room, state.boxes) / max(1, least_pushes(room, start.boxes)))


def best_progress(
    room: Room, start: SokobanState, states: Iterable[SokobanState], kind: str, best: float
) -> float:
    """Return the best progress among `states`, at least `best`."""
    return max([best, *(progress(room, start, state, kind) for state in states)])


def penalties(options: SokobanEnvOptions) -> tuple[float, ...]:
    """Return the coefficients of the penalties."""
    return (
        options.format_penalty,
        options.illegal_penalty,
        options.repeat_penalty,
        options.deadlock_penalty,
        options.shortfall_penalty,
    )


def shortfall(
    room: Room, state: SokobanState, agent_walk: SokobanWalk | None, options: SokobanEnvOptions
) -> float:
    """Return the shortfall of moves from `state` against the solver's first `max_moves` moves, 0 to
    1.

    0 for moves that shorten the solution as much, 1/2 for no progress, 1 for as many moves back,
    for moves that make the room unsolvable, and for a reply without readable moves (`agent_walk` is
    None). 0 where no solution of `state` is known.
    """
    before = solve(room, state).solution
    if before is None:
        return 0.0
    if agent_walk is None:
        return 1.0
    search = solve(room, agent_walk.states[-1] if agent_walk.states else state)
    if search.solution is None:
        return 1.0 if search.exhausted else 0.5
    length = _length(before, options)
    most = min(options.max_moves, length)
    gained = length - _length(search.solution, options)
    return min(1.0, max(0.0, (most - gained) / (2 * most)))


def _length(solution: Solution, options: SokobanEnvOptions) -> int:
    return solution.pushes if options.actions == "pushes" else len(solution.moves)
