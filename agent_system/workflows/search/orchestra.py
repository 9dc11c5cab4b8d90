"""Who speaks when: the Verifier decides whether the team searches or answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agent_system.environment import BaseEnv
from agent_system.memory import Memory, Recollection, SearchMemory
from agent_system.orchestra import BaseOrchestra
from agent_system.registry import OrchestraRegistry
from agent_system.turn import Turn
from agent_system.workflows.search.agents import ANSWER, SEARCH, VERIFIER
from agent_system.workflows.search.env import SearchEnv
from agent_system.workflows.search.options import SearchOptions


class FoundMemory(Memory):
    """What the searches brought, without the queries."""

    keeps_result = True

    def render(self, turn: Recollection) -> str:
        return turn.observation


@OrchestraRegistry.register("search")
class SearchOrchestra(BaseOrchestra):
    """One verdict a turn, and then one search or one answer; who is not needed is not called."""

    agents = (VERIFIER, SEARCH, ANSWER)
    config_class = SearchOptions
    memory_class: type[Memory] = SearchMemory

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        if self.config.prompt_style == "short":
            self.memory_class = FoundMemory

    def check(self, agent_ids: Sequence[str], make_env: Callable[[int], BaseEnv], *, forks: bool) -> None:
        """Search once, so that a server that cannot be used is found before a model loads."""
        del agent_ids, forks
        env = make_env(0)
        if isinstance(env, SearchEnv):
            env.probe()

    async def run(self, turn: Turn) -> str:
        verdict = await turn.act(VERIFIER)
        speaker = ANSWER if verdict.fields["enough"] else SEARCH
        reply = await turn.act(speaker)
        return reply.action
