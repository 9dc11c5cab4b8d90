"""The worker groups of a team: every operation splits the batch by policy, runs on all groups at
once, and combines.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from verl.protocol import DataProto
from verl.single_controller.worker_group import WorkerGroup
from verl.trainer.config import ActorRolloutRefConfig, RunConfig
from verl.trainer.plan.devices import count_devices, own_engine_devices
from verl.trainer.plan.groups import processes_per_node
from verl.trainer.plan.learners import Learner, by_group, group_learners
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.batching import (
    SubBatch,
    balance_order,
    combine_batches,
    fit_width,
    pad_zero_weight,
    split_batch_by_policies,
    split_batch_by_wg_ids,
    trainable_rows,
    trim_padding,
    unpadded,
)
from verl.trainer.ppo.controller import Controller
from verl.trainer.ppo.core_algos.per_policy import aggregate_policies
from verl.trainer.ppo.critic import critic_rows
from verl.trainer.ppo.engines import TeamEngines
from verl.trainer.ppo.group_calls import GroupCalls
from verl.trainer.ppo.metric_utils import compute_seqlen_metrics, reduce_metrics
from verl.trainer.ppo.timeline import OpenSpan
from verl.utils.names import slug
from verl.workers.weight_transfer import chosen_transfer

logger = logging.getLogger(__name__)
T = TypeVar("T")

# Columns that a worker reads; columns that only credit assignment needs are not joint.
LOG_PROB_COLUMNS = ("prompts", "responses", "response_mask", "input_ids", "attention_mask", "position_ids")
UPDATE_COLUMNS = (*LOG_PROB_COLUMNS, "rollout_log_probs", "old_log_probs", "ref_log_prob", "rollout_is_weights", "advantages",
                  "row_weights", "agent_index")  # fmt: skip
CRITIC_COLUMNS = (*LOG_PROB_COLUMNS, "values", "returns", "row_weights")
# Metrics of an update that are also reported for the whole team; the others are reported per worker
# group only.
TEAM_METRICS = ("actor/", "critic/", "training/", "rollout_corr/", "global_seqlen/")


class TeamWorkers:
    """Policy workers and a rollout server for every worker group of the placement, and a critic if
    values are needed.

    A group that is not trained has only a rollout server, which serves the unchanged model.

    Args:
        config: configuration of the run.
        plan: agents, policies and worker groups.
        controller: starts workers (Ray or this process).
        log_dir: folder for logs of engine processes; None for temporary files.
    """

    def __init__(
        self, config: RunConfig, plan: RunPlan, controller: Controller, log_dir: Path | None = None
    ) -> None:
        self.config = config
        self.plan = plan
        self.controller = controller
        self.specs = {spec.wg_id: spec for spec in plan.groups}
        self.trained = [wg_id for wg_id, spec in self.specs.items() if spec.trained]
        self.devices = {wg_id: spec.devices for wg_id, spec in self.specs.items() if spec.devices is not None}
        self.n_devices = count_devices(config.trainer, config.rollout)
        self.learners = plan.policies
        self._critic_learners = group_learners(config.data, config.critic, plan.trained)
        self.uses_reference = any(learner.reference for learner in self.learners.values())
        self.critic_agents = plan.critics
        self.uses_critic = bool(self.critic_agents)
        self.policies: dict[str, WorkerGroup] = {}
        self.critics: dict[str, WorkerGroup] = {}
        self.calls = GroupCalls(self.specs, controller.parallel)
        self.engines = TeamEngines(
            config.trainer,
            config.rollout,
            plan,
            controller,
            self.calls,
            self.policies,
            log_dir,
        )

    def start(self) -> None:
        """Start the processes of every group; models are loaded by `init_model`."""
        processes = processes_per_node(self.config.trainer, self.config.rollout, self.plan.groups)
        share = self.controller.threads_per_worker(processes)
        for wg_id, spec in self.specs.items():
            common = {
                "config": self._for_workers(spec.config),
                "device": self.controller.device,
                "seed": self.config.data.seed,
            }
            policy: dict[str, Any] = {
                "adapters": spec.adapters,
                "use_reference": any(self.learners[policy].reference for policy in spec.policies),
                "num_threads": self.config.trainer.num_threads or share,
                "plugins": tuple(self.config.agent.plugins),
                "engine_ranks": spec.engine_devices.ranks,
            }
            if spec.trained:
                # the trainer, which a group of frozen agents does not have
                from verl.workers.policy_worker import PolicyWorker

                self.policies[wg_id] = self.controller.spawn(
                    f"policy_{wg_id}", PolicyWorker, self.devices[wg_id], common | policy
                )
            self.engines.spawn(wg_id, common, share)
            if wg_id in self.critic_agents:
                # critics, which most estimators do not have
                from verl.workers.critic_worker import CriticWorker

                critic = common | {
                    "config": spec.critic,
                    "num_threads": policy["num_threads"],
                }
                self.critics[wg_id] = self.controller.spawn(
                    f"critic_{wg_id}", CriticWorker, self.devices[wg_id], critic
                )

    def _for_workers(self, config: ActorRolloutRefConfig) -> ActorRolloutRefConfig:
        """Return a config with a way of sending weights in place of `auto`; engines with devices of
        their own never free their caches.
        """
        apart = own_engine_devices(self.config.rollout)
        way = chosen_transfer(config.rollout.weight_transfer, self.controller.device, shared=not apart)
        frees = config.rollout.free_cache_engine and not apart
        return replace(config, rollout=replace(config.rollout, weight_transfer=way, free_cache_engine=frees))

    def init_model(self, steps: int, critic_steps: int = 1) -> None:
        """Load every model; learning-rate schedules span the updates of `steps` (policies) and
        `critic_steps` (critics) training steps.
        """

        def init(wg_id: str) -> None:
            if wg_id in self.policies:
                self.policies[wg_id].init_model()
                for learner in self.learners.values():
                    if learner.wg_id == wg_id:
                        # An evaluation has no steps, and a schedule needs one.
                        self.policies[wg_id].set_total_training_steps(
                            max(steps * learner.updates, 1), learner.adapter
                        )
            self.engines.start(wg_id)
            if wg_id in self.critics:
                self.critics[wg_id].init_model()
                self.critics[wg_id].set_total_training_steps(
                    max(critic_steps * self._critic_learners[wg_id].updates, 1)
                )

        self.calls.run("init_model", list(self.specs), init)

    def compute_log_prob(self, batch: DataProto, sum_pi_squared: bool = False) -> DataProto:
        """Return log-probs under the current policies: `old_log_probs`, `entropys`, on request
        `sum_pi_squared`, `[bsz, response_len]`.
        """
        return self._score(
            batch, self.learners, self.policies, "compute_log_prob", meta={"sum_pi_squared": sum_pi_squared}
        )

    def compute_ref_log_prob(self, batch: DataProto) -> DataProto:
        """Return log-probs under the reference of every policy: `ref_log_prob`
        `[bsz, response_len]`; zero for policies without one.
        """
        learners = {policy: learner for policy, learner in self.learners.items() if learner.reference}
        return self._score(batch, learners, self.policies, "compute_ref_log_prob", "ref_log_prob")

    def compute_base_log_prob(self, batch: DataProto) -> DataProto:
        """Return log-probs under the base of every policy, which must be an adapter: `ref_log_prob`
        `[bsz, response_len]`.
        """
        return self._score(batch, self.learners, self.policies, "compute_ref_log_prob")

    def compute_values(self, batch: DataProto) -> DataProto:
        """Return values of the current critics: `values` `[bsz, response_len]`; zero for agents
        without a critic.
        """
        learners = {wg: self._critic_learners[wg] for wg in self.critics}
        return self._score(
            self._critic_rows(batch),
            learners,
            self.critics,
            "compute_values",
            "values",
            split=split_batch_by_wg_ids,
        )

    def _critic_rows(self, batch: DataProto) -> DataProto:
        return critic_rows(batch, {agent for agents in self.critic_agents.values() for agent in agents})

    def _score(
        self,
        batch: DataProto,
        learners: Mapping[str, Learner],
        workers: Mapping[str, WorkerGroup],
        method: str,
        else_zero: str = "",
        meta: Mapping[str, Any] | None = None,
        split: Callable[[DataProto], dict[str, SubBatch]] = split_batch_by_policies,
    ) -> DataProto:
        """Call `method` for every learner on its rows of `split`; for rows without a learner the
        column `else_zero` is zero.
        """
        parts = split(batch)

        def compute(names: Sequence[str]) -> dict[str, SubBatch]:
            group = workers[learners[names[0]].wg_id]
            joint, places = self._for_ranks(
                {name: parts[name].batch for name in names},
                LOG_PROB_COLUMNS,
                workers,
                learners[names[0]].wg_id,
            )
            each = {
                name: {"temperature": learners[name].temperature, "adapter": learners[name].adapter}
                for name in names
            }
            joint.meta_info = {
                **_call_meta(each),
                **(meta or {}),
                **self._trace(batch, names, workers is self.critics),
            }
            out = getattr(group, method)(joint)
            return {name: SubBatch(places[name].rows_of(out), parts[name].rows) for name in names}

        results = self._on_learners(method, learners, list(parts), compute)
        for name in set(parts) - set(results):
            nothing = torch.zeros_like(parts[name].batch.batch["responses"], dtype=torch.float32)
            results[name] = SubBatch(DataProto.from_dict(tensors={else_zero: nothing}), parts[name].rows)
        return fit_width(combine_batches(results), batch)

    def update_actor(
        self,
        batch: DataProto,
        on_policy: bool,
        step: int,
        seed: Sequence[int],
        updated: Callable[[str], None] | None = None,
    ) -> dict[str, float]:
        """Run one training step of every policy on its own rows. Return metrics as
        `wg/<id>/<metric>` and, averaged, `<metric>`.

        Policies with fewer updates per step wait for the others.

        Args:
            batch: scored rows of the whole team.
            on_policy: whether old log-probs are the current ones.
            step: number of previous training steps of the policies.
            seed: seed of the order of rows; its last number is the version of the new weights.
            updated: called with every policy after its update, in the thread of its worker group,
                while others are updated.
        """
        meta = {"on_policy": on_policy, "rollout_correction": self.config.algorithm.rollout_correction}
        arguments = (self.policies, "update_actor", UPDATE_COLUMNS, meta, step, seed)
        return _team_metrics(self._update(batch, self.learners, *arguments, then=updated))

    def update_critic(self, batch: DataProto, step: int, seed: Sequence[int]) -> dict[str, float]:
        """Run one training step of every critic on the rows of its agents; arguments and metrics
        are those of `update_actor`.
        """
        learners = {wg: self._critic_learners[wg] for wg in self.critics}
        rows = self._critic_rows(batch)
        arguments = (self.critics, "update_critic", CRITIC_COLUMNS, {}, step, seed)
        per_group = self._update(rows, learners, *arguments, split=split_batch_by_wg_ids)
        for metrics in per_group.values():
            for name in [n for n in metrics if n == "perf/tokens" or n.startswith("global_seqlen/")]:
                del metrics[name]  # these names are metrics of policies
        return _team_metrics(per_group)

    def _update(
        self,
        batch: DataProto,
        learners: Mapping[str, Learner],
        workers: Mapping[str, WorkerGroup],
        method: str,
        columns: Sequence[str],
        meta: Mapping[str, Any],
        step: int,
        seed: Sequence[int],
        *,
        split: Callable[[DataProto], dict[str, SubBatch]] = split_batch_by_policies,
        then: Callable[[str], None] | None = None,
    ) -> dict[str, dict[str, float]]:
        """Call `method` for every learner on its rows of `split`, then `then`, and return the
        metrics of each.
        """
        parts = split(batch)

        def update(names: Sequence[str]) -> dict[str, dict[str, float]]:
            wg_id = learners[names[0]].wg_id
            rows = {name: trainable_rows(parts[name].batch) for name in names}
            each = {
                name: self._update_meta(learners[name], name, rows[name], columns, step, seed)
                for name in names
            }
            joint, places = self._for_ranks(rows, columns, workers, wg_id)
            joint.meta_info = {
                **_call_meta(each),
                **meta,
                **self._trace(batch, names, workers is self.critics),
            }
            start = time.perf_counter()
            of_learners = _metrics_of(
                getattr(workers[wg_id], method)(joint).meta_info["metrics"], learners, names
            )
            seconds = time.perf_counter() - start
            result: dict[str, dict[str, float]] = {}
            for name in names:
                if workers is self.policies:
                    self.engines.note_update(name, seed[-1])
                shares = places[name].shares(self.devices[wg_id].ranks)
                result[name] = of_learners[name] | shares | {f"timing_s/{method}": seconds / len(names)}
            return result

        return self._on_learners(method, learners, list(parts), update, then)

    def _update_meta(
        self,
        learner: Learner,
        name: str,
        rows: DataProto,
        columns: Sequence[str],
        step: int,
        seed: Sequence[int],
    ) -> dict[str, Any]:
        """Return the meta_info of an update that is of one learner alone, and add the column
        `agent_index` to its rows if it is one of `columns`.
        """
        agents: list[str] = []
        if "agent_index" in columns:
            agent_ids = rows.non_tensor_batch["agent_id"]
            agents = list(dict.fromkeys(agent_ids))
            rows.batch["agent_index"] = torch.tensor([agents.index(agent) for agent in agent_ids])
        return {
            "temperature": learner.temperature,
            "adapter": learner.adapter,
            "agents": [slug(agent) for agent in agents] if len(agents) > 1 else [],
            "num_mini_batches": learner.mini_batches,
            "first_update": step * learner.updates,
            "loss_scale_factor": learner.longest_reply,
            "shuffle_seed": zlib.crc32(repr((tuple(seed), name)).encode()),
        }

    def _trace(self, batch: DataProto, names: Sequence[str], critic: bool) -> Mapping[str, Any]:
        """Return the meta_info of a call that is recorded, see `TeamTraces.meta`: under the first of
        these learners that is.
        """
        if not self.config.global_profiler.steps:
            return {}
        from verl.trainer.ppo.traces import TeamTraces  # of this key alone

        traces = TeamTraces(self.config.trainer, self.config.critic, self.config.global_profiler, self.plan)
        return next((meta for name in names if (meta := traces.meta(batch, name, critic))), {})

    def save_checkpoint(self, folder: Path, save_hf_model: bool) -> None:
        """Write every policy under `folder/actor/<wg_id>` and every critic under
        `folder/critic/<wg_id>`.
        """
        self.calls.run(
            "save_checkpoint",
            self.trained,
            lambda wg: self.policies[wg].save_checkpoint(str(folder / "actor" / wg), save_hf_model),
        )
        self.calls.run(
            "save_checkpoint",
            list(self.critics),
            lambda wg: self.critics[wg].save_checkpoint(str(folder / "critic" / wg), save_hf_model),
        )

    def load_checkpoint(self, folder: Path) -> None:
        """Load a checkpoint of `save_checkpoint`."""
        self.calls.run(
            "load_checkpoint",
            self.trained,
            lambda wg: self.policies[wg].load_checkpoint(str(folder / "actor" / wg)),
        )
        self.calls.run(
            "load_checkpoint",
            list(self.critics),
            lambda wg: self.critics[wg].load_checkpoint(str(folder / "critic" / wg)),
        )

    def open_spans(self) -> list[OpenSpan]:
        """Return the calls to worker groups in progress, and the engines with requests."""
        return [*self.calls.timeline.open(), *self.engines.open_spans()]

    def shutdown(self) -> None:
        """Stop every worker; their state is lost."""
        self.calls.end()
        self.engines.shutdown()
        for group in (*self.policies.values(), *self.critics.values()):
            group.shutdown()

    def _for_ranks(
        self,
        parts: Mapping[str, DataProto],
        columns: Sequence[str],
        workers: Mapping[str, WorkerGroup],
        wg_id: str,
    ) -> tuple[DataProto, dict[str, _Place]]:
        """Pad the rows of each learner of a group with zero-weight rows to a multiple of the ranks,
        order them so that ranks have similar numbers of tokens, and return one trimmed batch of all
        with the places of each. The rows of several have their number as `adapter_index`.
        """
        ranks = self.devices[wg_id].ranks
        trained = self.config.critic if workers is self.critics else self.specs[wg_id].config.actor
        orders: list[tuple[np.ndarray, int]] = []
        batches: list[DataProto] = []
        for number, part in enumerate(parts.values()):
            present = set(part.batch.keys())
            sub = part.select(batch_keys=[c for c in columns if c in present], non_tensor_batch_keys=[])
            sub, padding = pad_zero_weight(sub, ranks)
            order = balance_order(sub, ranks, trained.use_prefix_grouper)
            if len(parts) > 1:
                sub.batch["adapter_index"] = torch.full((len(sub),), number)
            orders.append((order, padding))
            batches.append(sub.select_idxs(order))
        sizes = [len(sub) for sub in batches]
        # A rank gets the same share of each learner's rows, one learner after the other.
        rank_of_rows = np.concatenate([np.arange(size) * ranks // size for size in sizes])
        index = np.argsort(rank_of_rows, kind="stable")
        joint = trim_padding((DataProto.concat(batches) if len(parts) > 1 else batches[0]).select_idxs(index))
        rows = np.split(np.argsort(index), np.cumsum(sizes)[:-1])
        lengths = joint.batch["attention_mask"].sum(dim=1).numpy()
        places = {
            name: _Place(of_name, *order, lengths[of_name])
            for name, of_name, order in zip(parts, rows, orders, strict=True)
        }
        return joint, places

    def _on_learners(
        self,
        call: str,
        learners: Mapping[str, Learner],
        present: Sequence[str],
        fn: Callable[[Sequence[str]], Mapping[str, T]],
        then: Callable[[str], None] | None = None,
    ) -> dict[str, T]:
        """Run `fn` for the learners in `present`, all of a group at once and groups in parallel,
        and then `then` for each.
        """
        of_group = by_group(learners, present)

        def run(wg_id: str) -> Mapping[str, T]:
            with self.calls.hold(wg_id, call):
                results = fn(of_group[wg_id])
            if then is not None:
                for name in of_group[wg_id]:
                    then(name)
            return results

        return {
            name: result
            for results in self.calls.each(list(of_group), run).values()
            for name, result in results.items()
        }


@dataclass(frozen=True)
class _Place:
    """The rows of one learner in a batch that is sent to a worker group.

    Attributes:
        rows: their indices in the batch.
        order: their order there, as indices of the learner's rows.
        padding: how many of them, the last ones before they were ordered, were added.
        lengths: tokens of each.
    """

    rows: np.ndarray
    order: np.ndarray
    padding: int
    lengths: np.ndarray

    def rows_of(self, out: DataProto) -> DataProto:
        """Return the learner's rows of a result, as it has them itself."""
        return unpadded(out.select_idxs(self.rows), self.order, self.padding)

    def shares(self, ranks: int) -> dict[str, float]:
        """Return the metrics of the share of each rank."""
        return compute_seqlen_metrics(self.lengths[np.argsort(self.order)].tolist(), self.order, ranks)


