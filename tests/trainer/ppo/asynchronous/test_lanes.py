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


def test_a_lane_goes_on_while_another_one_works() -> None:
    """Long and short updates take turns: the long one of each step ends after the other lane has begun its next job, or its own."""
    running, begun, ends = Lanes(2, 1), {name: threading.Event() for name in ("a1", "b1", "a2", "b2")}, dict[str, float]()

    def job(name: str, awaited: str) -> Callable[[], str]:
        def work() -> str:
            begun[name].set()
            assert begun[awaited].wait(60)
            ends[name] = time.perf_counter()
            return name

        return work

    start = time.perf_counter()
    first = running.start([job("a1", "b2"), job("b1", "b1")])
    assert running.lead == 1 and running.idle_seconds(start) == 0
    second = running.start([job("a2", "a2"), job("b2", "a2")])
    wait([*first, *second])
    ended = time.perf_counter()
    assert [job.result() for job in (*first, *second)] == ["a1", "b1", "a2", "b2"]
    assert list(ends)[:2] == ["b1", "a1"]
    since = time.perf_counter() - ended
    assert since <= running.idle_seconds(start) <= time.perf_counter() - max(ends.values()), "only the time since the last job ended"


def test_after_an_error_no_lane_begins_another_job() -> None:
    running, began, started = Lanes(2, 1), threading.Event(), threading.Event()

    def fails() -> None:
        assert began.wait(60)
        raise ValueError("lost")

    def works() -> None:
        began.set()
        assert started.wait(60) and wait(first[:1], 60).done

    first = running.start([fails, works])
    second = running.start([lambda: None, lambda: None])
    started.set()
    wait([*first, *second])
    assert isinstance(first[0].exception(), ValueError) and first[1].exception() is None
    assert all(isinstance(job.exception(), CancelledError) for job in second)
    alone = Lanes(1, 3)
    assert alone.lead == 0 and alone.start([threading.current_thread])[0].result() is threading.main_thread()
