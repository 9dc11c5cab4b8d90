"""Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2): train on groups in which rewards differ, and sample
new tasks for the others.

A group (`algorithm.group_by`) of equal rewards has advantage 0. With `algorithm.filter_groups.metric` such
groups are dropped, and tasks are sampled until `data.train_batch_size` tasks have a signal. A task has a
signal if one of its groups has one.

    keep group g  if  max_(i in g) r_i > min_(i in g) r_i

Keys: `algorithm.filter_groups.metric`, `algorithm.filter_groups.max_num_gen_batches`.
Use when: many tasks are always or never solved, so that much of a batch has no gradient and its size varies.
Fails when: sampling dominates the time: a step then costs several collections; or tasks are few: they run
out.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np

from verl.protocol import DataProto
from verl.trainer.config import AlgorithmConfig, RunConfig
from verl.trainer.config.names import FILTER_METRICS
from verl.trainer.plan.agents import averages_trajectories, group_fields, split_by_settings
from verl.trainer.plan.placement import slug
from verl.trainer.plan.registry import ESTIMATORS
from verl.trainer.ppo.batching import trim_padding
from verl.trainer.ppo.collect.protocol import EpisodeBatch, EpisodeCollector
from verl.trainer.ppo.collect.step_samples import StepSamples, samples_of
from verl.trainer.ppo.core_algos.grouping import first_rows, group_index, group_stats, groups_with
from verl.trainer.ppo.credit.advantage import group_keys, group_numbers
from verl.trainer.ppo.credit.estimator_inputs import call_weights
from verl.utils.dataset import TaskLoader

logger = logging.getLogger(__name__)


def signal_rows(batch: DataProto, config: AlgorithmConfig) -> np.ndarray:
    """Return whether `algorithm.filter_groups.metric` differs within the group of each row, `[bsz]`
    bool.

    Groups are those of the advantage, including `algorithm.per_agent`; with `m_grpo` episodes of
    the main agent and calls of sub-agents are separate groups, and calls that are not sampled later
    count here. A group of one has no signal, unless `singleton=raw` trains on it; rows without a
    response token are ignored.
    """
    # Token rewards are float32: values that differ only in float64 are equal when advantages are
    # computed.
    column = FILTER_METRICS[config.filter_groups.metric or "seq_reward"]
    values = batch.non_tensor_batch[column].astype(np.float32).astype(np.float64)
    valid = _valid(batch)
    signal = np.zeros(len(batch), dtype=bool)
    for settings, rows in split_by_settings(config, batch.non_tensor_batch["agent_id"]):
        groups = group_keys(batch, group_fields(settings), rows)
        trajectory = batch.non_tensor_batch["traj_uid"][rows]
        agents = batch.non_tensor_batch["agent_id"][rows]
        unit = weights = None
        if (units := ESTIMATORS.traits(settings.adv_estimator).units) is not None:
            groups, unit = units(settings, groups, trajectory, agents)
        elif averages_trajectories(settings, settings.adv_estimator):
            unit = trajectory
            if settings.call_weighting == "trajectory":
                weights = call_weights(trajectory, agents, valid[rows])
        signal[rows] = _spread(values[rows], groups, valid[rows], unit, weights, settings.singleton == "raw")
    return signal & valid


def _spread(
    values: np.ndarray,
    groups: np.ndarray,
    valid: np.ndarray,
    unit: np.ndarray | None,
    weights: np.ndarray | None,
    singletons: bool,
) -> np.ndarray:
    """Return whether values in each row's group differ, `[rows]`; with `unit` `[rows]`, (weighted)
    means over units are compared.
    """
    compared = groups
    if unit is not None:
        members = group_index([groups, unit])
        means = group_stats(values, members, valid, weights)
        compared = groups[np.unique(members, return_index=True)[1]]
        values = means.mean
        valid = means.count > 0
    stats = group_stats(values, compared, valid)
    return (~stats.constant | (singletons & (stats.count == 1)))[groups]


async def draw_until_full(
    config: RunConfig, collector: EpisodeCollector, loader: TaskLoader, step: int
) -> StepSamples:
    """Collect until `data.train_batch_size` tasks have a signal, no task is left, or
    `max_num_gen_batches` is reached.

    Surplus tasks are dropped in the order in which they were sampled. With too few tasks the batch
    is smaller, and a warning is logged.
    """
    batch_size = config.data.train_batch_size
    limit = config.algorithm.filter_groups.max_num_gen_batches
    results: list[EpisodeBatch] = []
    used: set[int] = set()
    n_with_signal = 0
    while n_with_signal < batch_size and not 0 < limit <= len(results):
        task_indices = loader.take(batch_size, used)
        if not task_indices:
            logger.warning(
                "step %d: all tasks were sampled, %d of %d have a signal", step, n_with_signal, batch_size
            )
            break
        used.update(task_indices)
        tasks = [loader.source[task_index] for task_index in task_indices]
        result = await collector.collect(tasks, config.env.rollout.n, step=step, attempt=len(results))
        results.append(result)
        if config.data.tail_window:
            from verl.utils.dataset.tail_loader import note_lengths  # of this key alone

            note_lengths(loader, task_indices, result.episodes)
        if result.batch is not None:
            n_with_signal += _tasks(result.batch, signal_rows(result.batch, config.algorithm))
    whole = collector.join(results) if len(results) > 1 else results[0]
    return keep_signal(config.algorithm, batch_size, whole, len(results), len(used), step)


def keep_signal(
    algorithm: AlgorithmConfig,
    batch_size: int,
    whole: EpisodeBatch,
    collections: int,
    n_tasks: int,
    step: int,
    group_ids: Collection[str] | None = None,
) -> StepSamples:
    """Return the samples of the first `batch_size` tasks that have a signal, with the metrics
    `train/filter_groups/*`, also without a batch; their rows are trimmed to the longest of them.

    Args:
        algorithm: keys of the signal.
        batch_size: tasks of a step.
        whole: all episodes of the step.
        collections: number of collections that it joins.
        n_tasks: number of tasks that were sampled.
        step: training step.
        group_ids: ids of the groups that the step may train on; None for all.
    """
    samples = samples_of(whole)
    signal = np.zeros(0, dtype=bool)
    numbers: dict[str, float] = {}
    n_with_signal = 0
    left_out: dict[str, str] = {}
    if samples.batch is not None:
        signal = signal_rows(samples.batch, algorithm)
        uids = samples.batch.non_tensor_batch["uid"]
        left_out = dict.fromkeys(uids, "no signal") | dict.fromkeys(uids[signal], "surplus")
        if group_ids is not None:
            signal &= np.fromiter((uid in group_ids for uid in uids), bool, len(uids))
        n_with_signal = _tasks(samples.batch, signal)
        numbers |= _dropped_shares(samples.batch, signal, algorithm)
    numbers |= {"num_gen_batches": collections, "tasks_drawn": n_tasks}
    numbers |= {"tasks_with_signal": n_with_signal, "tasks_missing": max(batch_size - n_with_signal, 0)}
    metrics = {f"train/filter_groups/{name}": float(value) for name, value in numbers.items()}
    samples = replace(samples, metrics=samples.metrics | metrics, left_out=left_out)
    if samples.batch is None or not signal.any():
        return replace(samples, batch=None, no_batch_reason=_no_signal(algorithm, collections, whole))
    if n_with_signal < batch_size:
        logger.warning(
            "step %d trains on %d tasks instead of %d: %d were sampled, others had no signal",
            step,
            n_with_signal,
            batch_size,
            n_tasks,
        )
    row_indices = np.flatnonzero(_first_tasks(samples.batch, signal, batch_size))
    for uid in set(uids[row_indices]):
        del left_out[uid]
    return replace(samples, batch=trim_padding(samples.batch.select_idxs(row_indices)))


def _tasks(batch: DataProto, rows: np.ndarray) -> int:
    return len(set(batch.non_tensor_batch["uid"][rows]))


def _first_tasks(batch: DataProto, keep: np.ndarray, batch_size: int) -> np.ndarray:
    uids = batch.non_tensor_batch["uid"]
    first = set(list(dict.fromkeys(uids[keep]))[:batch_size])
    return keep & np.fromiter((uid in first for uid in uids), bool, len(uids))


def _dropped_shares(
    batch: DataProto, signal: np.ndarray, config: AlgorithmConfig
) -> Iterator[tuple[str, float]]:
    """Yield the fraction of each agent's groups without a signal, and per turn if there are several
    turns.

    A group counts once if the agent (in that turn) has a row with a response token in it.
    """
    columns = batch.non_tensor_batch
    groups = group_numbers(batch, config)
    rows = np.flatnonzero(_valid(batch))
    turns = columns["turn"].astype(int)

    def dropped(cells: np.ndarray) -> np.ndarray:
        n_kept, n_groups = groups_with(cells, groups[rows], signal[rows])
        return 1.0 - n_kept / n_groups

    agents = group_index([columns["agent_id"][rows]])
    names = [f"dropped/{slug(agent)}" for agent in columns["agent_id"][rows][first_rows(agents)]]
    yield from zip(names, dropped(agents).tolist(), strict=True)
    if turns[rows].max(initial=1) > 1:
        cells = group_index([agents, turns[rows]])
        first = first_rows(cells)
        for agent, turn, share in zip(
            agents[first], turns[rows][first], dropped(cells).tolist(), strict=True
        ):
            yield f"{names[agent]}/turn_{turn}", share


def _valid(batch: DataProto) -> np.ndarray:
    """Return whether rows have a response token, `[bsz]` bool."""
    rows: np.ndarray = batch.batch["response_mask"].bool().any(dim=1).numpy()
    return rows


def _no_signal(algorithm: AlgorithmConfig, collections: int, result: EpisodeBatch) -> str:
    rewards = [e.team_reward for e in result.episodes if e.failure is None]
    mean = f"{np.mean(rewards):.3g}" if rewards else "unknown, all episodes failed"
    return (
        f"{algorithm.filter_groups.metric} differs within no group of "
        f"{len({e.uid for e in result.episodes})} tasks ({collections} collections), so that every "
        f"advantage is 0; mean team reward: {mean}. The tasks are too easy or too hard for this "
        "team: use others, raise env.rollout.n, or set algorithm.filter_groups.metric=null"
    )
