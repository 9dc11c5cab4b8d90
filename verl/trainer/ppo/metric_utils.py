"""Metrics of a batch, of time, per agent, and of validation, with verl's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from verl.protocol import DataProto
from verl.trainer.config import AlgorithmConfig
from verl.trainer.plan.placement import slug
from verl.trainer.ppo.core_algos.grouping import first_rows, group_index, groups_with, rows_by_value
from verl.trainer.ppo.credit.advantage import group_numbers

if TYPE_CHECKING:
    from verl.trainer.ppo.validation_metrics import (
        bootstrap_metric,
        calc_maj_val,
        process_validation_metrics,
    )

__all__ = [
    "bootstrap_metric", "calc_maj_val", "compute_agent_metrics", "compute_data_metrics",
    "compute_seqlen_metrics",
    "compute_throughout_metrics", "compute_timing_metrics", "compute_variance_proxy_metrics",
    "process_validation_metrics",
    "reduce_metrics",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # on demand: names of verl's for validations
    if name in ("bootstrap_metric", "calc_maj_val", "process_validation_metrics"):
        from verl.trainer.ppo import validation_metrics

        return getattr(validation_metrics, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_PROXY_COLUMNS = ("sum_pi_squared", "old_log_probs", "advantages", "rollout_is_weights")


def reduce_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Reduce lists to one number per key: the maximum if the name contains `max`, the minimum if it
    contains `min`, else the mean.
    """
    out = {}
    for name, values in metrics.items():
        reduce = np.max if "max" in name else np.min if "min" in name.split("/")[-1].split("_") else np.mean
        out[name] = float(reduce(values))
    return out


def _spread(name: str, values: torch.Tensor) -> dict[str, float]:
    if values.numel() == 0:
        return {}
    values = values.float()
    return {
        f"{name}/mean": values.mean().item(),
        f"{name}/max": values.max().item(),
        f"{name}/min": values.min().item(),
    }


def compute_data_metrics(
    batch: DataProto, use_critic: bool = True, *, fixed_width: bool = True
) -> dict[str, float]:
    """Return mean, max and min of scores, rewards, advantages, returns, lengths, turns and tool
    calls over rows with an unmasked token.

    Rows with an empty mask (padding) count only in `response/aborted_ratio`. Prompt and response
    lengths are those of the attention mask.

    Args:
        batch: `responses`, `response_mask`, `attention_mask`, `token_level_scores`,
            `token_level_rewards`, `advantages`, `returns`; optional columns `__num_turns__`,
            `tool_call_counts`, and `prompt_clipped` and `response_clipped` (the row was truncated
            at its limit), whose mean is `*/clip_ratio`.
        use_critic: report `values`, and the fraction of the returns' variance that they explain
            (`critic/vf_explained_var`).
        fixed_width: the width of the batch is the maximum length of prompt and reply: without the
            columns `*_clipped` rows of full width count as truncated. False for batches trimmed to
            their longest row.
    """
    tensors = batch.batch
    columns = batch.non_tensor_batch
    mask = tensors["response_mask"].bool()
    real = mask.any(dim=1)
    out = _spread("critic/score", tensors["token_level_scores"].sum(dim=1)[real])
    out |= _spread("critic/rewards", tensors["token_level_rewards"].sum(dim=1)[real])
    for name in ("advantages", "returns", *(("values",) if use_critic else ())):
        out |= _spread(f"critic/{name}", tensors[name][mask])
    if use_critic and mask.sum() > 1:
        returns = tensors["returns"][mask].float()
        values = tensors["values"][mask].float()
        out["critic/vf_explained_var"] = (1 - (returns - values).var() / (returns.var() + 1e-5)).item()
    width = tensors["responses"].shape[1]
    for name, attention in (
        ("prompt", tensors["attention_mask"][:, :-width]),
        ("response", tensors["attention_mask"][:, -width:]),
    ):
        lengths = attention.sum(dim=1)[real]
        out |= _spread(f"{name}_length", lengths)
        if f"{name}_clipped" in columns:
            clipped = torch.as_tensor(columns[f"{name}_clipped"].astype(bool))[real]
        else:
            clipped = lengths == attention.shape[1] if fixed_width else lengths[:0]
        if len(clipped):
            out[f"{name}_length/clip_ratio"] = clipped.float().mean().item()
    # verl's names of the same: rows that it calls aborted, with an empty mask, are left out above.
    out |= {
        name.replace("/", "_non_aborted/"): value
        for name, value in out.items()
        if name.startswith("response_length/")
    }
    out["response/aborted_ratio"] = (~real).float().mean().item()
    for column, name in (("__num_turns__", "num_turns"), ("tool_call_counts", "tool_call_counts")):
        if column in columns:
            out |= _spread(name, torch.as_tensor(columns[column].astype(float))[real])
    return out


