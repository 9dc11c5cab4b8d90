"""One episode as its program sees it: an address, a key, and the turns of the environment."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from agent_system.environment import Observation, Outcome, Task
from agent_system.errors import AgentSystemError
from agent_system.gateway.calls import EpisodeCalls
from agent_system.gateway.clients import Clients
from agent_system.gateway.request import OVER
from agent_system.rollout.runner import EpisodeRunner
from verl.utils.names import slug


class Session:
    """An episode.

    Attributes:
        task: the task, without its ground truth.
        key: API key of the episode; it is valid until the episode ends.
        base_url: for an OpenAI client that names the agent as the model.
        agents: names of the agents.
        clients: clients of this episode, which end with it.
    """

    def __init__(self, episode: EpisodeRunner, url: str, calls: EpisodeCalls) -> None:
        """Show an episode whose requests `calls` answers at the address `url`."""
        self.task: Task = replace(episode.spec.task, ground_truth=None)
        self.key = calls.key
        self.base_url = f"{url}/v1"
        self.agents = tuple(episode.runtimes)
        self.clients = Clients(self.base_url, self.key, calls.masks)
        self._url, self._episode, self._loop = url, episode, asyncio.get_running_loop()

    @property
    def observation(self) -> Observation:
        """What the environment shows at the beginning of this turn. Raise AgentSystemError after the end of the episode."""
        if self._episode.turn is None:
            raise AgentSystemError(f"session.observation: {OVER}")
        return self._episode.turn.observation

    def url_of(self, agent_id: str) -> str:
        """Return the base URL at which one agent answers, whatever model a request names."""
        return f"{self._url}/agents/{slug(agent_id)}/v1"

    def openai(self) -> Any:
        """Return an `openai.AsyncOpenAI` of this episode; a plain function calls `session.clients.openai_in_thread()`."""
        return self.clients.openai()

    def chat_model(self, agent_id: str) -> Any:
        """Return an agent as LangChain's chat model."""
        return self.clients.chat_model(agent_id)

    def autogen(self, agent_id: str) -> Any:
        """Return an agent as AutoGen's model client."""
        return self.clients.autogen(agent_id)

    async def step(self, action: Any) -> Outcome:
        """End the turn with the team's action and return the environment's outcome; the next turn begins unless it is `done`.

        Raises TurnOver after the end of the episode.
        """
        outcome = await self._episode.step(action)
        return outcome if self._episode.turn is not None else replace(outcome, done=True)

    def step_in_thread(self, action: Any) -> Outcome:
        """As `step`, for a program that is a plain function."""
        return asyncio.run_coroutine_threadsafe(self.step(action), self._loop).result()
