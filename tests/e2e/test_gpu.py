"""Engines and runs on CUDA GPUs; skipped where there are none.

In fp32 log-probs are within 1e-4 of those on a CPU. In bf16, whose numbers have 8 significant bits, probabilities of sampled tokens are
within 2e-2 of them on average.
"""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.devices import needs_gpus
from tests.e2e.conftest import Run, read_metrics
from tests.workers.rollout.conftest import EVERYONE, SPECS, all_of, peft_model, request, tensors_of, tiny_model
from verl.models.lora import select_adapter
from verl.protocol.generate import GenerateRequest, Generation
from verl.trainer.config import ActorRolloutRefConfig, ModelConfig, RolloutConfig
from verl.workers.rollout.server import build_engine

pytestmark = pytest.mark.timeout(1200)
HEAD_DIM = 64
FP32 = {"actor_rollout_ref.actor.fsdp_config.dtype": "fp32", "actor_rollout_ref.rollout.dtype": "fp32"}
GPU = {"trainer.device": "cuda", "trainer.num_threads": 0, "actor_rollout_ref.rollout.num_threads": 0}


def log_probs(model: torch.nn.Module, requests: list[GenerateRequest], replies: list[Generation]) -> tuple[torch.Tensor, torch.Tensor]:
    """Of all tokens of the replies: the engine's, and those of PEFT's own forward pass on the CPU."""
    found, expected = [], []
    for req, reply in zip(requests, replies, strict=True):
        select_adapter(model, req.adapter)
        with torch.no_grad():
            logits = model(torch.tensor([req.prompt_ids + reply.token_ids])).logits[0, len(req.prompt_ids) - 1 : -1]
        expected.append(torch.log_softmax(logits.float(), -1).gather(-1, torch.tensor(reply.token_ids)[:, None])[:, 0])
        found.append(torch.tensor(reply.log_probs))
    return torch.cat(found), torch.cat(expected)


def rounded(model: torch.nn.Module, dtype: str) -> torch.nn.Module:
    """The model with weights as an engine of this dtype holds them."""
    return copy.deepcopy(model).bfloat16().float() if dtype == "bf16" else model


@needs_gpus(1)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["hf", "vllm"])
async def test_base_and_adapters_in_one_batch_agree_with_peft_before_and_after_an_update(name: str, dtype: str, tmp_path: Path) -> None:
    if name == "vllm":
        pytest.importorskip("vllm")
    tiny_model(0, HEAD_DIM).save_pretrained(tmp_path / "model")
    adapters = {
        key: ActorRolloutRefConfig(
            model=ModelConfig(
                lora_rank=spec.rank, lora_alpha=spec.alpha, target_modules=spec.target_modules, exclude_modules=spec.exclude_modules
            )
        )
        for key, spec in SPECS.items()
    }
    rollout = RolloutConfig(name=name, max_num_seqs=16, dtype=dtype, gpu_memory_utilization=0.3)
    config = ActorRolloutRefConfig(model=ModelConfig(path=str(tmp_path / "model")), rollout=rollout)
    engine = build_engine(config, max_model_len=256, device="cuda", seed=0, adapters=adapters)
    plain = [request(140, 12, seed=seed, prompt_seed=7) for seed in range(5)]
    requests = [dataclasses.replace(req, adapter=who, request_id=f"{who}-{req.seed}") for req in plain for who in EVERYONE]
    try:
        engine.update_weights({key: p.detach() for key, p in tiny_model(0, HEAD_DIM).named_parameters()}, version=0)
        for version, model in enumerate((peft_model(0, head_dim=HEAD_DIM), peft_model(1, head_dim=HEAD_DIM)), start=1):
            for who in SPECS:
                engine.update_weights(tensors_of(model, who), adapter=who, version=version)
            found, expected = log_probs(rounded(model, dtype), requests, await all_of(engine, requests))
            if dtype == "fp32":
                assert (found - expected).abs().max() < 1e-4
            else:
                assert (found.exp() - expected.exp()).abs().mean() < 2e-2
    finally:
        engine.close()


@needs_gpus(1)
@pytest.mark.parametrize("level", ["full", "lora"])
@pytest.mark.parametrize("changes", [FP32, {}], ids=["fp32", "bf16"])
def test_two_steps_on_a_gpu_without_ray(train: Run, tmp_path: Path, changes: dict[str, Any], level: str) -> None:
    train({"agent.specialization": level} | GPU | changes)
    steps = [line for line in read_metrics(tmp_path / "run") if line["step"]]
    assert len(steps) == 2 and all(line["actor/grad_norm"] > 0 for line in steps)
    assert max(line["training/rollout_probs_diff_mean"] for line in steps) < (1e-4 if changes else 2e-2)


@needs_gpus(2)
@pytest.mark.ray
def test_an_engine_of_vllm_over_two_gpus(train: Run, tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    two = {"trainer.controller": "ray", "trainer.n_gpus_per_node": 2, "agent.specialization": "prompt"}
    train(two | GPU | {"actor_rollout_ref.rollout.name": "vllm", "actor_rollout_ref.rollout.tensor_model_parallel_size": 2})
    steps = [line for line in read_metrics(tmp_path / "run") if line["step"]]
    assert len(steps) == 2 and max(line["training/rollout_probs_diff_mean"] for line in steps) < 2e-2
