"""Warnings about rewards that carry no signal in tree sampling: those of `step`, and equal rewards
of all candidates of a call.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence

from agent_system.environment import BaseEnv
from agent_system.record import EpisodeRecord, Sample

logger = logging.getLogger(__name__)
ENOUGH_CALLS = 50
NEARLY_ALL = 0.95

Key = tuple[str, int, int]


def candidates_of(episodes: Sequence[EpisodeRecord]) -> dict[Key, list[Sample]]:
    """Return the candidates of every call of a tree, by (episode, turn, call); summaries, failed
    and parallel episodes have none.
    """
    calls: dict[Key, list[Sample]] = defaultdict(list)
    for episode in episodes:
        for sample in () if episode.failed else episode.samples:
            if not (sample.rewards.fork_reward is None or sample.identity.greedy or sample.identity.summary):
                calls[(episode.traj_uid, *sample.identity.call_key)].append(sample)
    return calls


def tied(candidates: Sequence[Sample]) -> bool:
    """Return whether all candidates of a call have equal rewards before shaping and penalties; True
    for a single one.
    """
    return len({sample.rewards.candidate_reward for sample in candidates}) == 1


class TiedCandidateMonitor:
    """Warns once if `step` gives rewards, which no candidate gets, and once per agent whose
    candidates (nearly) always tie.

    Ties count where actions differ. Only trained agents and the first calls of a run are
    considered: later an agent may do everything right, and ties then do not indicate a problem of
    the environment.
    """

    def __init__(self, env: type[BaseEnv]) -> None:
        self._env_name = env.__name__
        self._has_score = env.overrides("score")
        self._ties: dict[str, list[bool]] = defaultdict(list)
        self._steps = [0, 0]  # turns with a reward of `step`, and all turns
        self._warned_of_steps = False

    def update(self, episodes: Sequence[EpisodeRecord]) -> None:
        """Add the episodes of a training collection, with their rewards, and log warnings that are
        due.
        """
        calls = candidates_of(episodes)
        rewards = [reward for episode in episodes if not episode.failed for reward in episode.turn_rewards]
        self._steps = [self._steps[0] + sum(reward != 0 for reward in rewards), self._steps[1] + len(rewards)]
        if self._steps[0] and not self._has_score and not self._warned_of_steps and calls:
            self._warned_of_steps = True
            logger.warning(
                "rollout.sampling=tree: step() of %s gave a reward in %d of %d turns; these "
                "rewards are in the episode's metrics, but no candidate gets them: give the "
                "rewards to learn from in act() or score()",
                self._env_name, *self._steps,
            )  # fmt: skip
        complete = {agent_id for agent_id, ties in self._ties.items() if len(ties) >= ENOUGH_CALLS}
        for candidates in calls.values():
            agent_id = candidates[0].agent_id
            if (
                agent_id not in complete
                and candidates[0].identity.trained
                and len({sample.action for sample in candidates}) > 1
            ):
                self._ties[agent_id].append(tied(candidates))
        for agent_id, ties in self._ties.items():
            if agent_id not in complete and len(ties) >= ENOUGH_CALLS and sum(ties) >= NEARLY_ALL * len(ties):
                self._warn(agent_id, ties)

    def _warn(self, agent_id: str, ties: Sequence[bool]) -> None:
        logger.warning(
            "rollout.sampling=tree: in %d of the first %d calls of %s with different candidates, "
            "all candidates got the same reward, so the agent learns nothing: the rewards of act() "
            "and score() of %s do not depend on its action. Reward the action in act(), define "
            "score(), or use rollout.sampling=parallel",
            sum(ties), len(ties), agent_id, self._env_name,
        )  # fmt: skip


def tied_shares(calls: Mapping[Key, Sequence[Sample]]) -> dict[str, float]:
    """Return by agent the share of its calls whose candidates all have the same reward."""
    by_agent: dict[str, list[bool]] = defaultdict(list)
    for candidates in calls.values():
        by_agent[candidates[0].agent_id].append(tied(candidates))
    return {agent_id: sum(ties) / len(ties) for agent_id, ties in by_agent.items()}
