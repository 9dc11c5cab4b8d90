"""One sharded language or value model: scores rows, takes optimizer steps, returns its weights."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from verl.models.fused import fuse_norms
from verl.models.loader import CAUSAL_LM, ModelLoader, load_config, persistent_buffers, resolve_dtype
from verl.models.lora import LoraSpec, activate, adapter_layers, adapter_parameters, add_adapters, head_of
from verl.trainer.config import FSDPConfig, OptimConfig, TrainedModelConfig
from verl.workers.engine.chains import longest_rows, members
from verl.workers.engine.forward import INPUT_KEYS, Scores, check_rows, score_tokens, value_tokens
from verl.workers.engine.head_check import choose_head
from verl.workers.engine.head_scores import LogitMap
from verl.workers.engine.layout import RopeState
from verl.workers.engine.layout_check import attention_name, choose_layout
from verl.workers.engine.loading import load_sharded
from verl.workers.engine.micro_batch import MicroBatchRule, plan_micro_batches, same_count
from verl.workers.engine.mixed_adapters import MixedAdapters
from verl.workers.engine.offload import move_optimizer_state, move_parameters, on_device
from verl.workers.engine.sharding import (
    cast_buffers,
    checkpoint_activations,
    free_gathered,
    full_tensors,
    shard_model,
)
from verl.workers.engine.trainable import Trainable
from verl.workers.engine.trie import count_run, logits_share, plan_tries, token_rows

logger = logging.getLogger(__name__)
Rows = Mapping[str, torch.Tensor]


def select(rows: Rows, index: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the rows at `index` of every tensor."""
    return {name: value[index] for name, value in rows.items()}


@dataclass(frozen=True)
class AdapterPlan:
    """One adapter of an engine: its shape, and how it is trained."""

    spec: LoraSpec
    optim: OptimConfig


