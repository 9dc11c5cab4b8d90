"""Three training steps with every registered loss: all numbers finite, and the parameters move."""

import math
from pathlib import Path

import pytest
import torch

from tests.workers.engine.builders import loss_settings, make_rows
from verl.protocol import DataProto
from verl.trainer.config import ActorRolloutRefConfig, ModelConfig, OptimConfig
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.workers.policy_worker import PolicyWorker


@pytest.mark.parametrize(
    "name", sorted(name for name, fn in POLICY_LOSS_REGISTRY.items() if fn.__module__.startswith("verl."))
)
def test_three_steps_of_training(tiny_model_dir: Path, name: str) -> None:
    actor, plan = loss_settings(name)
    actor.optim = OptimConfig(lr=1e-3)
    actor.grad_clip = 1.0
    config = ActorRolloutRefConfig(model=ModelConfig(path=str(tiny_model_dir)), actor=actor)
    worker = PolicyWorker(config, use_reference=False, seed=0, device="cpu", num_threads=1)
    worker.init_model()
    digests = {worker.state_digest()}
    for step in range(3):
        batch = DataProto.from_dict(tensors=make_rows(6, seed=step), meta_info={"temperature": 0.8})
        batch.batch["old_log_probs"] = worker.compute_log_prob(batch).batch["old_log_probs"] + 0.05
        batch.batch["rollout_log_probs"] = batch.batch["old_log_probs"] - 0.1 * torch.rand(6, 1)
        batch.meta_info |= {"num_mini_batches": 2, "rollout_correction": plan.rollout_correction}
        metrics = worker.update_actor(batch).meta_info["metrics"]
        assert all(math.isfinite(value) for value in metrics.values()), metrics
        assert metrics["actor/skipped_steps"] == 0.0 and metrics["actor/grad_norm"] > 0.0
        digests.add(worker.state_digest())
    assert len(digests) == 4, "every step moves the parameters"