def compute_variance_proxy_metrics(batch: DataProto, gradient_norm: float | None = None) -> dict[str, float]:
    """Return estimates of the variance of the policy gradient, from the squared norm of each row's
    score function.

    With `W = sum_t (1 - 2 pi_t + sum_v pi_v^2)` and A the row's mean advantage:
    `variance_proxy/proxy2_total_power` is the mean of `(w A)^2 max(W, 0)` (w the row's mean
    importance weight, 1 without `rollout_is_weights`), `proxy1_signal_strength` the squared norm of
    the batch's gradient, `proxy3_pure_noise` their difference over N - 1, `expected_a_squared` and
    `expected_w` the factors.

    Args:
        batch: `sum_pi_squared` (sum over the vocabulary), `old_log_probs`, `advantages`,
            `response_mask`, each `[bsz, response_len]`; without one of the first three the result
            is empty.
        gradient_norm: norm of the gradient of the whole batch; None reports signal and noise as 0.
    """
    tensors = batch.batch
    if not {"sum_pi_squared", "old_log_probs", "advantages"} <= set(tensors.keys()):
        return {}
    mask = tensors["response_mask"]
    mask = mask[mask.any(dim=1)].float()
    picked = {
        name: value[tensors["response_mask"].any(dim=1)].float()
        for name, value in tensors.items()
        if name in _PROXY_COLUMNS
    }
    tokens = mask.sum(dim=1)
    score = 1 - 2 * picked["old_log_probs"].exp() + picked["sum_pi_squared"]
    weights = picked.get("rollout_is_weights", torch.ones_like(score))
    advantage_sq = ((picked["advantages"] * mask).sum(dim=1) / tokens) ** 2
    weight_sq = ((weights * mask).sum(dim=1) / tokens) ** 2
    length_sq = (score * (weights != 0) * mask).sum(dim=1).clamp(min=0)
    power = (weight_sq * advantage_sq * length_sq).mean().item()
    signal = gradient_norm**2 if gradient_norm is not None else 0.0
    noise = (
        max((power - signal) / (len(tokens) - 1), 0.0)
        if gradient_norm is not None and len(tokens) > 1
        else 0.0
    )
    return {
        "variance_proxy/proxy1_signal_strength": signal,
        "variance_proxy/proxy2_total_power": power,
        "variance_proxy/proxy3_pure_noise": noise,
        "variance_proxy/expected_a_squared": advantage_sq.mean().item(),
        "variance_proxy/expected_w": (score * weights**2 * mask).sum(dim=1).mean().item(),
    }


