"""Worker groups of a run: their devices, those of their engines, and their longest texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from verl.trainer.config import CollectConfig, CriticConfig, ModelConfig, TrainerConfig
from verl.trainer.plan.agents import AgentPlan
from verl.trainer.plan.devices import (
    Devices,
    assign_devices,
    assign_engines,
    processes_per_device,
)
from verl.trainer.plan.placement import Placement, WorkerGroupSpec


@dataclass(frozen=True)
class GroupPlan(WorkerGroupSpec):
    """A worker group, and where it runs.

    Attributes:
        devices: of its policies and its critic; None for a group without training where engines
            have devices of their own.
        engine_devices: of its engines.
        max_model_len: maximum length of prompt plus reply, in tokens, over its agents and the
            reward model in it.
        critic: keys of its critic, if it has one (`RunPlan.critics`): model and tokenizer default
            to the policy's.
    """

    devices: Devices | None = field(kw_only=True)
    engine_devices: Devices = field(kw_only=True)
    max_model_len: int = field(kw_only=True)
    critic: CriticConfig = field(kw_only=True)

    def describe_devices(self) -> str:
        """Return its devices in words, with those of its engines where these have their own."""
        if self.engine_devices == self.devices:
            return str(self.devices)
        engines = f"engines on {self.engine_devices}"
        return engines if self.devices is None else f"{self.devices}, {engines}"


def plan_groups(
    trainer: TrainerConfig,
    rollout: CollectConfig,
    critic: CriticConfig,
    placement: Placement,
    rows: Sequence[AgentPlan],
) -> tuple[GroupPlan, ...]:
    """Return the plans of the worker groups of a placement; `rows` are its agents and its reward
    model.

    Raises PlacementError as `assign_devices` does, for the policies and then for the engines.
    """
    devices = assign_devices(trainer, rollout, placement)
    engines = assign_engines(trainer, rollout, placement)
    return tuple(
        GroupPlan(
            **vars(spec),
            devices=devices.get(spec.wg_id),
            engine_devices=engines[spec.wg_id],
            max_model_len=max(row.max_model_len for row in rows if row.wg_id == spec.wg_id),
            critic=_critic_of(spec.config.model, critic),
        )
        for spec in placement.groups
    )


def _critic_of(policy: ModelConfig, critic: CriticConfig) -> CriticConfig:
    """Return the keys of the critic beside a policy."""
    model = critic.model
    if model.path is None:
        # its own code may run where the policy's may: the folder is the same
        model = replace(
            model, path=policy.path, trust_remote_code=model.trust_remote_code or policy.trust_remote_code
        )
    tokenizer = model.tokenizer_path or policy.tokenizer_path or policy.path
    return replace(critic, model=replace(model, tokenizer_path=tokenizer))


def processes_per_node(trainer: TrainerConfig, rollout: CollectConfig, groups: Iterable[GroupPlan]) -> int:
    """Return the number of processes that may be busy at the same time on one node, where both
    pools may be.
    """
    policies = {group.wg_id: group.devices for group in groups if group.devices is not None}
    engines = {group.wg_id: group.engine_devices for group in groups}
    return (
        processes_per_device(policies) * trainer.n_gpus_per_node
        + processes_per_device(engines) * rollout.n_gpus_per_node
    )
