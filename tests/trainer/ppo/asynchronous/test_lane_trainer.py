"""What the lanes of a step do together: rows and metrics as without lanes, and which step all policies have
completed after an error.
"""

import threading
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from verl.protocol import DataProto
from verl.protocol.generate import EngineGoneError
from verl.trainer.config import ActorRolloutRefConfig, AgentConfig, ModelConfig, RunConfig
from verl.trainer.plan.placement import build_placement
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.asynchronous.lane_trainer import LaneTrainer, OpenStep, _whole
from verl.trainer.ppo.batching import SubBatch
from verl.trainer.ppo.collect.step_samples import StepSamples
from verl.trainer.ppo.group_calls import TeamError
from verl.trainer.ppo.train_step import StepTrainer

FAILS = (("a", 3),)


class Team:
    """Policies a and b; a's update of step 3 fails.

    Args:
        waits: what an update (policy, step) waits for: that another one `begins` or `ends`.
    """

    uses_critic = False

    def __init__(self, waits: Mapping[tuple[str, int], tuple[str, str, int]] | None = None) -> None:
        learners = {name: SimpleNamespace(wg_id=name, updates=1) for name in "ab"}
        self.learners, self.engines, self.lost, self.log = learners, self, "", list[tuple[str, int]]()
        self.begun: list[tuple[str, int, list[tuple[str, int]]]] = []  # policy, step, and what had ended then
        self.waits, self.events, self.happened = (
            waits or {},
            set[tuple[str, str, int]](),
            threading.Condition(),
        )

    def update_actor(
        self, batch: DataProto, on_policy: bool, step: int, seed: Any, updated: Any
    ) -> dict[str, float]:
        policy = batch.non_tensor_batch["policy_id"][0]
        self.begun.append((policy, step + 1, list(self.log)))
        self.happens("begins", policy, step + 1)
        if awaited := self.waits.get((policy, step + 1)):
            with self.happened:
                assert self.happened.wait_for(lambda: awaited in self.events, 60), (
                    f"{(policy, step + 1)} waits for {awaited}"
                )
        if (policy, step + 1) in FAILS:
            raise RuntimeError("out of memory")
        self.log.append((policy, step + 1))
        self.happens("ends", policy, step + 1)
        updated(policy)
        value = float(ord(policy))
        return {"actor/loss": value, f"wg/{policy}/actor/loss": value, f"agent/{policy}/loss": value}

    def happens(self, *event: Any) -> None:
        with self.happened:
            self.events.add(event)
            self.happened.notify_all()

    def sync_weights(self, version: int, policies: list[str]) -> None:
        self.log += [(policy, -version) for policy in policies]

    def publish(self, policy: str) -> None:
        if policy == self.lost:
            raise EngineGoneError("killed")


def lane_trainer(team: Team, specialization: str | list[str] = "full") -> LaneTrainer:
    config = RunConfig()
    config.agent = AgentConfig(agent_ids=["a", "b"], specialization=specialization)
    config.async_training.mode = "fully_async"
    models = ActorRolloutRefConfig(model=ModelConfig(path="some/model", lora_rank=4))
    plan = RunPlan.of(config, build_placement(config.agent, models))
    steps = StepTrainer(config, plan, team)  # type: ignore[arg-type]
    steps.credit.score = lambda batch, timer, version: (batch, {})  # type: ignore[method-assign]
    source: Any = SimpleNamespace(
        wants=lambda step, policy: True, update_ended=lambda *_: None, published=lambda *_: None
    )
    return LaneTrainer(config.algorithm, config.async_training, plan, steps, source)


def begin(trainer: LaneTrainer, number: int, policies: str = "abba") -> OpenStep:
    batch = DataProto.from_dict(
        {"row": torch.arange(len(policies))[:, None]}, {"policy_id": np.array(list(policies), dtype=object)}
    )
    rows, lanes = trainer.start(number, batch, False)
    return OpenStep(
        number=number,
        samples=StepSamples(batch, [], {}, 0),
        meets=False,
        rows=rows,
        lanes=lanes,
        began=0.0,
        gen_s=0.0,
        idle_s=0.0,
        generated_tokens=0,
    )