def _call_meta(each: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the meta_info of a call, given that of each learner."""
    values = [dict(meta) for meta in each.values()]
    return values[0] if len(values) == 1 else {"adapters": values}


def _metrics_of(
    of_call: Mapping[str, Any], learners: Mapping[str, Learner], names: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return the metrics of each learner, reduced over the ranks, from those of a call."""
    if len(names) == 1:
        return {names[0]: reduce_metrics(of_call)}
    metrics: dict[str, dict[str, float]] = {}
    for name in names:
        of_ranks = of_call[str(learners[name].adapter)]
        metrics[name] = reduce_metrics({key: [one[key] for one in of_ranks] for key in of_ranks[0]})
    return metrics


def _team_metrics(per_group: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return `wg/<id>/<metric>` of every group, `TEAM_METRICS` aggregated over groups, and
    `agent/<id>/<metric>` unchanged.
    """
    agents = {
        name: value
        for metrics in per_group.values()
        for name, value in metrics.items()
        if name.startswith("agent/")
    }
    groups = {
        group: {name: value for name, value in metrics.items() if name not in agents}
        for group, metrics in per_group.items()
    }
    return agents | {
        name: value
        for name, value in aggregate_policies(groups).items()
        if name.startswith(("wg/", *TEAM_METRICS))
    }
