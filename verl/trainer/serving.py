"""The engines of a saved team without its trainers, with the memory that generation needs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from verl.models.loader import resolve_dtype
from verl.models.lora import read_adapter
from verl.trainer.checkpoint.saved_run import SavedRun
from verl.trainer.config import RunConfig
from verl.trainer.config.reward import RewardConfig
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.controller import build_controller
from verl.trainer.ppo.team import TeamWorkers
from verl.trainer.ppo.weight_sync import load_weights
from verl.utils.checkpoint import CheckpointError
from verl.workers.weight_transfer.base import send_bucket
from verl.workers.weight_transfer.object_store import ObjectStore

# Enough for one episode at a time: calls of one team that run concurrently.
SLOTS = 8


@dataclass(frozen=True)
class Engines:
    """How a team is served.

    Attributes:
        name: hf | vllm; empty: as in training.
        slots: largest number of replies that an engine decodes concurrently; None: as in training.
    """

    name: str = "hf"
    slots: int | None = SLOTS


def for_serving(config: RunConfig, device: str) -> RunConfig:
    """Return the configuration of a run for inference in one process; a failed episode does not
    stop it.
    """
    clone = copy.deepcopy(config)
    clone.trainer.controller = "local"
    clone.trainer.device = device
    clone.trainer.nnodes = 1
    clone.trainer.n_gpus_per_node = 1
    clone.trainer.resource_pool = "shared"
    clone.trainer.pool_sizes = {}
    clone.trainer.val_only = True
    clone.rollout.nnodes = 1
    clone.rollout.n_gpus_per_node = 0
    clone.rollout.max_failure_rate = 1.0
    clone.agent.role_policies = {}
    unscored = {
        name: getattr(RewardConfig(), name)
        for name in ("custom_reward_function", "reward_manager", "agent_functions", "model")
    }
    # questions have no ground truth
    clone.reward = replace(clone.reward, **unscored)
    clone.gateway.program_error = "fail"  # an answer, or an error
    return clone


def serving_plan(plan: RunPlan, engines: Engines) -> RunPlan:
    """Return a plan with only engines, each on one device."""
    groups = []
    for spec in plan.groups:
        group_config = copy.deepcopy(spec.config)
        rollout = group_config.rollout
        rollout.name = engines.name or rollout.name
        rollout.tensor_model_parallel_size = 1
        rollout.weight_transfer = "object_store"
        rollout.max_num_seqs = min(rollout.slots, engines.slots or rollout.slots)
        rollout.structured_outputs = rollout.name == "vllm" or find_spec("xgrammar") is not None
        rollout.free_cache_engine = False
        groups.append(replace(spec, config=group_config, trained=False))
    return replace(plan, groups=tuple(groups))


@contextmanager
def running_engines(config: RunConfig, plan: RunPlan, engines: Engines) -> Iterator[TeamWorkers]:
    """Start the engines of a plan, with the weights of its models; end them at exit."""
    with ExitStack() as started:
        controller = build_controller(config)
        started.callback(controller.shutdown)
        team = TeamWorkers(config, serving_plan(plan, engines), controller)
        started.callback(team.shutdown)
        team.start()
        team.init_model(1)
        yield team


def serve_weights(saved: SavedRun, team: TeamWorkers) -> None:
    """Send the trained weights to every engine, piece by piece. Raises CheckpointError if they
    cannot be read.
    """
    transfer = ObjectStore()
    for spec in saved.placement.groups:
        dtype = resolve_dtype(spec.config.rollout.dtype, team.controller.device)
        limit = spec.config.rollout.update_bucket_mb << 20
        for adapter in (spec.adapters or (None,)) if spec.trained else ():
            pieces = saved.weights(spec, adapter, limit)
            buckets = (
                send_bucket(transfer, {name: value.to(dtype) for name, value in piece.items()})
                for piece in pieces
            )
            if not load_weights(team.engines.groups[spec.wg_id], buckets, saved.step, adapter):
                raise CheckpointError(f"{saved.folder} has no weights of policy '{adapter or spec.wg_id}'")


def serve_adapters(folders: Mapping[str, Path], plan: RunPlan, team: TeamWorkers) -> None:
    """Send adapters to the engines of a plan, as the first weights of their policies.

    Args:
        folders: folder of a PEFT adapter by policy; policies without one are served as their base.
        plan: of the engines.
        team: the engines.

    Raises LoraTargetError for a folder whose adapter cannot be read or does not fit.
    """
    transfer = ObjectStore()
    for spec in plan.groups:
        dtype = resolve_dtype(spec.config.rollout.dtype, team.controller.device)
        for policy in [name for name in spec.adapters if name in folders]:
            weights = read_adapter(folders[policy])
            bucket = send_bucket(transfer, {name: value.to(dtype) for name, value in weights.items()})
            load_weights(team.engines.groups[spec.wg_id], iter([bucket]), 0, policy)
