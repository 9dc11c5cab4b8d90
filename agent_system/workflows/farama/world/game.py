"""A game in progress: whose move it is, moves drawn at random where nobody decides, and what the team's players have earned."""

from __future__ import annotations

import copy
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


class Game:
    """A world played by a team, with seats that play at random.

    Attributes:
        world: what is played.
        players: the seats of the team.
        returns: what each player has earned.
        moves: made so far.
    """

    def __init__(self, world: World, random_seats: Sequence[str]) -> None:
        """Give the team its seats. Raises AgentSystemError for a random seat that does not exist, or when none is left for the team."""
        unknown = [seat for seat in random_seats if seat not in world.seats]
        listed = ", ".join(world.seats)
        if unknown:
            raise AgentSystemError(f"env.params.random_seats names {unknown[0]!r}{did_you_mean(unknown[0], world.seats)}; seats: {listed}")
        self.world = world
        self.players = [seat for seat in world.seats if seat not in random_seats]
        if not self.players:
            raise AgentSystemError(f"env.params.random_seats names all seats ({listed}), so nobody is left to learn")

    def start(self, seed: int, options: Mapping[str, Any] | None) -> None:
        """Begin at the start that `seed` stands for; random seats that come first make their moves."""
        self._seed, self.moves = seed % LARGEST_SEED, 0
        self.returns = dict.fromkeys(self.players, 0.0)
        self.world.reset(self._seed, options)
        self._earn(self._play_random_seats())

    @property
    def over(self) -> bool:
        """No player of the team is left."""
        return not set(self.world.live) & set(self.players)

    @property
    def movers(self) -> list[str]:
        """Players of the team that have to act now."""
        return [] if self.over else [seat for seat in self.world.to_act if seat in self.players]

    def play(self, actions: Mapping[str, Any]) -> dict[str, float]:
        """Make a move and those of random seats after it; return what each player of the team earns.

        Where all act at the same time, an action that is missing is drawn; where they act in turn, nothing happens without one.
        """
        decided = {seat: actions[seat] for seat in self.movers if seat in actions}
        if self.world.simultaneous:
            decided = {seat: decided[seat] if seat in decided else self.draw(seat) for seat in self.world.to_act}
        rewards: Counter[str] = Counter()
        if decided:
            rewards.update(self.world.play(decided))
            self.moves += 1
            rewards.update(self._play_random_seats())
        return self._earn(rewards)

    def draw(self, seat: str) -> Any:
        """Return a legal action, drawn by the seed and the number of the move, so that copies draw alike."""
        random = Random(f"{self._seed}-{self.moves}-{seat}")
        space = self.world.space(seat)
        if isinstance(space, spaces.Discrete):
            legal = legal_numbers(space, split(*self.world.view(seat))[1])
            if not legal:
                raise AgentSystemError(f"the world asks {seat} to act, but its action_mask leaves no legal action")
            return random.choice(legal)
        space = copy.deepcopy(space)
        space.seed(random.randrange(LARGEST_SEED))
        return space.sample()

    def _play_random_seats(self) -> Counter[str]:
        """Play on while only random seats have to act; return what that pays."""
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


def split(observation: Any, info: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return an observation without its mask of legal actions, and the mask: from the observation, else from the info, else None."""
    if not isinstance(observation, Mapping) or "action_mask" not in observation:
        return observation, info.get("action_mask")
    rest = {key: value for key, value in observation.items() if key != "action_mask"}
    return (rest["observation"] if rest.keys() == {"observation"} else rest), observation["action_mask"]
