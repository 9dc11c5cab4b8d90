"""Rows, engines and gradients for the tests of the training engine; also run by the processes of the two-rank test."""

from __future__ import annotations

from pathlib import Path

import torch

from verl.trainer.config import ActorConfig, FSDPConfig, ModelConfig, OptimConfig
from verl.workers.engine import FSDPEngine, MicroBatchRule, UpdatePlan, init_mesh, update_policy

Gradients = dict[str, torch.Tensor]
ONE_PIECE = MicroBatchRule(token_budget=1_000_000, rows=1, packed=True)


def make_rows(count: int, prompt: int = 7, response: int = 6, seed: int = 0) -> dict[str, torch.Tensor]:
    """Rows of mixed lengths; the second response token of each is not the agent's, and the last row is padding."""
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
    }


def make_engine(
    model: Path, *, rank: int = 0, ranks: int = 1, lr: float = 1e-3, optim: OptimConfig | None = None, **options: object
) -> FSDPEngine:
    """An engine on the CPU; `options` are keys of `ModelConfig`."""
    torch.set_num_threads(1)
    config = ModelConfig(path=str(model), **options)  # type: ignore[arg-type]
    return FSDPEngine(config, FSDPConfig(), optim or OptimConfig(lr=lr), init_mesh("cpu", rank, ranks))


def gradients(
    engine: FSDPEngine, rows: dict[str, torch.Tensor], rule: MicroBatchRule = ONE_PIECE, config: ActorConfig | None = None
) -> tuple[Gradients, dict[str, float]]:
    """The whole gradients of one mini-batch, taken before the optimizer step, and the metrics of the update."""
    seen: Gradients = {}
    take_step = engine.step

    def step(grad_clip: float) -> tuple[float, bool]:
        seen.update({name: p.grad.full_tensor().clone() for name, p in engine.model.named_parameters()})
        return take_step(grad_clip)

    engine.step = step  # type: ignore[method-assign]
    metrics = update_policy(engine, config or full_loss(), rows, UpdatePlan(temperature=0.8), rule)
    del engine.step
    return seen, metrics


def full_loss(mode: str = "token-mean") -> ActorConfig:
    """A loss with every term in it."""
    return ActorConfig(loss_agg_mode=mode, entropy_coeff=0.01, use_kl_loss=True, kl_loss_coef=0.1, grad_clip=1e9)


def largest_difference(a: Gradients, b: Gradients) -> float:
    """Largest absolute difference over all parameters."""
    assert a.keys() == b.keys() and a
    return max(float((a[name] - b[name]).abs().max()) for name in a)