def test_a_fast_policy_goes_on_and_results_are_those_of_the_whole_team() -> None:
    """Each policy has a long update: that of a in step 1, that of b in step 2, beside which the other one
    goes on.
    """
    trainer = lane_trainer(team := Team({("a", 1): ("begins", "b", 2), ("b", 2): ("begins", "a", 2)}))
    opened = [begin(trainer, 1), begin(trainer, 2)]
    results = [trainer.result(step) for step in opened]
    assert ("b", 2, [("b", 1)]) in team.begun, (
        "the fast policy begins step 2 while the other one is in step 1"
    )
    assert ("a", 2, [("b", 1), ("a", 1)]) in team.begun
    for result in results:
        assert result.batch is not None and result.batch.batch["row"].flatten().tolist() == [0, 1, 2, 3]
        assert result.metrics["actor/loss"] == (ord("a") + ord("b")) / 2 and result.metrics[
            "agent/b/loss"
        ] == ord("b")
    assert trainer.completed([], 0) == 2
    alone = trainer.result(begin(trainer, 4, "bb"))
    assert team.log[-2:] in ([("b", 4), ("a", -4)], [("a", -4), ("b", 4)]), (
        "the weights of a are sent with their new version"
    )
    assert alone.batch is not None and len(alone.batch) == 2 and "agent/a/loss" not in alone.metrics
    assert trainer.completed([], 0) == 4, "a policy without samples has completed the step, too"


def test_metrics_of_critics_are_those_of_their_worker_groups() -> None:
    """Policy a is an adapter, so that its critic has the name of its base."""
    trainer = lane_trainer(Team(), ["lora", "full"])
    losses = {"a": ("model_lora", 3.0), "b": ("b", 6.0)}

    def update(batch: DataProto, *_: Any) -> dict[str, float]:
        group, loss = losses[batch.non_tensor_batch["policy_id"][0]]
        return {"critic/vf_loss": loss, f"wg/{group}/critic/vf_loss": loss}

    trainer.steps.update = update  # type: ignore[method-assign]
    assert trainer.result(begin(trainer, 1)).metrics["critic/vf_loss"] == 4.5


def test_after_an_error_in_an_update_no_step_is_common_to_all() -> None:
    trainer = lane_trainer(Team({("a", 3): ("ends", "b", 3)}))
    trainer.result(begin(trainer, 2))
    failed = begin(trainer, 3)
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.result(failed)
    assert trainer.completed([failed], 2) is None


def test_a_policy_without_samples_is_in_no_later_step_than_the_others() -> None:
    trainer = lane_trainer(Team())
    trainer.result(begin(trainer, 1))

    def score(*_: Any) -> Any:
        time.sleep(0.2)  # the other lane, which has nothing to do, has ended
        raise TimeoutError("log-probs of step 2")

    trainer.steps.credit.score = score  # type: ignore[method-assign]
    failed = begin(trainer, 2, "aa")
    with pytest.raises(TimeoutError):
        trainer.result(failed)
    assert trainer.completed([failed], 1) == 1


def test_an_error_while_weights_are_sent_leaves_a_completed_step() -> None:
    # else the error of b may come before a begins
    trainer = lane_trainer(team := Team({("b", 1): ("begins", "a", 1)}))
    team.lost = "b"
    failed = begin(trainer, 1)
    with pytest.raises(TeamError, match="worker group 'b': killed"):
        trainer.result(failed)
    assert trainer.completed([failed], 0) == 1


def test_what_estimators_of_one_lane_set_is_recorded() -> None:
    def part(rows: list[int], **columns: torch.Tensor) -> SubBatch:
        tensors = {"advantages": torch.ones(len(rows), 2), **columns}
        return SubBatch(DataProto.from_dict(tensors=tensors), np.array(rows))

    weights = torch.tensor([0.5, 2.0])
    averages = torch.tensor([0.25], dtype=torch.float64)
    batch = _whole({"0": part([0, 2], row_weights=weights), "1": part([1], moving_average=averages)}).batch
    assert batch["row_weights"].tolist() == [0.5, 1.0, 2.0]
    assert batch["moving_average"].isnan().tolist() == [True, False, True]
    assert "row_weights" not in set(_whole({"0": part([0]), "1": part([1])}).batch.keys())
