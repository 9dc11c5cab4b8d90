"""What the lanes of a step do together: rows and metrics as without lanes, and which step all policies have completed after an error."""

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from verl.protocol import DataProto
from verl.protocol.generate import EngineGoneError
from verl.trainer.config import ActorRolloutRefConfig, AgentConfig, ModelConfig, RunConfig
from verl.trainer.placement.table import build_placement
from verl.trainer.ppo.collect.step_samples import StepSamples
from verl.trainer.ppo.group_calls import TeamError
from verl.trainer.ppo.train_step import OpenStep, StepTrainer

FAILS = (("a", 3),)


class Team:
    """Policies a and b, which are updated for different times; a's update of step 3 fails."""

    uses_critic = False

    def __init__(self) -> None:
        learners = {name: SimpleNamespace(wg_id=name, updates=1) for name in "ab"}
        self.learners, self.engines, self.lost, self.log = learners, self, "", list[tuple[str, int]]()
        self.begun: list[tuple[str, int, list[tuple[str, int]]]] = []  # policy, step, and what had ended then

    def update_actor(self, batch: DataProto, on_policy: bool, step: int, seed: Any, updated: Any) -> dict[str, float]:
        policy = batch.non_tensor_batch["policy_id"][0]
        self.begun.append((policy, step + 1, list(self.log)))
        time.sleep(0.2 if (policy == "a") == (step % 2 == 0) else 0.02)
        if (policy, step + 1) in FAILS:
            raise RuntimeError("out of memory")
        self.log.append((policy, step + 1))
        updated(policy)
        value = float(ord(policy))
        return {"actor/loss": value, f"wg/{policy}/actor/loss": value, f"agent/{policy}/loss": value}

    def sync_weights(self, version: int, policies: list[str]) -> None:
        self.log += [(policy, -version) for policy in policies]

    def publish(self, policy: str) -> None:
        if policy == self.lost:
            raise EngineGoneError("killed")


def trainer(team: Team) -> StepTrainer:
    config = RunConfig()
    config.agent, config.async_training.mode = AgentConfig(agent_ids=["a", "b"], specialization="full"), "fully_async"
    steps = StepTrainer(config, build_placement(config.agent, ActorRolloutRefConfig(model=ModelConfig(path="some/model"))), team)  # type: ignore[arg-type]
    steps.credit.score = lambda batch, timer, version: (batch, {})  # type: ignore[method-assign]
    return steps


def begin(steps: StepTrainer, number: int, policies: str = "abba") -> OpenStep:
    batch = DataProto.from_dict({"row": torch.arange(len(policies))[:, None]}, {"policy_id": np.array(list(policies), dtype=object)})
    source = SimpleNamespace(wants=lambda step, policy: True, update_ended=lambda *_: None, published=lambda *_: None)
    rows, lanes = steps.start(source, number, batch, False)  # type: ignore[arg-type]
    return OpenStep(number, StepSamples(batch, [], {}, 0), False, rows, lanes, 0.0, {}, 0)


def test_a_fast_policy_goes_on_and_results_are_those_of_the_whole_team() -> None:
    steps, start = trainer(team := Team()), time.perf_counter()
    opened = [begin(steps, 1), begin(steps, 2)]
    results = [steps.result(step) for step in opened]
    assert time.perf_counter() - start < 0.38, "two steps of 0.2 s that wait for each other"
    assert ("b", 2, [("b", 1)]) in team.begun, "the fast policy begins step 2 while the other one is in step 1"
    assert ("a", 2, [("b", 1), ("a", 1)]) in team.begun
    for result in results:
        assert result.batch is not None and result.batch.batch["row"].flatten().tolist() == [0, 1, 2, 3]
        assert result.metrics["actor/loss"] == (ord("a") + ord("b")) / 2 and result.metrics["agent/b/loss"] == ord("b")
    assert steps.completed([], 0) == 2
    alone = steps.result(begin(steps, 4, "bb"))
    assert team.log[-2:] in ([("b", 4), ("a", -4)], [("a", -4), ("b", 4)]), "the weights of a are sent with their new version"
    assert alone.batch is not None and len(alone.batch) == 2 and "agent/a/loss" not in alone.metrics
    assert steps.completed([], 0) == 4, "a policy without samples has completed the step, too"


def test_after_an_error_in_an_update_no_step_is_common_to_all() -> None:
    steps = trainer(Team())
    steps.result(begin(steps, 2))
    failed = begin(steps, 3)
    with pytest.raises(RuntimeError, match="out of memory"):
        steps.result(failed)
    assert steps.completed([failed], 2) is None


def test_a_policy_without_samples_is_in_no_later_step_than_the_others() -> None:
    steps = trainer(Team())
    steps.result(begin(steps, 1))

    def score(*_: Any) -> Any:
        time.sleep(0.2)
        raise TimeoutError("log-probs of step 2")

    steps.credit.score = score  # type: ignore[method-assign]
    failed = begin(steps, 2, "aa")
    with pytest.raises(TimeoutError):
        steps.result(failed)
    assert steps.completed([failed], 1) == 1


def test_an_error_while_weights_are_sent_leaves_a_completed_step() -> None:
    steps = trainer(team := Team())
    team.lost = "b"
    failed = begin(steps, 1)
    with pytest.raises(TeamError, match="worker group 'b': killed"):
        steps.result(failed)
    assert steps.completed([failed], 0) == 1
