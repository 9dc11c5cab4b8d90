"""Numbers a reader asks for, under verl's names: of a batch, of the clock, per agent, and of validation."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from verl.protocol import DataProto
from verl.trainer.config import AlgorithmConfig
from verl.trainer.placement import slug
from verl.trainer.ppo.advantage import group_numbers
from verl.trainer.ppo.core_algos import group_index


def reduce_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """One number per key of lists: the maximum where the name says `max`, the minimum where it says `min`, else the mean."""
    out = {}
    for name, values in metrics.items():
        reduce = np.max if "max" in name else np.min if "min" in name.split("/")[-1].split("_") else np.mean
        out[name] = float(reduce(values))
    return out


def _spread(name: str, values: torch.Tensor) -> dict[str, float]:
    if values.numel() == 0:
        return {}
    values = values.float()
    return {f"{name}/mean": values.mean().item(), f"{name}/max": values.max().item(), f"{name}/min": values.min().item()}


def compute_data_metrics(batch: DataProto, use_critic: bool = False) -> dict[str, float]:
    """Mean, max and min of scores, rewards, advantages, returns and lengths; padding rows (empty mask) do not count.

    With `use_critic`, `values` is read as well.
    """
    tensors = batch.batch
    mask = tensors["response_mask"].bool()
    real = mask.any(dim=1)
    width = tensors["responses"].shape[1]
    lengths = mask.sum(dim=1)[real].float()
    prompt_lengths = tensors["attention_mask"][:, :-width].sum(dim=1)[real]
    out = _spread("critic/score", tensors["token_level_scores"].sum(dim=1)[real])
    out |= _spread("critic/rewards", tensors["token_level_rewards"].sum(dim=1)[real])
    for name in ("advantages", "returns", *(("values",) if use_critic else ())):
        out |= _spread(f"critic/{name}", tensors[name][mask])
    out |= _spread("response_length", lengths) | _spread("prompt_length", prompt_lengths)
    return out


def compute_agent_metrics(batch: DataProto, config: AlgorithmConfig | None = None) -> dict[str, float]:
    """Of each agent's rows that have a token: how large advantages are, and how many groups teach nothing.

    `agent/<name>/advantage_abs` is the mean over rows; `agent/<name>/zero_signal_groups` the share of the agent's groups in which none
    of its rows has an advantage, and `agent/<name>/turn_<t>/zero_signal_groups` the same for its rows of turn t.

    Args:
        batch: `advantages`, `response_mask`, and the columns of the group key.
        config: gives the group key; without it a group is a task.
    """
    out: dict[str, float] = {}
    columns, mask = batch.non_tensor_batch, batch.batch["response_mask"]
    lengths = mask.sum(dim=1).numpy()
    advantage = batch.batch["advantages"].abs().sum(dim=1).numpy() / np.maximum(lengths, 1)
    groups = group_index([columns["uid"]]) if config is None else group_numbers(batch, config)
    for agent_id in dict.fromkeys(columns["agent_id"]):
        rows = (columns["agent_id"] == agent_id) & (lengths > 0)
        if not rows.any():
            continue
        name = f"agent/{slug(agent_id)}"
        out[f"{name}/advantage_abs"] = float(advantage[rows].mean())
        out[f"{name}/zero_signal_groups"] = _zero_signal(groups[rows], advantage[rows])
        if "turn" in columns:
            turns = columns["turn"].astype(np.int64)
            for turn in np.unique(turns[rows]):
                now = rows & (turns == turn)
                out[f"{name}/turn_{turn}/zero_signal_groups"] = _zero_signal(groups[now], advantage[now])
    return out


def _zero_signal(groups: np.ndarray, advantage: np.ndarray) -> float:
    """Share of the groups in which no row has an advantage."""
    groups = group_index([groups])
    signal = np.zeros(groups.max() + 1)
    np.maximum.at(signal, groups, advantage)
    return float((signal == 0).mean())


def compute_timing_metrics(batch: DataProto, timing_raw: Mapping[str, float]) -> dict[str, float]:
    """`timing_s/<phase>` in seconds and `timing_per_token_ms/<phase>`, `gen` per response token, the rest per token."""
    total = int(batch.batch["attention_mask"].sum().item())
    response = int(batch.batch["response_mask"].sum().item())
    out = {f"timing_s/{name}": seconds for name, seconds in timing_raw.items()}
    for name, seconds in timing_raw.items():
        out[f"timing_per_token_ms/{name}"] = seconds * 1000 / max(response if name == "gen" else total, 1)
    return out


def compute_throughout_metrics(batch: DataProto, timing_raw: Mapping[str, float], n_gpus: int) -> dict[str, float]:
    """Tokens of the step, its seconds and tokens a second a device."""
    total, seconds = int(batch.batch["attention_mask"].sum().item()), timing_raw["step"]
    return {
        "perf/total_num_tokens": total,
        "perf/time_per_step": seconds,
        "perf/throughput": total / (seconds * n_gpus),
    }


def bootstrap_metric(
    data: Sequence[Any], subset_size: int, reduce_fns: Sequence[Callable[[Any], float]], n_bootstrap: int = 1000, seed: int = 42
) -> list[tuple[float, float]]:
    """(mean, std) of every reduce function over random subsets drawn with replacement."""
    rng = np.random.default_rng(seed)
    draws = rng.integers(len(data), size=(n_bootstrap, subset_size))
    results = np.array([[fn([data[i] for i in draw]) for fn in reduce_fns] for draw in draws])
    return [(float(m), float(s)) for m, s in zip(results.mean(axis=0), results.std(axis=0), strict=True)]


def calc_maj_val(data: Sequence[Mapping[str, Any]], vote_key: str, val_key: str) -> float:
    """Value of the first item that has the most frequent vote."""
    winner = Counter(item[vote_key] for item in data).most_common(1)[0][0]
    return next(item[val_key] for item in data if item[vote_key] == winner)


def process_validation_metrics(
    data_sources: Sequence[str], sample_uids: Sequence[str], infos_dict: Mapping[str, Sequence[Any]], seed: int = 42
) -> dict[str, dict[str, dict[str, float]]]:
    """Validation per data source and variable: `mean@n`, `std@n`, `best@k/*`, `worst@k/*` (and `maj@k/*` where there is a `pred`).

    Rows are averaged within their task first, then over tasks: tasks with more rows weigh no more than others.
    """
    grouped: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row, (source, uid) in enumerate(zip(data_sources, sample_uids, strict=True)):
        grouped[source][uid].append(row)
    result: dict[str, dict[str, dict[str, float]]] = {}
    for source, tasks in grouped.items():
        result[source] = {}
        for name, column in infos_dict.items():
            if len(column) == 0 or isinstance(column[0], str):
                continue
            most = max(len(rows) for rows in tasks.values())
            per_task = [_task_metrics([column[r] for r in rows], _votes(infos_dict, rows), seed, most) for rows in tasks.values()]
            keys = {k for m in per_task for k in m}
            result[source][name] = {k: float(np.mean([m[k] for m in per_task if k in m])) for k in sorted(keys)}
    return result


def _votes(infos: Mapping[str, Sequence[Any]], rows: Sequence[int]) -> list[Any] | None:
    return [infos["pred"][r] for r in rows] if "pred" in infos else None


def _task_metrics(values: Sequence[float], votes: Sequence[Any] | None, seed: int, most: int) -> dict[str, float]:
    """Statistics of one task; `most` is the number of rows that a whole task has, and names the mean."""
    n = len(values)
    out = {f"mean@{most}": float(np.mean(values))}
    if n == 1:
        return out
    out[f"std@{most}"] = float(np.std(values))
    sizes = [2**i for i in range(1, n.bit_length()) if 2**i < n] + [n]
    for k in sizes:
        draws = np.asarray(values, dtype=float)[np.random.default_rng(seed).integers(n, size=(1000, k))]
        for name, extremes in (("best", draws.max(axis=1)), ("worst", draws.min(axis=1))):
            out |= {f"{name}@{k}/mean": float(extremes.mean()), f"{name}@{k}/std": float(extremes.std())}
        if votes is not None:
            pairs = [{"val": v, "pred": p} for v, p in zip(values, votes, strict=True)]
            [(maj, maj_std)] = bootstrap_metric(pairs, k, [lambda d: calc_maj_val(d, "pred", "val")], seed=seed)
            out |= {f"maj@{k}/mean": maj, f"maj@{k}/std": maj_std}
    return out
