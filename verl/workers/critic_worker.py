"""The worker of one policy's critic: a value model on one rank."""

from __future__ import annotations

from verl.models.value_model import VALUE_MODEL
from verl.protocol import DataProto
from verl.single_controller.dispatch import Dispatch, register
from verl.trainer.config import CriticConfig
from verl.workers.engine import FSDPEngine, MicroBatchRule, StepPlan, update_values
from verl.workers.engine_worker import EngineWorker, rows_of
from verl.workers.profiler import profiled


class CriticWorker(EngineWorker):
    """Computes the values of response tokens and trains the value model on their returns.

    Args:
        config: everything under `critic`, with the path of the model filled in.
        seed, device, num_threads: see `EngineWorker`.
    """

    def __init__(self, config: CriticConfig, *, seed: int, device: str, num_threads: int) -> None:
        super().__init__(config.model, seed=seed, device=device, num_threads=num_threads)
        self.config = config

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Load and shard the value model and make its optimizer.

        Raises:
            ModelPathError: the model cannot be loaded, or its architecture has no value model.
        """
        self._engine = FSDPEngine(
            self.config.model,
            self.config.fsdp,
            self.config.optim,
            self._start(),
            VALUE_MODEL,
            share_prefixes=self.config.use_prefix_grouper,
        )

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    @profiled
    def compute_values(self, data: DataProto) -> DataProto:
        """Return values under the current weights: `values` `[bsz, response_len]`, zero where
        masked.
        """
        return DataProto.from_dict(
            tensors={"values": self.engine.value_all(rows_of(data), self._micro_batches)}
        )

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    @profiled
    def update_critic(self, data: DataProto) -> DataProto:
        """Update the critic on this rank's rows; see `update_values` for the columns.

        `meta_info` may hold `num_mini_batches`, `shuffle_seed`, `first_update` and
        `loss_scale_factor`.

        Returns:
            a batch without rows; `meta_info["metrics"]` is over all ranks.
        """
        meta = data.meta_info
        plan = StepPlan(
            num_mini_batches=int(meta.get("num_mini_batches", 1)),
            shuffle_seed=int(meta.get("shuffle_seed", 0)),
            loss_scale_factor=meta.get("loss_scale_factor"),
            first_update=meta.get("first_update"),
        )
        return DataProto(
            meta_info={
                "metrics": update_values(self.engine, self.config, rows_of(data), plan, self._micro_batches)
            }
        )

    @property
    def _micro_batches(self) -> MicroBatchRule:
        cfg = self.config
        return self._rule(cfg.ppo_max_token_len_per_gpu, cfg.ppo_micro_batch_size_per_gpu)
