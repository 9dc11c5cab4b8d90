"""What credit carries from step to step survives a checkpoint."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from verl.protocol import DataProto
from verl.trainer.config import AlgorithmConfig, RunConfig
from verl.trainer.ppo.credit import CreditAssigner
from verl.utils.timer import Timer

TEAM: Any = SimpleNamespace(uses_reference=False, uses_critic=False)


def batch(rewards: list[float]) -> DataProto:
    mask = torch.ones(len(rewards), 2, dtype=torch.long)
    columns = {
        "uid": ["t"] * len(rewards), "traj_uid": [str(i) for i in range(len(rewards))], "agent_id": ["A", "B"] * (len(rewards) // 2),
        "reward": rewards, "version": [0] * len(rewards), "turn": [1] * len(rewards), "call": [0] * len(rewards),
    }  # fmt: skip
    tensors = {"response_mask": mask, "responses": mask, "rollout_log_probs": -mask.float()}
    return DataProto.from_dict(tensors=tensors, non_tensors={k: np.array(v, dtype=object) for k, v in columns.items()})


def test_moving_averages_go_on_from_a_checkpoint_to_the_bit() -> None:
    config = RunConfig(algorithm=AlgorithmConfig(adv_estimator="rae"))
    through, before, after = (CreditAssigner(config, TEAM, on_policy=True) for _ in range(3))
    steps = [[1.0, 0.0, 0.5, 2.0], [3.0, 1.0, 0.0, 0.0]]
    whole = [through.score(batch(rewards), Timer(), i)[0].batch["advantages"] for i, rewards in enumerate(steps)]
    before.score(batch(steps[0]), Timer(), 0)
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert after.estimator_state["rae"], "the averages are there before the next step"
    assert torch.equal(after.score(batch(steps[1]), Timer(), 1)[0].batch["advantages"], whole[1])
    fresh = CreditAssigner(config, TEAM, on_policy=True)
    assert not torch.equal(fresh.score(batch(steps[1]), Timer(), 1)[0].batch["advantages"], whole[1])
