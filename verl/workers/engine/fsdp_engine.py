"""One sharded model, of language or of values: score rows, take optimizer steps, hand out its weights."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from verl.models.loader import CAUSAL_LM, ModelLoader, resolve_attention, resolve_dtype
from verl.trainer.config import FSDPConfig, ModelConfig, OptimConfig
from verl.workers.engine.attention import PACKED_ATTENTION, check_packable, register_packed_attention
from verl.workers.engine.forward import INPUT_KEYS, Scores, check_rows, score_tokens, value_tokens
from verl.workers.engine.loading import load_sharded
from verl.workers.engine.micro_batch import MicroBatchRule, plan_micro_batches, same_count
from verl.workers.engine.offload import move_optimizer_state, move_parameters, on_device
from verl.workers.engine.optimizer import Schedule, build_optimizer, clip_gradients, init_state
from verl.workers.engine.sharding import free_gathered, full_tensors, shard_model

logger = logging.getLogger(__name__)

Rows = Mapping[str, torch.Tensor]


def select(rows: Rows, index: torch.Tensor) -> dict[str, torch.Tensor]:
    """The rows at `index` of every tensor."""
    return {name: value[index] for name, value in rows.items()}


class FSDPEngine:
    """A sharded model with, unless it is a frozen reference, its optimizer and schedule.

    Args:
        model: what to load and how to run it.
        fsdp: dtypes, offload and resharding.
        optim: None makes a frozen model.
        mesh: one-dimensional mesh of the worker group.
        loader: the kind of model: `CAUSAL_LM` for `score`, `VALUE_MODEL` for `value`.

    Raises:
        ModelPathError: the model cannot be loaded.
        ValueError: an unknown dtype, attention or schedule name, or an architecture that cannot be packed.
    """

    def __init__(
        self, model: ModelConfig, fsdp: FSDPConfig, optim: OptimConfig | None, mesh: DeviceMesh, loader: ModelLoader = CAUSAL_LM
    ) -> None:
        self.mesh, self.group = mesh, mesh.get_group()
        self.device = torch.device(mesh.device_type)
        self.packed = model.use_remove_padding
        self.fsdp = fsdp
        self.schedule = None if optim is None else Schedule(optim)
        compute_dtype = resolve_dtype(fsdp.mixed_precision, mesh.device_type)
        arguments: dict[str, Any] = {
            "dtype": resolve_dtype(fsdp.model_dtype, mesh.device_type),
            "attn_implementation": self._attention(model),
            "trust_remote_code": model.trust_remote_code,
        }

        def shard(network: Any) -> Any:
            if self.packed:
                check_packable(network.config)
            if optim is None:
                network.requires_grad_(False)
            elif model.enable_gradient_checkpointing:
                network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            network.train(optim is not None)
            return shard_model(network, mesh, compute_dtype, fsdp.reshard_after_forward)

        self.model = load_sharded(lambda: loader.load(model.path, **arguments), lambda: loader.build(model.path, **arguments), shard, mesh)
        self.optimizer = None if optim is None else build_optimizer(self.model.parameters(), optim)
        self.steps = 0
        if self.optimizer is not None:
            init_state(self.optimizer)
        self._offload()

    def _attention(self, model: ModelConfig) -> str:
        name = resolve_attention(model.attn_implementation, self.device.type)
        if not self.packed or name == "flash_attention_2":
            return name
        if name == "eager":
            raise ValueError("attn_implementation=eager cannot run packed rows; set actor_rollout_ref.model.use_remove_padding=false")
        register_packed_attention()
        return PACKED_ATTENTION

    def _offload(self) -> None:
        if self.device.type == "cpu":
            return
        if self.fsdp.param_offload:
            move_parameters(self.model, "cpu")
        if self.fsdp.optimizer_offload and self.optimizer is not None:
            move_optimizer_state(self.optimizer, "cpu")

    @contextmanager
    def loaded(self) -> Iterator[None]:
        """Parameters are on the device inside the block; gathered copies are gone after it."""
        with on_device(self.model, self.device.type, self.fsdp.param_offload):
            yield
            free_gathered(self.model)

    def lengths(self, rows: Rows) -> list[int]:
        """Tokens of each row that the model has to run."""
        return rows["attention_mask"].sum(dim=1).tolist()

    def micro_batches(self, rows: Rows, rule: MicroBatchRule) -> list[dict[str, torch.Tensor]]:
        """Cut rows into micro-batches; empty ones fill up the count, so that all ranks have as many."""
        plan = plan_micro_batches(self.lengths(rows), rule)
        plan += [[]] * (same_count(len(plan), self.group, self.device) - len(plan))
        return [select(rows, torch.tensor(index, dtype=torch.long, device=self.device)) for index in plan]

    def score(self, rows: Rows, temperature: float, sum_pi_squared: bool = False) -> Scores:
        """Score one micro-batch on the device; see `Scores`."""
        return score_tokens(self.model, rows, temperature, self.packed, sum_pi_squared)

    def value(self, rows: Rows) -> torch.Tensor:
        """Values of one micro-batch on the device; see `value_tokens`."""
        return value_tokens(self.model, rows, self.packed)

    def score_all(self, rows: Rows, temperature: float, rule: MicroBatchRule, sum_pi_squared: bool = False) -> Scores:
        """Score any number of rows without gradients; see `_on_all`."""

        def score(micro: Rows) -> tuple[torch.Tensor, ...]:
            scores = self.score(micro, temperature, sum_pi_squared)
            found = (scores.log_probs, scores.entropy, scores.sum_pi_squared)
            return tuple(score for score in found if score is not None)

        return Scores(*self._on_all(rows, rule, score, 3 if sum_pi_squared else 2))

    def value_all(self, rows: Rows, rule: MicroBatchRule) -> torch.Tensor:
        """Values of any number of rows without gradients; see `_on_all`."""
        return self._on_all(rows, rule, lambda micro: (self.value(micro),), 1)[0]

    @torch.no_grad()
    def _on_all(self, rows: Rows, rule: MicroBatchRule, run: Callable[[Rows], tuple[torch.Tensor, ...]], count: int) -> list[torch.Tensor]:
        """Run rows in micro-batches; rows without a response token cost nothing and are zero.

        Returns:
            `count` tensors `[bsz, response_len]` in the order of the rows, on the CPU.
        """
        real = rows["response_mask"].bool().any(dim=1).nonzero().squeeze(1)
        chosen = self.to_device({name: rows[name][real] for name in INPUT_KEYS})
        check_rows(chosen)
        chosen["row"] = real.to(self.device)
        grids = [torch.zeros(rows["response_mask"].shape, device=self.device) for _ in range(count)]
        with self.loaded():
            for micro in self.micro_batches(chosen, rule):
                for grid, result in zip(grids, run(micro), strict=True):
                    grid[micro["row"]] = result
        return [grid.cpu() for grid in grids]

    def to_device(self, rows: Rows) -> dict[str, torch.Tensor]:
        """Copy of the mapping with every tensor on the engine's device."""
        return {name: value.to(self.device, non_blocking=True) for name, value in rows.items()}

    @contextmanager
    def training(self) -> Iterator[None]:
        """Parameters and optimizer state are on the device inside the block."""
        assert self.optimizer is not None, "a frozen reference cannot be trained"
        offload = self.fsdp.optimizer_offload and self.device.type != "cpu"
        with self.loaded():
            if offload:
                move_optimizer_state(self.optimizer, self.device.type)
            yield
            if offload:
                move_optimizer_state(self.optimizer, "cpu")

    def step(self, grad_clip: float) -> tuple[float, bool]:
        """Clip, update and advance the schedule; a non-finite gradient changes no parameter.

        Returns:
            the gradient norm before clipping and whether the parameters were updated.
        """
        assert self.optimizer is not None and self.schedule is not None
        norm = clip_gradients(self.model.parameters(), grad_clip, self.group)
        finite = math.isfinite(norm)
        if finite:
            for group in self.optimizer.param_groups:
                group["lr"] = self.lr
            self.optimizer.step()
        else:
            logger.warning("gradient norm is %s at optimizer step %d: the step is skipped", norm, self.steps)
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        return norm, finite

    def set_total_steps(self, total_steps: int) -> None:
        """Tell the schedule how many optimizer steps the run will take. Raises ValueError when that is not positive."""
        assert self.schedule is not None
        if total_steps < 1:
            raise ValueError(f"total training steps {total_steps}: expected at least 1")
        self.schedule = Schedule(self.schedule.config, total_steps)

    @property
    def lr(self) -> float:
        """Learning rate of the next step."""
        assert self.schedule is not None
        return self.schedule.lr(self.steps)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter whole, one at a time; all ranks walk through it together."""
        with self.loaded():
            yield from full_tensors(self.model)

    def digest(self) -> str:
        """sha256 over names and bits of all parameters."""
        result = hashlib.sha256()
        for name, value in self.weights():
            result.update(name.encode())
            result.update(value.cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return result.hexdigest()
