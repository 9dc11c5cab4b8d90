"""Worker and engine together: adapters are trained in the one and sampled in the other, and both agree on
every log-prob.
"""

import asyncio
from pathlib import Path

import pytest
import torch

from tests.workers.engine.builders import make_rows
from verl.protocol import DataProto
from verl.protocol.generate import GenerateRequest, Generation, SamplingParams
from verl.trainer.config import ActorConfig, ActorRolloutRefConfig, ModelConfig, OptimConfig, RolloutConfig
from verl.workers.policy_worker import PolicyWorker
from verl.workers.rollout.server import RolloutWorker


def config(model: Path, rank: int, lr: float = 1e-2, **actor: object) -> ActorRolloutRefConfig:
    return ActorRolloutRefConfig(
        model=ModelConfig(path=str(model), lora_rank=rank, lora_alpha=2 * rank),
        actor=ActorConfig(optim=OptimConfig(lr=lr), **actor),  # type: ignore[arg-type]
        rollout=RolloutConfig(max_num_seqs=8),
    )


def make_workers(model: Path) -> tuple[PolicyWorker, RolloutWorker]:
    """Three adapters; the loss of `loose` has another clip, and it another learning rate."""
    adapters = {
        "wide": config(model, 8),
        "narrow": config(model, 1),
        "loose": config(model, 2, lr=1e-3, clip_ratio_low=5.0, clip_ratio_high=5.0),
    }
    common = {"config": adapters["wide"], "adapters": adapters, "seed": 0, "device": "cpu", "num_threads": 1}
    policy = PolicyWorker(use_reference=True, **common)  # type: ignore[arg-type]
    policy.init_model()
    return policy, RolloutWorker(max_model_len=64, **common)  # type: ignore[arg-type]


async def sync(policy: PolicyWorker, rollout: RolloutWorker, version: int) -> None:
    """As the trainer does it."""
    for name in ("wide", "narrow", "loose"):
        bucket = policy.next_weights(True, name)
        while bucket is not None:
            following = policy.next_weights(False, name)
            await rollout.update_weights(bucket.handle, bucket.shapes, version, following is None, name)
            bucket = following


def batch_of(request: GenerateRequest, reply: Generation, adapter: str | None) -> DataProto:
    prompt, response = torch.tensor([request.prompt_ids]), torch.tensor([reply.token_ids])
    ids = torch.cat([prompt, response], dim=1)
    tensors = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "position_ids": torch.arange(ids.shape[1])[None],
        "responses": response,
        "response_mask": torch.ones_like(response),
    }
    return DataProto.from_dict(tensors=tensors, meta_info={"temperature": 1.0, "adapter": adapter})


def test_trainer_and_engine_agree_on_base_and_adapters_in_one_batch_before_and_after_an_update(
    tiny_model_dir: Path,
) -> None:
    policy, rollout = make_workers(tiny_model_dir)
    names = (None, "wide", "narrow", "loose")

    async def replies(version: int) -> list[float]:
        await sync(policy, rollout, version)
        requests = [
            GenerateRequest(tuple(range(40, 60)), SamplingParams(max_tokens=10), adapter=name, seed=seed)
            for seed in (0, 1)
            for name in names
        ]
        found = await asyncio.gather(*(rollout.generate(request) for request in requests))
        first = []
        for request, (reply,) in zip(requests, found, strict=True):
            batch = batch_of(request, reply, request.adapter or "wide")
            if request.adapter is None:
                trainer = policy.compute_ref_log_prob(batch).batch["ref_log_prob"][0]
            else:
                trainer = policy.compute_log_prob(batch).batch["old_log_probs"][0]
                assert reply.version == version
            assert (trainer - torch.tensor(reply.log_probs)).abs().max() < 1e-5
            first.append(reply.log_probs[0])
        return first

    async def run() -> None:
        await rollout.init_model()
        start = await replies(0)
        assert len(set(start[:4])) == 1, "adapters begin as their base"
        for name in ("wide", "narrow", "loose"):
            rows = make_rows(6)
            rows["advantages"] = torch.ones_like(rows["advantages"])
            for _ in range(3):
                policy.update_actor(
                    DataProto.from_dict(tensors=rows, meta_info={"temperature": 1.0, "adapter": name})
                )
        trained = await replies(1)
        assert trained[0] == start[0] and len(set(trained[:4])) == 4

    asyncio.run(run())