class FSDPEngine:
    """A sharded model with its optimizer and schedule (none if it is a frozen reference), or with
    adapters that have one each.

    With adapters the model itself is frozen; `using` selects the adapter that is scored and
    trained, and outside of it the base is scored.

    Attributes:
        mixes_adapters: rows of several adapters can run in one pass, see `mixing`.

    Args:
        model: path of the model, and how its rows are run.
        fsdp: dtypes, offload and resharding.
        optim: None makes a frozen model; not read with adapters.
        mesh: one-dimensional mesh of the worker group.
        loader: the kind of model: `CAUSAL_LM` for `score`, `VALUE_MODEL` for `value`.
        adapters: by name.
        seed: of the adapters' initial weights.
        share_prefixes: run tokens that rows of a micro-batch have in common once, where that is
            exact.
        fused_head: compute scores in the head, where that is exact, instead of from whole logits.

    Raises:
        ModelPathError: the model cannot be loaded.
        LoraTargetError: an adapter does not fit the model.
        ValueError: an unknown dtype, attention or schedule name, or an architecture that cannot be
            packed.
    """

    def __init__(
        self,
        model: TrainedModelConfig,
        fsdp: FSDPConfig,
        optim: OptimConfig | None,
        mesh: DeviceMesh,
        loader: ModelLoader = CAUSAL_LM,
        adapters: Mapping[str, AdapterPlan] | None = None,
        seed: int = 0,
        share_prefixes: bool = True,
        fused_head: bool = True,
    ) -> None:
        self.mesh = mesh
        self.group = mesh.get_group()
        self.device = torch.device(mesh.device_type)
        self.fsdp = fsdp
        plans = dict(adapters or {})
        trained = optim is not None or bool(plans)
        compute_dtype = resolve_dtype(fsdp.dtype, mesh.device_type)
        config = load_config(model.path, trust_remote_code=model.trust_remote_code)
        self.logit_map: LogitMap | None = None
        if fused_head and loader is CAUSAL_LM:
            self.logit_map = choose_head(config, [plan.spec for plan in plans.values()]).logit_map
        # Tiles of logits, or a head with one output, need no room that grows with the tokens.
        whole = loader is CAUSAL_LM and self.logit_map is None
        self._logits_share = logits_share(config) if whole else 0.0
        self.layout = choose_layout(
            config,
            use_remove_padding=model.use_remove_padding,
            attention=model.attn_implementation,
            device=mesh.device_type,
            dtype=compute_dtype,
            share_prefixes=share_prefixes,
            values=loader is not CAUSAL_LM,
        ).layout
        arguments: dict[str, Any] = {
            "dtype": resolve_dtype(fsdp.model_dtype, mesh.device_type),
            "attn_implementation": attention_name(self.layout),
            "trust_remote_code": model.trust_remote_code,
        }

        def make(network: Any) -> Any:
            specs = {name: plan.spec for name, plan in plans.items()}
            return add_adapters(network, specs, model.path, seed) if plans else network

        def shard(network: Any) -> Any:
            fuse_norms(network)
            # ratios compare equal networks: nothing is dropped or drawn at random
            network.eval()
            if not trained:
                network.requires_grad_(False)
            elif model.enable_gradient_checkpointing:
                checkpoint_activations(network)
            if compute_dtype != arguments["dtype"]:
                with torch.device("meta"):
                    cast_buffers(network, loader.build(model.path, **arguments | {"dtype": compute_dtype}))
            return shard_model(network, mesh, compute_dtype, fsdp.reshard_after_forward)

        self.model = load_sharded(
            lambda: make(loader.load(model.path, **arguments)),
            lambda: make(loader.build(model.path, **arguments)),
            shard,
            mesh,
        )
        self._ropes = RopeState(self.model)
        self._adapter_layers = adapter_layers(self.model) if plans else []
        self._mixed = MixedAdapters(self._adapter_layers)
        self.mixes_adapters = len(plans) > 1 and self._can_mix(config)
        self.adapters: dict[str, Trainable] = {
            name: Trainable(adapter_parameters(self.model, name), plan.optim) for name, plan in plans.items()
        }
        self._whole = (
            Trainable(dict(self.model.named_parameters()), optim) if optim is not None and not plans else None
        )
        self._adapter: str | None = None
        self._offload()

    def _can_mix(self, config: Any) -> bool:
        """Return whether rows of several adapters can run in one pass; if not, log why."""
        from verl.workers.engine.mixed_check import mixing_problem  # of several adapters alone

        # It is called with some of the tokens.
        of_head = head_of(self.model) in self._adapter_layers
        problem = "the head has adapters" if of_head else mixing_problem(config, self.layout)
        if problem and self.mesh.get_rank() == 0:
            logger.warning("the adapters of %s run one after the other: %s", config.model_type, problem)
        return not problem

    @contextmanager
    def using(self, adapter: str | None) -> Iterator[None]:
        """Score and train this adapter inside the block; with None the base, or the model if there
        are no adapters.

        Raises ValueError for an adapter that the engine does not have.
        """
        if adapter is not None and adapter not in self.adapters:
            raise ValueError(
                f"no adapter {adapter!r} in this engine; it has {sorted(self.adapters) or 'none'}"
            )
        before = self._adapter
        self._select(adapter)
        try:
            yield
        finally:
            self._select(before)

    def _select(self, adapter: str | None) -> None:
        # Gathered parameters are those of all adapters, so they stay.
        if adapter != self._adapter:
            activate(self._adapter_layers, adapter)
            self._adapter = adapter

    @contextmanager
    def mixing(self, adapters: Sequence[str]) -> Iterator[None]:
        """Score rows with a column `part` `[bsz]` inside the block: those of part i under
        `adapters[i]`.
        """
        with self.using(None), self._mixed.of(adapters):
            yield

    def connect(self, parts: Collection[int]) -> None:
        """Give the adapters of these parts a gradient in every backward pass while `mixing`, zero
        without tokens; needed where several ranks reduce gradients.
        """
        self._mixed.connected = frozenset(parts) if self.mesh.size() > 1 else frozenset()

    @property
    def trainables(self) -> list[Trainable]:
        """The trained model, the adapters, or an empty list."""
        return [self._whole] if self._whole is not None else list(self.adapters.values())

    @property
    def trainable(self) -> Trainable:
        """The model or adapter that is currently trained. Raises RuntimeError when there is none."""
        trainable = self._whole if self._adapter is None else self.adapters[self._adapter]
        if trainable is None:
            raise RuntimeError("the base of adapters and a frozen reference cannot be trained")
        return trainable

    def trainable_of(self, adapter: str | None) -> Trainable:
        """The trainable of an adapter, or else `trainable`."""
        return self.trainable if adapter is None else self.adapters[adapter]

    def _offload(self) -> None:
        # Everything is on the CPU already.
        if self.device.type == "cpu":
            return
        if self.fsdp.param_offload:
            move_parameters(self.model, "cpu")
        if self.fsdp.optimizer_offload:
            for trainable in self.trainables:
                move_optimizer_state(trainable.optimizer, "cpu")

    @contextmanager
    def loaded(self) -> Iterator[None]:
        """Keep parameters on the device inside the block, and free gathered copies after it."""
        with on_device(self.model, self.device.type, self.fsdp.param_offload):
            yield
            free_gathered(self.model)

    def lengths(self, rows: Rows) -> list[int]:
        """Return the number of tokens of each row that the model runs."""
        return rows["attention_mask"].sum(dim=1).tolist()

    def micro_batches(self, rows: Rows, rule: MicroBatchRule) -> list[dict[str, torch.Tensor]]:
        """Split rows into micro-batches, with empty ones added so that all ranks have as many.

        Where tokens are shared, the rule counts those that the model runs.
        """
        groups = self.layout.groups(self.lengths(rows))
        plan = [micro for group in groups for micro in self._planned(rows, group, rule)]
        plan += [[]] * (same_count(len(plan), self.group, self.device) - len(plan))
        return [select(rows, torch.tensor(index, dtype=torch.long, device=self.device)) for index in plan]

    def _planned(self, rows: Rows, group: Sequence[int], rule: MicroBatchRule) -> list[list[int]]:
        """Return the micro-batches of the rows at these indices."""
        some = select(rows, torch.tensor(group, dtype=torch.long, device=self.device))
        if self.layout.sharing == "trie":
            scored = some["response_mask"].sum(dim=1).tolist()
            plan = plan_tries(token_rows(some), scored, rule.token_budget, rule.rows, self._logits_share)
            return [[group[row] for row in micro] for micro in plan]
        lengths = self.lengths(some)
        # Rows that begin others are in the micro-batch of these.
        together = (
            members(longest_rows(some))
            if self.layout.sharing == "chains"
            else {row: [row] for row in range(len(group))}
        )
        hosts = list(together)
        plan = plan_micro_batches([lengths[row] for row in hosts], rule)
        return [[group[row] for host in micro for row in together[hosts[host]]] for micro in plan]

    def shared_tokens(self, micros: Sequence[Rows]) -> float:
        """Return the share of the tokens of some micro-batches that are not run, because rows share
        them.
        """
        if self.layout.sharing == "none":
            return 0.0
        tokens = run = 0
        for micro in micros:
            if self.layout.sharing == "trie":
                paths = token_rows(micro)
                tokens += sum(map(len, paths))
                run += count_run(paths)
            elif len(micro["attention_mask"]):
                lengths = self.lengths(micro)
                tokens += sum(lengths)
                run += sum(lengths[host] for host in set(longest_rows(micro)))
        return 1.0 - run / tokens if tokens else 0.0

    def score(
        self,
        rows: Rows,
        temperature: float | torch.Tensor,
        sum_pi_squared: bool = False,
        entropy_gradient: bool = True,
    ) -> Scores:
        """Score one micro-batch on the device; see `score_tokens`."""
        self._ropes.reset()
        return score_tokens(
            self.model,
            rows,
            temperature,
            self.layout,
            sum_pi_squared,
            logit_map=self.logit_map,
            entropy_gradient=entropy_gradient,
            use_runs=self._mixed.use if self._mixed.active else None,
        )

    def value(self, rows: Rows) -> torch.Tensor:
        """Return the values of one micro-batch on the device; see `value_tokens`."""
        self._ropes.reset()
        return value_tokens(self.model, rows, self.layout)

    def score_all(
        self,
        rows: Rows,
        temperature: float | torch.Tensor,
        rule: MicroBatchRule,
        sum_pi_squared: bool = False,
    ) -> Scores:
        """Score any number of rows without gradients; see `_on_all`."""

        def score(micro: Rows) -> tuple[torch.Tensor, ...]:
            scores = self.score(micro, temperature, sum_pi_squared)
            score_tensors = (scores.log_probs, scores.entropy, scores.sum_pi_squared)
            return tuple(score for score in score_tensors if score is not None)

        return Scores(*self._on_all(rows, rule, score, 3 if sum_pi_squared else 2))

    def value_all(self, rows: Rows, rule: MicroBatchRule) -> torch.Tensor:
        """Return the values of any number of rows without gradients; see `_on_all`."""
        return self._on_all(rows, rule, lambda micro: (self.value(micro),), 1)[0]

    @torch.no_grad()
    def _on_all(
        self, rows: Rows, rule: MicroBatchRule, run: Callable[[Rows], tuple[torch.Tensor, ...]], count: int
    ) -> list[torch.Tensor]:
        """Run rows in micro-batches; rows without a response token are not run, and their results
        are zero.

        Returns:
            `count` tensors `[bsz, response_len]` in the order of the rows, on the CPU.
        """
        real = rows["response_mask"].bool().any(dim=1).nonzero().squeeze(1)
        columns = (*INPUT_KEYS, "part") if "part" in rows else INPUT_KEYS
        rows_with_response = self.to_device({name: rows[name][real] for name in columns})
        check_rows(rows_with_response)
        rows_with_response["row"] = real.to(self.device)
        grids = [torch.zeros(rows["response_mask"].shape, device=self.device) for _ in range(count)]
        with self.loaded():
            for micro in self.micro_batches(rows_with_response, rule):
                for grid, result in zip(grids, run(micro), strict=True):
                    grid[micro["row"]] = result
        return [grid.cpu() for grid in grids]

    def to_device(self, rows: Rows) -> dict[str, torch.Tensor]:
        """Return a copy of the mapping with every tensor on the engine's device."""
        return {name: value.to(self.device, non_blocking=True) for name, value in rows.items()}

    @contextmanager
    def training(self, adapters: Sequence[str] = ()) -> Iterator[None]:
        """Keep parameters and the optimizer state of these adapters, or else of `trainable`, on the
        device inside the block.
        """
        trainables = [self.adapters[name] for name in adapters] or [self.trainable]
        with self.loaded(), self.optimizers_loaded(trainables):
            yield

    @contextmanager
    def optimizers_loaded(self, trainables: Sequence[Trainable]) -> Iterator[None]:
        """Keep the optimizer state of these trainables on the device inside the block."""
        offload = self.fsdp.optimizer_offload and self.device.type != "cpu"
        for trainable in trainables if offload else ():
            move_optimizer_state(trainable.optimizer, self.device.type)
        try:
            yield
        finally:
            for trainable in trainables if offload else ():
                move_optimizer_state(trainable.optimizer, "cpu")

    def step(self, grad_clip: float, adapter: str | None = None) -> tuple[float, bool]:
        """Take one optimizer step of an adapter, or else of `trainable`; see `Trainable.step`."""
        return self.trainable_of(adapter).step(grad_clip, self.group)

    def set_total_steps(self, total_steps: int) -> None:
        """Set the total number of optimizer steps of every schedule. Raises ValueError when it is
        not positive.
        """
        for trainable in self.trainables:
            trainable.set_total_steps(total_steps)

    @property
    def steps(self) -> int:
        """Number of optimizer steps of `trainable` so far."""
        return self.trainable.steps

    def weights(self, adapter: str | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor of the model's checkpoint unsharded, or those of an adapter under
        PEFT's names, one at a time.

        All ranks must iterate together.
        """
        with self.loaded():
            if adapter is not None:
                yield from full_tensors(self.adapters[adapter].parameters.items())
                return
            yield from full_tensors(self.model.named_parameters())
            yield from self.buffers.items()

    @property
    def buffers(self) -> dict[str, torch.Tensor]:
        """The buffers that belong to a checkpoint of the model, by name; they are not trained."""
        return persistent_buffers(self.model)

    def digest(self) -> str:
        """Return the sha256 over names and bytes of all parameters and of the buffers of a
        checkpoint.
        """
        result = hashlib.sha256()
        for name, value in self.weights():
            result.update(name.encode())
            result.update(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return result.hexdigest()
