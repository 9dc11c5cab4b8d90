"""The advisers are called first, then, concurrently, all players that have to act; agents may have
any name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_system.agent import BaseAgent
from agent_system.environment import BaseEnv, Task
from agent_system.errors import AgentSystemError
from agent_system.orchestra import BaseOrchestra
from agent_system.projection import tag
from agent_system.registry import ANY, AgentRegistry, OrchestraRegistry
from agent_system.turn import Turn
from agent_system.workflows.farama.env import FaramaEnv, check_names
from agent_system.workflows.farama.world.game import split
from verl.utils.names import did_you_mean

TRIED_MOVES = 4


_ASK = """\
You are {agent}.

{env_prompt}

{team_context}

Actions: {actions}.
"""


@dataclass(frozen=True)
class FaramaOptions:
    """Options under `agent.orchestra.farama`.

    Attributes:
        advisers: agents that are called before the players that have to act, in this order.
    """

    advisers: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_names("agent.orchestra.farama.advisers", self.advisers)


@AgentRegistry.register(ANY, orchestra="farama")
class FaramaAgent(BaseAgent):
    """A player, or an adviser if `agent.orchestra.farama.advisers` names it; its action is the last
    `<action>` of its reply.

    To change a role's prompt, subclass this and register the class by the player's name with
    `orchestra="farama"`.

    Attributes:
        prompt: template of a player.
        advice: template of an adviser.
    """

    prompt = _ASK + "End with the action you take in the form <action>...</action>."
    advice = (
        _ASK + "You advise who acts next. End with the action you propose in the form <action>...</action>."
    )
    projection = tag("action")

    def __init__(self, agent_id: str, config: Any = None) -> None:
        super().__init__(agent_id, config if isinstance(config, FaramaOptions) else FaramaOptions())
        if agent_id in self.config.advisers:
            self.prompt = self.advice


@OrchestraRegistry.register("farama")
class FaramaOrchestra(BaseOrchestra):
    """One move per turn, in the game's own order. Players that act at the same time do not read
    each other.
    """

    config_class = FaramaOptions

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.agents = tuple(self.config.advisers)

    async def run(self, turn: Turn) -> str:
        for adviser in self.agents:
            await turn.act(adviser)
        seats: Sequence[str] = turn.observation.info["to_act"]
        decisions = await asyncio.gather(*(turn.act(seat) for seat in seats))
        return ", ".join(decision.action for decision in decisions)

    def check(
        self, agents: Mapping[str, BaseAgent], make_env: Callable[[int], BaseEnv], *, forks: bool
    ) -> None:
        """Start a game and check that the team is its players and the advisers, and that copies
        behave like their original.
        """
        env = make_env(0)
        if not isinstance(env, FaramaEnv):
            raise AgentSystemError(
                "agent.orchestra_type=farama plays in FaramaEnv and its subclasses, found "
                f"{type(env).__name__}; set env.env_name=farama"
            )
        try:
            env.reset(Task("check", ""))
            self._check_names(list(agents), env)
            if forks:
                check_forks(env)
        finally:
            env.close()

    def _check_names(self, agent_ids: Sequence[str], env: FaramaEnv) -> None:
        players = env.game.players
        where = f"env.params.env_id={env.config.env_id!r}"
        missing = [p for p in players if p not in agent_ids]
        if missing:
            raise AgentSystemError(
                f"{where} is played by {', '.join(players)}, but agent.agent_ids={list(agent_ids)} "
                f"lacks {', '.join(missing)}; add them, or list them in env.params.random_seats"
            )
        idle = [a for a in agent_ids if a not in players and a not in self.agents]
        if idle:
            raise AgentSystemError(
                f"{where} has no player {idle[0]!r}{did_you_mean(idle[0], players)}; players: "
                f"{', '.join(players)}. An agent that only advises is listed in "
                "agent.orchestra.farama.advisers"
            )


def check_forks(env: FaramaEnv) -> None:
    """Make a few random moves from the current state, each on a copy first.

    Raises:
        AgentSystemError: the game cannot be copied, a copy behaves differently from its original,
            or shares state with it.
    """
    for _ in range(TRIED_MOVES):
        if env.game.over:
            return
        actions = {seat: env.game.draw(seat) for seat in env.game.movers}
        before = _observations(env)
        copy = env.fork()
        ahead = (copy.game.play(actions), _observations(copy))
        copy.close()
        if _observations(env) != before or (env.game.play(actions), _observations(env)) != ahead:
            raise AgentSystemError(
                f"env.params.env_id={env.config.env_id!r}: a copy of the game and the game itself "
                "do not go the same way, so tree sampling would compare moves by chance; use "
                "rollout.sampling=parallel"
            )


def _observations(env: FaramaEnv) -> dict[str, str]:
    """Return the observation of every player left in the game."""
    world = env.game.world
    return {seat: env.describe(seat, split(*world.view(seat))[0]) for seat in world.live}
