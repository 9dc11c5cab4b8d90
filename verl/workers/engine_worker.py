"""The base class of the workers of trained models: one rank of a worker group with one engine."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import torch

from verl.models.loader import tokenizer_to_save
from verl.protocol import DataProto
from verl.single_controller.dispatch import Dispatch, register
from verl.single_controller.worker import Worker
from verl.trainer.config import TrainedModelConfig
from verl.workers.engine import FSDPEngine, MicroBatchRule, init_mesh
from verl.workers.engine.micro_batch import MOST_TOKENS
from verl.workers.engine.state import load_engine, save_engine


class EngineWorker(Worker):
    """Holds a trained model, which subclasses load and use. Every method is called on all ranks.

    Args:
        model: the trained model, and how its rows are run.
        seed: of torch's generator on this rank.
        device: `cpu` or `cuda`.
        num_threads: CPU threads of this process; 0 keeps torch's default.
        plugins: modules to import first; they may register losses.
    """

    def __init__(
        self,
        model: TrainedModelConfig,
        *,
        seed: int,
        device: str,
        num_threads: int,
        plugins: Sequence[str] = (),
    ) -> None:
        super().__init__()
        for name in plugins:
            importlib.import_module(name)
        self._model = model
        self._seed = seed
        self._device = device
        self._num_threads = num_threads
        self._engine: FSDPEngine | None = None

    @property
    def engine(self) -> FSDPEngine:
        """The trained model. Raises RuntimeError before `init_model`."""
        if self._engine is None:
            raise RuntimeError("the worker has no model yet; call init_model first")
        return self._engine

    def _start(self) -> torch.distributed.device_mesh.DeviceMesh:
        """Set threads and seed, and return the mesh of the worker group."""
        if self._num_threads > 0:
            torch.set_num_threads(self._num_threads)
        torch.manual_seed(self._seed)
        return init_mesh(self._device, self.rank, self.world_size)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def set_total_training_steps(self, total_steps: int, adapter: str | None = None) -> None:
        """Set the total number of optimizer steps of the schedule of one adapter, or of all
        schedules.
        """
        if adapter is None:
            self.engine.set_total_steps(total_steps)
            return
        with self.engine.using(adapter):
            self.engine.trainable.set_total_steps(total_steps)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_checkpoint(self, path: str, save_hf: bool) -> None:
        """Write parameters, optimizer, schedule and random state to `path`; `save_hf` adds a copy
        that plain transformers loads.

        If the tokenizer cannot be loaded, the copy has none and a warning is logged.

        Raises:
            CheckpointError: nothing was written; an older checkpoint at `path` is intact.
        """
        tokenizer = None
        if save_hf:
            folder = self._model.tokenizer_path or self._model.path or ""
            tokenizer = tokenizer_to_save(
                folder, trust_remote_code=self._model.trust_remote_code, warn=self.rank == 0
            )
        save_engine(self.engine, path, tokenizer)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(self, path: str) -> None:
        """Restore the state from `path`. Raises CheckpointError when it is missing or of another
        model.
        """
        load_engine(self.engine, path)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def state_digest(self) -> str:
        """Return the sha256 of the parameters."""
        return self.engine.digest()

    def _rule(self, tokens: int | None, rows: int | None) -> MicroBatchRule:
        budget = (tokens or MOST_TOKENS) if rows is None else None
        return MicroBatchRule(token_budget=budget, rows=rows or 1, packed=self.engine.layout.packed)


def rows_of(data: DataProto) -> dict[str, torch.Tensor]:
    """Return the tensors of a batch. Raises ValueError when it has none."""
    if data.batch is None:
        raise ValueError("the batch has no tensors")
    return dict(data.batch.items())
