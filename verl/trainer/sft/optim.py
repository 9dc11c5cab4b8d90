"""Optimizers and the learning-rate schedule of supervised fine-tuning."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel

from verl.trainer.sft.config import SFTOptimConfig
from verl.trainer.sft.muon import Muon


class OptimizerSet:
    """One or two optimizers with a common warm-up and cosine schedule."""

    def __init__(
        self, optimizers: list[torch.optim.Optimizer], config: SFTOptimConfig, total_steps: int
    ) -> None:
        def factor(step: int) -> float:
            warmup = min(1.0, (step + 1) / max(1, config.lr_warmup_steps))
            cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, step / max(1, total_steps))))
            return warmup * (config.min_lr_ratio + (1.0 - config.min_lr_ratio) * cosine)

        self.optimizers = optimizers
        self.schedulers = [LambdaLR(optimizer, factor) for optimizer in optimizers]

    @property
    def lr(self) -> float:
        """Current learning rate of AdamW."""
        return self.optimizers[0].param_groups[0]["lr"]

    def step(self) -> None:
        for optimizer, scheduler in zip(self.optimizers, self.schedulers, strict=True):
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=True)


def build_optimizers(model: PreTrainedModel, config: SFTOptimConfig, total_steps: int) -> OptimizerSet:
    """Return AdamW for all parameters, or Muon for hidden matrices and AdamW for the others (Jordan
    et al. 2024).
    """
    embeddings = {
        id(p) for module in model.modules() if isinstance(module, nn.Embedding) for p in module.parameters()
    }
    head = model.get_output_embeddings()
    if head is not None:
        embeddings |= {id(p) for p in head.parameters()}
    matrices = (
        [p for p in model.parameters() if p.ndim == 2 and id(p) not in embeddings]
        if config.name == "muon"
        else []
    )
    matrix_ids = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in matrix_ids]
    beta1, beta2 = config.betas
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(rest, lr=config.lr, betas=(beta1, beta2), weight_decay=config.weight_decay)
    ]
    if matrices:
        optimizers.append(Muon(matrices, lr=config.muon_lr, weight_decay=config.weight_decay, ns_steps=4))
    return OptimizerSet(optimizers, config, total_steps)
