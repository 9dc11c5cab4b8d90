"""Which policies wait for each other, and what runs at the same time."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, wait
from dataclasses import replace

import pytest

from verl.trainer.config import ActorRolloutRefConfig, AgentConfig, ModelConfig, RunConfig
from verl.trainer.placement.table import build_placement
from verl.trainer.ppo.asynchronous.lanes import Lanes, lanes_of


def lanes(algorithm: dict, specialization: object = "full", mode: str = "fully_async", tree: str = "") -> list[list[str]]:
    config = RunConfig()
    config.agent = AgentConfig(agent_ids=["a", "b", "c"], specialization=specialization)
    config.async_training.mode = mode
    config.algorithm = replace(config.algorithm, **algorithm)
    if tree:
        config.rollout.sampling, config.rollout.tree.returns = "tree", tree
    return lanes_of(config, build_placement(config.agent, ActorRolloutRefConfig(model=ModelConfig(path="some/model", lora_rank=4))))


ONE = [["a", "b", "c"]]
EACH = [["a"], ["b"], ["c"]]


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ({}, EACH),
        ({"group_by": ["traj_uid", "agent_id", "turn", "call"]}, EACH),
        ({"group_by": ["uid", "policy_id"], "adv_estimator": "rloo"}, EACH),
        ({"group_by": ["uid"]}, ONE),
        ({"group_by_agent_id": False}, ONE),
        ({"adv_estimator": "gae"}, ONE),
        ({"adv_estimator": "remax"}, ONE),
        ({"adv_estimator": "reinforce_plus_plus_baseline"}, ONE),
        ({"adv_estimator": "m_grpo"}, ONE),
        ({"per_agent": {"a": {"adv_estimator": "rae"}}}, ONE),
        ({"per_agent": {"a": {"group_by": ["uid"]}, "c": {"group_by": ["uid"]}}}, [["a", "c"], ["b"]]),
    ],
    ids=str,
)
def test_policies_share_a_lane_if_their_advantages_may_depend_on_each_other(algorithm: dict, expected: list[list[str]]) -> None:
    assert lanes(algorithm) == expected


def test_adapters_of_one_base_take_turns_in_one_lane() -> None:
    shared = lanes({}, "lora")
    assert len(shared) == 1 and len(shared[0]) == 3
    assert sorted(map(len, lanes({}, ["lora", "full", "lora"]))) == [1, 2]


def test_other_modes_and_returns_along_a_tree_have_one_lane() -> None:
    assert lanes({}, mode="sync") == lanes({}, mode="one_step_off") == lanes({}, tree="committed") == ONE
    assert lanes({}, tree="step") == EACH


def sleeper(seconds: float, log: list[str], name: str) -> Callable[[], str]:
    def work() -> str:
        time.sleep(seconds)
        log.append(name)
        return name

    return work


def test_a_lane_goes_on_while_another_one_works() -> None:
    """Short and long updates take turns: each lane needs 0.6 s for two steps, with a barrier after each they need 1.0 s."""
    running, log, start = Lanes(2, 1), list[str](), time.perf_counter()
    first = running.start([sleeper(0.5, log, "a1"), sleeper(0.1, log, "b1")])
    second = running.start([sleeper(0.1, log, "a2"), sleeper(0.5, log, "b2")])
    assert running.lead == 1 and running.idle_seconds(start) == 0
    wait([*first, *second])
    took = time.perf_counter() - start
    assert 0.6 <= took < 0.9
    assert [job.result() for job in (*first, *second)] == ["a1", "b1", "a2", "b2"]
    assert log.index("b1") == 0 and log.index("a1") < log.index("a2")
    time.sleep(0.05)
    assert 0.05 <= running.idle_seconds(start) < 0.3, "only the time since the last job ended"


def test_after_an_error_no_lane_begins_another_job() -> None:
    running, began = Lanes(2, 1), threading.Event()

    def fails() -> None:
        assert began.wait(5)
        raise ValueError("lost")

    def works() -> None:
        began.set()
        time.sleep(0.1)

    first = running.start([fails, works])
    second = running.start([lambda: None, lambda: None])
    wait([*first, *second])
    assert isinstance(first[0].exception(), ValueError) and first[1].exception() is None
    assert all(isinstance(job.exception(), CancelledError) for job in second)
    alone = Lanes(1, 3)
    assert alone.lead == 0 and alone.start([threading.current_thread])[0].result() is threading.main_thread()