def test_each_adapter_has_its_own_learning_rate_clip_and_schedule(tiny_model_dir: Path) -> None:
    policy, _ = make_workers(tiny_model_dir)
    policy.set_total_training_steps(10)
    found = {}
    for name in ("wide", "loose"):
        data = DataProto.from_dict(
            tensors=make_rows(6), meta_info={"temperature": 1.0, "adapter": name, "num_mini_batches": 2}
        )
        found[name] = policy.update_actor(data).meta_info["metrics"]
    assert (found["wide"]["actor/lr"], found["loose"]["actor/lr"]) == (1e-2, 1e-3)
    assert found["loose"]["actor/pg_clipfrac"] == 0 < found["wide"]["actor/pg_clipfrac"]
    assert [adapter.steps for adapter in policy.engine.adapters.values()] == [2, 0, 2]


def test_one_call_for_several_adapters_is_one_call_for_each(tiny_model_dir: Path) -> None:
    """Log-probs under each adapter and under the base, and updates, at different temperatures."""
    (together, _), (single, _) = make_workers(tiny_model_dir), make_workers(tiny_model_dir)
    names = ("loose", "wide", "narrow")
    metas = [
        {"adapter": name, "temperature": temperature, "num_mini_batches": count}
        for name, temperature, count in zip(names, (0.8, 1.0, 1.3), (1, 2, 3), strict=True)
    ]
    rows, index = make_rows(12), torch.tensor([0, 1, 2, 0, 1, 2, 2, 2, 1, 0, 1, 2])

    def joint() -> DataProto:
        return DataProto.from_dict(tensors=rows | {"adapter_index": index}, meta_info={"adapters": metas})

    def alone(number: int) -> DataProto:
        own = {key: value[index == number] for key, value in rows.items()}
        return DataProto.from_dict(tensors=own, meta_info=metas[number])

    for _ in range(2):
        found = together.update_actor(joint()).meta_info["metrics"]
        scores, reference = together.compute_log_prob(joint()), together.compute_ref_log_prob(joint())
        assert list(found) == list(names)
        for number, name in enumerate(names):
            expected = single.update_actor(alone(number)).meta_info["metrics"]
            same = [key for key in expected if not key.startswith("perf/") and "shared" not in key]
            assert {key: found[name][key] for key in same} == pytest.approx(
                {key: expected[key] for key in same}, rel=1e-4, abs=1e-5
            )
            own = single.compute_log_prob(alone(number)).batch
            for key in ("old_log_probs", "entropys"):
                assert (scores.batch[key][index == number] - own[key]).abs().max() < 1e-4
            base = single.compute_ref_log_prob(alone(number)).batch["ref_log_prob"]
            assert (reference.batch["ref_log_prob"][index == number] - base).abs().max() < 1e-5
    assert [adapter.steps for adapter in together.engine.adapters.values()] == [4, 6, 2]
    together.engine.mixes_adapters = False
    assert (
        together.compute_log_prob(joint()).batch["entropys"] - scores.batch["entropys"]
    ).abs().max() < 1e-5
    assert list(together.update_actor(joint()).meta_info["metrics"]) == list(names)


def test_only_the_adapter_travels(tiny_model_dir: Path) -> None:
    policy, _ = make_workers(tiny_model_dir)
    bucket = policy.next_weights(True, "narrow")
    assert bucket is not None and len(bucket.shapes) == 28
    assert all(".lora_A." in name or ".lora_B." in name for name in bucket.shapes)
    assert policy.next_weights(False, "narrow") is None


def test_the_reference_of_an_adapter_is_its_base_and_no_second_model(tiny_model_dir: Path) -> None:
    policy, _ = make_workers(tiny_model_dir)
    batch = DataProto.from_dict(tensors=make_rows(4), meta_info={"temperature": 1.0, "adapter": "wide"})
    before = policy.compute_ref_log_prob(batch).batch["ref_log_prob"]
    assert torch.equal(before, policy.compute_log_prob(batch).batch["old_log_probs"])
    policy.update_actor(batch)
    assert torch.equal(policy.compute_ref_log_prob(batch).batch["ref_log_prob"], before)
    assert not torch.equal(policy.compute_log_prob(batch).batch["old_log_probs"], before)
    assert policy._reference is None


@pytest.mark.parametrize("adapter", [None, "planner"])
def test_a_batch_must_name_an_adapter_of_the_worker(tiny_model_dir: Path, adapter: str | None) -> None:
    policy, _ = make_workers(tiny_model_dir)
    with pytest.raises(ValueError, match=r"expected one of \['loose', 'narrow', 'wide'\]"):
        policy.compute_log_prob(
            DataProto.from_dict(tensors=make_rows(3), meta_info={"temperature": 1.0, "adapter": adapter})
        )
