"""A game in progress: the players to act, random moves of seats without an agent, and the returns
of the team's players.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from gymnasium import spaces

from agent_system.errors import AgentSystemError
from agent_system.workflows.farama.world.spaces import legal_numbers
from agent_system.workflows.farama.world.worlds import World
from verl.utils.names import did_you_mean

LARGEST_SEED = 2**31


_LEGAL = re.compile("legal|valid|available|admissible", re.IGNORECASE)


class Game:
    """A game played by a team, with seats that play at random.

    Attributes:
        world: the underlying environment.
        players: the seats of the team.
        returns: sum of rewards by player.
        moves: number of moves so far.
    """

    def __init__(self, world: World, random_seats: Sequence[str]) -> None:
        """Assign the seats. Raises AgentSystemError for an unknown random seat, or when no seat is
        left for the team.
        """
        unknown = [seat for seat in random_seats if seat not in world.seats]
        listed = ", ".join(world.seats)
        if unknown:
            raise AgentSystemError(
                f"env.params.random_seats names {unknown[0]!r}{did_you_mean(unknown[0], world.seats)}; "
                f"seats: {listed}"
            )
        self.world = world
        self.players = [seat for seat in world.seats if seat not in random_seats]
        if not self.players:
            raise AgentSystemError(
                f"env.params.random_seats names all seats ({listed}), so no player is left for the "
                "team; remove one"
            )

    def start(self, seed: int, options: Mapping[str, Any] | None) -> None:
        """Start a game from `seed`; random seats that come first make their moves."""
        self._seed = seed % LARGEST_SEED
        self.moves = 0
        self.returns = dict.fromkeys(self.players, 0.0)
        self.world.reset(self._seed, options)
        self._earn(self._play_random_seats())

    @property
    def over(self) -> bool:
        """Whether no player of the team is left."""
        return not set(self.world.live) & set(self.players)

    @property
    def movers(self) -> list[str]:
        """The players of the team that have to act now."""
        return [] if self.over else [seat for seat in self.world.to_act if seat in self.players]

    def play(self, actions: Mapping[str, Any]) -> dict[str, float]:
        """Make a move and the following moves of random seats; return the reward of each player of
        the team.

        If all act at the same time, missing actions are drawn; if they act in turn, no move is made
        without an action.
        """
        decided = {seat: actions[seat] for seat in self.movers if seat in actions}
        if self.world.simultaneous:
            decided = {
                seat: decided[seat] if seat in decided else self.draw(seat) for seat in self.world.to_act
            }
        rewards: Counter[str] = Counter()
        if decided:
            rewards.update(self.world.play(decided))
            self.moves += 1
            rewards.update(self._play_random_seats())
        return self._earn(rewards)

    def draw(self, seat: str) -> Any:
        """Return a random legal action that depends on the seed and the number of the move only, so
        that copies draw the same.
        """
        random = Random(f"{self._seed}-{self.moves}-{seat}")
        space = self.world.space(seat)
        if isinstance(space, spaces.Discrete):
            legal = legal_numbers(space, split(*self.world.view(seat))[1])
            if not legal:
                raise AgentSystemError(
                    f"the world asks {seat} to act, but its action_mask leaves no legal action"
                )
            return random.choice(legal)
        if offered := _offered(space, *self.world.view(seat)):
            return random.choice(offered)
        space = copy.deepcopy(space)
        space.seed(random.randrange(LARGEST_SEED))
        return space.sample()

    def _play_random_seats(self) -> Counter[str]:
        """Make moves while only random seats have to act; return the rewards."""
        rewards: Counter[str] = Counter()
        while not self.over and not self.movers:
            rewards.update(self.world.play({seat: self.draw(seat) for seat in self.world.to_act}))
            self.moves += 1
        return rewards

    def _earn(self, rewards: Mapping[str, float]) -> dict[str, float]:
        earned = {seat: float(rewards.get(seat, 0.0)) for seat in self.players}
        for seat, reward in earned.items():
            self.returns[seat] += reward
        return earned


def _offered(space: spaces.Space[Any], observation: Any, info: Mapping[str, Any]) -> list[Any]:
    """Return the legal actions that a game without a mask lists under a name such as `legal_moves`;
    a random text would end many games.
    """
    listed = [*info.items(), *(observation.items() if isinstance(observation, Mapping) else ())]
    for name, values in listed:
        if (
            _LEGAL.search(str(name))
            and isinstance(values, (list, tuple))
            and values
            and all(value in space for value in values)
        ):
            return list(values)
    return []


def split(observation: Any, info: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return (observation without its mask of legal actions, mask); the mask is that of the
    observation, else of the info, else None.
    """
    if not isinstance(observation, Mapping) or "action_mask" not in observation:
        return observation, info.get("action_mask")
    rest = {key: value for key, value in observation.items() if key != "action_mask"}
    return (rest["observation"] if rest.keys() == {"observation"} else rest), observation["action_mask"]
