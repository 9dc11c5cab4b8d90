"""Small worlds with kinds of spaces and manners that the classic ones lack; the tests name this module in
`env.params.env_id`.
"""

import random
import threading
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

HERE = "tests.agent_system.workflows.farama.toys"
MIXED = spaces.Dict({"move": spaces.Discrete(3), "push": spaces.Box(-1.0, 1.0, (2,)), "say": spaces.Text(5)})


class Mixed(gymnasium.Env):
    """Pays the sum of `push`; the observation is what was done last."""

    action_space = MIXED
    observation_space = MIXED

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return {"move": (options or {}).get("move", 0), "push": np.zeros(2), "say": "hello"}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return action, float(action["push"].sum()), action["move"] == 2, False, {}


class Locked(Mixed):
    """A part of it can neither be pickled nor copied."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self.lock = threading.Lock()
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return 1, 0.0, False, False, {}


class Weather(gymnasium.Env):
    """Its random numbers are not its own, so a copy goes another way."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(0.0, 1.0, (1,))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        return np.array([random.random()]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.array([random.random()]), 0.0, False, False, {}


class Shared(Weather):
    """All objects stand on one place."""

    place = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Shared.place += 1
        return np.array([Shared.place]), 0.0, False, False, {}


class Camera(Weather):
    """Shows an image."""

    observation_space = spaces.Box(0, 255, (84, 84, 3), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        return np.zeros((84, 84, 3), np.uint8), {}


for world in (Mixed, Locked, Weather, Shared, Camera):
    gymnasium.register(f"{world.__name__}-v0", entry_point=f"{HERE}:{world.__name__}")


class Meet(ParallelEnv):
    """Two walkers on cells 0 to 4 earn 1 each when they meet; the second one may be taken out of the game
    after two rounds.
    """

    metadata = {"name": "meet"}  # noqa: RUF012 - PettingZoo's form

    def __init__(self, leaves: bool = False, far: int = 2) -> None:
        self.possible_agents = ["a", "b"]
        self.leaves, self.far = leaves, far

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.MultiDiscrete([5, 5])

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.MultiDiscrete([3], start=[-1])

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        start = random.Random(seed).randrange(5 - self.far)
        self.agents, self.cells, self.rounds = ["a", "b"], {"a": start, "b": start + self.far}, 0
        return self._seen(), {}

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        assert list(actions) == self.agents
        self.rounds += 1
        for agent, action in actions.items():
            self.cells[agent] = min(4, max(0, self.cells[agent] + int(action[0])))
        met = self.cells["a"] == self.cells["b"]
        rewards = {agent: float(met) for agent in self.agents}
        gone = {agent: met or (self.leaves and agent == "b" and self.rounds == 2) for agent in self.agents}
        seen, late = self._seen(), {agent: self.rounds == 9 for agent in self.agents}
        self.agents = [agent for agent in self.agents if not (gone[agent] or late[agent])]
        return seen, rewards, gone, late, {agent: {} for agent in gone}

    def _seen(self) -> dict[str, Any]:
        return {
            agent: np.array([self.cells[agent], self.cells["ab".replace(agent, "")]]) for agent in self.agents
        }
