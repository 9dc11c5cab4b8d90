"""The worker of one policy: actor and, if asked for, its frozen reference, on one rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from verl.models.loader import resolve_dtype
from verl.protocol import DataProto
from verl.protocol.serialization import SerializedTensor, serialize_single_tensor
from verl.single_controller.base.decorator import Dispatch, register
from verl.trainer.config import ActorRolloutRefConfig
from verl.workers.engine import FSDPEngine, UpdatePlan, update_policy
from verl.workers.engine_worker import EngineWorker, rows_of


class PolicyWorker(EngineWorker):
    """Scores and updates one policy; every method is called on all ranks of the worker group.

    Args:
        config: everything under `actor_rollout_ref`.
        use_reference: also hold a frozen copy of the initial model.
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
    ) -> None:
        super().__init__(config.model, seed=seed, device=device, num_threads=num_threads, plugins=plugins)
        self.config = config
        self._use_reference = use_reference
        self._reference: FSDPEngine | None = None
        self._buckets: Iterator[dict[str, torch.Tensor]] | None = None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Load and shard the actor and the reference, and make the optimizer.

        Raises:
            ModelPathError: the model cannot be loaded.
        """
        mesh, actor = self._start(), self.config.actor
        self._engine = FSDPEngine(self.config.model, actor.fsdp_config, actor.optim, mesh)
        if self._use_reference:
            self._reference = FSDPEngine(self.config.model, actor.fsdp_config, None, mesh)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_log_prob(self, data: DataProto) -> DataProto:
        """Log-probs under the current weights: `old_log_probs` and `entropys`, both `[bsz, response_len]`, zero where masked.

        With `meta_info["sum_pi_squared"]` also `sum_pi_squared`: the sum over the vocabulary of the squared probabilities.
        """
        cfg = self.config.rollout
        rule = self._rule(cfg.log_prob_use_dynamic_bsz, cfg.log_prob_max_token_len_per_gpu, cfg.log_prob_micro_batch_size_per_gpu)
        scores = self.engine.score_all(rows_of(data), _temperature(data), rule, data.meta_info.get("sum_pi_squared", False))
        tensors = {"old_log_probs": scores.log_probs, "entropys": scores.entropy}
        if scores.sum_pi_squared is not None:
            tensors["sum_pi_squared"] = scores.sum_pi_squared
        return DataProto.from_dict(tensors=tensors)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_ref_log_prob(self, data: DataProto) -> DataProto:
        """Log-probs under the initial weights: `ref_log_prob` `[bsz, response_len]`. Raises RuntimeError without a reference."""
        if self._reference is None:
            raise RuntimeError("this worker has no reference model; make it with use_reference=True")
        cfg = self.config.ref
        rule = self._rule(cfg.log_prob_use_dynamic_bsz, cfg.log_prob_max_token_len_per_gpu, cfg.log_prob_micro_batch_size_per_gpu)
        scores = self._reference.score_all(rows_of(data), _temperature(data), rule)
        return DataProto.from_dict(tensors={"ref_log_prob": scores.log_probs})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def update_actor(self, data: DataProto) -> DataProto:
        """Update the actor on this rank's rows; see `update_policy` for the columns.

        `meta_info` holds `temperature` and optionally the other fields of `UpdatePlan`.

        Returns:
            no rows, and `meta_info["metrics"]`, over all ranks.
        """
        cfg, meta = self.config.actor, data.meta_info
        plan = UpdatePlan(
            temperature=_temperature(data),
            num_mini_batches=int(meta.get("num_mini_batches", 1)),
            on_policy=bool(meta.get("on_policy", False)),
            rollout_correction=meta.get("rollout_correction"),
            shuffle_seed=int(meta.get("shuffle_seed", 0)),
            loss_scale_factor=meta.get("loss_scale_factor", self.config.rollout.response_length),
            first_update=meta.get("first_update"),
        )
        rule = self._rule(cfg.use_dynamic_bsz, cfg.ppo_max_token_len_per_gpu, cfg.ppo_micro_batch_size_per_gpu)
        metrics = update_policy(self.engine, cfg, rows_of(data), plan, rule)
        return DataProto(meta_info={"metrics": metrics})

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def next_weights(self, restart: bool) -> dict[str, SerializedTensor]:
        """The next bucket of parameters, whole and in the rollout engine's dtype; an empty one after the last.

        Tensors travel as bytes (`serialize_single_tensor`), which Ray moves without another copy.

        Only one bucket exists at a time. It holds at most `rollout.update_bucket_mb`, or one parameter that is larger; tied
        parameters come once. All ranks walk together; rank 0 returns the bucket, the others an empty one.

        Args:
            restart: begin again with the first bucket.
        """
        if restart or self._buckets is None:
            self._buckets = self._weight_buckets()
        bucket = next(self._buckets, {})
        return {name: serialize_single_tensor(value) for name, value in bucket.items()} if self.rank == 0 else {}

    def _weight_buckets(self) -> Iterator[dict[str, torch.Tensor]]:
        dtype, limit = resolve_dtype(self.config.rollout.dtype, self._device), self.config.rollout.update_bucket_mb << 20
        bucket: dict[str, torch.Tensor] = {}
        room = limit
        for name, value in self.engine.weights():
            size = value.numel() * dtype.itemsize
            if bucket and size > room:
                yield bucket
                bucket, room = {}, limit
            bucket[name] = value.to("cpu", dtype, copy=True) if self.rank == 0 else torch.empty(0)
            room -= size
        if bucket:
            yield bucket


def _temperature(data: DataProto) -> float:
    if "temperature" not in data.meta_info:
        raise ValueError("meta_info has no 'temperature'; log-probs need the one that the sampler used")
    return float(data.meta_info["temperature"])
