"""One interface for Gymnasium and PettingZoo: named players, players to act, observations, moves
and rewards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from agent_system.errors import AgentSystemError

PLAYER = "Player"


class World(ABC):
    """A game and its players, called seats.

    Attributes:
        simultaneous: all seats act at the same time, and every seat must act.
        seats: names of all players.
        truncated: a player was stopped by a limit.
    """

    simultaneous: ClassVar[bool] = False
    seats: tuple[str, ...]
    truncated: bool = False

    def __init__(self, env: Any) -> None:
        self.env = env

    @abstractmethod
    def reset(self, seed: int, options: Mapping[str, Any] | None) -> None:
        """Start a game."""

    @property
    @abstractmethod
    def live(self) -> list[str]:
        """Seats that still play; empty when the game is over."""

    @property
    @abstractmethod
    def to_act(self) -> list[str]:
        """Seats whose actions the next move needs."""

    @abstractmethod
    def view(self, seat: str) -> tuple[Any, Mapping[str, Any]]:
        """Return (observation, info) of a live seat."""

    @abstractmethod
    def space(self, seat: str) -> Any:
        """Return the action space of a seat."""

    @abstractmethod
    def play(self, actions: Mapping[str, Any]) -> dict[str, float]:
        """Make a move, with an action of every seat in `to_act`; return the rewards by seat."""

    def picture(self) -> str | None:
        """Return the game's own text rendering of the state, or None."""
        return None

    def close(self) -> None:
        """Release the resources of the game."""
        self.env.close()


class GymnasiumWorld(World):
    """One seat, `Player`."""

    seats = (PLAYER,)

    def reset(self, seed: int, options: Mapping[str, Any] | None) -> None:
        self._last = self.env.reset(seed=seed, options=options)
        self._over = False
        self.truncated = False

    @property
    def live(self) -> list[str]:
        return [] if self._over else [PLAYER]

    @property
    def to_act(self) -> list[str]:
        return self.live

    def view(self, seat: str) -> tuple[Any, Mapping[str, Any]]:
        return self._last

    def space(self, seat: str) -> Any:
        return self.env.action_space

    def play(self, actions: Mapping[str, Any]) -> dict[str, float]:
        observation, reward, terminated, self.truncated, info = self.env.step(actions[PLAYER])
        self._last, self._over = (observation, info), bool(terminated or self.truncated)
        return {PLAYER: float(reward)}

    def picture(self) -> str | None:
        rendering = self.env.render() if self.env.render_mode == "ansi" else None
        return rendering if isinstance(rendering, str) else None


class _PettingZooWorld(World):
    """A game of PettingZoo; the seats are the names of `possible_agents`."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._agents = {str(agent): agent for agent in getattr(env, "possible_agents", ())}
        self.seats = tuple(self._agents)
        if not self.seats:
            raise AgentSystemError(
                f"{env} has no possible_agents, so its players are unknown; set them in the environment"
            )

    def space(self, seat: str) -> Any:
        return self.env.action_space(self._agents[seat])


class AecWorld(_PettingZooWorld):
    """PettingZoo's AEC interface: one seat at a time."""

    def reset(self, seed: int, options: Mapping[str, Any] | None) -> None:
        self.env.reset(seed=seed, options=options)
        self.truncated = False
        self._skip_finished()

    @property
    def live(self) -> list[str]:
        return [str(agent) for agent in self.env.agents if not self._finished(agent)]

    @property
    def to_act(self) -> list[str]:
        return [str(self.env.agent_selection)] if self.env.agents else []

    def view(self, seat: str) -> tuple[Any, Mapping[str, Any]]:
        agent = self._agents[seat]
        return self.env.observe(agent), self.env.infos.get(agent, {})

    def play(self, actions: Mapping[str, Any]) -> dict[str, float]:
        self.env.step(actions[str(self.env.agent_selection)])
        rewards = {str(agent): float(reward) for agent, reward in self.env.rewards.items()}
        self.truncated = self.truncated or any(self.env.truncations.values())
        self._skip_finished()
        return rewards

    def _finished(self, agent: Any) -> bool:
        return bool(self.env.terminations[agent] or self.env.truncations[agent])

    def _skip_finished(self) -> None:
        while self.env.agents and self._finished(self.env.agent_selection):
            self.env.step(None)


class ParallelWorld(_PettingZooWorld):
    """PettingZoo's parallel interface: all seats at the same time."""

    simultaneous = True

    def reset(self, seed: int, options: Mapping[str, Any] | None) -> None:
        self._observations, self._infos = self.env.reset(seed=seed, options=options)
        self.truncated = False

    @property
    def live(self) -> list[str]:
        return [str(agent) for agent in self.env.agents]

    @property
    def to_act(self) -> list[str]:
        return self.live

    def view(self, seat: str) -> tuple[Any, Mapping[str, Any]]:
        agent = self._agents[seat]
        return self._observations[agent], self._infos.get(agent, {})

    def play(self, actions: Mapping[str, Any]) -> dict[str, float]:
        agent_actions = {self._agents[seat]: action for seat, action in actions.items()}
        self._observations, rewards, _, truncations, self._infos = self.env.step(agent_actions)
        self.truncated = self.truncated or any(truncations.values())
        return {str(agent): float(reward) for agent, reward in rewards.items()}
