"""Which policies wait for each other, and what runs at the same time."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, wait
from dataclasses import replace

import numpy as np
import pytest
import torch

from verl.protocol import DataProto
from verl.trainer.config import ActorRolloutRefConfig, AgentConfig, ModelConfig, RunConfig
from verl.trainer.config.algorithm import GAEConfig
from verl.trainer.plan.placement import build_placement
from verl.trainer.plan.registry import ESTIMATORS
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.asynchronous.lanes import Lanes, lanes_of
from verl.trainer.ppo.credit.advantage import compute_advantage


def lanes(
    algorithm: dict, specialization: object = "full", mode: str = "fully_async", tree: str = ""
) -> list[list[str]]:
    config = RunConfig()
    config.agent = AgentConfig(agent_ids=["a", "b", "c"], specialization=specialization)
    config.async_training.mode = mode
    config.algorithm = replace(config.algorithm, **algorithm)
    if tree:
        config.rollout.sampling, config.rollout.tree.returns = "tree", tree
    models = ActorRolloutRefConfig(model=ModelConfig(path="some/model", lora_rank=4))
    plan = RunPlan.of(config, build_placement(config.agent, models))
    return lanes_of(config.algorithm, config.async_training, plan)


ONE = [["a", "b", "c"]]
EACH = [["a"], ["b"], ["c"]]


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ({}, EACH),
        ({"group_by": ["traj_uid", "agent_id", "turn", "call"]}, EACH),
        ({"group_by": ["uid", "policy_id"], "adv_estimator": "rloo"}, EACH),
        ({"group_by": ["uid"]}, ONE),
        ({"group_by": ["uid"]}, ONE),
        ({"adv_estimator": "gae"}, EACH),
        ({"adv_estimator": "remax"}, EACH),
        ({"adv_estimator": "reinforce_plus_plus"}, EACH),
        ({"adv_estimator": "rae"}, ONE),
        ({"adv_estimator": "gpg"}, ONE),
        ({"adv_estimator": "reinforce_plus_plus_baseline"}, ONE),
        ({"adv_estimator": "m_grpo"}, ONE),
        ({"per_agent": {"a": {"adv_estimator": "rae"}}}, ONE),
        ({"per_agent": {"a": {"group_by": ["uid"]}, "c": {"group_by": ["uid"]}}}, [["a", "c"], ["b"]]),
    ],
    ids=str,
)
def test_policies_share_a_lane_if_their_advantages_may_depend_on_each_other(
    algorithm: dict, expected: list[list[str]]
) -> None:
    assert lanes(algorithm) == expected


APART = [
    "gae",
    "grpo",
    "grpo_passk",
    "opo",
    "optimal_token_baseline",
    "reinforce_plus_plus",
    "remax",
    "rloo",
    "tir_optimal_token_baseline",
]


def test_advantages_of_policies_in_lanes_of_their_own_are_those_of_the_whole_batch_to_the_bit() -> None:
    names = [name for name in ESTIMATORS.names() if lanes({"adv_estimator": name}) == EACH]
    assert set(APART) <= set(names)
    rng, size, width = np.random.default_rng(0), 72, 9
    columns = {
        "uid": [f"task{i // 9 % 4}" for i in range(size)],
        "traj_uid": [f"episode{i // 3 % 12}" for i in range(size)],
    }
    columns |= {name: ["abc"[i % 3] for i in range(size)] for name in ("agent_id", "policy_id", "wg_id")}
    numbers = {
        "turn": np.arange(size) // 36,
        "reward": rng.normal(size=size),
        "reward_baselines": rng.normal(size=size),
    }
    mask = torch.as_tensor(rng.integers(1, width + 1, size)[:, None] > np.arange(width))
    given = {
        name: torch.as_tensor(rng.normal(size=(size, width)), dtype=torch.float32)
        for name in ("values", "old_log_probs")
    }
    given |= {
        "response_mask": mask.long(),
        "token_level_rewards": torch.where(mask, given["values"].roll(1, 0), 0.0),
    }
    given |= {
        "sum_pi_squared": given["old_log_probs"].exp() / 9,
        "rollout_is_weights": torch.ones(size, width),
    }
    whole = DataProto.from_dict(
        given, {name: np.array(values, dtype=object) for name, values in columns.items()} | numbers
    )
    for name in names:
        for weighting in ("sample", "trajectory"):
            level = GAEConfig("turn" if weighting == "trajectory" else "token")
            config = replace(RunConfig().algorithm, adv_estimator=name, call_weighting=weighting, gae=level)
            expected = compute_advantage(
                whole.select_idxs(np.arange(size)), name, 0.9, 0.8, 3, config=config
            ).batch
            for policy in "abc":
                rows = np.flatnonzero(whole.non_tensor_batch["policy_id"] == policy)
                found = compute_advantage(whole.select_idxs(rows), name, 0.9, 0.8, 3, config=config).batch
                assert found["advantages"].any()
                for field in {"advantages", "returns", "row_weights"} & set(expected.keys()):
                    assert torch.equal(found[field], expected[field][rows]), (name, weighting, policy, field)


def test_adapters_of_one_base_take_turns_in_one_lane() -> None:
    shared = lanes({}, "lora")
    assert len(shared) == 1 and len(shared[0]) == 3
    assert sorted(map(len, lanes({}, ["lora", "full", "lora"]))) == [1, 2]


def test_other_modes_and_returns_along_a_tree_have_one_lane() -> None:
    assert lanes({}, mode="sync") == lanes({}, mode="one_step_off") == lanes({}, tree="committed") == ONE
    assert lanes({}, tree="step") == EACH


def test_a_lane_goes_on_while_another_one_works() -> None:
    """Long and short updates take turns: the long one of each step ends after the other lane has begun its
    next job, or its own.
    """
    running, begun, ends = (
        Lanes(2, 1),
        {name: threading.Event() for name in ("a1", "b1", "a2", "b2")},
        dict[str, float](),
    )

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
    assert since <= running.idle_seconds(start) <= time.perf_counter() - max(ends.values()), (
        "only the time since the last job ended"
    )


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
