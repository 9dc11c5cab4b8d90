"""`credit/step_<number>.json`: what every trained row of a step was given, as columns, and why groups
of the step were not trained.

    {"format": 1, "step": 3, "columns": {"traj_uid": [...], "advantage": [...], ...},
     "left_out": {"step3/math:7/0": "no signal"}}

It is made of what the step has computed anyway; docs/records.md describes the columns.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from verl.protocol import DataProto
from verl.protocol.generate import GREEDY_SUFFIX
from verl.trainer.config import AlgorithmConfig
from verl.trainer.plan.agents import split_by_settings
from verl.trainer.plan.registry import estimator_takes
from verl.trainer.ppo.collect.step_samples import StepSamples
from verl.trainer.ppo.credit.advantage import group_numbers
from verl.utils.disk import write_whole

FORMAT = 1
FOLDER = "credit"
# Digits of numbers: those of float32 that are read back to the same number are 9.
DIGITS = 8
NAMES = ("traj_uid", "turn", "call", "candidate", "agent_id", "policy_id")


def credit_path(run_dir: Path, step: int) -> Path:
    """Return the file of a step."""
    return run_dir / FOLDER / f"step_{step:06d}.json"


def write_credit(
    run_dir: Path, step: int, samples: StepSamples, batch: DataProto, algorithm: AlgorithmConfig
) -> dict[str, list[Any]]:
    """Write the file of a step whole, rename it, and return its columns.

    Args:
        run_dir: output folder of the run.
        step: that was trained.
        samples: what was collected for it.
        batch: its rows with advantages.
        algorithm: keys under `algorithm`.

    Raises:
        OSError: it cannot be written.
    """
    columns = credit_columns(batch, algorithm)
    content = {
        "format": FORMAT,
        "step": step,
        "columns": columns,
        "left_out": groups_left_out(samples, batch),
    }
    path = credit_path(run_dir, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    # a lone surrogate of a reply has no UTF-8
    write_whole(path, (text + "\n").encode("utf-8", "backslashreplace"))
    return columns


def credit_columns(batch: DataProto, algorithm: AlgorithmConfig) -> dict[str, list[Any]]:
    """Return the columns, each with one value a row; null stands for a number that is not finite.

    Args:
        batch: rows with `advantages`, `response_mask` and `rollout_log_probs` `[bsz, R]`, and the
            columns `NAMES`.
        algorithm: keys of the groups.
    """
    tensors = batch.batch
    present = set(tensors.keys())
    # those that advantages were computed for: M2PO masks some of them later
    mask = tensors["credit_mask" if "credit_mask" in present else "response_mask"].bool()
    # tokens that were sampled, also those that were rejected since
    sampled = tensors["reply_mask"].bool() if "reply_mask" in present else mask
    columns: dict[str, list[Any]] = {name: batch.non_tensor_batch[name].tolist() for name in NAMES}
    columns["group"] = group_numbers(batch, algorithm).tolist()
    columns["tokens"] = mask.sum(dim=1).tolist()
    columns["advantage"] = _means(tensors["advantages"], mask)
    columns["abs"] = _means(tensors["advantages"].abs(), mask)
    columns |= _baseline(batch, torch.where(mask.any(dim=1, keepdim=True), mask, sampled), algorithm)
    if "token_level_scores" in present and algorithm.use_kl_in_reward:
        penalty = tensors["token_level_scores"] - tensors["token_level_rewards"]
        columns["kl"] = _numbers(penalty.double().sum(dim=1))
    if "row_weights" in present:
        columns["weight"] = _numbers(tensors["row_weights"])
    if "rollout_is_weights" in present:
        columns["is_weight"] = _means(tensors["rollout_is_weights"], mask)
    for name, column in (("logp", "rollout_log_probs"), ("old_logp", "old_log_probs")):
        if column in present:
            columns[name] = _numbers(torch.where(sampled, tensors[column], 0.0).double().sum(dim=1))
    if "entropys" in present:
        columns["entropy"] = _means(tensors["entropys"], mask)
    if "log_prob_after" in batch.non_tensor_batch:
        columns |= _logged_tokens(batch)
    return columns


def _baseline(batch: DataProto, reply: torch.Tensor, algorithm: AlgorithmConfig) -> dict[str, list[Any]]:
    """Return the column `baseline` of estimators that have one which other rows do not show: of each
    row that of its own estimator, if agents differ. The value of a critic is that of the first
    token of `reply` `[bsz, R]`, as `gae` reads it.
    """
    tensors = batch.batch
    present = set(tensors.keys())
    sources: dict[str, np.ndarray] = {}
    if "values" in present:
        first = reply.int().argmax(dim=1, keepdim=True)
        sources["values"] = tensors["values"].gather(1, first).squeeze(1).double().cpu().numpy()
    if "reward_baselines" in batch.non_tensor_batch:
        sources["reward_baselines"] = batch.non_tensor_batch["reward_baselines"].astype(np.float64)
    if "moving_average" in present:
        sources["moving_average"] = tensors["moving_average"].double().cpu().numpy()
    if not sources:
        return {}
    baseline = list(sources.values())[-1].copy()
    for settings, rows in split_by_settings(algorithm, batch.non_tensor_batch["agent_id"]):
        for name in ("values", "reward_baselines"):
            if name in sources and estimator_takes(settings.adv_estimator, name):
                baseline[rows] = sources[name][rows]
    return {"baseline": _numbers(baseline)}


def groups_left_out(samples: StepSamples, batch: DataProto) -> dict[str, str]:
    """Return why groups of a step have no row in its batch, by their ids: `greedy` (a baseline),
    `failed` (all of its episodes), one of `StepSamples.left_out`, or `no sample`.
    """
    trained = set(batch.non_tensor_batch["uid"])
    failures: defaultdict[str, list[bool]] = defaultdict(list)
    for episode in samples.episodes:
        failures[episode.uid].append(episode.failure is not None)
    causes = dict(samples.left_out)
    for uid, failed in failures.items():
        if uid in trained or uid in causes:
            continue
        if uid.endswith(GREEDY_SUFFIX):
            causes[uid] = "greedy"
        else:
            causes[uid] = "failed" if all(failed) else "no sample"
    return causes


def moving_averages(
    batch: DataProto, algorithm: AlgorithmConfig, before: Mapping[str, float], after: Mapping[str, float]
) -> torch.Tensor:
    """Return the baseline of `rae` of every row, `[bsz]` float64; NaN for rows of other estimators.

    Args:
        batch: rows with `agent_id` and, in a run, `data_source`.
        algorithm: says which agents have `rae`.
        before, after: state of the estimator before and after the batch.
    """
    columns = batch.non_tensor_batch
    averages = np.full(len(batch), math.nan)
    for settings, rows in split_by_settings(algorithm, columns["agent_id"]):
        if settings.adv_estimator != "rae":
            continue
        state = after if settings.rae.order == "update_first" else before
        for row in rows:
            # the key of `compute_rae_outcome_advantage`
            name = str(columns["agent_id"][row])
            if "data_source" in columns:
                name = json.dumps([str(columns["data_source"][row]), name])
            averages[row] = state.get(name, 0.0)
    return torch.as_tensor(averages)


def _means(values: torch.Tensor, mask: torch.Tensor) -> list[float | None]:
    """Return the mean of each row over the tokens of a mask; 0 without any."""
    sums = torch.where(mask, values, 0.0).double().sum(dim=1)
    return _numbers(sums / mask.sum(dim=1).clamp(min=1))


def _numbers(values: torch.Tensor | np.ndarray) -> list[float | None]:
    """Return numbers with `DIGITS` digits, and None for those that are not finite."""
    listed: Sequence[float] = values.tolist()
    return [float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None for value in listed]


def _logged_tokens(batch: DataProto) -> dict[str, list[Any]]:
    """Return `log_prob_before`, `log_prob_after`, `token_advantages` and, with a critic,
    `token_values` of the rows that were drawn: one list a row with a number for each token of its
    response, null for those that are masked; null for the other rows.
    """
    tensors = batch.batch
    present = set(tensors.keys())
    afters = batch.non_tensor_batch["log_prob_after"]
    mask = tensors["response_mask"].bool()
    before = "old_log_probs" if "old_log_probs" in present else "rollout_log_probs"
    sources = {"log_prob_before": before, "token_advantages": "advantages"}
    if "values" in present:
        sources["token_values"] = "values"
    columns: dict[str, list[Any]] = {name: [None] * len(batch) for name in ("log_prob_after", *sources)}
    for row in np.flatnonzero([after is not None for after in afters]):
        length = len(afters[row])
        keeps = mask[row, :length].tolist()
        columns["log_prob_after"][row] = _where(afters[row], keeps)
        for name, column in sources.items():
            columns[name][row] = _where(tensors[column][row, :length].tolist(), keeps)
    return columns


def _where(values: Sequence[float], keeps: Sequence[bool]) -> list[float | None]:
    numbers = _numbers(np.asarray(values, dtype=np.float64))
    return [number if keep else None for number, keep in zip(numbers, keeps, strict=True)]
