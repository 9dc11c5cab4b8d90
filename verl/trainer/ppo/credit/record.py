"""`credit/step_<number>.json`: what every trained row of a step was given, as columns, and why groups
of the step were not trained.

    {"format": 1, "step": 3, "columns": {"traj_uid": [...], "advantage": [...], ...},
     "left_out": {"step3/math:7/0": "no signal"}}

It is made of what the step has computed anyway; docs/records.md describes the columns.
"""

from __future__ import annotations

import json
import math
import os
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
) -> None:
    """Write the file of a step whole, and rename it.

    Args:
        run_dir: output folder of the run.
        step: that was trained.
        samples: what was collected for it.
        batch: its rows with advantages.
        algorithm: keys under `algorithm`.

    Raises:
        OSError: it cannot be written.
    """
    content = {
        "format": FORMAT,
        "step": step,
        "columns": credit_columns(batch, algorithm),
        "left_out": groups_left_out(samples, batch),
    }
    path = credit_path(run_dir, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        temporary.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def credit_columns(batch: DataProto, algorithm: AlgorithmConfig) -> dict[str, list[Any]]:
    """Return the columns, each with one value a row; null stands for a number that is not finite.

    Args:
        batch: rows with `advantages`, `response_mask` and `rollout_log_probs` `[bsz, R]`, and the
            columns `NAMES`.
        algorithm: keys of the groups.
    """
    tensors = batch.batch
    present = set(tensors.keys())
    mask = tensors["response_mask"].bool()
    # tokens that were sampled, also those that were rejected since
    sampled = tensors["reply_mask"].bool() if "reply_mask" in present else mask
    columns: dict[str, list[Any]] = {name: batch.non_tensor_batch[name].tolist() for name in NAMES}
    columns["group"] = group_numbers(batch, algorithm).tolist()
    columns["tokens"] = mask.sum(dim=1).tolist()
    columns["advantage"] = _means(tensors["advantages"], mask)
    columns["abs"] = _means(tensors["advantages"].abs(), mask)
    columns |= _baseline(batch, mask, algorithm)
    if "token_level_scores" in present and algorithm.use_kl_in_reward:
        penalty = tensors["token_level_scores"] - tensors["token_level_rewards"]
        columns["kl"] = json_numbers(penalty.double().sum(dim=1))
    if "row_weights" in present:
        columns["weight"] = json_numbers(tensors["row_weights"])
    if "rollout_is_weights" in present:
        columns["is_weight"] = _means(tensors["rollout_is_weights"], mask)
    for name, column in (("logp", "rollout_log_probs"), ("old_logp", "old_log_probs")):
        if column in present:
            columns[name] = json_numbers(torch.where(sampled, tensors[column], 0.0).double().sum(dim=1))
    if "entropys" in present:
        columns["entropy"] = _means(tensors["entropys"], mask)
    if "log_prob_after" in batch.non_tensor_batch:
        from verl.trainer.ppo.credit.token_log import logged_tokens  # of trainer.log_tokens alone

        columns |= logged_tokens(batch)
    return columns


def _baseline(batch: DataProto, mask: torch.Tensor, algorithm: AlgorithmConfig) -> dict[str, list[Any]]:
    """Return the column `baseline` of estimators that have one which other rows do not show: of each
    row that of its own estimator, if agents differ.
    """
    tensors = batch.batch
    present = set(tensors.keys())
    sources: dict[str, np.ndarray] = {}
    if "values" in present:
        first = mask.int().argmax(dim=1, keepdim=True)
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
    return {"baseline": json_numbers(baseline)}


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
        batch: rows with `agent_id` and `data_source`.
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
            name = json.dumps([str(columns["data_source"][row]), str(columns["agent_id"][row])])
            averages[row] = state.get(name, 0.0)
    return torch.as_tensor(averages)


def _means(values: torch.Tensor, mask: torch.Tensor) -> list[float | None]:
    """Return the mean of each row over the tokens of a mask; 0 without any."""
    sums = torch.where(mask, values, 0.0).double().sum(dim=1)
    return json_numbers(sums / mask.sum(dim=1).clamp(min=1))


def json_numbers(values: torch.Tensor | np.ndarray) -> list[float | None]:
    """Return numbers with `DIGITS` digits, and None for those that are not finite."""
    listed: Sequence[float] = values.tolist()
    return [float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None for value in listed]
