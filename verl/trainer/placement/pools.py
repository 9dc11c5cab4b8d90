"""Devices of each worker group: all of them, or its own part."""

from __future__ import annotations

from dataclasses import dataclass

from verl.trainer.config import TrainerConfig
from verl.trainer.placement.agent_overrides import PlacementError
from verl.trainer.placement.table import Placement


@dataclass(frozen=True)
class Devices:
    """`ranks` consecutive devices from index `first`; on each, a worker group has one process per worker."""

    first: int
    ranks: int

    def __str__(self) -> str:
        return f"device {self.first}" if self.ranks == 1 else f"devices {self.first} to {self.first + self.ranks - 1}"


def assign_devices(trainer: TrainerConfig, placement: Placement) -> dict[str, Devices]:
    """Return the devices of every worker group, by `wg_id`: all with `trainer.resource_pool=shared`, its own part with `dedicated`.

    The parts are consecutive, in the order of the placement, with `trainer.pool_sizes` ranks each; without sizes they are equal.

    Raises PlacementError if sizes name other groups or do not sum to the number of devices, if the devices cannot be divided equally, and
    for dedicated pools of a team without worker groups.
    """
    total, groups = trainer.nnodes * trainer.n_gpus_per_node, [spec.wg_id for spec in placement.groups]
    sizes = dict(trainer.pool_sizes)
    if trainer.resource_pool == "shared":
        if sizes:
            raise PlacementError(f"trainer.pool_sizes={sizes} needs trainer.resource_pool=dedicated; shared groups have all devices")
        return {wg_id: Devices(0, total) for wg_id in groups}
    if not groups:
        raise PlacementError(
            "trainer.resource_pool=dedicated has no effect: all agents are behind an API, and no worker group needs a device; leave it out"
        )
    devices = f"trainer.nnodes={trainer.nnodes} * trainer.n_gpus_per_node={trainer.n_gpus_per_node}"
    if not sizes:
        if total % len(groups):
            raise PlacementError(
                f"trainer.resource_pool=dedicated: {devices} = {total} devices cannot be divided equally among {len(groups)} worker "
                f"groups {groups}; set trainer.pool_sizes"
            )
        sizes = dict.fromkeys(groups, total // len(groups))
    if set(sizes) != set(groups):
        raise PlacementError(f"trainer.pool_sizes names {sorted(sizes)}, the worker groups are {groups}; give each of them a size")
    if min(sizes.values()) < 1 or sum(sizes.values()) != total:
        raise PlacementError(
            f"trainer.pool_sizes={sizes}: expected at least 1 each and {total} in all ({devices}), found {sum(sizes.values())} in all"
        )
    found, first = {}, 0
    for wg_id in groups:
        found[wg_id] = Devices(first, sizes[wg_id])
        first += sizes[wg_id]
    return found


def check_engine_spans(trainer: TrainerConfig, placement: Placement) -> None:
    """Raise PlacementError if engines of `rollout.tensor_model_parallel_size` devices do not fit the devices of a worker group."""
    per_node, devices = trainer.n_gpus_per_node, assign_devices(trainer, placement)
    for spec in placement.groups:
        tp, own = spec.config.rollout.tensor_model_parallel_size, devices[spec.wg_id]
        if tp == 1:
            continue
        name = "rollout.tensor_model_parallel_size"
        key = f"{placement.agent(spec.agent_ids[0]).key(name) if spec.agent_ids else f'actor_rollout_ref.{name}'}={tp}"
        if trainer.controller == "local":
            raise PlacementError(f"{key} needs trainer.controller=ray: local runs one rank, an engine on {tp} devices needs {tp}")
        if own.ranks % tp:
            raise PlacementError(
                f"{key} does not divide the {own.ranks} devices of worker group '{spec.wg_id}' (trainer.nnodes * trainer.n_gpus_per_node, "
                "or its part of them in trainer.pool_sizes); choose a divisor"
            )
        for first in range(own.first, own.first + own.ranks, tp):
            if first // per_node != (first + tp - 1) // per_node:
                raise PlacementError(
                    f"{key}: an engine of worker group '{spec.wg_id}' would be on {Devices(first, tp)}, which are on different nodes "
                    f"of {per_node} (trainer.n_gpus_per_node); choose a divisor of {per_node}, and with trainer.pool_sizes let the "
                    f"devices before the group's first, number {own.first}, be a multiple of it"
                )


def processes_per_device(devices: dict[str, Devices]) -> int:
    """Return the number of worker groups that share one device."""
    shared = len({d.first for d in devices.values()}) == 1
    return len(devices) if shared else 1
