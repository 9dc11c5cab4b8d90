"""The worker of one model: one policy, or the policies that are adapters on it, and optionally the
frozen reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from verl.models.loader import resolve_dtype
from verl.models.lora import lora_spec
from verl.protocol import DataProto
from verl.single_controller.dispatch import Dispatch, register
from verl.trainer.config import ActorConfig, ActorRolloutRefConfig, RefConfig, RolloutConfig
from verl.utils.memory import give_back_freed_blocks, peak_memory
from verl.workers.engine import (
    AdapterPlan,
    FSDPEngine,
    MicroBatchRule,
    PolicyRows,
    UpdatePlan,
    update_adapters,
    update_policy,
)
from verl.workers.engine.fsdp_engine import select
from verl.workers.engine.policy_update import part_temperatures
from verl.workers.engine_worker import EngineWorker, rows_of
from verl.workers.profiler import profiled
from verl.workers.weight_change import WeightChange
from verl.workers.weight_transfer.base import WeightBucket, build_transfer, send_bucket

# Buckets that may exist at a time: one is being loaded, one is queued, one is being gathered.
BUCKETS = 3
# Number of parameters from which a pass on a CPU gives its memory back at once.
LARGE_MODEL = 50_000_000


@dataclass(frozen=True)
class _AdapterRows:
    """The part of a batch that belongs to one adapter, or to the model itself.

    Attributes:
        adapter: its name; None for the model.
        config: everything under `actor_rollout_ref`.
        rows: of the part.
        place: of the rows in the batch; None for all.
        meta: what belongs to them.
    """

    adapter: str | None
    config: ActorRolloutRefConfig
    rows: Mapping[str, torch.Tensor]
    place: torch.Tensor | None
    meta: Mapping[str, Any]

    @property
    def plan(self) -> UpdatePlan:
        """The arguments of an update."""
        meta = self.meta
        return UpdatePlan(
            temperature=_temperature(meta),
            num_mini_batches=int(meta.get("num_mini_batches", 1)),
            on_policy=bool(meta.get("on_policy", False)),
            rollout_correction=meta.get("rollout_correction"),
            shuffle_seed=int(meta.get("shuffle_seed", 0)),
            loss_scale_factor=meta.get("loss_scale_factor", self.config.rollout.response_length),
            first_update=meta.get("first_update"),
            agents=meta.get("agents", ()),
        )


class PolicyWorker(EngineWorker):
    """Scores and updates one policy, or several that are adapters on one base; every method is
    called on all ranks of the worker group.

    With adapters a batch belongs to one of them, named by `meta_info["adapter"]`, or to several:
    the rows with `adapter_index` i belong to the adapter of `meta_info["adapters"][i]`, which holds
    what `meta_info` holds for one. All ranks run the same adapters, whatever rows they have.

    Args:
        config: everything under `actor_rollout_ref`; with adapters that of the base.
        use_reference: also hold a frozen copy of the initial model; for adapters the base is the
            reference.
        adapters: everything under `actor_rollout_ref` for each adapter, by name; empty trains the
            model itself.
        engine_ranks: number of rollout workers that weights are sent to; None: as many as there are
            ranks here.
        seed, device, num_threads, plugins: see `EngineWorker`.
    """

    def __init__(
        self,
        config: ActorRolloutRefConfig,
        *,
        use_reference: bool,
        seed: int,
        device: str,
        num_threads: int,
        plugins: Sequence[str] = (),
        adapters: Mapping[str, ActorRolloutRefConfig] | None = None,
        engine_ranks: int | None = None,
    ) -> None:
        super().__init__(config.model, seed=seed, device=device, num_threads=num_threads, plugins=plugins)
        self.config = config
        self._adapters = dict(adapters or {})
        self._use_reference = use_reference
        self._engine_ranks = self.world_size if engine_ranks is None else engine_ranks
        self._reference: FSDPEngine | None = None
        self._buckets: Iterator[dict[str, torch.Tensor]] | None = None
        self._transfer = build_transfer(config.rollout.weight_transfer)
        self._sent_handles: list[Any] = []
        self._change: WeightChange | None = None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Load and shard the actor with its adapters, and the reference, and make the optimizers.

        Raises:
            ModelPathError: the model cannot be loaded.
            LoraTargetError: an adapter does not fit it.
        """
        mesh = self._start()
        actor = self.config.actor
        plans = {
            name: AdapterPlan(lora_spec(config.model), config.actor.optim)
            for name, config in self._adapters.items()
        }
        share = actor.use_prefix_grouper
        self._engine = FSDPEngine(
            self.config.model,
            actor.fsdp_config,
            actor.optim,
            mesh,
            adapters=plans,
            seed=self._seed,
            share_prefixes=share,
            fused_head=self.config.model.use_fused_kernels,
        )
        if (
            self._device == "cpu"
            and sum(parameter.numel() for parameter in self._engine.model.parameters()) >= LARGE_MODEL
        ):
            give_back_freed_blocks()
        if self._use_reference and not plans:
            self._reference = FSDPEngine(
                self.config.model,
                actor.fsdp_config,
                None,
                mesh,
                share_prefixes=share,
                fused_head=self.config.model.use_fused_kernels,
            )

    def _adapter_of(self, meta: Mapping[str, Any]) -> tuple[str | None, ActorRolloutRefConfig]:
        """Return the adapter that a batch belongs to, None when the model itself is trained, and
        its config.
        """
        name = meta.get("adapter")
        if name not in self._adapters if self._adapters else name is not None:
            expected = (
                f"one of {sorted(self._adapters)}" if self._adapters else "none: the model itself is trained"
            )
            raise ValueError(f"the batch is for adapter {name!r}, expected {expected}")
        return name, self._adapters[name] if name is not None else self.config

    def _parts_of(self, data: DataProto) -> list[_AdapterRows]:
        """Return the parts of a batch: one for each adapter, or one for the model itself."""
        rows = rows_of(data)
        if "adapters" not in data.meta_info:
            return [_AdapterRows(*self._adapter_of(data.meta_info), rows, None, data.meta_info)]
        index = rows.pop("adapter_index")
        parts = []
        for number, of_one in enumerate(data.meta_info["adapters"]):
            meta = {**data.meta_info, **of_one}
            place = (index == number).nonzero().squeeze(1)
            parts.append(_AdapterRows(*self._adapter_of(meta), select(rows, place), place, meta))
        return parts

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    @profiled
    def compute_log_prob(self, data: DataProto) -> DataProto:
        """Return log-probs under the current weights: `old_log_probs` and `entropys`, both
        `[bsz, response_len]`, zero where masked.

        With `meta_info["sum_pi_squared"]` also `sum_pi_squared`: the sum over the vocabulary of the
        squared probabilities.
        """
        squares = bool(data.meta_info.get("sum_pi_squared", False))
        parts = self._parts_of(data)
        rule = _joint([self._log_prob_rule(part.config.rollout) for part in parts])
        if len(parts) > 1 and rule is not None and self.engine.mixes_adapters:
            temperature = part_temperatures([_temperature(part.meta) for part in parts], self.engine.device)
            with self.engine.mixing([str(part.adapter) for part in parts]):
                scores = [self.engine.score_all(_with_parts(data), temperature, rule, squares)]
            places: list[torch.Tensor | None] = [None]
        else:
            scores = []
            for part in parts:
                with self.engine.using(part.adapter):
                    part_rule = self._log_prob_rule(part.config.rollout)
                    scores.append(
                        self.engine.score_all(part.rows, _temperature(part.meta), part_rule, squares)
                    )
            places = [part.place for part in parts]
        columns = {
            "old_log_probs": [part.log_probs for part in scores],
            "entropys": [part.entropy for part in scores],
        }
        if squares:
            columns["sum_pi_squared"] = [
                part.sum_pi_squared for part in scores if part.sum_pi_squared is not None
            ]
        return DataProto.from_dict(
            tensors={name: _in_order(of_parts, places) for name, of_parts in columns.items()}
        )

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    @profiled
    def compute_ref_log_prob(self, data: DataProto) -> DataProto:
        """Return log-probs under the initial weights, for adapters under their base: `ref_log_prob`
        `[bsz, response_len]`.

        Raises RuntimeError without a reference.
        """
        parts = self._parts_of(data)
        # outside `using` the engine scores the base
        reference = self._reference if parts[0].adapter is None else self.engine
        if reference is None:
            raise RuntimeError("this worker has no reference model; make it with use_reference=True")
        rule = _joint([self._log_prob_rule(part.config.ref) for part in parts])
        if len(parts) > 1 and rule is not None:
            temperature = part_temperatures([_temperature(part.meta) for part in parts], self.engine.device)
            # Rows of one temperature share their beginnings, whatever adapter they belong to.
            rows = rows_of(data) if isinstance(temperature, float) else _with_parts(data)
            scores = reference.score_all(rows, temperature, rule).log_probs
            return DataProto.from_dict(tensors={"ref_log_prob": scores})
        of_parts = [
            reference.score_all(
                part.rows, _temperature(part.meta), self._log_prob_rule(part.config.ref)
            ).log_probs
            for part in parts
        ]
        return DataProto.from_dict(
            tensors={"ref_log_prob": _in_order(of_parts, [part.place for part in parts])}
        )

    def _log_prob_rule(self, config: RolloutConfig | RefConfig) -> MicroBatchRule:
        return self._rule(config.log_prob_max_token_len_per_gpu, config.log_prob_micro_batch_size_per_gpu)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    @profiled
    def update_actor(self, data: DataProto) -> DataProto:
        """Update the actor on this rank's rows; see `PolicyRows` for the columns.

        `meta_info` holds `temperature` and optionally the other fields of `UpdatePlan`.

        Returns:
            a batch without rows; `meta_info["metrics"]` is over all ranks, except memory, which is
            this rank's. For a batch of several adapters it is one mapping for each name.
        """
        parts = self._parts_of(data)
        rules = [self._update_rule(part.config.actor) for part in parts]
        rule = _joint(rules)
        metrics: dict[str | None, dict[str, float]] = {}
        if len(parts) > 1 and rule is not None and self.engine.mixes_adapters:
            updates = {
                str(part.adapter): PolicyRows(part.config.actor, part.rows, part.plan) for part in parts
            }
            for name, of_one in update_adapters(self.engine, updates, rule).items():
                metrics[name] = of_one
        else:
            for part, part_rule in zip(parts, rules, strict=True):
                with self.engine.using(part.adapter):
                    metrics[part.adapter] = update_policy(
                        self.engine, part.config.actor, part.rows, part.plan, part_rule
                    )
        peak = peak_memory(self._device)
        of_adapters = {name: of_one | peak for name, of_one in metrics.items()}
        return DataProto(
            meta_info={
                "metrics": of_adapters if "adapters" in data.meta_info else of_adapters[parts[0].adapter]
            }
        )

    def _update_rule(self, config: ActorConfig) -> MicroBatchRule:
        return self._rule(config.ppo_max_token_len_per_gpu, config.ppo_micro_batch_size_per_gpu)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def next_weights(self, restart: bool, adapter: str | None = None) -> WeightBucket | None:
        """Return the next bucket of unsharded parameters, in the rollout engine's dtype; None after
        the last.

        It holds at most `rollout.update_bucket_mb`, or one parameter that is larger; tied
        parameters are sent once. All ranks call this together; rank 0 returns the bucket, the
        others None, unless the transfer sends from every rank.

        Args:
            restart: start with the first bucket.
            adapter: send its parameters, by their names in PEFT's files; None sends those of the
                model.
        """
        if restart or self._buckets is None:
            self._release_all_but(0)
            self._buckets = self._weight_buckets(adapter)
        tensors = next(self._buckets, None)
        if tensors is None or not self._sends:
            return None
        self._release_all_but(BUCKETS - 1)
        # Every process of the engines receives, or one rollout worker of each, as always of an
        # adapter.
        to_all = self._transfer.direct and adapter is None
        engines = self._engine_ranks // self.config.rollout.tensor_model_parallel_size
        bucket = send_bucket(self._transfer, tensors, self._engine_ranks if to_all else engines)
        self._sent_handles.append(bucket.handle)
        return bucket

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def free_weights(self) -> None:
        """Free the remaining buckets of an update, after the engines have loaded them."""
        self._release_all_but(0)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def vocab_size(self) -> int:
        """Return the number of token ids that the model accepts."""
        return int(self.engine.model.config.get_text_config().vocab_size)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def change_weights(self, adapters: Sequence[str | None]) -> None:
        """Change adapters, or the model (None), as `WeightChange` does, until `restore_weights`."""
        self._change = WeightChange(self.engine)
        self._change.apply(adapters)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def restore_weights(self) -> None:
        """Undo `change_weights`, to the bit."""
        if self._change is not None:
            self._change.undo()
            self._change = None

    @property
    def _sends(self) -> bool:
        return self.rank == 0 or self._transfer.every_rank

    def _release_all_but(self, count: int) -> None:
        while len(self._sent_handles) > count:
            self._transfer.release(self._sent_handles.pop(0))

    def _weight_buckets(self, adapter: str | None) -> Iterator[dict[str, torch.Tensor]]:
        dtype = resolve_dtype(self.config.rollout.dtype, self._device)
        limit = self.config.rollout.update_bucket_mb << 20
        device = self._device if self._transfer.on_device else "cpu"
        bucket: dict[str, torch.Tensor] = {}
        room = limit
        buffers = self.engine.buffers
        for name, value in self.engine.weights(adapter):
            # Buffers keep their dtype: a router's correction bias in 16 bits would choose other experts.
            sent_as = value.dtype if name in buffers else dtype
            size = value.numel() * sent_as.itemsize
            if bucket and size > room:
                yield bucket
                bucket = {}
                room = limit
            bucket[name] = value.to(device, sent_as, copy=True) if self._sends else torch.empty(0)
            room -= size
        if bucket:
            yield bucket


def _temperature(meta: Mapping[str, Any]) -> float:
    if "temperature" not in meta:
        raise ValueError("meta_info has no 'temperature'; log-probs need the temperature of the sampler")
    return float(meta["temperature"])


def _with_parts(data: DataProto) -> dict[str, torch.Tensor]:
    """Return the rows of a batch of several adapters, as an engine reads them."""
    rows = rows_of(data)
    return rows | {"part": rows["adapter_index"]}


def _joint(rules: Sequence[MicroBatchRule]) -> MicroBatchRule | None:
    """Return the rule of micro-batches that several adapters share: the lowest limit; None if some
    limit tokens and others rows.
    """
    budgets = [rule.token_budget for rule in rules if rule.token_budget is not None]
    if budgets and len(budgets) < len(rules):
        return None
    return replace(
        rules[0], token_budget=min(budgets) if budgets else None, rows=min(rule.rows for rule in rules)
    )


def _in_order(parts: Sequence[torch.Tensor], places: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Return the rows of all parts, given their places in the batch; None for a part that is the
    whole batch.
    """
    if places[0] is None:
        return parts[0]
    return torch.cat(list(parts))[torch.cat([place for place in places if place is not None]).argsort()]
