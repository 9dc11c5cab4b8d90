"""Pay of an environment that no candidate of a tree gets: of `step`, and of calls whose candidates all earn the same."""

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
    """Return the candidates of every call of a tree, by episode, turn and call; failed episodes and those of other kinds have none."""
    calls: dict[Key, list[Sample]] = defaultdict(list)
    for episode in episodes:
        for sample in episode.samples:
            if sample.fork_reward is not None and not episode.failed:
                calls[(episode.traj_uid, sample.turn, sample.call)].append(sample)
    return calls


def tied(candidates: Sequence[Sample]) -> bool:
    """Whether all candidates of a call earned the same, before shaping and penalties; true of one alone."""
    return len({sample.mixed_reward for sample in candidates}) == 1


class TiedCandidateMonitor:
    """Says once that `step` pays, which no candidate gets, and once of each agent that its candidates (nearly) always tie.

    Ties count where actions differ. It looks at agents that learn, and at the first calls of a run only: later on an agent may do
    everything right, and ties are no fault of the environment.
    """

    def __init__(self, env: type[BaseEnv]) -> None:
        self._env_name, self._has_score = env.__name__, env.overrides("score")
        self._seen: dict[str, list[bool]] = defaultdict(list)
        self._steps = [0, 0]  # turns in which `step` paid, and all
        self._said_steps = False

    def look(self, episodes: Sequence[EpisodeRecord]) -> None:
        """Take note of a training collection, rewards assigned, and warn where it is time."""
        calls = candidates_of(episodes)
        turns = [paid for episode in episodes if not episode.failed for paid in episode.turn_rewards]
        self._steps = [self._steps[0] + sum(paid != 0 for paid in turns), self._steps[1] + len(turns)]
        if self._steps[0] and not self._has_score and not self._said_steps and calls:
            self._said_steps = True
            logger.warning(
                "rollout.sampling=tree: step() of %s paid in %d of %d turns, of which no candidate gets anything (the episode's metrics "
                "do): what is to be learned must be paid by act(), or promised by score()",
                self._env_name, *self._steps,
            )  # fmt: skip
        judged = {agent_id for agent_id, seen in self._seen.items() if len(seen) >= ENOUGH_CALLS}
        for candidates in calls.values():
            if candidates[0].trained and len({sample.action for sample in candidates}) > 1:
                self._seen[candidates[0].agent_id].append(tied(candidates))
        for agent_id, seen in self._seen.items():
            if agent_id not in judged and len(seen) >= ENOUGH_CALLS and sum(seen) >= NEARLY_ALL * len(seen):
                self._warn(agent_id, seen)

    def _warn(self, agent_id: str, seen: Sequence[bool]) -> None:
        logger.warning(
            "rollout.sampling=tree: in %d of the first %d calls of %s whose candidates acted differently, all of them earned the same, so "
            "the agent learns nothing: what act() and score() of %s pay does not depend on its action. Let act() pay for the action, or "
            "define score(), or use rollout.sampling=parallel",
            sum(seen), len(seen), agent_id, self._env_name,
        )  # fmt: skip


def tied_shares(calls: Mapping[Key, Sequence[Sample]]) -> dict[str, float]:
    """Return by agent the share of its calls whose candidates all earned the same."""
    by_agent: dict[str, list[bool]] = defaultdict(list)
    for candidates in calls.values():
        by_agent[candidates[0].agent_id].append(tied(candidates))
    return {agent_id: sum(ties) / len(ties) for agent_id, ties in by_agent.items()}
