"""Which calls of a training step are recorded by `torch.profiler`, and in which files
(`global_profiler`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl.protocol import DataProto
from verl.trainer.config import CriticConfig, GlobalProfilerConfig, TrainerConfig
from verl.trainer.config.profiler import ALL, ProfilerConfig
from verl.trainer.plan.derived_values import run_dir_of
from verl.trainer.plan.placement import Placement

# In the meta_info of a batch: the steps of its trace.
RECORDED = "recorded_steps"


def recorded_steps(config: GlobalProfilerConfig, step: int) -> str:
    """Return the name of the steps that share a trace with `step`, such as `step2` or `step2-4`;
    empty if it is not recorded.
    """
    for item in config.steps or ():
        steps = item if isinstance(item, list) else [item]
        if step in steps:
            return f"step{steps[0]}" if len(steps) == 1 else f"step{steps[0]}-{steps[-1]}"
    return ""


class TeamTraces:
    """The traces of the policies and critics of a run.

    Args:
        trainer: keys under `trainer`, which name the output folder.
        critic: keys under `critic`.
        global_profiler: keys under `global_profiler`.
        placement: agents, policies and worker groups.
    """

    def __init__(
        self,
        trainer: TrainerConfig,
        critic: CriticConfig,
        global_profiler: GlobalProfilerConfig,
        placement: Placement,
    ) -> None:
        folder = global_profiler.save_path
        self.folder = (Path(folder).expanduser() if folder else run_dir_of(trainer) / "profile").absolute()
        self.policies = {
            policy: policy_config.actor.profiler
            for spec in placement.groups
            for policy, policy_config in spec.policies.items()
        }
        self.critic = critic.profiler

    def meta(self, batch: DataProto, name: str, critic: bool) -> Mapping[str, Any]:
        """Return the meta_info with which a call for a policy, or for a critic, on rows of `batch`
        is recorded; empty if it is not.
        """
        steps = batch.meta_info.get(RECORDED)
        config: ProfilerConfig = self.critic if critic else self.policies[name]
        if not steps or not config.ranks:
            return {}
        from verl.workers.profiler import META, Trace  # of steps that are recorded

        ranks = None if config.ranks == ALL else tuple(config.ranks)
        return {
            META: Trace(
                str(self.folder / f"{steps}_{'critic' if critic else 'policy'}_{name}"),
                ranks,
                tuple(config.contents),
            )
        }
