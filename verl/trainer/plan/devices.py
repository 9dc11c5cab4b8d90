"""Devices of each worker group: all devices of a pool, or a part of them. Engines share the
trainer's pool or have one of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from verl.trainer.config import CollectConfig, TrainerConfig
from verl.trainer.plan.agent_overrides import PlacementError
from verl.trainer.plan.placement import Placement

TRAINER = "trainer"
ENGINES = "rollout"


@dataclass(frozen=True)
class Pool:
    """Devices of the worker groups' policies, of their engines, or of both.

    Attributes:
        section: prefix of its numbers of nodes and devices: `TRAINER` or `ENGINES`.
        nodes: number of nodes.
        per_node: devices of each node.
        sizes: number of devices of each worker group by `wg_id`; empty: equal numbers.
    """

    section: str
    nodes: int
    per_node: int
    sizes: Mapping[str, int]

    @property
    def size(self) -> int:
        """Number of devices."""
        return self.nodes * self.per_node

    def __str__(self) -> str:
        return f"{self.section}.nnodes={self.nodes} * {self.section}.n_gpus_per_node={self.per_node}"


@dataclass(frozen=True)
class Devices:
    """`ranks` consecutive devices of a pool from index `first`; on each, a worker group has one
    process per worker.
    """

    first: int
    ranks: int
    pool: str = TRAINER

    def __str__(self) -> str:
        pool = "" if self.pool == TRAINER else f"{self.pool} "
        return (
            f"{pool}device {self.first}"
            if self.ranks == 1
            else f"{pool}devices {self.first} to {self.first + self.ranks - 1}"
        )


def own_engine_devices(rollout: CollectConfig) -> bool:
    """Return whether engines have devices of their own (`rollout.n_gpus_per_node`)."""
    return rollout.n_gpus_per_node > 0


def trainer_pool(trainer: TrainerConfig) -> Pool:
    """Return the pool of the policies and critics."""
    sizes = {wg_id: size[0] if isinstance(size, list) else size for wg_id, size in trainer.pool_sizes.items()}
    trained = {wg_id: size for wg_id, size in sizes.items() if size}
    return Pool(TRAINER, trainer.nnodes, trainer.n_gpus_per_node, trained)


def engine_pool(trainer: TrainerConfig, rollout: CollectConfig) -> Pool:
    """Return the pool of the engines: that of the policies unless engines have devices of their
    own.
    """
    if not own_engine_devices(rollout):
        return trainer_pool(trainer)
    sizes = {wg_id: size[1] for wg_id, size in trainer.pool_sizes.items() if isinstance(size, list)}
    return Pool(ENGINES, rollout.nnodes, rollout.n_gpus_per_node, sizes)


def count_devices(trainer: TrainerConfig, rollout: CollectConfig) -> int:
    """Return the number of devices of the run."""
    pools = (trainer_pool(trainer), engine_pool(trainer, rollout))
    return sum(pool.size for pool in {pool.section: pool for pool in pools}.values())


def assign_devices(
    trainer: TrainerConfig, rollout: CollectConfig, placement: Placement
) -> dict[str, Devices]:
    """Return the devices of the policies by `wg_id`: all with `trainer.resource_pool=shared`, its
    own part with `dedicated`.

    The parts are consecutive, in the order of the placement, with `trainer.pool_sizes` ranks each;
    without sizes they are equal. Where engines have devices of their own, worker groups without
    training have none here.

    Raises PlacementError if sizes name other groups or do not sum to the number of devices, if the
    devices cannot be divided equally, and for dedicated pools of a team without worker groups.
    """
    apart = own_engine_devices(rollout)
    if not apart and any(isinstance(size, list) for size in trainer.pool_sizes.values()):
        raise PlacementError(
            f"trainer.pool_sizes={trainer.pool_sizes} has devices of engines, but rollout.n_gpus_per_node=0 "
            "lets engines share those of the trainer; set it, or give each group one number"
        )
    groups = [spec.wg_id for spec in placement.groups if spec.trained or not apart]
    what = "trained worker groups" if apart else "worker groups"
    return _divided(trainer, trainer_pool(trainer), placement, groups, what)


def assign_engines(
    trainer: TrainerConfig, rollout: CollectConfig, placement: Placement
) -> dict[str, Devices]:
    """Return the devices of the engines by `wg_id`: those of the policies, or devices of the
    engines' own, divided in the same way.

    Raises PlacementError as `assign_devices` does.
    """
    groups = [spec.wg_id for spec in placement.groups]
    return _divided(trainer, engine_pool(trainer, rollout), placement, groups, "worker groups")


def _divided(
    trainer: TrainerConfig, pool: Pool, placement: Placement, groups: Sequence[str], what: str
) -> dict[str, Devices]:
    """Divide a pool among worker groups; `what` names these in messages."""
    key = "trainer.pool_sizes" if pool.section == TRAINER else "trainer.pool_sizes (of engines)"
    sizes = dict(pool.sizes)
    dedicated = trainer.resource_pool == "dedicated"
    if not placement.groups and (dedicated or pool.section == ENGINES):
        needless = (
            "trainer.resource_pool=dedicated" if dedicated else f"rollout.n_gpus_per_node={pool.per_node}"
        )
        raise PlacementError(
            f"{needless} has no effect: all agents are behind an API, and no worker group needs a "
            "device; leave it out"
        )
    if not dedicated and sizes:
        raise PlacementError(
            f"{key}={sizes} needs trainer.resource_pool=dedicated; shared groups have all devices"
        )
    if not dedicated:
        return {wg_id: Devices(0, pool.size, pool.section) for wg_id in groups}
    if not sizes and groups:
        if pool.size % len(groups):
            raise PlacementError(
                f"trainer.resource_pool=dedicated: {pool} = {pool.size} devices cannot be divided "
                f"equally among {len(groups)} {what} {groups}; set {key}"
            )
        sizes = dict.fromkeys(groups, pool.size // len(groups))
    if set(sizes) != set(groups):
        raise PlacementError(
            f"{key} names {sorted(sizes)}, the {what} are {groups}; give each of them a size"
        )
    if sizes and (min(sizes.values()) < 1 or sum(sizes.values()) != pool.size):
        raise PlacementError(
            f"{key}={sizes}: expected at least 1 each and {pool.size} in all ({pool}), found "
            f"{sum(sizes.values())} in all"
        )
    devices_by_group = {}
    first = 0
    for wg_id in groups:
        devices_by_group[wg_id] = Devices(first, sizes[wg_id], pool.section)
        first += sizes[wg_id]
    return devices_by_group


def processes_per_device(devices: Mapping[str, Devices]) -> int:
    """Return the number of worker groups that share one device."""
    shared = len({d.first for d in devices.values()}) == 1
    return len(devices) if shared else 1
