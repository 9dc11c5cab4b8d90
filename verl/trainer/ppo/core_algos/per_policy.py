"""Rows and metrics of a team's batch by policy, and the staleness of samples by agent."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from verl.protocol import DataProto
from verl.trainer.plan.placement import slug
from verl.trainer.ppo.core_algos.grouping import rows_by_value


def policies(batch: DataProto) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (policy, rows) of every policy with an unmasked token; the name is empty if rows have
    no `policy_id`.
    """
    real = batch.batch["response_mask"].any(dim=-1).cpu().numpy()
    ids = batch.non_tensor_batch.get("policy_id", np.full(len(batch), ""))
    rows = rows_by_value(ids)
    for policy in dict.fromkeys(ids[real]):
        yield str(policy), rows[policy]


def aggregate_policies(per_policy: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return one value per metric over policies (mean; maximum of `max` names, minimum of `min`
    names), and all under `wg/<policy>/`.
    """
    listed: dict[str, list[float]] = defaultdict(list)
    for metrics in per_policy.values():
        for name, value in metrics.items():
            listed[name].append(value)
    overall = {name: _aggregate(name, values) for name, values in listed.items()}
    return overall | {
        f"wg/{wg}/{name}": value
        for wg, metrics in per_policy.items()
        if wg
        for name, value in metrics.items()
    }


def merged_metrics(parts: Sequence[Mapping[str, float]], names: Sequence[str]) -> dict[str, float]:
    """Return metrics of several calls of `aggregate_policies`, each with some of the policies
    `names`, as those of one call with all.
    """
    every = {name: value for metrics in parts for name, value in metrics.items()}
    counts = Counter(name for metrics in parts for name in metrics)
    for name in (name for name, count in counts.items() if count > 1):
        policy_values = [every[of] for policy in names if (of := f"wg/{policy}/{name}") in every]
        every[name] = _aggregate(
            name, policy_values or [metrics[name] for metrics in parts if name in metrics]
        )
    return every


def _aggregate(name: str, values: Sequence[float]) -> float:
    words = name.rsplit("/", 1)[-1].split("_")
    # in any order
    return (
        max(values) if "max" in words else min(values) if "min" in words else math.fsum(values) / len(values)
    )


def staleness_metrics(batch: DataProto, version: int) -> dict[str, float]:
    """Return `agent/<agent>/staleness/mean|max`: `version` of the current weights minus that of the
    weights that sampled.

    The mean is over unmasked tokens, the maximum over rows with one; replies whose weights changed
    count with their oldest ones.

    Args:
        batch: `response_mask`, and the columns `agent_id` and `version` (version of the weights
            that sampled the reply); for replies with several versions `mean_version` (over tokens)
            and `oldest_version`.
        version: version of the weights before the update.
    """
    columns = batch.non_tensor_batch
    tokens = batch.batch["response_mask"].sum(dim=-1).cpu().numpy()
    mean, oldest = (
        columns.get(name, columns["version"]).astype(np.float64)
        for name in ("mean_version", "oldest_version")
    )
    out: dict[str, float] = {}
    real = np.flatnonzero(tokens > 0)
    for agent_id, places in rows_by_value(columns["agent_id"][real]).items():
        agent_rows = real[places]
        out[f"agent/{slug(agent_id)}/staleness/mean"] = version - float(
            np.average(mean[agent_rows], weights=tokens[agent_rows])
        )
        out[f"agent/{slug(agent_id)}/staleness/max"] = version - float(oldest[agent_rows].min())
    return out
