"""The metrics of a training step."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from verl.protocol import DataProto
from verl.trainer.config import AlgorithmConfig
from verl.trainer.ppo.collect.step_samples import StepSamples
from verl.trainer.ppo.metric_utils import (
    compute_agent_metrics,
    compute_data_metrics,
    compute_throughout_metrics,
    compute_timing_metrics,
)
from verl.trainer.ppo.timeline import GENERATION, Span, idle_by_group, overlap_seconds, seconds_by_group


def step_metrics(
    batch: DataProto,
    samples: StepSamples,
    algorithm: AlgorithmConfig,
    *,
    seconds: dict[str, float],
    spans: Sequence[Span],
    team: dict[str, float],
    trained: Collection[str],
    n_devices: int,
) -> dict[str, float]:
    """Return the metrics of what was collected and of the time that the step took; those of credit and
    updates are theirs to report.

    Args:
        batch: the samples with rewards and advantages.
        samples: what was collected.
        algorithm: keys under `algorithm`.
        seconds: duration of each phase of the step.
        spans: what the worker groups did.
        team: metrics of generation and weight transfer.
        trained: ids of the worker groups of trained policies.
        n_devices: devices of all worker groups.
    """
    metrics = dict(samples.metrics) | compute_data_metrics(batch, use_critic=False, fixed_width=False)
    metrics |= compute_agent_metrics(batch, algorithm)
    metrics |= compute_timing_metrics(batch, seconds) | compute_throughout_metrics(batch, seconds, n_devices)
    calls = [span for span in spans if span.call != GENERATION]
    metrics["timing_s/overlap"] = overlap_seconds(calls)
    metrics |= seconds_by_group(calls) | idle_by_group(calls, trained, seconds["step"]) | team
    metrics["perf/generated_tokens"] = float(samples.generated_tokens)
    metrics["timing_per_token_ms/gen"] = seconds["gen"] * 1000 / max(samples.generated_tokens, 1)
    return metrics
