"""Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2): train on groups in which something differs, and draw new tasks for the rest.

A group (`algorithm.group_by`) whose rewards are all equal has advantage 0. With `algorithm.filter_groups.enable` such groups are left
out and more tasks are played until `data.train_batch_size` tasks have a signal. A task counts when one of its groups has one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from verl.protocol import DataProto
from verl.trainer.config import AlgorithmConfig, RunConfig
from verl.trainer.placement import slug
from verl.trainer.ppo.advantage import group_fields, group_keys
from verl.trainer.ppo.batching import trim_padding
from verl.trainer.ppo.core_algos import group_index, group_stats
from verl.trainer.ppo.rollout_protocol import Collector, CollectResult
from verl.utils.dataset import TaskLoader

logger = logging.getLogger(__name__)

# Values of algorithm.filter_groups.metric and the columns they stand for.
FILTER_METRICS = {"seq_reward": "reward", "team_reward": "team_reward", "local_reward": "local_reward"}


@dataclass(frozen=True)
class Drawn:
    """What dynamic sampling brought.

    Attributes:
        result: all collections of the step as one.
        batch: the rows to train on, as wide as the longest of them; None when no group has a signal.
        metrics: `train/filter_groups/*`.
        why_none: what to say when `batch` is None.
    """

    result: CollectResult
    batch: DataProto | None
    metrics: dict[str, float]
    why_none: str = ""


def signal_rows(batch: DataProto, config: AlgorithmConfig) -> np.ndarray:
    """Whether the group of each row has a spread in `algorithm.filter_groups.metric`, `[bsz]` bool.

    A group of one has none, unless `algorithm.singleton=raw` trains on it; rows without a response token never count.
    """
    fields = group_fields(config)
    values = batch.non_tensor_batch[FILTER_METRICS[config.filter_groups.metric]].astype(np.float64)
    valid = batch.batch["response_mask"].bool().any(dim=1).numpy()
    groups = group_keys(batch, fields)
    if fields == ["uid"]:  # trajectories are compared, not their samples: see compute_advantage
        members = group_index([groups, batch.non_tensor_batch["traj_uid"]])
        first = np.unique(members, return_index=True)[1]
        per_trajectory = group_stats(values, members, valid)
        values, counted, index = per_trajectory.mean, per_trajectory.count > 0, groups[first]
    else:
        counted, index = valid, groups
    stats = group_stats(values, index, counted)
    signal = ~stats.constant
    if config.singleton == "raw":
        signal |= stats.count == 1
    return signal[groups] & valid


async def draw_until_full(config: RunConfig, collector: Collector, loader: TaskLoader, step: int) -> Drawn:
    """Collect until `data.train_batch_size` tasks have a signal, no task is left, or `max_num_gen_batches` collections were made.

    Tasks beyond the batch are cut in the order in which they were drawn. With too few tasks the batch is smaller, and a warning says so.
    """
    wanted, rule = config.data.train_batch_size, config.algorithm.filter_groups
    results: list[CollectResult] = []
    keeps: list[np.ndarray] = []
    used: set[int] = set()
    found = 0
    while found < wanted and (rule.max_num_gen_batches == 0 or len(results) < rule.max_num_gen_batches):
        places = loader.take(wanted, used)
        if not places:
            logger.warning("step %d: all tasks were drawn, %d of %d have a signal", step, found, wanted)
            break
        used.update(places)
        rows = [loader.source[place] for place in places]
        result = await collector.collect(rows, config.env.rollout.n, step=step, attempt=len(results))
        results.append(result)
        if result.batch is not None:
            keep = signal_rows(result.batch, config.algorithm)
            keeps.append(keep)
            found += len(np.unique(result.batch.non_tensor_batch["uid"][keep].astype(str)))
    whole = collector.join(results) if len(results) > 1 else results[0]
    if found == 0 or whole.batch is None:
        return Drawn(whole, None, {}, _nothing_differs(config, len(results), whole))
    if found < wanted:
        logger.warning("step %d trains on %d tasks instead of %d: %d were drawn, the others had no signal", step, found, wanted, len(used))
    signal = np.concatenate(keeps)
    kept = np.flatnonzero(_first_tasks(whole.batch, signal, wanted))
    prefix = "train/filter_groups"
    metrics = {
        f"{prefix}/num_gen_batches": float(len(results)),
        f"{prefix}/tasks_drawn": float(len(used)),
        f"{prefix}/tasks_with_signal": float(found),
        f"{prefix}/tasks_missing": float(max(wanted - found, 0)),
    }
    metrics |= dict(_dropped_shares(whole.batch, signal, config.algorithm, prefix))
    return Drawn(whole, trim_padding(whole.batch.select_idxs(kept)), metrics)


def _first_tasks(batch: DataProto, keep: np.ndarray, wanted: int) -> np.ndarray:
    uids = batch.non_tensor_batch["uid"]
    first = set(list(dict.fromkeys(uids[keep]))[:wanted])
    return keep & np.fromiter((uid in first for uid in uids), bool, len(uids))


def _dropped_shares(batch: DataProto, signal: np.ndarray, config: AlgorithmConfig, prefix: str) -> Iterator[tuple[str, float]]:
    """Share of groups without a signal among those an agent has rows in, and of each turn when there are several."""
    columns = batch.non_tensor_batch
    groups, turns = group_keys(batch, group_fields(config)), columns["turn"].astype(int)
    for agent in dict.fromkeys(columns["agent_id"]):
        own = columns["agent_id"] == agent
        name = f"{prefix}/dropped/{slug(agent)}"
        yield name, _share_without(groups[own], signal[own])
        for turn in np.unique(turns[own]) if turns.max() > 1 else ():
            rows = own & (turns == turn)
            yield f"{name}/turn_{turn}", _share_without(groups[rows], signal[rows])


def _share_without(groups: np.ndarray, signal: np.ndarray) -> float:
    return 1.0 - len(np.unique(groups[signal])) / len(np.unique(groups))


def _nothing_differs(config: RunConfig, collections: int, result: CollectResult) -> str:
    rewards = [e.team_reward for e in result.episodes if e.failure is None]
    mean = f"{np.mean(rewards):.3g}" if rewards else "unknown, all episodes failed"
    return (
        f"in none of {len({e.uid for e in result.episodes})} tasks ({collections} collections) does "
        f"{config.algorithm.filter_groups.metric} differ within a group, so there is nothing to learn from; mean team reward: {mean}. "
        "The tasks are too easy or too hard for this team: use others, raise env.rollout.n, or turn algorithm.filter_groups.enable off"
    )
