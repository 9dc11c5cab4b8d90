"""What a run needs of the machine's memory, before it starts: counted on the run's own models,
beside what the machine has.

Budgets of micro-batches that are not set become the largest that fit, up to `MOST_TOKENS`; gradient
checkpointing is turned on where the longest row does not fit without, and an engine whose slots are
not set has fewer of them where their cache does not fit. A run that cannot fit is refused with the
keys that would do.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from verl.models.fingerprint import once_per_configuration
from verl.models.loader import CAUSAL_LM, load_config, resolve_dtype
from verl.models.lora import LoraSpec, lora_spec
from verl.trainer.config import (
    ActorRolloutRefConfig,
    CriticConfig,
    RayInitConfig,
    RunConfig,
    TrainerConfig,
)
from verl.trainer.config.spec import ConfigError
from verl.trainer.plan.groups import GroupPlan
from verl.trainer.plan.placement import Placement
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.controller import cluster_address
from verl.utils.host_memory import free_memory
from verl.utils.names import error_line
from verl.workers.engine.activation_memory import Shape, TrainingMemory
from verl.workers.engine.head_check import choose_head
from verl.workers.engine.head_scores import LogitMap
from verl.workers.engine.layout import RowLayout
from verl.workers.engine.layout_check import choose_layout
from verl.workers.engine.micro_batch import MOST_TOKENS

logger = logging.getLogger(__name__)

GIB = 2**30
# As `MOST_TOKENS`, of passes without gradients.
MOST_SCORED_TOKENS = 32768
# Share of the memory that a run may plan with: allocators do not return all that was freed.
SHARE = 0.9
# What a process with torch, transformers and Ray holds before its model is loaded: 470 MiB, measured.
WORKER_BYTES = 640 * 2**20
# A micro-batch whose budget is not set takes at most so much, unless its longest row takes more.
PASS_BYTES = GIB
# Bytes per number of sampling: logits of slots and of prompts, scaled, as log-probs and as
# probabilities in fp32, their sums in fp64.
SAMPLING_BYTES = 28
ADAM_STATES = 2
TRIALS = 2
FP32 = 4
ACTOR = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
CHECKPOINTING = "actor_rollout_ref.model.enable_gradient_checkpointing"
CHECK = "trainer.checks=[engines]"
SLOTS = "actor_rollout_ref.rollout.max_num_seqs"


@dataclass(frozen=True)
class GroupMemory:
    """Bytes of one worker group on one device, and of its largest passes.

    Attributes:
        weights: of the trainer, with adapters and the reference.
        optimizer: its states.
        gradients: of one optimizer step.
        engine: weights of the engine.
        cache: keys and values, logits and sampling of the engine, and on a CPU packed weights; freed
            while policies are updated.
        one_pass: of the largest micro-batch.
        tokens: budget of a micro-batch.
        checkpointing: activations are recomputed.
    """

    weights: int
    optimizer: int
    gradients: int
    engine: int
    cache: int
    one_pass: int
    tokens: int
    checkpointing: bool

    @property
    def resident(self) -> int:
        """Bytes that stay for the whole run."""
        return self.weights + self.optimizer + self.engine

    @property
    def transient(self) -> int:
        """Bytes of the larger of training and sampling, which alternate."""
        return max(self.gradients + self.one_pass, self.cache)


def plan_memory(config: RunConfig, plan: RunPlan, device: str) -> None:
    """Set the budgets that are not set, print the plan, and check that it fits.

    Args:
        config: of the run; values of None are replaced, in the plan too.
        plan: plan of the run.
        device: cpu or cuda, of the workers.

    Raises:
        ConfigError: the run does not fit, with the keys that would do and what each would need.
    """
    trained = [] if config.trainer.val_only else [group for group in plan.groups if group.trained]
    if unseen := _unseen(config.trainer, config.ray_init, device):
        _fill(config.actor_rollout_ref, config.critic, plan, [])
        logger.info(
            "memory: not counted (%s); micro-batches have up to %s tokens unless %s is set",
            unseen,
            f"{MOST_TOKENS:,}",
            ACTOR,
        )
        return
    free = free_memory()
    processes = _processes(config.trainer, plan)
    base = psutil.Process().memory_info().rss
    # A worker is a new process: it has imported as much as this one, but gathered nothing.
    held_bytes = base + min(base, WORKER_BYTES) * (processes - 1)
    usable = int(SHARE * (free + base))
    room = usable - held_bytes
    models = [_Model(plan, group, device) for group in trained]
    models = [model for model in models if model.is_counted()]
    if models and room <= 0:
        raise ConfigError(
            f"{processes} processes take {held_bytes / GIB:.2f} GiB before a model is loaded, and the run "
            f"can have {usable / GIB:.2f}; use fewer ranks (trainer.nnodes, trainer.n_gpus_per_node), "
            f"trainer.controller=local, or a machine with more memory ({CHECK} starts)"
        )
    for number, model in enumerate(models):
        others = [other.fixed() for other in models if other is not model]
        reserved_bytes = sum(other.resident for other in others)
        # groups in processes of their own may be busy at the same time
        if processes > 1:
            reserved_bytes += sum(earlier_model.memory.transient for earlier_model in models[:number])
        model.choose(room - reserved_bytes)
    _fill(config.actor_rollout_ref, config.critic, plan, models)
    if models:
        _report(models, held_bytes, free + base)


def _unseen(trainer: TrainerConfig, ray_init: RayInitConfig, device: str) -> str:
    """Return why the memory of a run is not counted; empty if it is."""
    if "memory" not in trainer.checks:
        return CHECK
    # the driver may have no GPU, and a context of its own would take memory of the one that it has
    if device != "cpu":
        return "on GPUs"
    if trainer.controller == "ray" and cluster_address(ray_init) is not None:
        return "on a cluster, whose nodes the driver does not see"
    return ""


def _processes(trainer: TrainerConfig, plan: RunPlan) -> int:
    """Return the number of processes with a model on the fullest machine; with one controller
    process it is that one.
    """
    if trainer.controller == "local":
        return 1
    policies = sum(group.devices.ranks for group in plan.groups if group.devices is not None)
    return 1 + policies + sum(group.engine_devices.ranks for group in plan.groups)


@once_per_configuration
def _training_memory(
    network: Any,
    path: str,
    layout: RowLayout,
    dtype: torch.dtype,
    adapters: tuple[tuple[str, LoraSpec], ...],
    checkpointing: bool,
    trust_remote_code: bool,
    logit_map: LogitMap | None,
    entropy_gradient: bool,
) -> TrainingMemory:
    """Return the memory of a model's training passes, which keeps what it has counted; groups of
    one model share it.
    """
    return TrainingMemory(
        path,
        CAUSAL_LM,
        layout,
        dtype=dtype,
        adapters=dict(adapters),
        checkpointing=checkpointing,
        trust_remote_code=trust_remote_code,
        logit_map=logit_map,
        entropy_gradient=entropy_gradient,
    )


class _Model:
    """The memory of one trained worker group, and the choice of what is not set."""

    def __init__(self, plan: RunPlan, group: GroupPlan, device: str) -> None:
        assert group.devices is not None, "it is trained"
        self.group = group
        self.config = group.config
        self.longest = group.max_model_len
        self._ranks = group.devices.ranks
        self._device = device
        self._critic = group.wg_id in plan.critics
        self._reference = not group.adapters and any(plan.policies[name].reference for name in group.policies)
        self._dtype = resolve_dtype(self.config.actor.fsdp_config.dtype, device)
        self.slots = self.config.rollout.slots
        self._usual_slots = self.slots
        self.memory = GroupMemory(0, 0, 0, 0, 0, 0, 0, False)
        self._counted: dict[bool, TrainingMemory] = {}
        self._network = load_config(
            self.config.model.path, trust_remote_code=self.config.model.trust_remote_code
        )

    def _training(self, checkpointing: bool) -> TrainingMemory:
        if checkpointing not in self._counted:
            model = self.config.model
            layout = choose_layout(
                self._network,
                use_remove_padding=model.use_remove_padding,
                attention=model.attn_implementation,
                device=self._device,
                dtype=self._dtype,
                share_prefixes=self.config.actor.use_prefix_grouper,
            ).layout
            adapters = tuple(
                (name, lora_spec(adapter_config.model))
                for name, adapter_config in self.group.adapters.items()
            )
            logit_map = None
            if model.use_fused_kernels:
                logit_map = choose_head(self._network, [spec for _, spec in adapters]).logit_map
            self._counted[checkpointing] = _training_memory(
                self._network,
                str(model.path),
                layout,
                self._dtype,
                adapters,
                checkpointing,
                model.trust_remote_code,
                logit_map,
                # a pass of several adapters has the gradient as soon as one of them wants it
                any(one.actor.entropy_coeff for one in self.group.adapters.values() or [self.config]),
            )
        return self._counted[checkpointing]

    def fixed(self) -> GroupMemory:
        """Return what does not depend on the budget of a micro-batch."""
        training = self._training(bool(self.config.model.enable_gradient_checkpointing))
        master = resolve_dtype(self.config.actor.fsdp_config.model_dtype, self._device).itemsize
        adapters = len(self.group.adapters)
        adapter_numbers = training.trained if adapters else 0
        trained = training.trained * max(1, adapters)
        copies = 1 + self._reference + self._critic
        weights = (training.parameters * copies + adapter_numbers * adapters) * master
        optimizer = (trained + self._critic * training.parameters) * ADAM_STATES * FP32
        rollout = self.config.rollout
        numbers = resolve_dtype(rollout.dtype, self._device).itemsize
        engine = (training.parameters + adapter_numbers * adapters) * numbers
        text = self._network.get_text_config()
        cache = self._cache(text, numbers) + self.slots * int(text.vocab_size) * SAMPLING_BYTES
        if self._device == "cpu" and rollout.name == "hf":
            # weights in another order, for products
            cache += training.parameters * numbers
        gradients = training.trained * FP32 // self._ranks
        return GroupMemory(
            weights // self._ranks, optimizer // self._ranks, gradients, engine, cache, 0, 0, False
        )

    def _cache(self, text: Any, numbers: int) -> int:
        heads = getattr(text, "num_key_value_heads", None) or getattr(text, "num_attention_heads", 1)
        size = getattr(text, "head_dim", None) or text.hidden_size // getattr(text, "num_attention_heads", 1)
        return 2 * text.num_hidden_layers * heads * size * numbers * self.longest * self.slots

    @property
    def has_fewer_slots(self) -> bool:
        """Return whether the engine has fewer slots than it would have on a larger machine."""
        return self.slots < self._usual_slots

    def _set_sizes(self) -> tuple[int | None, int | None]:
        """Return the tokens and the rows of a micro-batch that are set."""
        actor = self.config.actor
        rows = actor.ppo_micro_batch_size_per_gpu
        return (actor.ppo_max_token_len_per_gpu, None) if rows is None else (None, rows)

    def _largest_shape(self) -> Shape:
        """Return the largest micro-batch that the run may have."""
        tokens, rows = self._set_sizes()
        return self._shape(tokens or MOST_TOKENS) if rows is None else self._of_rows(rows)

    def is_counted(self) -> bool:
        """Return whether a pass of the model can be counted; a line says so if not."""
        try:
            self.fixed()
            self._training(bool(self.config.model.enable_gradient_checkpointing)).of_pass(
                self._largest_shape()
            )
        except Exception as error:
            # code of any model may raise anything, and some operations need numbers
            reason = error_line(error)
            logger.warning(
                "memory: a pass of %s cannot be counted (%s): micro-batches have up to %s tokens "
                "unless %s is set",
                self.config.model.path,
                reason,
                f"{MOST_TOKENS:,}",
                ACTOR,
            )
            return False
        return True

    def choose(self, room: int) -> None:
        """Set `memory` to the plan with the largest budget that fits into `room` bytes. Raises
        ConfigError if none does.
        """
        fixed = self.fixed()
        while (
            self.config.rollout.max_num_seqs is None
            and self.slots > 1
            and fixed.resident + fixed.cache > room
        ):
            self.slots //= 2
            fixed = self.fixed()
        left = room - fixed.resident - fixed.gradients - self._gathered()
        token_budget, rows = self._set_sizes()
        shape_limit = self._largest_shape()
        least = shape_limit if rows is not None or token_budget is not None else self._of_rows(1)
        checkpointing = self.config.model.enable_gradient_checkpointing
        for option in (False, True) if checkpointing is None else (bool(checkpointing),):
            counted = self._training(option)
            if counted.of_pass(least) > left:
                continue  # not even the shortest micro-batch
            # a larger one saves no time on a CPU, whose caches hold less anyway
            shape = self._largest(counted, least, shape_limit, min(left, PASS_BYTES)) or least
            tokens = max(shape.tokens, token_budget or 0)
            self.memory = _with(
                fixed,
                counted.of_pass(shape) + self._gathered(),
                tokens if shape is not shape_limit else token_budget or MOST_TOKENS,
                option,
            )
            break
        if not self.memory.tokens or fixed.resident + fixed.cache > room:
            raise ConfigError(self._refusal(fixed, room, least))

    def _gathered(self) -> int:
        """Return the bytes of the whole parameters in a pass: of one rank FSDP2 frees none of them
        before its end. It is not used where they are trained in the dtype in which they are kept.
        """
        if self._ranks > 1 or self._dtype == resolve_dtype(
            self.config.actor.fsdp_config.model_dtype, self._device
        ):
            return 0
        return self._training(False).parameters * self._dtype.itemsize

    def _shape(self, tokens: int) -> Shape:
        """Return as many of the longest rows as the budget holds, at least one."""
        return self._of_rows(max(1, tokens // self.longest))

    def _of_rows(self, rows: int) -> Shape:
        reply = min(self.config.rollout.response_length or self.longest // 2, self.longest - 1)
        return Shape(rows, self.longest - reply, reply)

    def _largest(self, counted: TrainingMemory, least: Shape, shape_limit: Shape, left: int) -> Shape | None:
        """Return the largest shape from `least` to `shape_limit` that fits, or None; one pass is
        counted where all fits.
        """
        if counted.of_pass(shape_limit) <= left:
            return shape_limit
        if least == shape_limit or counted.of_pass(least) > left:
            return None
        low = least
        high = shape_limit
        for _ in range(TRIALS):  # the bytes are nearly linear in the rows
            slope = (counted.of_pass(high) - counted.of_pass(low)) / (high.rows - low.rows)
            rows = low.rows + int((left - counted.of_pass(low)) / slope)
            if not low.rows < rows < high.rows:
                break
            middle = self._of_rows(rows)
            if counted.of_pass(middle) <= left:
                low = middle
            else:
                high = middle
        return low

    def _refusal(self, fixed: GroupMemory, room: int, least: Shape) -> str:
        """Return one line with what the group needs, and the keys that would do."""
        one = self._of_rows(1)
        slots = self.slots

        def total(shape: Shape, checkpointing: bool, share: float) -> float:
            one_pass = self._training(checkpointing).of_pass(shape) + self._gathered()
            return (fixed.resident + max(fixed.gradients + one_pass, int(fixed.cache * share))) / GIB

        options = {
            f"{ACTOR}={one.tokens}": total(one, False, 1.0),
            f"{ACTOR}={one.tokens} {CHECKPOINTING}=true": total(one, True, 1.0),
            f"{SLOTS}={max(1, slots // 8)} {ACTOR}={one.tokens} {CHECKPOINTING}=true": total(
                one, True, 0.125
            ),
        }
        if not self.group.adapters:
            with_adapters = total(one, True, 0.125) - (fixed.optimizer + fixed.gradients) / GIB
            options[f"agent.specialization=lora {SLOTS}={max(1, slots // 8)} {ACTOR}={one.tokens}"] = (
                with_adapters
            )
        fitting = [f"{keys} ({size:.2f} GiB)" for keys, size in options.items() if size * GIB <= room]
        needed = total(least, bool(self.config.model.enable_gradient_checkpointing), 1.0)
        return (
            f"model {self.config.model.path}: the run needs {needed:.2f} GiB and can have "
            f"{max(0, room) / GIB:.2f} GiB; "
            + (
                f"these would do: {'; '.join(fitting)}"
                if fitting
                else f"use a smaller model, or a machine with more memory ({CHECK} starts)"
            )
        )


def _with(fixed: GroupMemory, one_pass: int, tokens: int, checkpointing: bool) -> GroupMemory:
    values = (fixed.weights, fixed.optimizer, fixed.gradients, fixed.engine, fixed.cache)
    return GroupMemory(*values, one_pass, tokens, checkpointing)


def _configs(
    actor_rollout_ref: ActorRolloutRefConfig, placement: Placement
) -> Iterator[ActorRolloutRefConfig]:
    yield actor_rollout_ref
    for group in placement.groups:
        yield from (group.config, *group.adapters.values())
    rows = [*placement.agents, *([] if placement.reward_model is None else [placement.reward_model])]
    yield from (row.config for row in rows)


def _fill(
    actor_rollout_ref: ActorRolloutRefConfig,
    critic: CriticConfig,
    plan: RunPlan,
    models: list[_Model],
) -> None:
    """Write the chosen values where none is set."""
    tokens = min((model.memory.tokens for model in models), default=MOST_TOKENS)
    scored = MOST_SCORED_TOKENS if tokens >= MOST_TOKENS else tokens
    slots = min((model.slots for model in models if model.config.rollout.max_num_seqs is None), default=None)
    for model_config in _configs(actor_rollout_ref, plan):
        if model_config.rollout.max_num_seqs is None:
            model_config.rollout.max_num_seqs = slots or model_config.rollout.slots
        if model_config.actor.ppo_max_token_len_per_gpu is None:
            model_config.actor.ppo_max_token_len_per_gpu = tokens
        if model_config.rollout.log_prob_max_token_len_per_gpu is None:
            model_config.rollout.log_prob_max_token_len_per_gpu = scored
        if model_config.ref.log_prob_max_token_len_per_gpu is None:
            model_config.ref.log_prob_max_token_len_per_gpu = scored
        if model_config.model.enable_gradient_checkpointing is None:
            model_config.model.enable_gradient_checkpointing = any(
                model.memory.checkpointing for model in models
            )
    for critic_config in (critic, *(group.critic for group in plan.groups)):
        if critic_config.ppo_max_token_len_per_gpu is None:
            critic_config.ppo_max_token_len_per_gpu = scored
        if critic_config.model.enable_gradient_checkpointing is None:
            critic_config.model.enable_gradient_checkpointing = (
                actor_rollout_ref.model.enable_gradient_checkpointing
            )


def _report(models: list[_Model], base: int, free: int) -> None:
    memories = [model.memory for model in models]
    transient = max(memory.transient for memory in memories)
    total = base + sum(memory.resident for memory in memories) + transient
    figures = {
        "processes": base,
        "weights": sum(memory.weights for memory in memories),
        "optimizer": sum(memory.optimizer for memory in memories),
        "engines": sum(memory.engine for memory in memories),
        "cache": max(memory.cache for memory in memories),
        "gradients": max(memory.gradients for memory in memories),
        "a micro-batch": max(memory.one_pass for memory in memories),
    }
    logger.info(
        "memory: up to %.2f of %.1f GiB: %s; micro-batches of %s tokens%s%s",
        total / GIB,
        free / GIB,
        ", ".join(f"{name} {value / GIB:.2f}" for name, value in figures.items() if value),
        " and ".join(sorted({f"{memory.tokens:,}" for memory in memories})),
        ", gradient checkpointing" if any(memory.checkpointing for memory in memories) else "",
        "".join(
            f", {slots} replies at once" for slots in sorted({m.slots for m in models if m.has_fewer_slots})
        ),
    )
