"""ReMax's baselines: what the team earns on a task when it always takes the likeliest token (arXiv 2310.10505)."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from verl.protocol import DataProto
from verl.protocol.generate import GREEDY_SUFFIX
from verl.trainer.ppo.collect.protocol import CollectResult
from verl.trainer.ppo.registry import estimator_needs


def needs_baselines(estimator: str) -> bool:
    """The estimator has a parameter `reward_baselines` without a default. Raises ValueError for a name that nothing registers."""
    return estimator_needs(estimator, "reward_baselines")


def reward_baselines(batch: DataProto, greedy: CollectResult, alpha: float) -> tuple[np.ndarray, dict[str, float]]:
    """Baseline of every row, `[bsz]` float, and the metrics `train/remax/*`.

    It is the mean reward of the row's agent in the greedy episode of the row's task. Where the agent did not speak there, it is what
    a sample of its would have earned without a reward of its own, `alpha * team reward`; where that episode failed, the mean of the
    agent's sampled rewards of the task.

    Args:
        batch: sampled rows: `uid`, `agent_id`, `reward`.
        greedy: one greedy episode of each of their tasks.
        alpha: `reward.alpha`.
    """
    spoken = _means(greedy.batch, GREEDY_SUFFIX) if greedy.batch is not None else {}
    sampled = _means(batch)
    team = {e.uid.removesuffix(GREEDY_SUFFIX): alpha * e.team_reward for e in greedy.episodes if e.failure is None}
    keys = list(zip(batch.non_tensor_batch["uid"], batch.non_tensor_batch["agent_id"], strict=True))
    values = np.array([spoken.get(key, team.get(key[0], sampled[key])) for key in keys], dtype=np.float64)
    return values, {
        "train/remax/baseline": float(values.mean()),
        "train/remax/silent": float(np.mean([uid in team and (uid, agent) not in spoken for uid, agent in keys])),
        "train/remax/failed": float(np.mean([uid not in team for uid, _ in keys])),
    }


def _means(batch: DataProto, suffix: str = "") -> dict[tuple[str, str], float]:
    """Mean reward of an agent in a group, by (uid without its suffix, agent)."""
    rewards: dict[tuple[str, str], list[float]] = defaultdict(list)
    columns = batch.non_tensor_batch
    for uid, agent, reward in zip(columns["uid"], columns["agent_id"], columns["reward"], strict=True):
        rewards[(uid.removesuffix(suffix), agent)].append(float(reward))
    return {key: float(np.mean(sorted(values))) for key, values in rewards.items()}
