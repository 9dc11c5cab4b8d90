"""What a run writes beside its checkpoints: metrics of its steps, episodes, and the timeline of its
worker groups.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from verl.protocol import DataProto
from verl.trainer.config import AlgorithmConfig, TrainerConfig
from verl.trainer.ppo.collect.protocol import FinishedEpisode
from verl.trainer.ppo.collect.step_samples import StepSamples
from verl.trainer.ppo.metric_utils import (
    compute_agent_metrics,
    compute_data_metrics,
    compute_throughout_metrics,
    compute_timing_metrics,
)
from verl.trainer.ppo.progress import Progress
from verl.trainer.ppo.team import TeamWorkers
from verl.trainer.ppo.timeline import (
    GENERATION,
    Span,
    append_spans,
    idle_by_group,
    overlap_seconds,
    seconds_by_group,
)
from verl.utils.dataset import TaskLoader
from verl.utils.dataset.files import write_rows
from verl.utils.disk import writing
from verl.utils.names import draw_place
from verl.utils.tracking import Tracking

if TYPE_CHECKING:
    # of training alone
    from verl.trainer.ppo.alarm_lines import AlarmLines
    from verl.trainer.ppo.gap_watch import GapWatch
    from verl.trainer.ppo.step_records import StepRecords
    from verl.trainer.run_state import RunState

logger = logging.getLogger(__name__)


# Episodes of a validation that trackers get, or some more: groups are whole.
EPISODES_IN_TABLE = 16


class RunReport:
    """Writes metrics to `tracking`, episodes to `trajectories/` and spans to `timeline.jsonl`.

    Args:
        trainer: keys under `trainer`.
        algorithm: keys under `algorithm`.
        team: worker groups.
        loader: of the training tasks; None if nothing is trained.
        progress: of the run.
        tracking: destination of metrics.
        run_dir: output folder of the run.

    Attributes:
        state: what writes `run.json`; None: nothing does.
    """

    def __init__(
        self,
        trainer: TrainerConfig,
        algorithm: AlgorithmConfig,
        team: TeamWorkers,
        loader: TaskLoader | None,
        progress: Progress,
        tracking: Tracking,
        run_dir: Path,
    ) -> None:
        self.trainer = trainer
        self.algorithm = algorithm
        self.team = team
        self.loader = loader
        self.progress = progress
        self.tracking = tracking
        self.run_dir = run_dir
        self.state: RunState | None = None
        self._first_step = True

    @cached_property
    def alarms(self) -> AlarmLines:
        """Alarms of this run, in the console."""
        # begins with the first episodes
        from verl.trainer.ppo.alarm_lines import AlarmLines, dotted

        return AlarmLines(dict(dotted(self.team.config)), self.team.plan, self.progress.total_steps)

    def log(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log metrics of a step, of the last completed one by default, and its alarms."""
        number = self.progress.global_step if step is None else step
        self.tracking.log(metrics, number)
        if self.state is not None:
            self.state.changed()
        self.alarms.judge(number, metrics)

    def write_timeline(self) -> list[Span]:
        """Append the spans of the worker groups since the last call to `timeline.jsonl`, with the
        last completed step, and return them.

        Raises:
            DiskError: the file cannot be written.
        """
        spans = self.team.calls.timeline.take()
        path = self.run_dir / "timeline.jsonl"
        with writing(path):
            append_spans(path, self.progress.global_step, spans)
        return spans

    def write_training_episodes(self, samples: StepSamples, step: int) -> None:
        """Write `trainer.log_trajectories` episodes of a training step, or some more: groups are
        whole. Raises as `write_episodes` does.
        """
        limit = self.trainer.log_trajectories
        self.write_episodes(
            samples.episodes if limit < 0 else drawn_groups(samples.episodes, limit), f"train_{step:06d}"
        )

    def write_episodes(self, episodes: Sequence[FinishedEpisode], name: str) -> None:
        """Write episodes to `trajectories/<name>.jsonl`, which is not created without one.

        Raises:
            DiskError: the file cannot be written.
        """
        if not episodes:
            return
        path = self.run_dir / "trajectories" / f"{name}.jsonl"
        with writing(path):
            write_rows(self.alarms.note((episode.to_json() for episode in episodes), name), path)

    @cached_property
    def _gap_watch(self) -> GapWatch:
        from verl.trainer.ppo.gap_watch import GapWatch  # see `records`

        return GapWatch(self.team)

    @cached_property
    def records(self) -> StepRecords:
        """What writes credit, and tables of episodes."""
        # begins with the first step, not before
        from verl.trainer.ppo.step_records import StepRecords

        return StepRecords(self.run_dir, self.algorithm, self.tracking)

    def log_episodes(self, episodes: Sequence[FinishedEpisode], step: int) -> None:
        """Send some episodes of a validation to the trackers that show tables, see `StepRecords`."""
        self.records.log_episodes(drawn_groups(episodes, EPISODES_IN_TABLE), step)

    def of_step(
        self,
        samples: StepSamples,
        batch: DataProto,
        trained: Mapping[str, float],
        seconds: dict[str, float],
    ) -> dict[str, float]:
        """Return the metrics of the step that has just been completed, and write its timeline and
        credit.

        Args:
            samples: what was collected for it.
            batch: their rows with rewards and advantages.
            trained: metrics of credit and updates.
            seconds: duration of each phase, and of the whole `step`.

        Raises:
            DiskError: the timeline or the credit of the step cannot be written.
        """
        spans = self.write_timeline()
        credit = self.records.write_credit(self.progress.global_step, samples, batch)
        metrics = step_metrics(
            batch,
            samples,
            self.algorithm,
            seconds=seconds,
            spans=spans,
            team=self.team.engines.take_metrics(),
            trained=self.team.trained,
            n_devices=self.team.n_devices,
        )
        self._gap_watch.look(batch, self.progress.global_step, trained)
        self.alarms.credit = credit
        if self._first_step and (warning := nothing_to_learn(metrics)):
            logger.warning("step %d: %s", self.progress.global_step, warning)
        self._first_step = False
        # Last, because spans of a step that overlaps with others may be those of two updates of a
        # policy.
        metrics |= trained
        return metrics | {
            "training/generated_tokens": float(self.progress.generated_tokens),
            "training/engine_restarts": float(self.team.engines.restarts),
            "training/global_step": float(self.progress.global_step),
            "training/epoch": float(self.loader.epoch if self.loader else 0),
        }


