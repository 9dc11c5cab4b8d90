"""An environment of Gymnasium or PettingZoo as text, played by a team."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

from gymnasium import spaces

from agent_system.environment import BaseEnv, Observation, Outcome, Task
from agent_system.errors import AgentSystemError
from agent_system.options import check_choice
from agent_system.registry import EnvRegistry
from agent_system.workflows.farama.world.game import Game, split
from agent_system.workflows.farama.world.make import make_world
from agent_system.workflows.farama.world.snapshot import duplicate, freeze, thaw
from agent_system.workflows.farama.world.spaces import IllegalActionError, actions_text, read_action, text_of

APIS = ("gymnasium", "aec", "parallel")
REWARDS = ("auto", "each", "sum", "mean")
NOTHING_DONE = "The last answer held no legal action, so nothing was done."
_COLOUR = re.compile(r"\x1b\[[\d;]*m(.*?)\x1b\[0m")


@dataclass(frozen=True)
class FaramaEnvOptions:
    """Options under `env.params`.

    Attributes:
        env_id: id for `gymnasium.make` or `pettingzoo.make`, or `module:function` of a PettingZoo
            environment that is not registered.
        api: gymnasium | aec (PettingZoo, one player at a time) | parallel (PettingZoo, all at the
            same time).
        kwargs: arguments of its constructor.
        actions: names of the actions of a Discrete space, in order; empty for their numbers.
        random_seats: players that no agent plays; they make legal moves at random.
        rewards: recipients of the rewards: each (every player its own, as local reward) | sum, mean
            (over the team's players, as team reward) | auto (sum for a team of one player, else
            each).
        reward_scale: factor of the environment's rewards.
        illegal_penalty: local, for a reply without a legal action.
        success_return: lowest unscaled sum of the team's rewards that is a success; None disables
            the metric.
    """

    env_id: str = ""
    api: str = "gymnasium"
    kwargs: dict[str, Any] = field(default_factory=dict)
    actions: list[str] = field(default_factory=list)
    random_seats: list[str] = field(default_factory=list)
    rewards: str = "auto"
    reward_scale: float = 1.0
    illegal_penalty: float = 0.1
    success_return: float | None = None

    def __post_init__(self) -> None:
        if not self.env_id:
            raise AgentSystemError(
                "env.params.env_id is missing; name what to play, such as FrozenLake-v1, or "
                "classic/tictactoe-v3 with env.params.api=aec"
            )
        check_choice("env.params.api", self.api, APIS)
        check_choice("env.params.rewards", self.rewards, REWARDS)
        if not isinstance(self.kwargs, Mapping):
            raise AgentSystemError(f"env.params.kwargs must be arguments by name, found {self.kwargs!r}")
        for name in ("actions", "random_seats"):
            check_names(f"env.params.{name}", getattr(self, name))
        if self.random_seats and self.api == "gymnasium":
            raise AgentSystemError(
                "env.params.random_seats has no effect with env.params.api=gymnasium, where there "
                "is one player"
            )
        if not math.isfinite(self.reward_scale):
            raise AgentSystemError(
                f"env.params.reward_scale must be a finite number, found {self.reward_scale}"
            )
        if not 0 <= self.illegal_penalty < math.inf:
            raise AgentSystemError(
                f"env.params.illegal_penalty must be a finite number, 0 or more, found {self.illegal_penalty}"
            )
        success_return = self.success_return
        if success_return is not None and (
            isinstance(success_return, bool)
            or not isinstance(success_return, int | float)
            or not math.isfinite(success_return)
        ):
            raise AgentSystemError(
                f"env.params.success_return must be a finite number, found {success_return!r}"
            )


@dataclass(frozen=True, slots=True)
class PlayerView:
    """Observation of a player: the state and the legal actions as text, and the mask of legal
    actions if there is one.
    """

    text: str
    actions: str
    mask: Any = None


@dataclass(frozen=True, slots=True)
class ChosenAction:
    """The action of a reply; `problem` is empty, `unparsed` (the reply has no action) or `illegal`."""

    action: Any = None
    problem: str = ""


@EnvRegistry.register("farama")
class FaramaEnv(BaseEnv):
    """One move of the game per turn. Override `describe`, `choices` and `parse` to change the text
    of observations and actions.

    `act` records the action of a reply; `step` makes the move after all replies of the turn and
    pays the rewards. The game starts from the seed `task.extra["seed"]`, or `self.seed`;
    `task.extra["options"]` is passed to the game's `reset`.

    A reply without a legal action costs `illegal_penalty`. If players act in turn, no move is made
    and the player is called again in the next turn; if they act at the same time, the game needs
    all actions, so a legal one is drawn.

    `info`: `return` (of the team's players, not scaled; `return/<player>` where there are several),
    `moves` (random seats' included), `unparsed` and `illegal` (replies without an action, and with
    one that is not legal), `truncated`, and `success` with `success_return`.
    """

    config_class = FaramaEnvOptions
    needs_ground_truth = False

    def __init__(self, config: Any = None, *, seed: int = 0) -> None:
        super().__init__(config, seed=seed)
        self._game: Game | None = None

    def describe(self, seat: str, observation: Any) -> str:
        """Return a player's observation as text; its mask of legal actions has been removed."""
        picture = self.game.world.picture()
        return text_of(observation) if picture is None else _COLOUR.sub(r"[\1]", picture).strip("\n")

    def choices(self, seat: str, mask: Any) -> str:
        """Return a player's actions as text; `mask` is the mask of legal actions or None."""
        return actions_text(self.game.world.space(seat), self.config.actions, mask)

    def parse(self, seat: str, text: str) -> Any:
        """Return the action that `text` denotes. Raises `IllegalActionError` when there is none."""
        return read_action(self.game.world.space(seat), text, self.config.actions)

    @property
    def game(self) -> Game:
        """The game of the episode."""
        assert self._game is not None, "reset() comes first"
        return self._game

    def reset(self, task: Task) -> Observation:
        """Start a game. Raises AgentSystemError for an environment that cannot be created, or an
        invalid seed.
        """
        if self._game is None:
            self._game = Game(
                make_world(self.config.env_id, self.config.api, self.config.kwargs), self.config.random_seats
            )
        seed = task.extra.get("seed")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0):
            raise AgentSystemError(
                f"task {task.task_id!r}: extra_info.seed must be a whole number, 0 or more, found {seed!r}"
            )
        self._question = task.prompt
        self._choices: dict[str, ChosenAction] = {}
        self._problems: Counter[str] = Counter()
        self.game.start(self.seed if seed is None else int(seed), task.extra.get("options"))
        self._update_views()
        return self._observation(self.game.movers)

    def observe(self, agent_id: str) -> Observation:
        """Return a player's observation; for other agents, the observations of the players that
        have to act.
        """
        return self._observation([agent_id] if agent_id in self.game.players else self.game.movers, agent_id)

    def act(self, agent_id: str, action: str) -> Outcome:
        """Record a player's action, or judge the form of a proposal to the only player that has to
        act.
        """
        seat = self._seat_of(agent_id)
        if seat is None:
            return Outcome()
        choice = self._choices[agent_id] = self._read(seat, action)
        return Outcome(
            local=-self.config.illegal_penalty if choice.problem and self.config.illegal_penalty else None
        )

    def score(self, agent_id: str, action: str) -> Outcome:
        """Return the immediate reward of the move, made on a copy; legal actions are drawn for
        players that act at the same time.
        """
        seat = self._seat_of(agent_id)
        choice = None if seat is None else self._read(seat, action)
        # `act` has charged for a reply without a legal action, and no move can be tried
        if seat is None or choice is None or choice.problem:
            return Outcome()
        ahead = self.fork()
        paid = ahead._pay(ahead.game.play({**ahead._decided(), seat: choice.action}))
        ahead.close()
        assert isinstance(paid.local, Mapping)
        return Outcome(team=paid.team, local=paid.local.get(seat, 0.0))

    def step(self, action: str) -> Outcome:
        """Make the turn's move; `action` is the move if no player has acted, as with an orchestra
        of other agents.
        """
        movers = self.game.movers
        fine = 0.0
        # No player has acted, so `act` has not charged for an illegal action.
        if len(movers) == 1 and movers[0] not in self._choices:
            choice = self._choices[movers[0]] = self._read(movers[0], str(action))
            fine = self.config.illegal_penalty if choice.problem else 0.0
        decided = self._decided()
        before = self.game.moves
        self._problems.update(choice.problem for choice in self._choices.values() if choice.problem)
        self._choices = {}
        outcome = self._pay(self.game.play(decided))
        self._update_views("" if self.game.moves > before else f"\n\n{NOTHING_DONE}")
        return Outcome(
            outcome.team - fine,
            outcome.local,
            self.game.over,
            self._info(),
            self._observation(self.game.movers),
        )

    def render(self) -> str:
        """Return what the players see."""
        return self._observation(self.game.players).text

    def fork(self) -> FaramaEnv:
        """Return a copy of the running game. Raises AgentSystemError for one that cannot be copied."""
        copy = type(self).__new__(type(self))
        copy.__dict__.update(duplicate(self.__dict__, self._name))
        return copy

    def close(self) -> None:
        if self._game is not None:
            self._game.world.close()

    @property
    def _name(self) -> str:
        return f"env.params.env_id={self.config.env_id!r}"

    def __getstate__(self) -> dict[str, Any]:
        return {"frozen": freeze(self.__dict__, self._name), "name": self._name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(thaw(state["frozen"], state["name"]))

    def _seat_of(self, agent_id: str) -> str | None:
        """Return the seat that an agent's action concerns: its own, or that of the only player that
        has to act.
        """
        movers = self.game.movers
        if agent_id in movers:
            return agent_id
        return movers[0] if len(movers) == 1 else None

    def _read(self, seat: str, text: str) -> ChosenAction:
        if not text.strip():
            return ChosenAction(problem="unparsed")
        try:
            action = self.parse(seat, text)
        except IllegalActionError:
            return ChosenAction(problem="illegal")
        space = self.game.world.space(seat)
        mask = self._views[seat].mask
        masked = (
            isinstance(space, spaces.Discrete)
            and mask is not None
            and not mask[int(action) - int(space.start)]
        )
        return ChosenAction(problem="illegal") if masked else ChosenAction(action)

    def _decided(self) -> dict[str, Any]:
        return {seat: choice.action for seat, choice in self._choices.items() if not choice.problem}

    def _pay(self, earned: Mapping[str, float]) -> Outcome:
        scaled = {seat: self.config.reward_scale * reward for seat, reward in earned.items()}
        rewards = self.config.rewards
        if rewards == "each" or (rewards == "auto" and len(scaled) > 1):
            return Outcome(local={seat: reward for seat, reward in scaled.items() if reward})
        return Outcome(team=sum(scaled.values()) / (len(scaled) if rewards == "mean" else 1), local={})

    def _info(self) -> dict[str, float]:
        game = self.game
        total = sum(self.game.returns.values())
        info = {"return": total, "moves": float(game.moves), "truncated": float(game.world.truncated)}
        info |= {problem: float(self._problems[problem]) for problem in ("unparsed", "illegal")}
        if len(game.players) > 1:
            info |= {f"return/{seat}": value for seat, value in game.returns.items()}
        if self.config.success_return is not None:
            info["success"] = float(total >= self.config.success_return)
        return info

    def _update_views(self, note: str = "") -> None:
        self._views = {}
        for seat in [] if self.game.over else self.game.world.live:
            observation, mask = split(*self.game.world.view(seat))
            self._views[seat] = PlayerView(
                self.describe(seat, observation) + note, self.choices(seat, mask), mask
            )

    def _observation(self, seats: Sequence[str], agent_id: str = "") -> Observation:
        views = {seat: self._views[seat] for seat in seats if seat in self._views}
        alone = len(views) == 1
        view_text = (
            "\n\n".join(view.text if alone else f"{seat}:\n{view.text}" for seat, view in views.items())
            or "The game is over."
        )
        actions = "; ".join(dict.fromkeys(view.actions for view in views.values()))
        text = f"{self._question}\n\n{view_text}" if self._question else view_text
        return Observation(text, {"agent": agent_id, "actions": actions, "to_act": self.game.movers})


def check_names(name: str, values: Any) -> None:
    """Raise AgentSystemError unless `values` is a list of different names; `name` is the option for
    the message.
    """
    if not isinstance(values, list | tuple) or not all(isinstance(v, str) and v.strip() for v in values):
        raise AgentSystemError(f"{name} must be a list of names, found {values!r}; quote numbers: ['0', '1']")
    if len({v.strip().casefold() for v in values}) < len(values):
        raise AgentSystemError(f"{name} names something twice: {', '.join(values)}")
