"""Baselines of ReMax: the reward of a task with greedy decoding (arXiv 2310.10505)."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from verl.protocol import DataProto
from verl.protocol.generate import GREEDY_SUFFIX
from verl.trainer.ppo.collect.protocol import EpisodeBatch


def reward_baselines(
    batch: DataProto, greedy: EpisodeBatch, alpha: float
) -> tuple[np.ndarray, dict[str, float]]:
    """Return the baseline of every row, `[bsz]` float, and the metrics `train/remax/*`.

    It is the mean reward of the row's agent in the greedy episode of the row's task. If the agent
    was not called there, it is `alpha * team reward`, the reward of a sample without a local
    reward; if that episode failed, the mean of the agent's sampled rewards of the task.

    Args:
        batch: sampled rows with `uid`, `agent_id`, `reward`.
        greedy: one greedy episode per task of the batch.
        alpha: `reward.alpha`.
    """
    called = _means(greedy.batch, GREEDY_SUFFIX) if greedy.batch is not None else {}
    sampled = _means(batch)
    team = {
        e.uid.removesuffix(GREEDY_SUFFIX): alpha * e.team_reward for e in greedy.episodes if e.failure is None
    }
    keys = list(zip(batch.non_tensor_batch["uid"], batch.non_tensor_batch["agent_id"], strict=True))
    values = np.array([called.get(key, team.get(key[0], sampled[key])) for key in keys], dtype=np.float64)
    return values, {
        "train/remax/baseline": float(values.mean()),
        "train/remax/silent": float(
            np.mean([uid in team and (uid, agent) not in called for uid, agent in keys])
        ),
        "train/remax/failed": float(np.mean([uid not in team for uid, _ in keys])),
    }


def _means(batch: DataProto, suffix: str = "") -> dict[tuple[str, str], float]:
    """Return the mean reward of an agent in a group, by (uid without its suffix, agent)."""
    rewards: dict[tuple[str, str], list[float]] = defaultdict(list)
    columns = batch.non_tensor_batch
    # other candidates of a tree have no return
    committed = columns.get("committed", np.ones(len(batch), dtype=bool))
    for uid, agent, reward in zip(
        *(columns[name][committed.astype(bool)] for name in ("uid", "agent_id", "reward")), strict=True
    ):
        rewards[(uid.removesuffix(suffix), agent)].append(float(reward))
    return {key: float(np.mean(sorted(values))) for key, values in rewards.items()}
