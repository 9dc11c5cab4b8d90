"""One episode as its program sees it: an address, a key, and the turns of the environment."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from agent_system.environment import Observation, Outcome, Task
from agent_system.errors import AgentSystemError
from agent_system.gateway.access import Access
from agent_system.gateway.chat_request import REFUSED
from agent_system.gateway.episode_requests import EpisodeRequests
from agent_system.gateway.responder import OVER
from agent_system.rollout.episode import Episode


class Session(Access):
    """An episode. Its key is valid until it ends, and its clients end with it.

    Attributes:
        task: the task, without its ground truth.
    """

    def __init__(self, episode: Episode, url: str, requests: EpisodeRequests) -> None:
        """Show an episode whose requests `requests` answers at the address `url`."""
        super().__init__(f"{url}/v1", requests.key, tuple(episode.runtimes), requests.structured != REFUSED)
        self.task: Task = replace(episode.spec.task, ground_truth=None)
        self._episode = episode
        self._requests = requests
        self._loop = asyncio.get_running_loop()

    @property
    def observation(self) -> Observation:
        """What the environment shows at the beginning of this turn. Raise AgentSystemError after
        the end of the episode.
        """
        if self._episode.turn is None:
            raise AgentSystemError(f"session.observation: {OVER}")
        return self._episode.turn.observation

    async def step(self, action: Any) -> Outcome:
        """End the turn with the team's action and return the environment's outcome; the next turn
        begins unless it is `done`.

        Raises TurnOver after the end of the episode.
        """
        try:
            outcome = await self._episode.step(action)
        except Exception as error:
            self._requests.environment_error = error
            raise
        # The run's limit of turns may end an episode that the environment would go on with.
        return outcome if self._episode.turn is not None else replace(outcome, done=True)

    def step_in_thread(self, action: Any) -> Outcome:
        """As `step`, for a program that is a plain function."""
        return asyncio.run_coroutine_threadsafe(self.step(action), self._loop).result()
