"""The price of tokens, as a reward function."""

from __future__ import annotations

from collections.abc import Collection

from agent_system.errors import AgentSystemError
from agent_system.record import EpisodeRecord
from agent_system.reward.manager import Reward


def priced(
    episode: EpisodeRecord, price: float = 0.0, agent: str | None = None, free: Collection[str] = ()
) -> Reward:
    """Charge the reply tokens of an episode.

    Args:
        episode: the episode.
        price: reward that a token costs.
        agent: the agent that pays, a Designer; None: the team. Its calls lose the price as a local
            reward, which the team reward, a score of success, does not contain.
        free: agents whose tokens cost nothing.

    Returns:
        The reward, with the charged `tokens` as a term.

    Raises AgentSystemError for an agent that made no call.
    """
    tokens = sum(s.response_tokens for s in episode.committed if s.agent_id not in free)
    terms = {"tokens": float(tokens)}
    if agent is None:
        return Reward(episode.team_reward - price * tokens, terms)
    if all(sample.agent_id != agent for sample in episode.committed):
        raise AgentSystemError(f"priced(agent={agent!r}): the agent made no call in the episode")
    return Reward(None, terms, {agent: -price * tokens})
