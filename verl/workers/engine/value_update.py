"""Update of a critic: the clipped value loss over mini-batches of rows."""

from __future__ import annotations

from typing import Any

import torch

from verl.trainer.config import CriticConfig
from verl.trainer.ppo.core_algos.aggregation import masked_mean
from verl.trainer.ppo.core_algos.value import compute_value_loss
from verl.workers.engine.forward import INPUT_KEYS
from verl.workers.engine.fsdp_engine import FSDPEngine, Rows
from verl.workers.engine.micro_batch import MicroBatchRule
from verl.workers.engine.steps import Objective, Outputs, StepPlan, Training, take_steps

COLUMNS = (*INPUT_KEYS, "values", "returns")


def update_values(
    engine: FSDPEngine, config: CriticConfig, rows: Rows, plan: StepPlan, rule: MicroBatchRule
) -> dict[str, float]:
    """Run all mini-batches of all epochs and return the metrics, the same on every rank.

    Args:
        engine: holds a value model.
        rows: `COLUMNS`; `values` are the critic's when the batch was scored, `returns` their
            targets, both `[bsz, response_len]`. Optionally `row_weights` `[bsz]`. Rows without a
            response token are left out.

    Raises:
        ValueError: a column is missing.
    """
    missing = [name for name in COLUMNS if name not in rows]
    if missing:
        raise ValueError(f"update_critic: the batch has no {missing}; it has {sorted(rows)}")

    def run(micro: Rows) -> Outputs:
        return (engine.value(micro),)

    def loss(micro: Rows, outputs: Outputs, counts: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        return _loss(config, micro, outputs[0], counts)

    objective = Objective("critic", loss, summed=("critic/vf_loss",))
    return take_steps(engine, [Training(config, rows, COLUMNS, plan, objective)], run, rule)[0]


def _loss(
    config: CriticConfig, micro: Rows, predicted: torch.Tensor, counts: dict[str, Any]
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return the loss of one micro-batch and its metrics."""
    mask = micro["response_mask"]
    loss, clip_share = compute_value_loss(
        predicted,
        micro["returns"],
        micro["values"],
        mask,
        config.cliprange_value,
        config.loss_agg_mode,
        **counts,
    )
    mean = masked_mean(predicted.detach(), mask)
    return loss, {
        "critic/vf_loss": loss.detach(),
        "critic/vf_clipfrac": clip_share,
        "critic/vpred_mean": mean,
    }