def nothing_to_learn(metrics: Mapping[str, float]) -> str:
    """Return a warning if no row of a step has an advantage, so that no reward taught anything;
    else an empty text.
    """
    end = "/advantage_abs"
    agents = [name.removesuffix(end) for name in metrics if name.startswith("agent/") and name.endswith(end)]
    if not agents or any(metrics[f"{agent}{end}"] > 0 for agent in agents):
        return ""
    valid_rates = ", ".join(
        f"{agent.removeprefix('agent/')} {metrics[f'{agent}/valid_rate']:.0%}"
        for agent in agents
        if f"{agent}/valid_rate" in metrics
    )
    return (
        "no reward has taught anything: every advantage is 0, since the rewards within each group are "
        f"equal (mean {metrics.get('critic/rewards/mean', 0.0):.3g}; valid replies: "
        f"{valid_rates or 'unknown'}). Read the replies in trajectories/; the task may be too hard or too easy for this model, or "
        "its replies not of the form that is asked for"
    )


def drawn_groups(episodes: Sequence[FinishedEpisode], limit: int) -> list[FinishedEpisode]:
    """Return the episodes of whole groups, `limit` of them or up to a group more, in their order.

    Groups are drawn by a hash of their `uid`: the first ones to be complete would be those with
    short replies.
    """
    sizes = Counter(episode.uid for episode in episodes)
    uids: set[str] = set()
    count = 0
    for uid in sorted(sizes, key=draw_place):
        if count >= limit:
            break
        uids.add(uid)
        count += sizes[uid]
    return [episode for episode in episodes if episode.uid in uids]


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
    """Return the metrics of what was collected and of the time that the step took; those of credit
    and updates are theirs to report.

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