def compute_agent_metrics(batch: DataProto, config: AlgorithmConfig | None = None) -> dict[str, float]:
    """Return the size of advantages and the fraction of groups without a signal, per agent, over
    rows with an unmasked token.

    `agent/<name>/advantage_abs` is the mean over rows; `agent/<name>/zero_signal_groups` is the
    fraction of the agent's groups in which all of its advantages are 0, and
    `agent/<name>/turn_<t>/zero_signal_groups` the same for its rows of turn t. If several agents
    share a policy, `agent/<name>/gradient_share` is the agent's fraction of the policy's `sum |A|`
    over tokens (0 if that sum is 0).

    Args:
        batch: `advantages`, `response_mask`, and the columns of the group key; optionally
            `policy_id`, without which none is shared.
        config: configuration of groups; without it a group is a task.
    """
    out: dict[str, float] = {}
    columns = batch.non_tensor_batch
    mask = batch.batch["response_mask"]
    lengths = mask.sum(dim=1).numpy()
    total = (batch.batch["advantages"].abs() * mask).sum(dim=1).numpy()
    advantage = total / np.maximum(lengths, 1)
    policies = columns.get("policy_id", columns["agent_id"])
    groups = group_index([columns["uid"]]) if config is None else group_numbers(batch, config)
    real = np.flatnonzero(lengths > 0)
    agents = group_index([columns["agent_id"][real]])
    zero_signal = _zero_signal(agents, groups[real], advantage[real])
    by_turn = [list[tuple[int, float]]() for _ in zero_signal]
    if "turn" in columns:
        turns = columns["turn"][real].astype(np.int64)
        cells = group_index([agents, turns])
        first = first_rows(cells)
        shares = _zero_signal(cells, groups[real], advantage[real]).tolist()
        for agent, turn, share in sorted(
            zip(agents[first].tolist(), turns[first].tolist(), shares, strict=True)
        ):
            by_turn[agent].append((turn, share))
    policy_rows = rows_by_value(policies[real])

    @cache
    def policies_sum(names: frozenset[str]) -> tuple[int, float]:
        rows = real[np.sort(np.concatenate([policy_rows[name] for name in names]))]
        return len(rows), total[rows].sum()

    for number, (agent_id, places) in enumerate(rows_by_value(columns["agent_id"][real]).items()):
        rows = real[places]
        name = f"agent/{slug(agent_id)}"
        out[f"{name}/advantage_abs"] = float(advantage[rows].mean())
        n_shared, shared_sum = policies_sum(frozenset(policies[rows]))
        if n_shared > len(rows):
            out[f"{name}/gradient_share"] = float(
                total[rows].sum() / max(shared_sum, np.finfo(np.float32).tiny)
            )
        out[f"{name}/zero_signal_groups"] = float(zero_signal[number])
        for turn, share in by_turn[number]:
            out[f"{name}/turn_{turn}/zero_signal_groups"] = share
    return out


def _zero_signal(cells: np.ndarray, groups: np.ndarray, advantage: np.ndarray) -> np.ndarray:
    """Return of every cell the fraction of its groups in which all advantages are 0; arguments
    `[bsz]`, as those of `groups_with`.
    """
    n_signal, n_groups = groups_with(cells, groups, advantage != 0)
    return (n_groups - n_signal) / n_groups


def compute_seqlen_metrics(lengths: Sequence[int], order: np.ndarray, ranks: int) -> dict[str, float]:
    """Return the tokens per rank, with verl's names: `balanced_*` in the new order of rows, the
    others in the original order.

    Args:
        lengths: tokens of each row in the original order, `[bsz]`.
        order: new order of rows, `[bsz]`; ranks take consecutive, equal numbers of rows.
        ranks: number of ranks of the worker group.
    """
    came = np.asarray(lengths).reshape(ranks, -1).sum(axis=1)
    balanced = np.asarray(lengths)[order].reshape(ranks, -1).sum(axis=1)
    numbers = {
        "min": came.min(),
        "max": came.max(),
        "minmax_diff": came.max() - came.min(),
        "balanced_min": balanced.min(),
        "balanced_max": balanced.max(),
        "mean": came.mean(),
    }
    return {f"global_seqlen/{name}": float(value) for name, value in numbers.items()}


def compute_timing_metrics(batch: DataProto, timing_raw: Mapping[str, float]) -> dict[str, float]:
    """Return `timing_s/<phase>` in seconds and `timing_per_token_ms/<phase>`: `gen` per response
    token, others per token.
    """
    total = int(batch.batch["attention_mask"].sum().item())
    response = int(batch.batch["response_mask"].sum().item())
    out = {f"timing_s/{name}": seconds for name, seconds in timing_raw.items()}
    for name, seconds in timing_raw.items():
        out[f"timing_per_token_ms/{name}"] = seconds * 1000 / max(response if name == "gen" else total, 1)
    return out


def compute_throughout_metrics(
    batch: DataProto, timing_raw: Mapping[str, float], n_gpus: int
) -> dict[str, float]:
    """Return tokens of the step (`meta_info["global_token_num"]`, one count per row, if given), its
    seconds, and tokens/s per device.
    """
    counts = batch.meta_info.get("global_token_num")
    total = int(batch.batch["attention_mask"].sum().item() if counts is None else sum(counts))
    seconds = timing_raw["step"]
    return {
        "perf/total_num_tokens": total,
        "perf/time_per_step": seconds,
        "perf/throughput": total / (seconds * n_gpus),
    }
