"""What credit carries from step to step survives a checkpoint."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.plans import plan_of
from verl.protocol import DataProto
from verl.trainer.checkpoint.store import CheckpointStore
from verl.trainer.config import AlgorithmConfig, RunConfig
from verl.trainer.config.reward import PropagationConfig
from verl.trainer.ppo.credit.adaptive_theta import ACCURACY, AdaptiveTheta
from verl.trainer.ppo.credit.step_credit import CreditAssigner
from verl.trainer.ppo.validation import ValidationResult
from verl.trainer.ppo.validator import Validator
from verl.utils.timer import Timer

TEAM: Any = SimpleNamespace(uses_reference=False, uses_critic=False)


def batch(rewards: list[float]) -> DataProto:
    mask = torch.ones(len(rewards), 2, dtype=torch.long)
    columns = {
        "uid": ["t"] * len(rewards), "traj_uid": [str(i) for i in range(len(rewards))],
        "agent_id": ["A", "B"] * (len(rewards) // 2),
        "reward": rewards, "version": [0] * len(rewards), "turn": [1] * len(rewards),
        "call": [0] * len(rewards),
    }  # fmt: skip
    tensors = {"response_mask": mask, "responses": mask, "rollout_log_probs": -mask.float()}
    return DataProto.from_dict(
        tensors=tensors, non_tensors={k: np.array(v, dtype=object) for k, v in columns.items()}
    )


def test_moving_averages_go_on_from_a_checkpoint_to_the_bit() -> None:
    config = RunConfig(algorithm=AlgorithmConfig(adv_estimator="rae"))
    through, before, after = (CreditAssigner(config, plan_of(config), TEAM) for _ in range(3))
    steps = [[1.0, 0.0, 0.5, 2.0], [3.0, 1.0, 0.0, 0.0]]
    whole = [
        through.score(batch(rewards), Timer(), i)[0].batch["advantages"] for i, rewards in enumerate(steps)
    ]
    before.score(batch(steps[0]), Timer(), 0)
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert after.estimator_state["rae"], "the averages are there before the next step"
    assert torch.equal(after.score(batch(steps[1]), Timer(), 1)[0].batch["advantages"], whole[1])
    fresh = CreditAssigner(config, plan_of(config), TEAM)
    assert not torch.equal(fresh.score(batch(steps[1]), Timer(), 1)[0].batch["advantages"], whole[1])


@pytest.mark.parametrize(
    ("accuracies", "thetas"),
    [
        ([0.60, 0.58, 0.56, 0.60], [0.5, 0.5, 0.4, 0.4]),  # 0.58 is 3 % below the best, 0.56 is 7 %
        # a fall counts once; 0 at least
        (
            [0.60, 0.30, 0.30, 0.20, 0.10, 0.05, 0.01, 0.0],
            [0.5, 0.4, 0.4, 0.3, 0.2, 0.1, 0.0, 0.0],
        ),
        ([0.60, 0.59, 0.58, 0.57, 0.56], [0.5, 0.5, 0.5, 0.4, 0.4]),
        ([0.60, 0.59, 0.585, 0.58, 0.565], [0.5] * 5),  # 0.60 has left the window of three
        ([0.12, 0.114], [0.5, 0.4]),  # 5 %, but 0.12 * 0.95 is less than 0.114 in floats
        ([0.0, 0.0], [0.5, 0.5]),
    ],
)
def test_theta_falls_by_a_step_when_validation_accuracy_falls_by_a_share(
    accuracies: list[float], thetas: list[float]
) -> None:
    config = RunConfig()
    config.reward.propagation = PropagationConfig(mode="threshold", theta=0.5, theta_step=0.1)
    for stop in range(len(accuracies)):  # with a checkpoint between any two validations
        found, theta = [], AdaptiveTheta(config.reward.propagation)
        for number, accuracy in enumerate(accuracies):
            theta.update({"val/episodes": 1.0, ACCURACY: accuracy})
            found.append(theta.value)
            if number == stop:
                before, after = (CreditAssigner(config, plan_of(config), TEAM) for _ in range(2))
                before.theta = theta
                after.load_state_dict(json.loads(json.dumps(before.state_dict())))
                theta = after.theta
        assert found == pytest.approx(thetas)


def test_theta_stays_without_a_step_without_a_success_rate_and_with_an_older_checkpoint() -> None:
    fixed, adapts = (
        AdaptiveTheta(PropagationConfig(theta=0.5)),
        AdaptiveTheta(PropagationConfig(theta=0.5, theta_step=0.1)),
    )
    for metrics in ({ACCURACY: 0.6}, {ACCURACY: 0.1}):
        fixed.update(metrics)
        adapts.update({"val/episodes": 1.0})
    assert (fixed.value, fixed.state_dict(), adapts.value) == (0.5, {}, 0.5)
    assigner = CreditAssigner(RunConfig(), plan_of(RunConfig()), TEAM)
    assigner.load_state_dict({"kl_coef": {}, "estimators": {}})
    assert assigner.theta.value == 0.5


def test_a_validation_reaches_the_collector_and_the_checkpoint_that_was_written_before_it(
    tmp_path: Path,
) -> None:
    config = RunConfig()
    config.reward.propagation = PropagationConfig(mode="threshold", theta_step=0.1)
    told: list[float] = []
    store = CheckpointStore(tmp_path)
    credit = CreditAssigner(config, plan_of(config), TEAM)
    checkpointer: Any = SimpleNamespace(credit=credit, amend=partial(store.amend, 4))
    unused: Any = None
    validator = Validator(
        config=config,
        dataset=unused,
        collector=SimpleNamespace(set_theta=told.append),  # type: ignore[arg-type]
        thread=unused,
        source=unused,
        report=unused,
        progress=unused,
        checkpointer=checkpointer,
    )
    store.write(4, lambda folder: None, {"global_step": 4, "credit": credit.state_dict()}, keep=0)
    for accuracy in (0.6, 0.5):
        validator.adapt_theta(ValidationResult({ACCURACY: accuracy}, {}))
    state = json.loads((store.path(4) / "trainer_state.json").read_text())
    assert told == [0.5, 0.4] and state["global_step"] == 4
    assert state["credit"]["theta"] == {"value": 0.4, "accuracies": [0.5]}
