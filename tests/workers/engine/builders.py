"""Rows, engines and gradients for the tests of the training engine; also run by the processes of the two-rank
test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from verl.models.lora import LoraSpec
from verl.models.value_model import VALUE_MODEL, load_value_model
from verl.trainer.config import (
    ActorConfig,
    CriticConfig,
    FSDPConfig,
    ModelConfig,
    OptimConfig,
    RolloutCorrectionConfig,
)
from verl.trainer.config.model import PolicyLossConfig
from verl.trainer.ppo.core_algos import public  # registers every loss
from verl.trainer.ppo.core_algos.policy_losses.preparation import PREPARATIONS
from verl.workers.engine import (
    AdapterPlan,
    FSDPEngine,
    MicroBatchRule,
    StepPlan,
    UpdatePlan,
    init_mesh,
    update_policy,
    update_values,
)
from verl.workers.engine.sharding import full_tensors, value_head

Gradients = dict[str, torch.Tensor]
# Losses that choose tokens by the whole mini-batch, and so by all ranks.
assert public
PREPARED = sorted(PREPARATIONS)
ONE_PIECE = MicroBatchRule(token_budget=1_000_000, rows=1, packed=True)


def make_rows(count: int, prompt: int = 7, response: int = 6, seed: int = 0) -> dict[str, torch.Tensor]:
    """Rows of mixed lengths; the second response token of each is not the agent's, and the last row is
    padding.
    """
    generator = torch.Generator().manual_seed(seed)
    prompt_len = torch.randint(1, prompt + 1, (count, 1), generator=generator)
    response_len = torch.randint(1, response + 1, (count, 1), generator=generator)
    columns = torch.arange(prompt + response)[None]
    attention = ((columns >= prompt - prompt_len) & (columns < prompt + response_len)).long()
    ids = torch.randint(3, 200, (count, prompt + response), generator=generator) * attention
    mask = attention[:, prompt:].clone()
    mask[:, 1] = 0
    mask[-1] = 0
    return {
        "input_ids": ids,
        "attention_mask": attention,
        "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
        "responses": ids[:, prompt:].clone(),
        "response_mask": mask,
        "advantages": torch.randn(count, response, generator=generator),
        "old_log_probs": -5.5 + 0.3 * torch.randn(count, response, generator=generator),
        "ref_log_prob": -5.5 + 0.3 * torch.randn(count, response, generator=generator),
        "values": torch.randn(count, response, generator=generator),
        "returns": torch.randn(count, response, generator=generator),
    }


def make_engine(
    model: Path,
    *,
    rank: int = 0,
    ranks: int = 1,
    lr: float = 1e-3,
    optim: OptimConfig | None = None,
    fsdp: FSDPConfig | None = None,
    device: str = "cpu",
    share_prefixes: bool = True,
    fused_head: bool = True,
    **options: object,
) -> FSDPEngine:
    """An engine; `options` are keys of `ModelConfig`."""
    torch.set_num_threads(1)
    config = ModelConfig(path=str(model), **options)  # type: ignore[arg-type]
    return FSDPEngine(
        config,
        fsdp or FSDPConfig(),
        optim or OptimConfig(lr=lr),
        init_mesh(device, rank, ranks),
        share_prefixes=share_prefixes,
        fused_head=fused_head,
    )


def make_value_engine(
    model: Path,
    *,
    rank: int = 0,
    ranks: int = 1,
    optim: OptimConfig | None = None,
    fsdp: FSDPConfig | None = None,
    **options: object,
) -> FSDPEngine:
    """As `make_engine`, of a value model."""
    torch.set_num_threads(1)
    config = ModelConfig(path=str(model), **options)  # type: ignore[arg-type]
    return FSDPEngine(
        config,
        fsdp or FSDPConfig(),
        optim or OptimConfig(lr=1e-3),
        init_mesh("cpu", rank, ranks),
        VALUE_MODEL,
    )


def save_value_model(model: Path, folder: Path) -> Path:
    """Write a value model whose head is not zero, so that every layer has a gradient; returns the folder."""
    network = load_value_model(str(model), dtype=torch.float32, attn_implementation="eager")
    head = value_head(network)
    assert head is not None
    torch.nn.init.normal_(head.weight, std=0.05, generator=torch.Generator().manual_seed(0))
    network.save_pretrained(folder)
    return folder


def gradients(
    engine: FSDPEngine,
    rows: dict[str, torch.Tensor],
    rule: MicroBatchRule = ONE_PIECE,
    config: ActorConfig | None = None,
    plan: UpdatePlan | None = None,
) -> tuple[Gradients, dict[str, float]]:
    """The whole gradients of one mini-batch, taken before the optimizer step, and the metrics of the
    update.
    """
    return observed(
        engine,
        lambda: update_policy(engine, config or full_loss(), rows, plan or UpdatePlan(temperature=0.8), rule),
    )


def value_gradients(
    engine: FSDPEngine,
    rows: dict[str, torch.Tensor],
    rule: MicroBatchRule = ONE_PIECE,
    mode: str = "token-mean",
) -> tuple[Gradients, dict[str, float]]:
    """As `gradients`, of a value model."""
    config = CriticConfig(loss_agg_mode=mode, grad_clip=1e9)
    return observed(engine, lambda: update_values(engine, config, rows, StepPlan(), rule))


def observed(
    engine: FSDPEngine, update: Callable[[], dict[str, float]]
) -> tuple[Gradients, dict[str, float]]:
    """The whole gradients that an update of one mini-batch made, and its metrics."""
    seen: Gradients = {}
    take_step = engine.step

    def step(grad_clip: float, adapter: str | None = None) -> tuple[float, bool]:
        gradients = {name: p.grad for name, p in engine.trainable_of(adapter).parameters.items()}
        prefix = "" if adapter is None else f"{adapter}/"
        seen.update({prefix + name: value.clone() for name, value in full_tensors(gradients.items())})
        return take_step(grad_clip, adapter)

    engine.step = step  # type: ignore[method-assign]
    metrics = update()
    del engine.step
    return seen, metrics


def full_loss(mode: str = "token-mean") -> ActorConfig:
    """A loss with every term in it."""
    return ActorConfig(loss_agg_mode=mode, entropy_coeff=0.01, kl_loss_coef=0.1, grad_clip=1e9)


def loss_settings(name: str, agg_mode: str = "token-mean") -> tuple[ActorConfig, UpdatePlan]:
    """Config and plan of a policy loss, with a choice of tokens that matters in a few small rows."""
    policy_loss = PolicyLossConfig(
        "vanilla" if name == "bypass_mode" else name,
        clip_cov_ratio=0.2,
        clip_cov_lb=0.0,
        kl_cov_ratio=0.2,
        ppo_kl_coef=1.0,
        dro_beta=0.3,
    )
    correction = RolloutCorrectionConfig(
        bypass_mode=name == "bypass_mode", loss_type="reinforce", rollout_is="token",
        rollout_is_batch_normalize=True,
        rollout_rs="seq_mean_k3", rollout_rs_threshold=0.06, m2po_tau=0.1,
    )  # fmt: skip
    return ActorConfig(loss_agg_mode=agg_mode, policy_loss=policy_loss, grad_clip=1e9), UpdatePlan(
        temperature=0.8, rollout_correction=correction
    )


def settings_of(mode: str) -> tuple[ActorConfig, UpdatePlan] | tuple[ActorConfig]:
    """Config of a `mode` of the two-rank test: a prepared loss, `skipping` rows without advantage, `adaptive`
    mini-batches, `single` rows, or an aggregation mode.
    """
    if mode == "adaptive":
        config = replace(full_loss(), shuffle=False, ppo_mini_update_num=3)
        return config, UpdatePlan(temperature=0.8, num_mini_batches=3)
    if mode == "skipping":
        return (ActorConfig(skip_zero_advantages=True, grad_clip=1e9),)
    return (
        loss_settings(mode) if mode in PREPARED else (full_loss("token-mean" if mode == "single" else mode),)
    )


def largest_difference(a: Gradients, b: Gradients) -> float:
    """Largest absolute difference over all parameters."""
    assert a.keys() == b.keys() and a
    return max(float((a[name] - b[name]).abs().max()) for name in a)


# Two adapters of different rank, layers and learning rate; rank 1 has a layer with one output.
ADAPTERS = {
    "solver": AdapterPlan(LoraSpec(4, 8), OptimConfig(lr=1e-2, lr_scheduler_type="cosine")),
    "verifier": AdapterPlan(LoraSpec(1, 2, ["q_proj", "down_proj"]), OptimConfig(lr=1e-3, weight_decay=0.1)),
}


def make_adapter_engine(
    model: Path,
    names: tuple[str, ...] = tuple(ADAPTERS),
    *,
    rank: int = 0,
    ranks: int = 1,
    lr: float | None = None,
    fsdp: FSDPConfig | None = None,
    start: Path | None = None,
    **options: object,
) -> FSDPEngine:
    """As `make_engine`, with some of `ADAPTERS` on the model, all with the learning rate `lr` if given; the
    solver starts from the adapter in the folder `start`, if given.
    """
    torch.set_num_threads(1)
    config = ModelConfig(path=str(model), **options)  # type: ignore[arg-type]
    plans = {name: ADAPTERS[name] for name in names}
    if lr is not None:
        plans = {name: replace(plan, optim=replace(plan.optim, lr=lr)) for name, plan in plans.items()}
    if start is not None:
        plans["solver"] = replace(plans["solver"], spec=replace(plans["solver"].spec, path=str(start)))
    engine = FSDPEngine(config, fsdp or FSDPConfig(), None, init_mesh("cpu", rank, ranks), adapters=plans)
    engine.set_total_steps(20)
    return engine


def train_adapter(
    engine: FSDPEngine, name: str, rows: dict[str, torch.Tensor], steps: int = 2
) -> dict[str, float]:
    """Optimizer steps of one adapter; the metrics of the last."""
    metrics: dict[str, float] = {}
    with engine.using(name):
        for _ in range(steps):
            config = ActorConfig(entropy_coeff=0.01, kl_loss_coef=0.1, grad_clip=0.5)
            metrics = update_policy(
                engine, config, rows, UpdatePlan(temperature=0.8), MicroBatchRule(None, 2, packed=True)
            )
    return metrics
